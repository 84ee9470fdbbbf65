"""Catching up: a member learns the entries of a log that it missed, from many peers at once.

Trust (`pieces.py`)
- Only the store is trusted. It gives the hash of an entry: the target, hashes read on the way (`AnchorAt`),
  and entries read from the store itself.
- A trusted entry proves the entry before it, by its `prev`. So a piece that does not end in the expected
  hash was forged by its sender.
- Only proven entries are delivered. The first one must follow this member's own last entry.

Scheduling (`schedule.py`, `sources.py`)
- Each peer has at most one request in flight, and all pieces, requested or buffered, are disjoint. If the
  buffer is full, higher pieces are dropped for the lowest missing one. The leader is asked last.
- When `anchor_bytes` are buffered in a row after the last delivered entry, or the buffer is full, the store
  is asked for the hash of the last of them. So memory is bounded by the configuration, not by the log.
- The store serves the lowest missing piece when no healthy peer does.
- A source that fails (no answer, an empty or a wrong one) is retried after a delay that doubles; a forger is
  not asked again. The session fails when the store and every peer have failed too often.

The caller's duties (`session.py`)
1. Read the target from the store *after* determining the own last entry. Call `tick` to begin, and again at
   `next_tick_ms` at the latest; perform the actions of every call in order.
2. Answer a request to the store with entries at or above the newest SNAPSHOT. If the requested index is
   below it, answer with that SNAPSHOT (`on_snapshot`): entries below it are void.

`messages.py` defines the interface between a session and its caller, `base/replay_wire.py` the messages
between members; `provider.py` is the serving side.
"""

from cutwater.protocol.replay.messages import ReplayPhase
from cutwater.protocol.replay.session import ReplaySession

__all__ = ["ReplayPhase", "ReplaySession"]
