"""Scheduling of a catch-up: what to request next, and from whom.

All pieces, requested or buffered, are disjoint. If the buffer is full, higher pieces are dropped for the
lowest missing one. The leader is asked last. The store serves the lowest missing piece when no healthy peer
does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.replay.messages import Action, Ask, ReplayConfig
from cutwater.protocol.replay.pieces import Pieces, Span
from cutwater.protocol.replay.sources import Source, Sources

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Schedule(Generic[B]):
    """The state of a catch-up from `head` to `target` at `now_ms`."""

    config: ReplayConfig
    pieces: Pieces[B]
    sources: Sources
    head: int
    target: int
    now_ms: int

    def actions(self) -> list[Action]:
        """Requests for missing entries, as far as there is room. Raises `StoreError` if nobody can serve them."""
        gaps = self.pieces.gaps(self.head + 1, self.target, self.sources.busy())
        run_last, run_size = self.pieces.run(self.head + 1)
        need, need_last = gaps[0] if gaps else (0, 0)
        tight = bool(gaps) and run_size + self.pieces.room_for(need) > self.config.buffer_bytes
        if gaps and self._hopeless(need, tight):
            if self.sources.busy():
                return []
            raise self._nobody_serves(need, need_last)
        store, now_ms = self.sources.store, self.now_ms
        actions: list[Action] = []
        if run_size and (tight or run_size >= self.config.anchor_bytes) and store.ready(now_ms):
            actions.append(self.sources.anchor_at(run_last, now_ms))
        if gaps and not tight:
            actions += self._fetch(gaps)
        for peer in self.sources.ranked():
            if self._should_ask(peer):
                actions.append(self.sources.ask(peer, self.target, now_ms))
        unserved = gaps and all(not a <= need <= b for a, b in self.sources.busy())
        to_prove_first = tight and run_size
        if unserved and not to_prove_first and store.ready(now_ms) and not self._promising(need):
            last = min(need_last, need + self.config.chunk_entries - 1)
            actions.append(self.sources.fetch_from_store((need, last), now_ms))
        return actions

    def _fetch(self, gaps: list[Span]) -> list[Action]:
        """Assigns a piece to each idle peer, lowest first. An entry that nobody holds does not block later ones."""
        actions: list[Action] = []
        pieces, sources, need = self.pieces, self.sources, gaps[0][0]
        idle = [p for p in sources.ranked() if p.ready(self.now_ms) and p.held is not None]
        for first, last in gaps:
            while found := _lowest(idle, first, last):
                place, peer, held_last = found
                reserved = pieces.room_for(place)
                room = reserved + sources.reserved()
                if place == need:
                    if not pieces.make_room(need, room):
                        return actions
                elif pieces.size + room + pieces.room_for(need) > self.config.buffer_bytes:
                    return actions
                end = min(last, held_last, place + self.config.chunk_entries - 1)
                actions.append(sources.fetch(peer, (place, end), reserved, self.now_ms))
                idle.remove(peer)
                first = end + 1
        return actions

    def _should_ask(self, peer: Source) -> bool:
        if not peer.ready(self.now_ms):
            return False
        if peer.held is None or self._outdated(peer):
            return True
        return peer.held[1] < self.target and peer.asked_ms + self.config.ask_again_ms <= self.now_ms

    def _outdated(self, peer: Source) -> bool:
        """Whether the target has moved beyond the range that a peer reported."""
        return peer.held is not None and max(peer.held[1], peer.asked_target) < self.target

    def _promising(self, index: int) -> bool:
        """Whether a peer is likely to serve that entry soon: it holds it, or has not failed and is still to report its
        range."""
        if self.pieces.room_for(index) > self.config.buffer_bytes:
            return False  # too large to buffer unproven; entries from the store need not be buffered
        for peer in self.sources.peers.values():
            if not peer.usable() or peer.not_before_ms > self.now_ms:
                continue
            asked = peer.request is not None and peer.request.kind is Ask
            if peer.holds(index) or (not peer.failures and (asked or self._outdated(peer))):
                return True
        return False

    def _hopeless(self, index: int, tight: bool) -> bool:
        """Whether the store has failed too often and no peer can serve the entry."""
        attempts, store = self.config.max_attempts, self.sources.store
        if store.failures < attempts or store.request is not None or store.ready(self.now_ms):
            return False
        return tight or not any(
            p.usable() and p.failures < attempts and (p.held is None or p.holds(index))
            for p in self.sources.peers.values()
        )

    def _nobody_serves(self, first: int, last: int) -> StoreError:
        stories = [f"{s.name}: {s.reason}" for s in [self.sources.store, *self.sources.ranked()]]
        return StoreError(
            f"cannot catch up: no source can provide or confirm entries {first}-{last}; {'; '.join(stories)}; "
            "make the store reachable and start again"
        )


def _lowest(peers: list[Source], first: int, last: int) -> tuple[int, Source, int] | None:
    """The lowest index from `first` to `last` that one of the peers holds, the best such peer, and the last index
    that it holds."""
    best: tuple[int, Source, int] | None = None
    for peer in peers:
        assert peer.held is not None
        place = max(first, peer.held[0])
        if place <= min(last, peer.held[1]) and (best is None or place < best[0]):
            best = (place, peer, peer.held[1])
    return best
