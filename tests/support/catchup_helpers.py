"""A member that was away, the author of the journal that it missed, and its peers."""

from __future__ import annotations

from collections.abc import Iterable

from cutwater.protocol.base.effects import Effect, ReadMany, Send
from cutwater.protocol.base.log import compact
from cutwater.protocol.base.paths import JOURNAL_PREFIX, entry_name
from cutwater.protocol.base.records import JournalBody, Leader, Snapshot
from cutwater.protocol.base.replay_wire import AskRange, FetchEntries
from cutwater.protocol.member.catchup import CatchUp
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.replay.messages import ReplayConfig
from tests.support.driver import Fault, Hook, Store, drive

CONFIG = ReplayConfig(
    chunk_entries=20,
    chunk_bytes=8_000,
    anchor_bytes=16_000,
    buffer_bytes=32_000,
    timeout_ms=100,
    backoff_ms=50,
    max_attempts=3,
)


SMALL_GAP = 10


def name(index: int) -> str:
    return entry_name(JOURNAL_PREFIX, index)


class Author:
    """Writes the journal in the store: LEADER entries of `m`, one per term."""

    def __init__(self, count: int) -> None:
        self.store = Store()
        self.journal = Journal()
        self.write(count)

    def write(self, count: int) -> None:
        for _ in range(count):
            self._put(Leader(self.journal.state.term + 1, "m"))

    def compact(self) -> None:
        state = self.journal.state
        body = Snapshot(state.term, state.generation, state)
        drive(compact(self.journal.view, body, f"n{self.journal.index}"), self.store)

    def _put(self, body: JournalBody) -> None:
        sealed = self.journal.view.seal(body, f"n{self.journal.index}")
        self.store.objects[name(sealed.entry.index)] = sealed.data
        self.journal.view.push(sealed)


class Away:
    """A member that was away, with its clock, its peers (a journal, or `None` if dead), and the messages that it
    sent."""

    def __init__(
        self,
        author: Author,
        peers: dict[str, Journal | None],
        *,
        known: int = 0,
        config: ReplayConfig = CONFIG,
    ) -> None:
        self.author = author
        self.store = author.store
        self.peers = peers
        self.now_ms = 0
        self.waits: list[int] = []
        self.sent: list[Send] = []
        self.journal = Journal()
        for index in range(1, known + 1):
            self.journal.view.push(self.journal.view.open(name(index), self.store.objects[name(index)]))
        self.store.seen.clear()
        self.catch_up = CatchUp(self.journal, peers, config, SMALL_GAP, lambda: self.now_ms)

    def run(self, faults: Iterable[Fault] = (), before: Hook | None = None, limit: int = 10_000) -> None:
        drive(
            self.catch_up.run(),
            self.store,
            faults=faults,
            before=before,
            on_send=self._answer,
            on_wait=self._wait,
            limit=limit,
        )

    def _wait(self, ms: int) -> None:
        self.waits.append(ms)
        self.now_ms += ms

    def _answer(self, send: Send) -> None:
        self.sent.append(send)
        assert send.to is not None
        assert isinstance(send.message, AskRange | FetchEntries)
        peer = self.peers[send.to]
        if peer is not None:
            self.catch_up.on_message(send.to, peer.provider.answer(send.message))

    def fetched(self, peer: str) -> int:
        """How many entries were requested from a peer."""
        fetches = [s.message for s in self.sent if s.to == peer and isinstance(s.message, FetchEntries)]
        return sum(f.last - f.first + 1 for f in fetches)

    def has_caught_up(self) -> bool:
        """Whether it knows exactly what the author wrote, and can serve it."""
        mine, theirs = self.journal, self.author.journal
        served = mine.provider.serve(mine.index, mine.index, 1, 1 << 20)
        assert served == [self.store.objects[name(theirs.index)]]
        return (mine.index, mine.state) == (theirs.index, theirs.state) and self.catch_up.session is None


def asks_for_first(effect: Effect) -> bool:
    """Whether this reads entries from the store, beginning with the first."""
    return isinstance(effect, ReadMany) and effect.names[0] == name(1)
