"""A member's catch-up: the replay session of the journal, driven by effects.

A member that was away learns every decision that it missed before it acks or publishes anything. A small
gap is read from the store; a larger one is fetched from all other members at once, and the store only says
which hashes to believe (see `replay/`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import assert_never

from cutwater.protocol.base.effects import FAILED, List, Procedure, Read, ReadMany, Send, Wait, ask, insist
from cutwater.protocol.base.log import MAX_READ, entries_after, follow, newest_snapshot
from cutwater.protocol.base.paths import entry_name, entry_of
from cutwater.protocol.base.records import JOURNAL, JournalBody
from cutwater.protocol.base.replay_wire import (
    AskRange,
    Compacted,
    EntriesChunk,
    FetchEntries,
    HaveRange,
    Message,
)
from cutwater.protocol.base.wire import Announcement, Heartbeat
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.replay import ReplaySession
from cutwater.protocol.replay.messages import (
    Action,
    Anchor,
    AnchorAt,
    Ask,
    Deliver,
    Fetch,
    FetchFromStore,
    ReplayConfig,
    ReplayDone,
    ReplayFailed,
    ReplayPhase,
)

Reply = HaveRange | EntriesChunk | Compacted


class CatchUp:
    """Brings one member's journal up to the store's head; `session` exists while that takes.

    Messages and the presence of peers go into the session at once; the procedure performs the resulting actions.
    """

    def __init__(
        self,
        journal: Journal,
        peers: Iterable[str],
        config: ReplayConfig,
        small_gap: int,
        now_ms: Callable[[], int],
    ) -> None:
        self.journal = journal
        self.session: ReplaySession[JournalBody] | None = None
        self._peers = sorted(peers)
        self._absent: set[str] = set()
        self._config = config
        self._small_gap = small_gap
        self._now_ms = now_ms
        self._actions: list[Action] = []
        self._heard = 0
        self._term = 0
        self._requests = 1
        self.found: int | None = None
        """The journal's last entry when this first looked."""

    # --- events: without a session they change nothing, but for the presence of peers -------------------------

    def on_message(self, peer: str, message: Message) -> None:
        """A peer's answer."""
        if self.session is not None and not isinstance(message, AskRange | FetchEntries):
            self._actions += self.take(self.session, peer, message)

    def on_announcement(self, sender: str, announcement: Announcement) -> None:
        """A leader has announced the journal's newest entry. The session keeps it aside until the store has
        confirmed it."""
        if self.session is not None:
            self._actions += self.session.on_live([bytes(announcement.entry)], self._now_ms())
            self._hear(sender, announcement.term, announcement.index)

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """A leader says how far the journal goes."""
        if self.session is not None:
            self._hear(heartbeat.member, heartbeat.term, heartbeat.index)

    def on_presence(self, peer: str, is_present: bool) -> None:
        """The links have lost a peer, or found one (again)."""
        if peer not in self._peers or is_present == (peer not in self._absent):
            return
        self._absent ^= {peer}
        if self.session is not None:
            change = self.session.peer_joined if is_present else self.session.peer_left
            self._actions += change(peer, self._now_ms())

    def _hear(self, sender: str, term: int, index: int) -> None:
        """The leader is the last peer to be asked, and knows how far the journal goes. Neither makes it trusted."""
        self._heard = max(self._heard, index)
        if self.session is not None and sender in self._peers and term > self._term:
            self._term = term
            self._actions += self.session.leader_changed(sender, self._now_ms())

    # --- the procedure ----------------------------------------------------------------------------------------

    def run(self) -> Procedure[None]:
        """Returns when the journal is known up to a head that the store had after this was called. Raises
        `StoreError` if the store has lost or damaged what no peer can serve."""
        view = self.journal.view
        target = yield from self._read_head()
        if target is not None and target.index - view.last > self._small_gap:
            yield from self._replay(target)
        yield from follow(view)  # the store is the last resort: if it cannot serve either, this says why

    def _read_head(self) -> Procedure[Anchor | None]:
        """The highest entry in the store; a snapshot that covers what comes next here is taken at once."""
        view = self.journal.view
        while True:
            names = yield from entries_after(view, view.last)
            if self.found is None:
                self.found = entry_of(view.prefix, names[-1]) if names else view.last
            if not names:
                return None
            data = yield from insist(Read(names[-1]))
            if data is None:
                continue
            head = view.open(names[-1], data)
            if head.entry.snapshot <= view.last:
                return Anchor(head.entry.index, head.hash)
            name = entry_name(view.prefix, head.entry.snapshot)
            data = yield from insist(Read(name))
            if data is not None:
                view.jump(view.open(name, data))
            else:
                yield from follow(view)  # raises if the snapshot is lost, and not just replaced

    def _replay(self, target: Anchor) -> Procedure[None]:
        own = self.journal.view.entries[-1] if self.journal.view.entries else None
        leader = self.journal.state.leader or None
        self._heard, self._term = 0, self.journal.state.term
        session = ReplaySession(JOURNAL, own, target, leader, self._config, self._requests)
        self.session, self._actions = session, []
        for peer in self._peers:
            if peer not in self._absent:
                self._actions += session.peer_joined(peer, self._now_ms())
        self._actions += session.tick(self._now_ms())
        while True:
            while self._actions:
                self._actions += yield from self._perform(session, self._actions.pop(0))
            if session.phase is ReplayPhase.FAILED:
                break
            if self._heard > session.target.index:
                self._actions += yield from self._move_target(session)
            if session.phase is ReplayPhase.DONE and not self._actions:
                break
            due_ms = session.next_tick_ms(self._now_ms())
            if not self._actions:
                yield Wait(max(1, (due_ms or self._now_ms() + self._config.timeout_ms) - self._now_ms()))
            self._actions += session.tick(self._now_ms())
        self.session, self._requests = None, session.next_request_id

    def _move_target(self, session: ReplaySession[JournalBody]) -> Procedure[list[Action]]:
        """Another member says that the journal goes beyond the target: its end in the store becomes the new target."""
        view, target = self.journal.view, session.target.index
        names = yield from ask(List(view.prefix, entry_name(view.prefix, target)))
        if names is FAILED:
            return []
        entries = [name for name in names if entry_of(view.prefix, name) is not None]
        data = (yield from ask(Read(entries[-1]))) if entries else None
        if data is FAILED or session.phase is ReplayPhase.FAILED:
            return []
        self._heard = 0
        if data is None:  # the store has no such entry, or it was compacted away
            return []
        head = view.open(entries[-1], data)
        return session.retarget(Anchor(head.entry.index, head.hash), self._now_ms())

    def take(self, session: ReplaySession[JournalBody], peer: str, reply: Reply) -> list[Action]:
        """Hands a peer's answer to the session; returns what follows from it."""
        now_ms = self._now_ms()
        match reply:
            case HaveRange():
                return session.on_available(peer, reply.first, reply.last, reply.request_id, now_ms)
            case EntriesChunk():
                return session.on_chunk(peer, reply.request_id, reply.first, reply.entries, now_ms)
            case Compacted():
                return session.on_compacted(peer, reply.request_id, reply.first, now_ms)

    def _perform(self, session: ReplaySession[JournalBody], action: Action) -> Procedure[list[Action]]:
        view = self.journal.view
        match action:
            case Ask():
                yield Send(action.peer, AskRange(action.request_id))
            case Fetch():
                fetch = FetchEntries(action.request_id, action.first, action.last, action.max_bytes)
                yield Send(action.peer, fetch)
            case Deliver():
                for sealed in action.entries:
                    if sealed.entry.index > view.last + 1:
                        view.jump(sealed)
                    else:
                        view.push(sealed)
            case FetchFromStore():
                return (yield from self._from_store(session, action))
            case AnchorAt():
                return (yield from self._from_store(session, action))
            case ReplayDone() | ReplayFailed():
                pass  # the loop ends
            case _:
                assert_never(action)
        return []

    def _from_store(
        self, session: ReplaySession[JournalBody], action: FetchFromStore | AnchorAt
    ) -> Procedure[list[Action]]:
        """Reads what the session asks of the store, and trusts it only after checking for a newer snapshot."""
        view = self.journal.view
        first = action.index if isinstance(action, AnchorAt) else action.first
        last, room = (first, 1) if isinstance(action, AnchorAt) else (action.last, action.max_bytes)
        found: list[bytes] = []
        names = tuple(
            entry_name(view.prefix, index) for index in range(first, min(last, first + MAX_READ) + 1)
        )
        answers = yield from ask(ReadMany(names))
        if answers is FAILED:
            return session.on_store_failed(action.request_id, "the store did not answer", self._now_ms())
        for data in answers:
            if data is None or room <= 0:
                break
            found.append(data)
            room -= len(data)
        newest = yield from newest_snapshot(view, first)
        if newest > first:
            name = entry_name(view.prefix, newest)
            data = yield from insist(Read(name))
            if data is not None:
                view.open(name, data)  # raises if it is not an entry
                return session.on_snapshot(action.request_id, data, self._now_ms())
        if not found or newest > first:
            return session.on_store_failed(action.request_id, "it is not in the store", self._now_ms())
        if isinstance(action, AnchorAt):
            sealed = view.open(entry_name(view.prefix, first), found[0])
            return session.on_anchor(action.request_id, sealed.hash, self._now_ms())
        return session.on_store_chunk(action.request_id, first, found, self._now_ms())
