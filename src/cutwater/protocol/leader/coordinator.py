"""When a checkpoint begins, which members it waits for, and when it is aborted.

One `Coordinator` serves one leadership. It decides and does nothing else: every method takes the time and
returns actions, in order, for the leader to perform.

The leader's duties
1. `Begin`: append BEGUN, then call `begun` with the epoch and the checkpoint id from the journal, then
   announce PREPARE, unless `begun` returned an `Abort` of it.
2. `Decide`: check the cut; append COMMITTED and call `committed`, or append ABORTED and call `aborted` with
   the reason. Once this action is out, the coordinator itself no longer aborts that checkpoint.
3. `Abort`: append ABORTED, call `aborted`, announce ABORT.
4. `tick` when time has passed. It checks deadlines, so silence is noticed although no message arrives.
5. Answer requests: by `Refuse`, or by the outcome of the checkpoint whose `Begin` names them.

Numbers are never assigned here: they come from the journal, so they continue across restarts and leaders. A call
that does not fit raises `IllegalStep` and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.errors import IllegalStep, UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.wire import Ack
from cutwater.protocol.leader.coordinator_actions import (
    Abort,
    Action,
    Begin,
    CoordinatorConfig,
    Decide,
    Refuse,
    TurnUnaligned,
)
from cutwater.protocol.leader.quorum import (
    CHECKPOINT,
    AckOutcome,
    CheckpointPhase,
    CheckpointProgress,
    Quorum,
)

_NEVER_TURNED = Flags.UNALIGNED | Flags.DRAIN
"""A drain is not turned unaligned: it must leave nothing in the channels."""

MAX_DETAIL = 2_000
"""The longest failure detail, in characters: it is written to the journal, and a member's error may be a stack trace."""

DRAIN_AGAIN_MS = 1_000
"""How soon an aborted drain is retried; if the checkpoint interval is shorter, after one interval."""

MAX_DOUBLINGS = 4
"""How often a drain's deadline is doubled: a bound, so that it does not wait for days for a member that is gone."""

MAX_QUEUED = 64
"""How many requests may be queued. Each takes the time of a checkpoint; more of them come from a caller in a loop."""


