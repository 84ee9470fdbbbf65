"""A catch-up session: takes events, returns actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from cutwater.protocol.base.chain import GENESIS, Codec, Sealed
from cutwater.protocol.base.errors import CutwaterError, PeerError, StoreError
from cutwater.protocol.replay.messages import (
    REPLAY,
    Action,
    Anchor,
    AnchorAt,
    Ask,
    CatchUpProgress,
    Deliver,
    Fetch,
    FetchFromStore,
    ReplayConfig,
    ReplayDone,
    ReplayFailed,
    ReplayPhase,
)
from cutwater.protocol.replay.pieces import Piece, Pieces, received
from cutwater.protocol.replay.schedule import Schedule
from cutwater.protocol.replay.sources import Source, SourceRequest, Sources

B = TypeVar("B")

LIVE = ""
"""The sender of pieces that no peer is blamed for: announced entries, and entries from the store."""


class ReplaySession(Generic[B]):
    """One member's catch-up from its `own` last entry (`None`: it has none) to `target`.

    Every method takes an event and returns the actions to perform, in order. Events never raise, whatever a
    peer sends, except `retarget` after a failure (`IllegalStep`). Answers to requests that are no longer in
    flight are dropped. `first_request_id` must be higher than every id used by an earlier session of this
    member. `sources` and `pieces` are read-only for callers.
    """

    def __init__(
        self,
        codec: Codec[B],
        own: Sealed[B] | None,
        target: Anchor,
        leader: str | None = None,
        config: ReplayConfig | None = None,
        first_request_id: int = 1,
    ) -> None:
        self.phase = REPLAY.start
        self.config = config or ReplayConfig()
        self.target = target
        self.sources = Sources(self.config, leader, first_request_id)
        self.pieces: Pieces[B] = Pieces(target, self.config)
        self._codec = codec
        self._head = Anchor(0, GENESIS) if own is None else Anchor(own.entry.index, own.hash)
        self._start = self._head.index
        self._delivered_bytes = 0
        self._out: list[Action] = []
        self._error: CutwaterError | None = None
        if self._start > target.index:
            self._error = StoreError(
                f"this member's log ends at {self._start}, but the journal in the store at {target.index}: "
                "it is not a copy of this journal; remove the local copy and catch up from the start"
            )

    # --- events: peers ----------------------------------------------------------------------------------

    def peer_joined(self, name: str, now_ms: int) -> list[Action]:
        """A peer is present (again). Its failures are remembered."""
        self.sources.join(name)
        return self._settle(now_ms)

    def peer_left(self, name: str, now_ms: int) -> list[Action]:
        """A peer is gone. Its request is reassigned; the entries that it sent are kept."""
        self.sources.leave(name)
        return self._settle(now_ms)

    def leader_changed(self, name: str | None, now_ms: int) -> list[Action]:
        """Another peer is to be asked last. Nothing else changes."""
        self.sources.leader = name
        return self._settle(now_ms)

    def on_available(self, peer: str, first: int, last: int, request_id: int, now_ms: int) -> list[Action]:
        """A peer reports the range that it holds."""
        source = self.sources.peers.get(peer)
        if source is not None and source.answered(request_id, Ask):
            source.held = (first, last)
            source.reason = f"holds {first}-{last}" if first <= last else "holds nothing"
        return self._settle(now_ms)

    def on_chunk(
        self, peer: str, request_id: int, first: int, entries: Sequence[bytes], now_ms: int
    ) -> list[Action]:
        """A peer sends entries. They are buffered if their hash chain is intact, and delivered once proven."""
        source = self.sources.peers.get(peer)
        if source is not None and (request := source.answered(request_id, Fetch)):
            self._receive(source, request, first, entries, now_ms)
        return self._settle(now_ms)

    def on_compacted(self, peer: str, request_id: int, first: int, now_ms: int) -> list[Action]:
        """A peer no longer holds the requested entries; its range now begins at `first`."""
        source = self.sources.peers.get(peer)
        if source is not None and (request := source.answered(request_id, Fetch)):
            held = source.held
            self.sources.score(source, f"holds nothing before {first}", now_ms)
            if held is not None and first > request.first:
                source.held = (first, held[1])
        return self._settle(now_ms)

    def on_live(self, entries: Sequence[bytes], now_ms: int) -> list[Action]:
        """Entries announced during the session. They are buffered if there is room, and delivered when the target
        moves to them or beyond, which proves them; holes between them are fetched then."""
        runs: list[list[Sealed[B]]] = []
        room = self.config.buffer_bytes - self.config.chunk_bytes
        room -= self.pieces.size + self.sources.reserved()
        top = max([self._head.index, self.pieces.last, *[last for _, last in self.sources.busy()]])
        for data in entries if self.phase is not ReplayPhase.FAILED else ():
            try:
                sealed = self._codec.open(data)
            except PeerError:
                break
            room -= len(data)
            if room < 0:
                break
            if sealed.entry.index == top + 1 and runs and runs[-1][-1].hash == sealed.entry.prev:
                runs[-1].append(sealed)
            elif sealed.entry.index > top:
                runs.append([sealed])
            top = max(top, sealed.entry.index)
        for run in runs:
            self._keep(Piece(LIVE, run))
        return self._settle(now_ms)

    # --- events: the store and time ---------------------------------------------------------------------

    def on_store_chunk(
        self, request_id: int, first: int, entries: Sequence[bytes], now_ms: int
    ) -> list[Action]:
        """Entries from the store. They are trusted, and prove the entries before them."""
        store = self.sources.store
        if request := store.answered(request_id, FetchFromStore):
            last = self._receive(store, request, first, entries, now_ms)
            if last is not None:
                self._believe(last.entry.index, last.hash)
        return self._settle(now_ms)

    def on_anchor(self, request_id: int, hash: str, now_ms: int) -> list[Action]:
        """The hash of the entry that `AnchorAt` asked for."""
        store = self.sources.store
        if request := store.answered(request_id, AnchorAt):
            store.failures = 0
            self._believe(request.first, hash)
        return self._settle(now_ms)

    def on_snapshot(self, request_id: int, data: bytes, now_ms: int) -> list[Action]:
        """The requested entry was compacted away; `data` is the newest SNAPSHOT, which replaces all entries before
        it."""
        store = self.sources.store
        if request := store.answered(request_id, FetchFromStore, AnchorAt):
            try:
                sealed = self._codec.open(data)
                index = sealed.entry.index
                if sealed.entry.snapshot != index or index < request.first:
                    raise PeerError(f"its entry {index} is not a SNAPSHOT that covers {request.first}")
            except PeerError as error:
                self.sources.score(store, str(error), now_ms)
                return self._settle(now_ms)
            store.failures = 0
            self._believe(index, sealed.hash)
            if self._error is None:
                self._deliver([sealed])
                self.target = max(self.target, self._head, key=lambda a: a.index)
        return self._settle(now_ms)

    def on_store_failed(self, request_id: int, reason: str, now_ms: int) -> list[Action]:
        """The store failed to answer."""
        store = self.sources.store
        if store.answered(request_id, FetchFromStore, AnchorAt):
            self.sources.score(store, reason, now_ms)
        return self._settle(now_ms)

    def retarget(self, target: Anchor, now_ms: int) -> list[Action]:
        """A newer head of the journal, read from the store. A session that was done resumes."""
        moved = REPLAY.next(self.phase, "target_moved")
        if target.index >= self._head.index:
            self._believe(target.index, target.hash)
        if target.index > self.target.index:
            self.phase = moved
            self.target = target
        return self._settle(now_ms)

    def tick(self, now_ms: int) -> list[Action]:
        """Handle timeouts."""
        self.sources.score_overdue(now_ms)
        return self._settle(now_ms)

    # --- queries ----------------------------------------------------------------------------------------

    @property
    def next_request_id(self) -> int:
        """The `first_request_id` of the next session of this member."""
        return self.sources.next_request_id

    @property
    def buffered_bytes(self) -> int:
        """The size of the buffered entries; at most `buffer_bytes`."""
        return self.pieces.size

    @property
    def peak_buffered_bytes(self) -> int:
        """The highest value of `buffered_bytes` so far."""
        return self.pieces.peak_size

    def progress(self) -> CatchUpProgress:
        """The progress so far."""
        peers = sum(p.usable() and p.held is not None for p in self.sources.peers.values())
        total = self.target.index - self._start
        return CatchUpProgress(self._head.index - self._start, total, peers, self._delivered_bytes)

    def next_tick_ms(self, now_ms: int) -> int | None:
        """When `tick` must be called at the latest; `None` if another event must come first."""
        return None if self._over() else self.sources.next_tick_ms(now_ms)

    # --- receiving --------------------------------------------------------------------------------------

    def _receive(
        self, source: Source, request: SourceRequest, first: int, entries: Sequence[bytes], now_ms: int
    ) -> Sealed[B] | None:
        """Buffers the entries and returns the last one, or records a failure of the sender."""
        sender = source.name if source is not self.sources.store else LIVE
        asked, max_bytes = (request.first, request.last), self.config.chunk_bytes
        try:
            piece = received(self._codec, sender, asked, max_bytes, first, entries)
        except PeerError as error:
            self.sources.score(source, str(error), now_ms)
            return None
        source.failures = 0
        source.reason = f"sent {first}-{piece.last}"
        if piece.last <= self._head.index:
            return None  # a SNAPSHOT has replaced these entries
        self._keep(piece)
        self.pieces.forget_below(self._head.index + 1)
        return piece.entries[-1]

    def _keep(self, piece: Piece[B]) -> None:
        try:
            self._convict(self.pieces.add(piece))
        except StoreError as error:
            self._error = error

    def _believe(self, index: int, hash: str) -> None:
        try:
            self._convict(self.pieces.learn(index, hash))
        except StoreError as error:
            self._error = error

    def _convict(self, forger: str | None) -> None:
        if forger is not None:
            self.pieces.forget_unproven(forger)
            self.sources.convict(forger)

    # --- deciding ---------------------------------------------------------------------------------------

    def _settle(self, now_ms: int) -> list[Action]:
        """Runs after every event: deliver proven entries, then finish, fail, or request more."""
        if self._over():
            return []
        self._error = self._error or self._foreign_prefix()
        if self._error is None:
            self._deliver(self.pieces.take(self._head.index + 1))
        self.pieces.trim()
        actions, self._out = self._out, []
        if self._error is None and self._head.index >= self.target.index:
            return [*actions, self._end("reached", ReplayDone(self._head.index))]
        if self._error is None:
            actions += self._ask_for_more(now_ms)
        if self._error is not None:
            actions.append(self._end("give_up", ReplayFailed(self._error)))
        return actions

    def _over(self) -> bool:
        return self.phase in (ReplayPhase.DONE, ReplayPhase.FAILED)

    def _end(self, event: str, action: Action) -> Action:
        self.phase = REPLAY.next(self.phase, event)
        self.sources.recall_all()
        return action

    def _foreign_prefix(self) -> StoreError | None:
        """The error if this member's own last entry is not in the journal. (Delivered entries were proven.)"""
        known = self.pieces.known.get(self._head.index, self._head.hash)
        if known == self._head.hash:
            return None
        return StoreError(
            f"this member's log is not the journal's: at {self._head.index} it has {self._head.hash[:12]}, "
            f"the journal has {known[:12]}; remove the local copy and catch up from the start"
        )

    def _deliver(self, entries: list[Sealed[B]]) -> None:
        if not entries:
            return
        self._out.append(Deliver(entries))
        self._head = Anchor(entries[-1].entry.index, entries[-1].hash)
        self._delivered_bytes += sum([len(e.data) for e in entries])
        self.pieces.forget_below(self._head.index + 1)

    def _ask_for_more(self, now_ms: int) -> list[Action]:
        head, target = self._head.index, self.target.index
        try:
            actions = Schedule(self.config, self.pieces, self.sources, head, target, now_ms).actions()
        except StoreError as error:
            self._error = error
            return []
        if any(isinstance(a, Fetch | FetchFromStore) for a in actions):
            self.phase = REPLAY.next(self.phase, "fetch")
        return actions
