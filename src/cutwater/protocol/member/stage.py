"""A hosted stage: its incarnation, and the appender, which is the only writer of its log.

Theory of operation. Every start of a stage's query is a new incarnation (rule 7). It first appends OPEN, which takes
the place that a predecessor, if it is still alive, would need for its next entry. Then it makes its own Spark folder
from the predecessor's, including prepared records. Only then does its query start. From then on the appender does two
things. When Spark has committed a batch, it appends BATCH (rule 4; first a batch that the predecessor committed and did
not log). When a checkpoint asks for it, it appends BARRIER behind the last batch in the log. A cut is just that entry:
no query is stopped or asked.

The host of the query reports facts (`batch_began`, `query_rested`, `query_ended` ...) in a turn. The stage decides what
follows: whether it is idle or quiet, and whether it needs another query.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Protocol

from cutwater.protocol.base.barrier import Barrier, Flags
from cutwater.protocol.base.effects import (
    FAILED,
    Delete,
    FindStored,
    List,
    ListFolders,
    MakeFolder,
    Procedure,
    ReadPrepared,
    StartQuery,
    Wait,
    ask,
    insist,
)
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.events import BatchLogged, Event, StageCut, StageStarted
from cutwater.protocol.base.log import AppendPhase, append, compact, follow
from cutwater.protocol.base.paths import generation_of, stage_prefix
from cutwater.protocol.base.records import (
    BarrierAt,
    Batch,
    Begun,
    Manifest,
    Open,
    Prepared,
    StageBody,
    StageReport,
    StageSnapshot,
    StageSpec,
    StageState,
    position_of,
)
from cutwater.protocol.base.transitions import Table
from cutwater.protocol.base.watermark import NONE, UNKNOWN, Watermark, idle, known
from cutwater.protocol.member import channel
from cutwater.protocol.member.activity import Activity, Pace, RestPhase
from cutwater.protocol.member.aligner import Aligner
from cutwater.protocol.member.channel import BatchUnknown, Channel, carried_batches
from cutwater.protocol.member.config import MemberConfig
from cutwater.protocol.member.injector import PollHandle
from cutwater.protocol.member.journal import Fate, Journal, fate
from cutwater.protocol.member.publish import read_manifest
from cutwater.protocol.member.retention import deletable_data, deletable_states
from cutwater.protocol.member.stage_log import StageLog, trimmed

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


class QueryEnd(Enum):
    """How a query ended before it took everything. `ASKED`: it was asked to stop (`stops_batches`). `STOPPED`: without an
    error, so somebody else has stopped it. `OVERLOADED`: the machine was too busy, which is temporary. `HOPELESS`: the
    next query would fail in the same way."""

    ASKED = "asked"
    STOPPED = "stopped"
    FAILED = "failed"
    OVERLOADED = "overloaded"
    HOPELESS = "hopeless"


class Host(Protocol):
    """What a stage uses of the member that hosts it."""

    config: MemberConfig
    now_ms: int
    journal: Journal
    manifest: Manifest | None
    timeless: frozenset[str]
    native: frozenset[str]
    triggers_ms: Mapping[str, int]
    ticking: frozenset[str]
    incarnations: dict[str, tuple[int, int]]
    tries: dict[str, int]
    unaligned: set[int]

    def nonce(self) -> str: ...
    def observe(self, event: Event) -> None: ...
    def wake(self, actor: str) -> None: ...
    def log(self, stage: str) -> StageLog: ...
    def start_stage(self, name: str, pace: Pace) -> None: ...
    def query_ended(self, name: str, end: QueryEnd, error: str) -> int | None: ...
    def head_manifest(self) -> Procedure[Manifest | None]: ...
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
        self.pace = pace if pace is not None else self._usual_pace
        """How the query of this incarnation is triggered."""
        self.stops_batches = False
        """Whether the query must not begin another batch: the stage rests, and a native source may have new rows."""
        self._handle = handle
        self._asked = 0
        self._collected: object = None
        self._has_query = True
        self._is_given_up = False
        self._restart_ms: int | None = None
        self._next_pace = self.pace

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
        """Whether the query has taken everything that was available when it started, and ended."""
        return self.activity.took_all

    @property
    def _usual_pace(self) -> Pace:
        if not self.member.config.once:
            return Pace.OWN
        return Pace.QUICK if self.spec.inputs else Pace.TAKE_ALL

    @property
    def _is_native(self) -> bool:
        return not self.spec.inputs or self.name in self.member.native

    # --- the appender's life ------------------------------------------------------------------------

    def run(self) -> Procedure[None]:
        """The appender, from OPEN until it is fenced or the pipeline is drained."""
        if not (yield from self._open()):
            return
        self._settle_drain()
        while self.phase not in (StagePhase.FENCED, StagePhase.STOPPED):
            if self._restart_ms is not None and self.member.now_ms >= self._restart_ms:
                self.member.start_stage(self.name, self._next_pace)
                return
            there_may_be_more = yield from self._log_batches()
            self._settle_drain()
            yield from self._cut()
            yield from self._collect()
            yield from self._compact()
            if not there_may_be_more:
                yield Wait(self._wait_ms())
            self._settle_idle()
            self._settle_drain()

    def _wait_ms(self) -> int:
        due_ms = [self.member.now_ms + self.member.config.poll_ms]
        if self._restart_ms is not None:
            due_ms.append(self._restart_ms)
        elif self._may_take_all():
            due_ms.append(self.activity.settling_ms + self.member.config.rest_within_ms)
        return max(1, min(due_ms) - self.member.now_ms)

    # --- facts, which the host reports in a turn ------------------------------------------------------

    def batch_began(self, batch: int) -> None:
        """The query has begun a batch, numbered as in the log."""
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
        """The query has taken everything that was available, and ended; `last` is the last batch that Spark committed."""
        self.activity.has_taken_all(last)
        self.member.wake("capture")  # the leader may wait for the sources of this member
        self.member.wake("lead")
        self._wake()

    def query_ended(self, end: QueryEnd, error: str) -> int | None:
        """The query of this incarnation has ended before it took everything. Returns in how many ms the next
        incarnation starts, or `None` if none does for now: the stage is given up, or rests."""
        self._has_query = False
        if self.phase is not StagePhase.RUNNING:
            return None  # it rests, and needs a query only if the drain is aborted
        after_ms = 0 if end is QueryEnd.ASKED else self.member.query_ended(self.name, end, error)
        if after_ms is None:
            self._is_given_up = True
            self.activity.lost_query()
        else:
            self._start_again(after_ms, self._usual_pace if end is QueryEnd.ASKED else self.pace)
        return after_ms

    # --- what follows from them -----------------------------------------------------------------------

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
        return silent and not self.has_unread()

    def _settle_idle(self) -> None:
        if self.idle and not self.took_all and not self._is_silent():
            self.activity.idle = False

    def _settle_rest(self) -> None:
        """Steps towards rest while a drain is open, and back to normal work when none is."""
        needs_query = self.stops_batches or not self._has_query or (self.took_all and self.has_unread())
        if not self.draining:
            self.activity.drain_over()
            needs_query |= self.pace is not self._usual_pace
        if needs_query:
            self._start_again(0, self._usual_pace)
        elif self.draining and (self._is_too_slow() or self._must_stop_ticking()):
            self._start_again(0, Pace.QUICK)
        elif self.draining:
            self.activity.settle(self._inputs_are_done(), self.log.state.last, self.member.now_ms)
            since_ms = self.member.now_ms - self.activity.settling_ms
            if self._may_take_all() and since_ms >= self.member.config.rest_within_ms:
                self._start_again(0, Pace.TAKE_ALL)

    def _may_take_all(self) -> bool:
        """Whether the stage waits for a native source that may never become silent; it can take what is available."""
        settles = self.phase is StagePhase.RUNNING and self.activity.rest is RestPhase.SETTLING
        return settles and self._is_native and self.pace is not Pace.TAKE_ALL

    def _is_too_slow(self) -> bool:
        """Whether the query's trigger interval is longer than a drain waits."""
        is_slow = self.member.triggers_ms.get(self.name, 0) > self.member.config.rest_within_ms
        waits = bool(self.spec.inputs) and not self.quiet and not self.activity.is_busy(self.log.state.last)
        return is_slow and waits and self.pace is Pace.OWN

    def _must_stop_ticking(self) -> bool:
        """Whether nothing but the clock gives the query something to do, which it does at its own pace only."""
        ticks = self.name in self.member.ticking and self.pace is Pace.OWN
        return ticks and bool(self.spec.inputs) and self._inputs_are_done()

    def _inputs_are_done(self) -> bool:
        """Whether every input is cut for an open drain, and nothing is left to read before that."""
        drains = [e for e, begun in self.member.journal.state.open.items() if begun.flags & DRAIN]
        cut = all(any(e in self.producer(name).barriers for e in drains) for name in self.spec.inputs)
        return cut and not self.has_unread()

    def _start_again(self, after_ms: int, pace: Pace) -> None:
        self._restart_ms, self._next_pace = self.member.now_ms + after_ms, pace
        self.activity.lost_query()
        self._wake()

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
        report, reset = yield from self._starting_report()
        if self.member.journal.state.generation != self.generation:
            return False  # what was read belongs to the next generation
        while True:
            sealed = self.log.view.seal(self._open_entry(report), self.member.nonce())
            if (yield from append(self.log.view, sealed)) is AppendPhase.MINE:
                break
            yield from follow(self.log.view)
        self.incarnation = sealed.entry.index
        self.member.incarnations[self.name] = self.generation, self.incarnation
        folders = yield from insist(ListFolders(self.name, self.generation))
        if max(folders, default=0) >= self.incarnation:
            yield from follow(self.log.view)
            if self._is_fenced():
                return False
            raise StoreError(
                f"stage {self.name} has a Spark folder of incarnation {max(folders)}, which its log does not have: "
                "the newest entries of the log were lost. Recover them from a copy, or restore the newest checkpoint"
            )
        source = max((i for i in folders if i < self.incarnation), default=None)
        if source is None and self.log.state.last != (report.batch if report is not None else -1):
            raise StoreError(
                f"the Spark folders of stage {self.name} are missing, and its log has batches up to "
                f"{self.log.state.last} that the newest checkpoint does not have: starting without them "
                "would lose rows. Restore the newest checkpoint"
            )
        state = self.log.state
        yield from insist(
            MakeFolder(
                self.name,
                self.generation,
                self.incarnation,
                source,
                report,
                state.last,
                state.commit,
                reset,
            )
        )
        if self._is_fenced():
            return False
        self._step("opened")
        self.member.observe(StageStarted(self.name, self.generation, self.incarnation))
        self.activity.started(self.member.now_ms)
        yield from insist(StartQuery(self.name, self.generation, self.incarnation, self.log.state.consumed))
        return True

    def _starting_report(self) -> Procedure[tuple[StageReport | None, bool]]:
        """What a generation starts from: this stage's part of the newest checkpoint, if there is one; and whether the
        stage starts without its state. A stage that is reset keeps its positions, on its inputs and on its own sources:
        its tables show what it has read. An input that is new to a stage is read from the cut on."""
        manifest = yield from self.member.head_manifest()
        if manifest is None:
            return None, False
        report = manifest.stages.get(self.name)
        ours = self.member.journal.state.generations.get(self.generation)  # gone, if it expired meanwhile
        forked = manifest.generation != self.generation
        reset = forked and ours is not None and self.name in ours.reset
        if report is not None and not reset:
            return report, False
        cuts = {s: manifest.stages[s].batch if s in manifest.stages else -1 for s in self.spec.inputs}
        if report is None:
            return StageReport(
                self.name, 0, -1, False, {}, consumed=cuts, offsets={}, watermark=UNKNOWN
            ), True
        kept = position_of(report) | {
            "consumed": {s: report.consumed.get(s, cut) for s, cut in cuts.items()},
            "watermark": UNKNOWN,
        }
        return StageReport(self.name, 0, report.batch, False, report.state, **kept), True

    def _open_entry(self, report: StageReport | None) -> Open:
        place = self.log.view.last + 1
        if self.log.state.incarnation or report is None:
            start = dict.fromkeys(self.spec.inputs, -1)
            return Open(place, -1, consumed=start, offsets={}, watermark=UNKNOWN)
        return Open(place, report.batch, **position_of(report))

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
        """Cuts the stage for every open epoch for which that is possible, oldest first and none before an older one."""
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
        aligner = self._new_aligner(begun)
        if begun.checkpoint_id in self.member.unaligned:
            aligner.turn_unaligned()
        for name in self.spec.inputs:
            at = self.member.log(name).state.barriers.get(begun.epoch)
            if at is not None:
                aligner.on_barrier(name, Barrier(at.checkpoint_id, at.epoch), at.batch)
        if begun.flags & DRAIN and (not self.quiet or aligner.waiting_for()):
            return None
        cut = aligner.cut()
        return None if cut is None else not cut.aligned

    def _new_aligner(self, begun: Begun) -> Aligner:
        positions = {name: self.log.state.consumed[name] for name in self.spec.inputs}
        barrier = Barrier(begun.checkpoint_id, begun.epoch, Flags(begun.flags))
        return Aligner(self.spec.inputs, barrier, positions, self.member.now_ms, None, self._rows_between)

    def _rows_between(self, name: str, after: int, upto: int) -> bool:
        try:
            return bool(self.channel(name).unread(after, upto))
        except BatchUnknown:  # this process is a zombie: a batch that it does not know may have rows
            return True

    # --- what the query may read ----------------------------------------------------------------------

    def producer(self, name: str) -> StageState:
        """The log of an input, as far as it is known here."""
        return self.member.log(name).state

    def channel(self, name: str) -> Channel:
        """The channel from an input to this stage."""
        return Channel(self.producer(name), carried_batches(self.member.manifest, self.name, name))

    def readable(self, name: str) -> int:
        """The batch of an input up to which the query may read now (the hold rule)."""
        return channel.readable(self.member.journal.state, self.log.state, self.producer(name))

    def has_unread(self) -> bool:
        """Whether an input has rows that no logged batch of this stage has read."""
        consumed = self.log.state.consumed
        return any(
            self._rows_between(name, consumed.get(name, -1), self.producer(name).last)
            for name in self.spec.inputs
        )

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
        if self.name in self.member.timeless:
            return NONE
        reached_ms = self.log.state.watermark.ms
        if self.idle or (self.quiet and (self.draining or drains)):
            return idle(reached_ms)
        return UNKNOWN if reached_ms is None else known(reached_ms)

    def _settle_drain(self) -> None:
        """A stage that was cut for a drain rests while the drain is open, continues if it is aborted, and stops when it
        is committed."""
        state = self.member.journal.state
        drains = [e for e, begun in state.open.items() if begun.flags & DRAIN]
        self.draining = bool(drains)
        rests = any(epoch in self.log.state.barriers for epoch in drains)
        if self.phase is StagePhase.RUNNING and rests:
            self._step("drain_cut")
            self.stops_batches = self._is_native and not self.took_all
        elif self.phase is StagePhase.RESTING and not rests and not state.drained:
            self._step("drain_aborted")
        elif self.phase in (StagePhase.RUNNING, StagePhase.RESTING) and state.drained:
            self._step("drain_committed")
        if self.phase is StagePhase.RUNNING and self._restart_ms is None and not self._is_given_up:
            self._settle_rest()

    # --- retention --------------------------------------------------------------------------------------

    def _collect(self) -> Procedure[None]:
        """Deletes what retention no longer keeps of this stage, and compacts its log."""
        state = self.member.journal.state
        due = state.floors, tuple(state.committed), tuple(state.generations)
        if due == self._collected or self._is_fenced() or state.generation != self.generation:
            return
        self._collected = due
        answer = yield from ask(FindStored(self.name, self.generation, self.incarnation))
        if answer is FAILED or self._is_fenced():
            return
        data, states = answer
        named = (yield from self._named()) if any(file.unknown for file in states) else None
        state = self.member.journal.state
        if self._is_fenced() or state.generation != self.generation:
            return
        gone = deletable_data(state, self.name, self.log.state, data)
        gone += deletable_states(state, self.name, self.generation, self.log.state, states, named)
        if self.generation > 1:
            names = yield from insist(List(stage_prefix(self.name)))
            gone += [
                n
                for n in names
                if (g := generation_of(n)) and g not in state.generations and g < self.generation
            ]
        if gone:
            yield from insist(Delete(tuple(gone)))

    def _named(self) -> Procedure[set[str] | None]:
        """What the manifests of all kept checkpoints name; `None` if one of them cannot be read."""
        kept = dict(self.member.journal.state.committed)
        names: set[str] = set()
        for checkpoint in kept.values():
            try:
                manifest = yield from read_manifest(checkpoint)
            except StoreError:  # damaged: it may still be repaired
                return None
            if manifest is None:
                return None
            names.update(manifest.objects())
        return names if kept.keys() == self.member.journal.state.committed.keys() else None

    def _compact(self) -> Procedure[None]:
        """Compacts the log when it has grown by `compact_after` entries, or by half as many as it has batches: then
        writing snapshots costs no more, in total, than writing the entries did."""
        grown = len(self.log.view.entries)
        if grown <= max(self.member.config.compact_after, len(self.log.state.batches) // 2):
            return
        journal = self.member.journal.state
        needed = {e for e in self.log.state.barriers if fate(journal, e) is not Fate.OVER}
        if self._is_fenced():
            return
        kept = trimmed(self.log.state, journal.floors.get(self.name, -1), needed)
        yield from compact(self.log.view, StageSnapshot(self.incarnation, kept), self.member.nonce())
        self._is_fenced()