class Coordinator:
    """Decides about the checkpoints of one leadership.

    The first checkpoint is due at once. `since_full` is how many have committed since the last full one. `drained`
    says that the pipeline is drained, so no checkpoint begins. Raises `UserError` if there are no members.
    """

    def __init__(
        self,
        config: CoordinatorConfig,
        members: Iterable[str],
        term: int,
        now_ms: int,
        since_full: int = 0,
        drained: bool = False,
    ) -> None:
        self.config = config
        self.members = tuple(sorted(set(members)))
        self.term = term
        self.last_completed: CheckpointProgress | None = None
        self.last_failed: CheckpointProgress | None = None
        if not self.members:
            raise UserError("a pipeline without members cannot take a checkpoint; name at least one")
        self._flights: list[CheckpointProgress] = []
        self._queue: list[Begin] = []
        self._due_ms = self._pause_until_ms = now_ms
        self._since_full = since_full
        self.closed = FailureReason.DRAINED if drained else None
        """Why no further checkpoint begins, if none does."""
        self._drain_again_ms = now_ms
        self._late_drains = 0
        self._last_epoch = self._last_checkpoint_id = 0

    def tick(self, now_ms: int) -> list[Action]:
        """Aborts checkpoints past their deadline, turns slow ones unaligned, and begins the one that is due."""
        actions: list[Action] = []
        alignment_ms = self.config.alignment_timeout_ms
        for flight in self._flights:
            if flight.phase is not CheckpointPhase.COLLECTING:
                continue
            waited_ms = now_ms - flight.since_ms
            if waited_ms >= self._timeout_ms(flight):
                late = flight.votes.timed_out()
                detail = f"within {self._timeout_ms(flight)} ms {late.blame}"
                abort = self._abort(flight, FailureReason.DEADLINE, detail, now_ms)
                actions.append(msgspec.structs.replace(abort, late=late.missing))
            elif (
                alignment_ms is not None and waited_ms >= alignment_ms and not flight.flags.has(_NEVER_TURNED)
            ):
                flight.flags |= Flags.UNALIGNED
                actions.append(TurnUnaligned(flight.epoch, flight.checkpoint_id))
        return actions + self._start(now_ms)

    def next_ms(self) -> int | None:
        """When `tick` next has something to do, if nothing else happens before; `None` if never."""
        due_ms = self._drain_again_ms if self._drain_waits() else max(self._due_ms, self._pause_until_ms)
        times = [due_ms] if self._has_room() else []
        for flight in self._flights:
            if flight.phase is CheckpointPhase.COLLECTING:
                times.append(flight.since_ms + self._timeout_ms(flight))
                if self.config.alignment_timeout_ms is not None and not flight.flags.has(_NEVER_TURNED):
                    times.append(flight.since_ms + self.config.alignment_timeout_ms)
        return min(times, default=None)

    def request_checkpoint(
        self, now_ms: int, request_id: str, full: bool = False, unaligned: bool = False
    ) -> list[Action]:
        """Takes a checkpoint as soon as there is room, regardless of interval and pause."""
        flags = (Flags.FULL_SNAPSHOT if full else Flags.NONE) | (Flags.UNALIGNED if unaligned else Flags.NONE)
        return self._request(now_ms, Begin(flags, None, (request_id,)))

    def request_savepoint(self, name: str, now_ms: int, request_id: str) -> list[Action]:
        """Takes a full checkpoint under a name, ahead of any periodic one."""
        return self._request(now_ms, Begin(Flags.FULL_SNAPSHOT, name, (request_id,)))

    def request_drain(self, now_ms: int, request_id: str) -> list[Action]:
        """Takes the last checkpoint, alone, when all earlier ones are decided. If it aborts, it is retried until it
        commits or is cancelled."""
        return self._request(now_ms, Begin(Flags.DRAIN, None, (request_id,)))

    def want_drain(self, now_ms: int) -> list[Action]:
        """Drains the pipeline because the leader's own process wants that. May be called repeatedly."""
        known: list[Begin | CheckpointProgress] = [*self._queue, *self._flights]
        if self.closed or any(one.flags.has(Flags.DRAIN) for one in known):
            return []
        self._queue.append(Begin(Flags.DRAIN))
        return self._start(now_ms)

    def stays_asked(self, epoch: int, reason: FailureReason) -> bool:
        """Whether an epoch that is aborted for this reason is retried: then its requests are not refused."""
        is_drain = self._find(epoch, "aborted").flags.has(Flags.DRAIN)
        return is_drain and reason is not FailureReason.CANCELLED and not self.closed

    def cancel(self, now_ms: int, request_id: str) -> list[Action]:
        """Aborts everything in flight that can still be aborted, including a drain that would be retried. Other queued
        requests come next."""
        beginning = [f for f in self._flights if f.phase is CheckpointPhase.BEGINNING]
        for flight in beginning:
            flight.reason = FailureReason.CANCELLED  # It has no number yet; `begun` aborts it.
        open_flights = [f for f in self._flights if CHECKPOINT.allows(f.phase, "abort")]
        if not self._flights and self._drain_waits():
            dropped = self._queue.pop(0)
            return [Refuse(r, FailureReason.CANCELLED, "by request") for r in dropped.requests]
        if beginning or open_flights:
            aborts = [self._abort(f, FailureReason.CANCELLED, "by request", now_ms) for f in open_flights]
            last = [msgspec.structs.replace(abort, request=request_id) for abort in aborts[-1:]]
            return [*aborts[:-1], *last]  # it is answered when all of them are aborted
        phases = (
            ", ".join(f"epoch {f.epoch} is {f.phase.value}" for f in self._flights) or "none is in flight"
        )
        return [Refuse(request_id, FailureReason.NOTHING_TO_CANCEL, phases)]

    def begun(self, epoch: int, checkpoint_id: int, now_ms: int) -> list[Action]:
        """BEGUN is in the journal, with these numbers; the members' deadline starts now."""
        flight = self._beginning("begun")
        if epoch <= self._last_epoch or checkpoint_id <= self._last_checkpoint_id:
            raise IllegalStep(
                f"checkpoint: epoch {epoch} (checkpoint {checkpoint_id}) cannot begin after epoch"
                f" {self._last_epoch} (checkpoint {self._last_checkpoint_id}); numbers only grow"
            )
        flight.step("begun", now_ms)
        flight.epoch, flight.checkpoint_id = self._last_epoch, self._last_checkpoint_id = epoch, checkpoint_id
        flight.quorum = Quorum(self.members, epoch, checkpoint_id, self.term)
        actions: list[Action] = []
        if flight.reason is not None:
            actions.append(self._abort(flight, flight.reason, "by request, while it began", now_ms))
        return actions + self._start(now_ms)

    def on_ack(self, ack: Ack, now_ms: int) -> tuple[AckOutcome, list[Action]]:
        """Handles one member's answer; the last one, or the first refusal, takes effect at once."""
        flight = self._numbered(ack.checkpoint_id)
        if flight is None:
            return AckOutcome.OTHER_CHECKPOINT, []
        outcome = flight.votes.on_ack(ack)
        if outcome is AckOutcome.REFUSED and (refused := flight.votes.refused):
            detail = f"{refused.member}: {refused.error}"
            return outcome, [self._abort(flight, FailureReason.MEMBER_REFUSED, detail, now_ms)]
        if outcome is AckOutcome.COUNTED and flight.votes.reached:
            flight.step("all acked", now_ms)
            return outcome, self._decide(now_ms)
        return outcome, []

    def committed(self, epoch: int, now_ms: int) -> list[Action]:
        """COMMITTED is in the journal."""
        flight = self._find(epoch, "committed")
        flight.step("committed", now_ms)
        self._since_full = 0 if flight.flags.has(Flags.FULL_SNAPSHOT) else self._since_full + 1
        self.last_completed = flight
        if flight.flags.has(Flags.DRAIN):
            self.closed = FailureReason.DRAINED
        return self._ended(flight, now_ms)

    def aborted(
        self, epoch: int, now_ms: int, reason: FailureReason | None = None, detail: str = ""
    ) -> list[Action]:
        """ABORTED is in the journal, or another entry made the epoch void. `reason` may be omitted only
        after an `Abort` of it, which has the reason."""
        flight = self._find(epoch, "aborted")
        if reason is None:
            if flight.reason is None:
                raise IllegalStep(f"checkpoint: nobody asked to abort epoch {epoch}; give the reason for it")
            reason, detail = flight.reason, flight.detail
        flight.step("aborted", now_ms)
        return self._failed(flight, reason, detail, now_ms)

    def in_flight(self) -> tuple[CheckpointProgress, ...]:
        """The undecided checkpoints, oldest first; read-only for callers."""
        return tuple(self._flights)

    def pending(self, checkpoint_id: int) -> tuple[str, ...]:
        """The members that have not answered for it, by name. Raises `IllegalStep` if it is not in flight."""
        flight = self._numbered(checkpoint_id)
        if flight is None:
            raise IllegalStep(f"checkpoint: {checkpoint_id} is not in flight, so nobody is missing")
        return flight.missing

    def queued(self) -> tuple[Begin, ...]:
        """The requested checkpoints that have not begun, in order."""
        return tuple(self._queue)

    def _request(self, now_ms: int, wanted: Begin) -> list[Action]:
        """Queues a request, merges it with a queued one of the same kind, or refuses it."""
        request_id, name = wanted.requests[0], wanted.savepoint
        known: list[Begin | CheckpointProgress] = [*self._queue, *self._flights]
        if any(request_id in one.requests for one in known):
            return []  # The same request, heard twice.
        plain = [w.flags if w.savepoint is None else None for w in self._queue]
        like = plain.index(wanted.flags) if name is None and wanted.flags in plain else None
        drain_waits = like is not None and wanted.flags.has(Flags.DRAIN)
        refusal: tuple[FailureReason, str] | None = None
        if self.closed:
            refusal = self.closed, "no further checkpoint begins"
        elif any(one.flags.has(Flags.DRAIN) for one in known) and not drain_waits:
            refusal = FailureReason.DRAINING, "no other checkpoint begins during a drain"
        elif name is not None and any(one.savepoint == name for one in known):
            refusal = FailureReason.ALREADY_IN_PROGRESS, f"savepoint '{name}' is being taken"
        elif sum(len(w.requests) for w in self._queue) >= MAX_QUEUED:
            refusal = FailureReason.QUEUE_FULL, f"{MAX_QUEUED} requests are waiting"
        elif like is not None:
            requests = (*self._queue[like].requests, request_id)
            self._queue[like] = msgspec.structs.replace(self._queue[like], requests=requests)
        else:
            self._queue.append(wanted)
        return [Refuse(request_id, *refusal)] if refusal else self._start(now_ms)

    def _has_room(self) -> bool:
        """Whether another checkpoint may begin. Only one at a time may lack its number."""
        drain_next = any(w.flags.has(Flags.DRAIN) for w in self._queue[:1])
        return not (
            self.closed
            or len(self._flights) >= (1 if drain_next else self.config.max_concurrent)
            or any(f.phase is CheckpointPhase.BEGINNING or f.flags.has(Flags.DRAIN) for f in self._flights)
        )

    def _timeout_ms(self, flight: CheckpointProgress) -> int:
        """A drain waits for the stages to finish one after the other, which may take longer than a checkpoint is allowed
        to. So it gets twice the time whenever it has missed its deadline; otherwise it might never commit."""
        doublings = self._late_drains if flight.flags.has(Flags.DRAIN) else 0
        return self.config.timeout_ms << min(doublings, MAX_DOUBLINGS)

    def _drain_waits(self) -> bool:
        return bool(self._queue) and self._queue[0].flags.has(Flags.DRAIN)

    def _start(self, now_ms: int) -> list[Action]:
        """Begins the next checkpoint if one is due and there is room."""
        if not self._has_room() or (self._drain_waits() and now_ms < self._drain_again_ms):
            return []
        if self._queue:
            begin = self._queue.pop(0)
        elif now_ms >= self._due_ms and now_ms >= self._pause_until_ms:
            begin = Begin(Flags.NONE)
        else:
            return []
        if self._full_is_due():
            begin = msgspec.structs.replace(begin, flags=begin.flags | Flags.FULL_SNAPSHOT)
        self._due_ms = now_ms + self.config.interval_ms
        times_ms = {CHECKPOINT.start: now_ms}
        self._flights.append(CheckpointProgress(begin.flags, begin.savepoint, begin.requests, times_ms))
        return [begin]

    def _full_is_due(self) -> bool:
        """Counts committed checkpoints, so a full one that aborts is still due."""
        every = self.config.full_every
        if every is None or any(f.flags.has(Flags.FULL_SNAPSHOT) for f in self._flights):
            return False
        return self._since_full + len(self._flights) + 1 >= every

    def _decide(self, now_ms: int) -> list[Action]:
        """Only the oldest may be decided, so decisions are made in the order of epochs."""
        if not self._flights or self._flights[0].phase is not CheckpointPhase.CAPTURED:
            return []
        flight = self._flights[0]
        flight.step("decide", now_ms)
        return [Decide(flight.epoch, flight.checkpoint_id, flight.votes.acks)]

    def _abort(self, flight: CheckpointProgress, reason: FailureReason, detail: str, now_ms: int) -> Abort:
        flight.step("abort", now_ms)
        flight.votes.close()
        flight.reason, flight.detail = reason, detail[:MAX_DETAIL]
        return Abort(flight.epoch, flight.checkpoint_id, reason, flight.detail, flight.flags | Flags.CANCEL)

    def _failed(
        self, flight: CheckpointProgress, reason: FailureReason, detail: str, now_ms: int
    ) -> list[Action]:
        flight.reason, flight.detail = reason, detail
        self.last_failed = flight
        if flight.flags.has(Flags.DRAIN) and reason is not FailureReason.CANCELLED and not self.closed:
            self._queue.insert(0, Begin(Flags.DRAIN, None, flight.requests))
            self._drain_again_ms = now_ms + min(self.config.interval_ms, DRAIN_AGAIN_MS)
            self._late_drains += reason is FailureReason.DEADLINE
        return self._ended(flight, now_ms)

    def _ended(self, flight: CheckpointProgress, now_ms: int) -> list[Action]:
        self._flights.remove(flight)
        self._pause_until_ms = now_ms + self.config.min_pause_ms
        return self._decide(now_ms) + self._start(now_ms)

    def _beginning(self, event: str) -> CheckpointProgress:
        for flight in self._flights:
            if flight.phase is CheckpointPhase.BEGINNING:
                return flight
        raise IllegalStep(
            f"checkpoint: no step '{event}': no checkpoint was asked to begin, or it has already begun"
        )

    def _numbered(self, checkpoint_id: int) -> CheckpointProgress | None:
        for flight in self._flights:
            if flight.checkpoint_id == checkpoint_id and flight.quorum is not None:
                return flight
        return None

    def _find(self, epoch: int, event: str) -> CheckpointProgress:
        for flight in self._flights:
            if flight.epoch == epoch and flight.quorum is not None:
                return flight
        raise IllegalStep(f"checkpoint: no step '{event}' for epoch {epoch}: it is not in flight")
