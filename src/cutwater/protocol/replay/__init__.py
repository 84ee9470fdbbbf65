"""Catching up: a member learns the entries of a log that it missed, from many peers at once.

What is believed (`pieces.py`)
- The store's word, and nothing else. It is a hash at a place: the target, hashes read on the way
  (`AnchorAt`), and entries read from the store itself.
- An entry whose hash is vouched for vouches, by its `prev`, for the entry before it. So a piece that does
  not end in the hash that must stand there was made up by whoever sent it.
- Only proven entries are delivered. The first proven one must follow this member's own last entry.

How it goes on (`schedule.py`, `sources.py`)
- Each peer has at most one request in flight, and all pieces in flight or kept are disjoint. The lowest
  missing piece has precedence over room: higher pieces are let go for it. The leader is asked last.
- When `anchor_bytes` stand in a row behind what was delivered, or there is no room, the store is asked
  for the hash of the last of them. So memory is bounded by the configuration and not by the log.
- The store serves the lowest missing piece when no peer that is in good standing does.
- Whoever fails (silent, empty, wrong) is left alone for a time that doubles; whoever made something up is
  not asked again. When the store and every peer have failed too often, so has the session.

The caller's duties (`session.py`)
1. Read the target from the store *after* the own last entry was taken. Call `tick` to begin, and again at
   `next_tick_ms` at the latest; perform the actions of every call in order.
2. Answer a request of the store from what stands at or above the newest SNAPSHOT. If the place lies below
   it, answer with that SNAPSHOT (`on_snapshot`): what stands below it means nothing.

`messages.py` has the words between a session and its caller, `base/replay_wire.py` those between members;
`provider.py` is the side that serves.
"""

from cutwater.protocol.replay.messages import ReplayPhase
from cutwater.protocol.replay.session import ReplaySession

__all__ = ["ReplayPhase", "ReplaySession"]
