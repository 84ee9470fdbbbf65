"""The sources of a catch-up: the peers and the store, with their requests and failures.

Each has at most one request in flight. A source that fails (no answer, an empty or a wrong one) is retried
after a delay that doubles; a forger is not asked again.
"""

from __future__ import annotations

from dataclasses import dataclass

from cutwater.protocol.replay.messages import AnchorAt, Ask, Fetch, FetchFromStore, ReplayConfig
from cutwater.protocol.replay.pieces import Span

Kind = type[Ask] | type[Fetch] | type[FetchFromStore] | type[AnchorAt]


@dataclass(slots=True)
class SourceRequest:
    """A request in flight. `reserved` is the buffer space kept free for the answer."""

    id: int
    kind: Kind
    first: int
    last: int
    reserved: int
    deadline_ms: int


@dataclass(slots=True)
class Source:
    """A peer or the store: the range that it reported, its request in flight, and its failures."""

    name: str
    present: bool = True
    forged: bool = False
    held: Span | None = None
    asked_ms: int = 0
    asked_target: int = 0
    request: SourceRequest | None = None
    failures: int = 0
    not_before_ms: int = 0
    reason: str = "was not asked yet"

    def usable(self) -> bool:
        return self.present and not self.forged

    def ready(self, now_ms: int) -> bool:
        return self.usable() and self.request is None and self.not_before_ms <= now_ms

    def holds(self, index: int) -> bool:
        return self.held is not None and self.held[0] <= index <= self.held[1]

    def answered(self, request_id: int, *kinds: Kind) -> SourceRequest | None:
        """Completes and returns the request with this id; `None` if it is not the one in flight."""
        request = self.request
        if request is None or request.id != request_id or request.kind not in kinds:
            return None
        self.request = None
        return request


class Sources:
    """The peers by name, and the store. `next_request_id` is higher than every id used so far."""

    def __init__(self, config: ReplayConfig, leader: str | None, first_request_id: int) -> None:
        self.peers: dict[str, Source] = {}
        self.store = Source("the store")
        self.leader = leader
        self.next_request_id = first_request_id
        self._config = config

    # --- presence and failures --------------------------------------------------------------------------

    def join(self, name: str) -> None:
        """A peer is present (again). Its failures are remembered."""
        peer = self.peers.setdefault(name, Source(name))
        peer.present, peer.held, peer.request = True, None, None

    def leave(self, name: str) -> None:
        """A peer is gone, and its request is dropped."""
        if (peer := self.peers.get(name)) is not None:
            peer.present, peer.held, peer.request, peer.reason = False, None, None, "has left"

    def score(self, source: Source, reason: str, now_ms: int) -> None:
        """Records a failure: the source is not used for a time that doubles, and must then report its range again."""
        source.failures += 1
        wait_ms = self._config.backoff_ms << min(source.failures - 1, 32)
        source.not_before_ms = now_ms + min(wait_ms, self._config.backoff_max_ms)
        source.reason = reason
        source.held = None

    def score_overdue(self, now_ms: int) -> None:
        """Records a failure for each request past its deadline."""
        for source in self.all():
            if source.request is not None and source.request.deadline_ms <= now_ms:
                source.request = None
                self.score(source, f"did not answer within {self._config.timeout_ms} ms", now_ms)

    def convict(self, name: str) -> None:
        """A peer has forged entries: it is not asked again."""
        if (peer := self.peers.get(name)) is not None:
            peer.forged, peer.request = True, None
            peer.reason = "sent entries that the journal does not have"

    def recall_all(self) -> None:
        """Drops all requests in flight."""
        for source in self.all():
            source.request = None

    # --- asking -----------------------------------------------------------------------------------------

    def ask(self, peer: Source, target: int, now_ms: int) -> Ask:
        peer.asked_ms, peer.asked_target = now_ms, target
        return Ask(peer.name, self._send(peer, Ask, (0, 0), 0, now_ms))

    def fetch(self, peer: Source, span: Span, reserved: int, now_ms: int) -> Fetch:
        request_id = self._send(peer, Fetch, span, reserved, now_ms)
        return Fetch(peer.name, request_id, *span, self._config.chunk_bytes)

    def fetch_from_store(self, span: Span, now_ms: int) -> FetchFromStore:
        request_id = self._send(self.store, FetchFromStore, span, 0, now_ms)
        return FetchFromStore(request_id, *span, self._config.chunk_bytes)

    def anchor_at(self, index: int, now_ms: int) -> AnchorAt:
        return AnchorAt(self._send(self.store, AnchorAt, (index, index), 0, now_ms), index)

    def _send(self, source: Source, kind: Kind, span: Span, reserved: int, now_ms: int) -> int:
        request_id, self.next_request_id = self.next_request_id, self.next_request_id + 1
        deadline_ms = now_ms + self._config.timeout_ms
        source.request = SourceRequest(request_id, kind, *span, reserved, deadline_ms)
        return request_id

    # --- queries ----------------------------------------------------------------------------------------

    def all(self) -> list[Source]:
        return [*self.peers.values(), self.store]

    def ranked(self) -> list[Source]:
        """The peers in the order in which to ask them: the leader last, and those with failures late."""
        return sorted(self.peers.values(), key=lambda p: (p.name == self.leader, p.failures, p.name))

    def busy(self) -> list[Span]:
        """The index ranges in flight."""
        requests = [s.request for s in self.all() if s.request is not None]
        return [(r.first, r.last) for r in requests if r.kind in (Fetch, FetchFromStore)]

    def reserved(self) -> int:
        """The buffer space reserved for answers."""
        return sum(s.request.reserved for s in self.all() if s.request is not None)

    def next_tick_ms(self, now_ms: int) -> int | None:
        """When the next deadline, retry or range query is due; `None` if there is none."""
        deadlines = [s.request.deadline_ms for s in self.all() if s.request is not None]
        idle = [s for s in self.all() if s.usable() and s.request is None]
        again = [s.asked_ms + self._config.ask_again_ms for s in idle if s.held is not None]
        waits = [s.not_before_ms for s in idle]
        return min([*deadlines, *[ms for ms in waits + again if ms > now_ms]], default=None)
