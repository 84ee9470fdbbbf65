"""A hosted stage: its incarnation, and the appender, which is the only writer of its log.

Theory of operation. Every start of a stage's query is a new incarnation (rule 7). It first appends OPEN, which takes
the place that a predecessor, if it is still alive, would need for its next entry. Then it makes its own Spark folder
from the predecessor's, including prepared records. Only then does its query start. From then on the appender does two
things. When Spark has committed a batch, it appends BATCH (rule 4; first a batch that the predecessor committed and did
not log). When a checkpoint asks for it, it appends BARRIER after the last batch in the log. A cut is just that entry:
no query is stopped or involved.

The host of the query reports facts (`batch_began`, `query_rested`, `query_ended` ...) in a turn. The stage decides what
follows: whether it is idle or quiet, and whether it needs another query.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.effects import (
    FAILED,
    Pace,
    Procedure,
    ReadPrepared,
    StartQuery,
    Wait,
    ask,
    insist,
)
from cutwater.protocol.base.events import AlignmentBegun, BatchLogged, Event, StageCut, StageStarted
from cutwater.protocol.base.log import AppendPhase, append, follow
from cutwater.protocol.base.records import (
    BarrierAt,
    Batch,
    Begun,
    Prepared,
    StageBody,
    StageSpec,
    StageState,
    position_of,
)
from cutwater.protocol.base.transitions import Table
from cutwater.protocol.base.watermark import NONE, UNKNOWN, Watermark, idle, known
from cutwater.protocol.member import stage_start
from cutwater.protocol.member.activity import Activity, RestPhase
from cutwater.protocol.member.channel import Channel
from cutwater.protocol.member.cleanup import Cleanup, Keeper
from cutwater.protocol.member.injector import PollHandle
from cutwater.protocol.member.inputs import Inputs, KnownLogs
from cutwater.protocol.member.next_query import Circumstances, NextQuery, QueryEnd
from cutwater.protocol.member.stage_log import StageLog
from cutwater.protocol.member.stage_start import Opener

DRAIN = int(Flags.DRAIN)


class StagePhase(Enum):
    OPENING = "opening"
    RUNNING = "running"
    RESTING = "resting"
    STOPPED = "stopped"
    FENCED = "fenced"


STAGE_PHASES = Table(
    "stage",
    "One incarnation of a stage",
    StagePhase.OPENING,
    {
        (StagePhase.OPENING, "opened"): StagePhase.RUNNING,
        (StagePhase.OPENING, "fenced"): StagePhase.FENCED,
        (StagePhase.RUNNING, "drain_cut"): StagePhase.RESTING,
        (StagePhase.RUNNING, "fenced"): StagePhase.FENCED,
        (StagePhase.RUNNING, "drain_committed"): StagePhase.STOPPED,
        (StagePhase.RESTING, "drain_aborted"): StagePhase.RUNNING,
        (StagePhase.RESTING, "drain_committed"): StagePhase.STOPPED,
        (StagePhase.RESTING, "fenced"): StagePhase.FENCED,
    },
)


LOGGED_AT_ONCE = 8
"""How many batches are logged before the stage is cut, if it can be."""


class Host(KnownLogs, Opener, Circumstances, Keeper, Protocol):
    """What a stage uses of the member that hosts it."""

    incarnations: dict[str, tuple[int, int]]
    tries: dict[str, int]
    worked: set[str]
    unaligned: set[int]

    def observe(self, event: Event) -> None: ...
    def start_stage(self, name: str, pace: Pace) -> None: ...
    def notify_readers(self, stage: str) -> Procedure[None]: ...


class Stage:
    """One incarnation of a stage, as its member hosts it.

    The host around the query reads `phase`, `pace`, `stops_batches`, `asks_for_rest` and `may_be_idle`, and calls the
    methods that report facts; it writes nothing.
    """

    def __init__(
        self, member: Host, spec: StageSpec, generation: int, handle: PollHandle, pace: Pace | None = None
    ) -> None:
        self.member = member
        self.spec = spec
        self.name = spec.name
        self.generation = generation
        self.log: StageLog = member.log(spec.name)
        self.phase = STAGE_PHASES.start
        self.incarnation = 0
        self.activity = Activity()
        self.draining = False
        self._inputs = Inputs(member, spec, self.log)
        self._next = NextQuery(member, spec, self.log, self._inputs, self.activity, pace)
        self._cleanup = Cleanup(member, self.log, self._is_fenced)
        self._handle = handle
        self._asked = 0
        self._aligned = 0
        """The newest checkpoint of which a barrier was seen."""

    @property
    def pace(self) -> Pace:
        """How the query of this incarnation is triggered."""
        return self._next.present_pace

    @property
    def stops_batches(self) -> bool:
        """Whether the query must not begin another batch: the stage rests, and a native source may have new rows."""
        return self._next.stops_batches

    @property
    def quiet(self) -> bool:
        """Whether the query has nothing to do: no batch in progress or due, nothing unread, closed windows emitted."""
        return self.activity.rest is RestPhase.QUIET

    @property
    def idle(self) -> bool:
        """Whether the query has had nothing to do for so long that it does not hold back the watermark."""
        return self.activity.idle

    @property
    def took_all(self) -> bool:
        """Whether the query has read everything that was available when it started, and ended."""
        return self.activity.took_all

    # --- the appender's life ------------------------------------------------------------------------

    def run(self) -> Procedure[None]:
        """The appender, from OPEN until it is fenced or the pipeline is drained."""
        if not (yield from self._open()):
            return
        self._settle_drain()
        while self.phase not in (StagePhase.FENCED, StagePhase.STOPPED):
            if self._next.due_ms is not None and self.member.now_ms >= self._next.due_ms:
                self.member.start_stage(self.name, self._next.pace)
                return
            there_may_be_more = yield from self._log_batches()
            self._settle_drain()
            yield from self._cut()
            yield from self._cleanup.run(self.incarnation)
            if self._next.is_given_up:
                # Perhaps the query failed because another process has opened the stage since: then this one must end.
                yield from follow(self.log.view)
                self._is_fenced()
            if not there_may_be_more:
                yield Wait(self._wait_ms())
            self._settle_idle()
            self._settle_drain()

    def _wait_ms(self) -> int:
        due_ms = [self.member.now_ms + self.member.config.poll_ms]
        if self._next.due_ms is not None:
            due_ms.append(self._next.due_ms)
        elif self.phase is StagePhase.RUNNING and (take_all_ms := self._next.take_all_ms()) is not None:
            due_ms.append(take_all_ms)
        return max(1, min(due_ms) - self.member.now_ms)

    # --- facts, which the host reports in a turn ------------------------------------------------------

    def batch_began(self, batch: int) -> None:
        """The query has begun a batch, numbered as in the log."""
        self.member.worked.add(self.name)
        self.activity.batch_began(batch, self.member.now_ms)

    def batch_committed(self) -> None:
        """Spark has committed a batch, which must be logged."""
        self._wake()

    def query_waits(self) -> None:
        """Spark says that the query waits for data, and has no batch in progress."""
        self.activity.idle = self._is_silent()

    def query_rested(self, last: int) -> None:
        """Since batch `last` was committed, Spark has found nothing to do: no new data, and no reason to run without."""
        self.activity.found_nothing(last)
        self._wake()

    def query_took_all(self, last: int) -> None:
        """The query has read everything that was available, and ended; `last` is the last batch that Spark committed."""
        self.activity.has_taken_all(last)
        self.member.wake("capture")  # the leader may wait for the sources of this member
        self.member.wake("lead")
        self._wake()

    def query_ended(self, end: QueryEnd, error: str) -> int | None:
        """The query of this incarnation has ended before it read everything. Returns in how many ms the next
        incarnation starts, or `None` if none does for now: the stage is given up, or at rest."""
        return self._next.on_end(end, error, is_needed=self.phase is StagePhase.RUNNING)

    # --- what the query may read ----------------------------------------------------------------------

    def producer(self, name: str) -> StageState:
        """The log of an input, as far as it is known here."""
        return self._inputs.producer(name)

    def channel(self, name: str) -> Channel:
        """The channel from an input to this stage."""
        return self._inputs.channel(name)

    def readable(self, name: str) -> int:
        """The batch of an input up to which the query may read now (the hold rule)."""
        return self._inputs.readable(name)

    # --- what follows from the facts -----------------------------------------------------------------------

    @property
    def asks_for_rest(self) -> bool:
        """Whether the host should call `query_rested` as soon as Spark finds nothing more to do."""
        return self.phase is StagePhase.RUNNING and self.activity.asks_for_rest

    @property
    def may_be_idle(self) -> bool:
        """Whether the host should call `query_waits` if the query waits."""
        return not self.idle and self._is_silent()

    def _is_silent(self) -> bool:
        config, now_ms = self.member.config, self.member.now_ms
        silent = self.activity.is_silent(self.log.state.last, now_ms, config.idle_after_ms)
        return silent and not self._inputs.has_unread()

    def _settle_idle(self) -> None:
        if self.idle and not self.took_all and not self._is_silent():
            self.activity.idle = False

    def _wake(self) -> None:
        self.member.wake(f"stage {self.name}")

    # --- opening --------------------------------------------------------------------------------------

    def _open(self) -> Procedure[bool]:
        """Opens this incarnation; `False` if another process, or another generation, has taken over."""
        yield from follow(self.log.view)
        before = self.member.incarnations.get(self.name)
        if before is not None and before != (self.generation, self.log.state.incarnation):
            self._step("fenced")  # the open incarnation is not our last one: another process has taken over
            return False
        report, reset = yield from stage_start.starting_report(self.member, self.spec, self.generation)
        if self.member.journal.state.generation != self.generation:
            return False  # what was read belongs to the next generation
        self.incarnation = yield from stage_start.append_open(self.member, self.spec, self.log, report)
        self.member.incarnations[self.name] = self.generation, self.incarnation
        yield from stage_start.make_folder(self.log, self.incarnation, report, reset)
        yield from stage_start.learn_fates(self.member)
        if self._is_fenced():
            return False
        self._step("opened")
        self.member.observe(StageStarted(self.name, self.generation, self.incarnation))
        self.activity.started(self.member.now_ms)
        consumed = dict(self.log.state.consumed)
        yield from insist(StartQuery(self.name, self.generation, self.incarnation, consumed, self.pace))
        return True

    def _append(self, body: StageBody) -> Procedure[bool]:
        """Appends an entry as this incarnation; `False` if another incarnation is open, so that it is not in the log.

        This is checked first: other actors of this process read the same log, which moves the place of the next entry.
        """
        if self._is_fenced():
            return False
        phase = yield from append(self.log.view, self.log.view.seal(body, self.member.nonce()))
        if phase is not AppendPhase.MINE:
            yield from follow(self.log.view)
        if self._is_fenced():
            return False
        yield from self.member.notify_readers(self.name)
        return phase is AppendPhase.MINE

    def _is_fenced(self) -> bool:
        if self.log.state.incarnation != self.incarnation and self.phase is not StagePhase.FENCED:
            self._step("fenced")
        return self.phase is StagePhase.FENCED

    def _step(self, event: str) -> None:
        self.phase = STAGE_PHASES.next(self.phase, event)

    # --- batches (rule 4) ---------------------------------------------------------------------------

    def _log_batches(self) -> Procedure[bool]:
        """Logs the batches that Spark has committed, a few at a time, and returns whether there may be more: a query that
        is faster than its log must still be cut."""
        for _ in range(LOGGED_AT_ONCE):
            batch = self.log.state.last + 1
            prepared = yield from ask(ReadPrepared(self.name, self.generation, self.incarnation, batch))
            if prepared is None or prepared is FAILED:
                return False
            if not (yield from self._append(self._batch_entry(prepared))):
                return False
            self.member.tries.pop(self.name, None)
            self.activity.batch_logged(self.member.now_ms)
            self.member.observe(BatchLogged(self.name, prepared.batch, prepared.rows))
        return True

    def _batch_entry(self, prepared: Prepared) -> Batch:
        return Batch(
            self.incarnation,
            prepared.batch,
            prepared.files,
            prepared.sinks,
            prepared.rows,
            prepared.size,
            prepared.commit,
            **position_of(prepared),
        )

    # --- cuts ---------------------------------------------------------------------------------------

    def _cut(self) -> Procedure[None]:
        """Cuts the stage for every open epoch for which that is possible: oldest first, and never before an older one."""
        self._listen()
        for epoch in sorted(self.member.journal.state.open):
            begun = self.member.journal.state.open.get(epoch)
            if begun is None or begun.generation != self.generation or self._is_fenced():
                return
            if epoch in self.log.state.barriers:
                continue
            unaligned = self._try(begun)
            if unaligned is None:
                return
            barrier = self._barrier_entry(begun, unaligned)
            if not (yield from self._append(barrier)):
                return
            self.member.observe(StageCut(self.name, epoch, barrier.batch, unaligned))
            self._settle_drain()
            self.member.wake("capture")

    def _listen(self) -> None:
        barrier = self._handle.poll(0)
        if barrier is not None:
            self._asked = max(self._asked, barrier.checkpoint_id)

    def _try(self, begun: Begun) -> bool | None:
        """Whether the stage, which can be cut now, is cut unaligned; `None` if it has to wait.

        Alignment is derived from the logs each time. A barrier may have disappeared from a log: its producer knows that
        the epoch is over, and has compacted the log; this process may not know that yet.
        """
        if not self.spec.inputs and self._asked < begun.checkpoint_id:
            return None
        aligner = self._inputs.aligner(begun, unaligned=begun.checkpoint_id in self.member.unaligned)
        if aligner.has_begun:
            self._observe_alignment(begun)
        if begun.flags & DRAIN and (not self.quiet or aligner.waiting_for()):
            return None
        cut = aligner.cut()
        if cut is None:
            return None
        self._observe_alignment(begun)  # an order to cut unaligned may come before all barriers
        return not cut.aligned

    def _observe_alignment(self, begun: Begun) -> None:
        if begun.checkpoint_id > self._aligned:
            self._aligned = begun.checkpoint_id
            self.member.observe(AlignmentBegun(self.name, begun.epoch))

    def _barrier_entry(self, begun: Begun, unaligned: bool) -> BarrierAt:
        state = self.log.state
        cut = position_of(state) | {"watermark": self._watermark(bool(begun.flags & DRAIN))}
        return BarrierAt(
            incarnation=self.incarnation,
            epoch=begun.epoch,
            checkpoint_id=begun.checkpoint_id,
            term=begun.term,
            batch=state.last,
            unaligned=unaligned,
            **cut,
        )

    def _watermark(self, drains: bool) -> Watermark:
        """Spark's watermark at the last batch; a stage that has nothing to do holds nobody back. Only the time comes
        from the log: whether the stage is idle may have changed since."""
        if not self.member.plans[self.name].has_event_time:
            return NONE
        reached_ms = self.log.state.watermark.ms
        if self.idle or (self.quiet and (self.draining or drains)):
            return idle(reached_ms)
        return UNKNOWN if reached_ms is None else known(reached_ms)

    def _settle_drain(self) -> None:
        """A stage that was cut for a drain rests while the drain is open, continues if it is aborted, and stops when it
        is committed."""
        state = self.member.journal.state
        drains = [e for e, begun in state.open.items() if begun.flags & DRAIN] if state.open else []
        self.draining = bool(drains)
        rests = self.draining and any(epoch in self.log.state.barriers for epoch in drains)
        if self.phase is StagePhase.RUNNING and rests:
            self._step("drain_cut")
            self._next.on_rest()
        elif self.phase is StagePhase.RESTING and not rests and not state.drained:
            self._step("drain_aborted")
        elif state.drained and self.phase in (StagePhase.RUNNING, StagePhase.RESTING):
            self._step("drain_committed")
        if self.phase is StagePhase.RUNNING and self._next.is_undecided:
            self._next.settle(self.draining)
