"""Requests to a leader and their answers: who requested which checkpoint, restores and names of savepoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cutwater.protocol.base.effects import Procedure, Send
from cutwater.protocol.base.events import RequestsRefused
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.records import JournalBody
from cutwater.protocol.base.wire import Reply, Request, RequestKind
from cutwater.protocol.leader.coordinator import Coordinator
from cutwater.protocol.leader.coordinator_actions import Abort, Action, Refuse
from cutwater.protocol.leader.lead import Lead
from cutwater.protocol.leader.restore_tables import TableAnswers
from cutwater.protocol.leader.steering import answer, name_taken, steer
from cutwater.protocol.member.journal import Journal


def is_steering(request: Request) -> bool:
    """Whether a request is one entry in the journal, and not a checkpoint."""
    names = request.kind is RequestKind.SAVEPOINT and request.epoch is not None
    return names or request.kind in (RequestKind.FORGET, RequestKind.RESTORE)


class Requests:
    """The requests of one term. `of_epoch`: the requests for which an epoch was begun."""

    def __init__(self, leader: Lead, term: int) -> None:
        self.of_epoch: dict[int, tuple[str, ...]] = {}
        self.term = term
        self._leader = leader

    @property
    def journal(self) -> Journal:
        return self._leader.member.journal

    @property
    def tables(self) -> TableAnswers:
        """No earlier answers of tables: a leader has time to ask again."""
        return TableAnswers()

    def record(self, make: Callable[[int], JournalBody]) -> Procedure[bool]:
        """Appends an entry in this term (`steering.Writer`)."""
        return (yield from self._leader.record(self.term, make))

    # --- answers --------------------------------------------------------------------------------------

    def answer_again(self, request: Request) -> Procedure[bool]:
        """Answers a request that was carried out before, perhaps by another leader; returns whether it was."""
        known = answer(self.journal.state, request)
        if known is not None:
            yield Send(None, known)
        return known is not None

    def grant(self, request_id: str, epoch: int | None = None) -> Procedure[None]:
        """Answers a request that is done."""
        yield Send(None, Reply(request_id, True, epoch))

    def grant_cancel(self, request: Request, actions: list[Action]) -> Procedure[None]:
        """Answers a cancellation of something that had not begun; any other is answered when ABORTED is in the journal,
        or refused."""
        if not any(
            (isinstance(a, Abort) and a.request)
            or (isinstance(a, Refuse) and a.request_id == request.request_id)
            for a in actions
        ):
            yield from self.grant(request.request_id)

    def refuse(self, requests: Iterable[str], reason: FailureReason, detail: str) -> Procedure[None]:
        """Answers requests that are refused, with the reason."""
        refused = tuple(requests)
        if refused:
            self._leader.member.observe(RequestsRefused(refused, reason.value, detail))
        for request_id in refused:
            yield Send(None, Reply(request_id, False, None, reason.value, detail))

    def refuse_epoch(self, epoch: int, reason: FailureReason, detail: str) -> Procedure[None]:
        """Answers the requests for an epoch that was aborted, with the reason."""
        yield from self.refuse(self.of_epoch.pop(epoch, ()), reason, detail)

    def grant_epoch(self, epoch: int) -> Procedure[None]:
        """Answers the requests for an epoch that is committed."""
        for request_id in self.of_epoch.pop(epoch, ()):
            yield from self.grant(request_id, epoch)

    def drop_all(self, coordinator: Coordinator) -> Procedure[None]:
        """Refuses all earlier requests, because a restore has ended what they asked for."""
        waiting = [r for begin in coordinator.queued() for r in begin.requests]
        begun = [r for requests in self.of_epoch.values() for r in requests]
        self.of_epoch.clear()
        detail = "the pipeline was restored meanwhile"
        yield from self.refuse((*begun, *waiting), FailureReason.RESTORED, detail)

    # --- requests that are not checkpoints --------------------------------------------------------------

    def steer(self, request: Request, coordinator: Coordinator) -> Procedure[bool]:
        """Carries out a restore or a change of a savepoint's name, and answers; returns whether it is in effect."""
        reply = yield from steer(self, request, self._coming(coordinator))
        if reply is None:
            return False
        if not reply.ok:
            refused = RequestsRefused((reply.request_id,), reply.reason or "", reply.detail)
            self._leader.member.observe(refused)
        yield Send(None, reply)
        return reply.ok

    def is_taken(self, request: Request, coordinator: Coordinator) -> bool:
        """Whether a savepoint has this name or is about to have it: another one must not take the name, because the
        first would expire."""
        name = request.name or request.request_id
        return name in self.journal.state.savepoints or name in self._coming(coordinator)

    def refuse_name(self, request: Request) -> Procedure[None]:
        """Answers a request for a savepoint whose name is taken."""
        detail = name_taken(self.journal.state, request.name or request.request_id)
        yield from self.refuse((request.request_id,), FailureReason.NAME_TAKEN, detail)

    def _coming(self, coordinator: Coordinator) -> set[str]:
        """The names of savepoints that are being taken."""
        state = self.journal.state
        coming = [begun.savepoint for begun in state.open.values()]
        coming += [begin.savepoint for begin in coordinator.queued()]
        return {name for name in coming if name is not None}
