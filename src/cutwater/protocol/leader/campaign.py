"""When a member tries to lead, and how. Time only says when to try: leadership is the journal entry that results."""

from __future__ import annotations

from cutwater.protocol.base.effects import Procedure, Wait
from cutwater.protocol.base.log import AppendPhase, append, follow
from cutwater.protocol.base.records import Leader as LeaderEntry
from cutwater.protocol.base.wire import Heartbeat
from cutwater.protocol.leader.whole_journal import expect_empty_store, expect_whole_journal
from cutwater.protocol.member.member import Member


class Campaign:
    """Waits for signs of a leader, and writes a LEADER entry when there are none. Members later in the order of names
    wait a little longer than `timeout_ms`, so that not all try at once."""

    def __init__(self, member: Member, timeout_ms: int, heartbeat_ms: int) -> None:
        self.member = member
        self.seen_ms = 0
        """When the last sign of a leader arrived, or the wait for one began."""
        self._seen_index = 0
        self._overslept = False
        self._heartbeat_ms = heartbeat_ms
        self._patience_ms = timeout_ms * (8 + member.topology.members().index(member.name)) // 8

    def on_heartbeat(self, heartbeat: Heartbeat) -> None:
        """Handles a heartbeat of the leader that the journal names. A newer leader is found in the journal."""
        state = self.member.journal.state
        if heartbeat.term == state.term and heartbeat.member == state.leader:
            self.wait_anew()

    def wait_anew(self) -> None:
        """Restarts the wait: the whole time has to pass again."""
        self.seen_ms = self.member.now_ms

    @property
    def is_due(self) -> bool:
        return self._may_lead() and self._is_silent()

    def listen(self) -> Procedure[None]:
        """Waits for a heartbeat. Silence counts only while this process was listening: if it is resumed much later than
        it asked for, it was asleep, and messages of that time are unread. So it waits the whole time once more; but not
        twice in a row, because a busy machine may be late every time."""
        began_ms = self.member.now_ms
        left_ms = self.seen_ms + self._patience_ms - began_ms
        asked_ms = max(1, min(left_ms, self._heartbeat_ms)) if left_ms > 0 else self._heartbeat_ms
        yield Wait(asked_ms)
        slept = self.member.now_ms - began_ms > asked_ms + self._heartbeat_ms
        if slept and not self._overslept:
            self.wait_anew()
        self._overslept = slept

    def run(self) -> Procedure[int | None]:
        """Tries to write the next LEADER entry; returns the new term, or `None` if another member was faster."""
        view = self.member.journal.view
        before = self.member.journal.state.term
        yield from follow(view)
        term = self.member.journal.state.term + 1
        if term != before + 1 or not self._may_lead():
            return None
        if view.last == 0:
            yield from expect_empty_store(self.member.journal)
            if view.last > 0:
                return None
        elif not (yield from expect_whole_journal(self.member.journal)):
            return None
        if not self._is_next(term):
            return None
        sealed = view.seal(LeaderEntry(term, self.member.name), self.member.nonce())
        if (yield from append(view, sealed)) is AppendPhase.MINE:
            return term
        yield from follow(view)
        return None

    def _is_silent(self) -> bool:
        """Whether this member has waited its whole time without a sign of a leader. A growing journal is a sign too: the
        leader's messages may be lost or unread."""
        if self.member.journal.index != self._seen_index:
            self._seen_index = self.member.journal.index
            self.wait_anew()
        return self.member.now_ms - self.seen_ms >= self._patience_ms

    def _may_lead(self) -> bool:
        """Whether this member may try to lead: not before it has caught up, and after a drain only if it was started
        since, because a new LEADER entry restarts the pipeline."""
        return self.member.live and (not self.member.journal.state.drained or self.member.resumes)

    def _is_next(self, term: int) -> bool:
        """Whether a term is still free: other actors read the same journal, and it may have a new leader by now."""
        return self.member.journal.state.term == term - 1 and self._may_lead()
