"""What users ask of a leader, and the answers: who asked for which checkpoint, restores, savepoint names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cutwater.protocol.coordinator import Coordinator
from cutwater.protocol.coordinator_actions import Action, Refuse
from cutwater.protocol.effects import List, Procedure, Send, insist
from cutwater.protocol.failures import FailureReason
from cutwater.protocol.journal import timeline
from cutwater.protocol.records import MARK_PREFIX, Checkpoint, Restored, Savepoint, mark_name
from cutwater.protocol.wire import Reply, Request, RequestKind

if TYPE_CHECKING:
    from cutwater.protocol.leader import Leader


class Requests:
    """The requests of one term. `of_epoch`: on whose behalf an epoch was begun."""

    def __init__(self, leader: Leader, term: int) -> None:
        self.of_epoch: dict[int, tuple[str, ...]] = {}
        self._leader = leader
        self._member = leader.member
        self._term = term

    # --- answers --------------------------------------------------------------------------------------

    def refuse(self, requests: Iterable[str], reason: FailureReason, detail: str) -> Procedure[None]:
        """Tells whoever asked that nothing comes of it, and why."""
        self._leader.story = detail
        for request_id in requests:
            yield Send(None, Reply(request_id, False, None, reason.value, detail))

    def refuse_epoch(self, epoch: int, reason: FailureReason, detail: str) -> Procedure[None]:
        """An epoch was aborted: whoever asked for it is told why."""
        yield from self.refuse(self.of_epoch.pop(epoch, ()), reason, detail)

    def grant_epoch(self, epoch: int) -> Procedure[None]:
        """An epoch is committed: whoever asked for it is told so."""
        for request_id in self.of_epoch.pop(epoch, ()):
            yield Send(None, Reply(request_id, True, epoch))

    def drop_all(self, coordinator: Coordinator) -> Procedure[None]:
        """A restore puts an end to everything that was asked for before it; whoever asked is told."""
        waiting = [r for begin in coordinator.status().queued for r in begin.requests]
        begun = [r for requests in self.of_epoch.values() for r in requests]
        self.of_epoch.clear()
        detail = "the pipeline was restored meanwhile"
        yield from self.refuse((*begun, *waiting), FailureReason.RESTORED, detail)

    # --- requests that are not checkpoints --------------------------------------------------------------

    def restore(self, request: Request) -> Procedure[bool]:
        """Starts the next generation at the cut of a kept checkpoint; every open epoch becomes void.
        `False` if it is refused, or this term is over."""
        state = self._member.journal.state
        epoch = state.savepoints.get(request.name) if request.name is not None else request.epoch
        target = state.committed.get(epoch) if epoch is not None else None
        unknown = sorted(set(request.reset) - self._member.topology.stages.keys())
        reason = FailureReason.NO_SUCH_CHECKPOINT
        if target is None:
            why = f"cannot restore {request.name or request.epoch}: no such checkpoint is kept"
        elif unknown:
            reason = FailureReason.NO_SUCH_STAGE
            why = f"cannot reset {', '.join(unknown)}: there is no such stage"
        elif not (yield from self._is_in_every_sink(target)):
            why = f"cannot restore epoch {epoch}: a restore abandoned it before every sink had published it"
        else:
            body = Restored(
                self._term, state.generation + 1, target.epoch, target.cuts, tuple(sorted(request.reset))
            )
            if (yield from self._leader.record(self._term, lambda _: body)):
                yield Send(None, Reply(request.request_id, True, target.epoch))
                return True
            return False
        yield from self.refuse((request.request_id,), reason, why)
        return False

    def _is_in_every_sink(self, target: Checkpoint) -> Procedure[bool]:
        """Whether each sink will have, or has had, a version of this epoch. On the current timeline it
        will; an abandoned epoch has only what was published before it was abandoned."""
        if target in timeline(self._member.journal.state):
            return True
        names = yield from insist(List(MARK_PREFIX))
        return all(mark_name(target.index, sink) in names for sink in self._member.topology.sinks())

    def is_taken(self, request: Request, coordinator: Coordinator) -> bool:
        """Whether a savepoint has this name or is about to have it: another must not take it away, for the
        first would expire."""
        name = request.name or request.request_id
        state = self._member.journal.state
        coming = [begun.savepoint for begun in state.open.values()]
        coming += [begin.savepoint for begin in coordinator.status().queued]
        return name in state.savepoints or name in coming

    def refuse_name(self, request: Request) -> Procedure[None]:
        """Answers a request for a savepoint whose name is taken."""
        detail = f"there is a savepoint '{request.name or request.request_id}' already"
        yield from self.refuse((request.request_id,), FailureReason.NAME_TAKEN, detail)

    def grant_cancel(self, request: Request, actions: list[Action]) -> Procedure[None]:
        """Answers a cancellation that found something to cancel; any other is refused by its action."""
        if not any(isinstance(action, Refuse) for action in actions):
            yield Send(None, Reply(request.request_id, True))

    def name(self, request: Request, coordinator: Coordinator) -> Procedure[None]:
        """Gives a savepoint's name to a kept checkpoint, or takes the name away; retention does the rest."""
        state = self._member.journal.state
        kept = request.kind is RequestKind.SAVEPOINT
        name = request.name or request.request_id
        epoch = request.epoch if kept else state.savepoints.get(name)
        if kept and self.is_taken(request, coordinator):
            yield from self.refuse_name(request)
            return
        if epoch is None or epoch not in state.committed:
            why = f"no checkpoint of epoch {epoch} is kept" if kept else f"there is no savepoint '{name}'"
            yield from self.refuse((request.request_id,), FailureReason.NO_SUCH_CHECKPOINT, why)
            return
        body = Savepoint(self._term, state.generation, name, epoch, kept)
        if (yield from self._leader.record(self._term, lambda _: body)):
            yield Send(None, Reply(request.request_id, True, epoch))
