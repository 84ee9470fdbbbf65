"""The modelled Spark: checkpoint folders and queries.

A batch's offsets are logged before it runs. A batch that was not committed is run again, with different output. A batch
is committed after its output is complete. No batch runs without new rows, except one that emits windows that the
watermark has closed. Rows later than the watermark are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from cutwater.protocol.base import paths
from cutwater.protocol.base.effects import Pace, Procedure, ReadPrepared, Sleep, Wait
from cutwater.protocol.base.records import Offset, Prepared, StagedFile
from cutwater.protocol.base.watermark import NONE, UNKNOWN, Watermark, known
from cutwater.protocol.member import channel
from cutwater.protocol.member.next_query import QueryEnd
from cutwater.protocol.member.stage import Stage, StagePhase
from cutwater.sim.scene import ProcessView, Scene
from cutwater.sim.store import Rows, extend
from cutwater.sim.topology import WINDOW, Path, StageModel


class StageFacts(Protocol):
    """The part of the oracle that a query uses."""

    def is_open(self, stage: str, generation: int, incarnation: int) -> bool: ...

    def emitted_by(self, stage: str, generation: int, batch: int) -> dict[Path, int]: ...

    def check_busy(self, stage: Stage) -> None: ...

    def batch_began(self, process: ProcessView, stage: str) -> None: ...

    def query_refused(self, process: ProcessView, stage: str, always: bool) -> None: ...


class SparkScene(Scene, Protocol):
    """A world with Spark: folders, states, and what each attempt read and wrote."""

    folders: dict[tuple[str, int, int], Folder]
    attempts: list[Attempt]

    @property
    def oracle(self) -> StageFacts: ...

    def new_attempt(self, attempt: Attempt) -> int: ...

    def state_name(self, stage: str, generation: int, incarnation: int, batch: int) -> str: ...

    def state_at(
        self, stage: str, generation: int, incarnation: int, batch: int, reader: int | None = None
    ) -> State: ...

    def state_of_report(self, stage: str, generation: int, incarnation: int, report: Any) -> State: ...

    def put_state(self, stage: str, generation: int, incarnation: int, batch: int, state: State) -> None: ...

    def read_prepared(self, effect: ReadPrepared) -> Prepared | None: ...

    def read_data(self, name: str, what: str, reader: tuple[str, int, int]) -> tuple[int, Rows]: ...

    def read_staged(self, name: str, sink: str) -> Rows: ...


class QueryHost(ProcessView, Protocol):
    """The process that runs a query."""

    @property
    def world(self) -> SparkScene: ...

    def report(self, stage: Stage, fact: Callable[..., None], *args: int) -> None: ...


class State(msgspec.Struct, frozen=True):
    """A query's state after a batch: events consumed and emitted, per path, and the watermark."""

    taken: dict[Path, int]
    emitted: dict[Path, int]
    watermark: int | None


class GoneForZombie(Exception):
    """A zombie's query does not find its state or its input, because its successor has moved on."""


START = State({}, {}, None)
QUICK_MS = 5
"""How long a query with a quick trigger waits after a batch."""
ENDS = (QueryEnd.FAILED, QueryEnd.FAILED, QueryEnd.STOPPED, QueryEnd.STOPPED, QueryEnd.OVERLOADED)


class Planned(msgspec.Struct, frozen=True):
    """One line of Spark's offset log: what a batch will read."""

    consumed: dict[str, int]
    source: int


@dataclass(slots=True)
class Folder:
    """The Spark checkpoint folder of one incarnation."""

    complete: bool
    last: int
    position: Planned
    planned: Planned | None = None
    prepared: dict[int, Prepared] = field(default_factory=dict)


@dataclass(slots=True)
class Attempt:
    """What one execution of a batch really read and wrote; the oracle identifies it by its number."""

    stage: str
    generation: int
    batch: int
    taken: dict[Path, int]
    emitted: dict[Path, int]
    inputs: dict[str, dict[int, int]]
    """Per input: the batches that it read, and the attempts whose output it saw."""
    dropped: int = 0
    """The number of rows later than the watermark."""


class Query:
    """One running query: the procedure `run`, over a folder of its own."""

    def __init__(self, process: QueryHost, stage: Stage, folder: Folder) -> None:
        self.process = process
        self.world = process.world
        self.member = process.member
        self.stage = stage
        self.model: StageModel = process.world.model.stages[stage.name]
        self.folder = folder
        self.feed: dict[str, int] = {}
        self._key = stage.name, stage.generation, stage.incarnation
        self.takes_all = stage.pace is Pace.TAKE_ALL
        self._available: dict[str, int] | None = None
        """What was available when an `availableNow` query began: per input, and from its own source."""

    # --- lifecycle ------------------------------------------------------------------------------------

    def run(self) -> Procedure[None]:
        """Runs batch after batch. Looks for new input when the member pokes it, and periodically."""
        rng = self.world.rng
        refused = self.world.faults.query_refused
        if refused and self.stage.phase is StagePhase.RUNNING and rng.random() < refused:
            end = rng.choice((QueryEnd.REFUSED, QueryEnd.REFUSED, QueryEnd.UNFIT))
            self.world.fault(f"query of {self.stage.name}: {end.value}")
            self.world.oracle.query_refused(self.process, self.stage.name, end is QueryEnd.UNFIT)
            self.stage.query_ended(end, end.value)
            return
        while True:
            if self.stage.phase is not StagePhase.RUNNING:
                ends = self.stage.phase is StagePhase.RESTING and not self.stage.took_all
                if ends and rng.random() < self.world.faults.query_ends_at_rest:
                    end = QueryEnd.ASKED if self.stage.stops_batches else QueryEnd.STOPPED
                    self.world.fault(f"query of {self.stage.name} ends at rest: {end.value}")
                    self.stage.query_ended(end, end.value)
                    return
                yield Wait(100)
                continue
            if self.stage.stops_batches:  # its drain was aborted
                self.stage.query_ended(QueryEnd.ASKED, "asked")
                return
            if self.folder.planned is None:
                self.folder.planned = self._plan()
            planned = self.folder.planned
            if planned is not None and not self._is_known(planned):
                yield Wait(20)
                continue
            if planned is None:
                if self._report_nothing():
                    return
                yield Wait(100)
                continue
            self.world.oracle.batch_began(self.process, self.stage.name)
            self.stage.batch_began(self.folder.last + 1)
            self.world.under_way.add(self._key)
            yield Sleep(self.world.batch_ms(self.stage.name))
            is_broken = self.world.broken_until_ms.get(self.stage.name, 0) > self.world.now_ms
            if is_broken or rng.random() < self.world.faults.query_failure:
                end = self._broken_end() if is_broken else rng.choice(ENDS)
                self.world.fault(f"query of {self.stage.name}: {end.value}")
                self.stage.query_ended(end, end.value)
                return
            yield from self._execute(planned)

    def _broken_end(self) -> QueryEnd:
        """For some failures a retry is pointless."""
        return QueryEnd.HOPELESS if self.world.broken_until_ms[self.stage.name] % 3 == 0 else QueryEnd.FAILED

    def _is_known(self, planned: Planned) -> bool:
        """Whether this process has read the logs as far as a plan that another process made."""
        return all(self.member.log(name).state.last >= upto for name, upto in planned.consumed.items())

    def _report_nothing(self) -> bool:
        """Reports that there is nothing to do. Returns whether the query ends with that. Another thread of the host
        reports that the query is at rest, so a batch may begin before that report arrives."""
        stage = self.stage
        self.world.rested.add(self._key)
        if self.takes_all:
            if self.member.config.once:
                self.world.took_all.add((stage.name, stage.generation))
            stage.query_took_all(self.folder.last)
            return True
        if stage.may_be_idle:
            stage.query_waits()
        if stage.asks_for_rest:
            delay_ms = self.world.between(0, self.world.rng.choice((5, 20, 300)))
            self.world.schedule(delay_ms, self.process.report, stage, stage.query_rested, self.folder.last)
        return False

    def _execute(self, planned: Planned) -> Procedure[None]:
        """Writes the output to folders of this attempt, then the prepared record, then Spark's commit (rule 4)."""
        batch = self.folder.last + 1
        before = self.world.state_at(
            self.stage.name, self.stage.generation, self.stage.incarnation, batch - 1
        )
        if before == START:
            before = self._from_the_cut()
        after, prepared = self._output(batch, before, planned)
        self.folder.prepared[batch] = prepared
        self.world.oracle.check_busy(self.stage)
        self.world.put_state(self.stage.name, self.stage.generation, self.stage.incarnation, batch, after)
        yield Sleep(self.world.between(1, 6))
        self.folder.last, self.folder.position, self.folder.planned = batch, planned, None
        self.world.under_way.discard(self._key)
        self.world.trace(self.process, f"{self.stage.name} commits batch {batch}")
        self.stage.batch_committed()
        trigger_ms = self.world.trigger_ms[self.stage.name]
        yield Sleep(trigger_ms if self.stage.pace is Pace.OWN else min(trigger_ms, QUICK_MS))

    def _from_the_cut(self) -> State:
        """The state of a query that a restore reset or added: it permanently skips what its inputs had emitted by the
        cut and what it had read from its own source. At a pipeline's first start that is nothing."""
        made = self.world.oracle.emitted_by
        position = self.folder.position
        passed = {
            path: made(name, self.stage.generation, position.consumed[name]).get(before, 0)
            for name, pairs in self.model.paths.items()
            for before, path in pairs
        }
        if self.model.native:
            passed[self.stage.name] = position.source
        return State(passed, passed, None)

    # --- planning -------------------------------------------------------------------------------------

    def _plan(self) -> Planned | None:
        position = self.folder.position
        if self.takes_all and self._available is None:
            self._available = {name: self.stage.readable(name) for name in self.model.spec.inputs}
            self._available[self.stage.name] = self.world.available(self.stage.name)
        consumed = {
            name: self._next_position(name, position.consumed.get(name, -1))
            for name in self.model.spec.inputs
        }
        source = self._source_end(position.source)
        planned = Planned(consumed, source)
        ticks = self.model.ticks and self.stage.pace is Pace.OWN
        if planned == position and not self._windows_due() and not ticks:
            return None
        return planned

    def _next_position(self, name: str, position: int) -> int:
        """How far to read. A planner uses the feed, which may be older than what the member knows."""
        fresh = self.stage.readable(name)
        if self._available is not None:
            fresh = min(fresh, self._available[name])
        old = self.feed.get(name, -1)
        self.feed[name] = fresh
        limit = max(position, old if self.world.rng.random() < self.world.faults.stale_feed else fresh)
        most = self.world.rng.choice((4, 16, 64))
        unread = sorted(self._unread(name, position, limit)) if limit > position else []
        return unread[:most][-1] if unread else position

    def _unread(self, name: str, after: int, upto: int) -> dict[int, channel.Files]:
        try:
            return self.stage.channel(name).unread(after, upto)
        except channel.BatchUnknown as error:
            if self.world.oracle.is_open(self.stage.name, self.stage.generation, self.stage.incarnation):
                raise
            raise GoneForZombie(str(error)) from error

    def _source_end(self, position: int) -> int:
        if not self.model.native:
            return 0
        found = self.world.available(self.stage.name)
        if self._available is not None:
            found = min(found, self._available[self.stage.name])
        return max(position, found)

    def _windows_due(self) -> bool:
        if not self.model.windowed:
            return False
        state = self.world.state_at(
            self.stage.name, self.stage.generation, self.stage.incarnation, self.folder.last
        )
        return any(high > state.emitted.get(path, 0) for path, high in closed(state).items())

    # --- computing ------------------------------------------------------------------------------------

    def _output(self, batch: int, before: State, planned: Planned) -> tuple[State, Prepared]:
        world, name, generation = self.world, self.stage.name, self.stage.generation
        incoming, seen = self._read(before, planned)
        taken = {**before.taken, **{path: high for path, (_, high) in incoming.items()}}
        emitted = {**before.emitted, **closed(before)} if self.model.windowed else taken
        rows: Rows = {
            path: (before.emitted.get(path, 0), high)
            for path, high in emitted.items()
            if high > before.emitted.get(path, 0)
        }
        dropped = sum(low - before.taken.get(path, 0) for path, (low, _) in incoming.items())
        attempt = world.new_attempt(Attempt(name, generation, batch, taken, emitted, seen, dropped))
        label = paths.Attempt(self.stage.incarnation, batch, str(attempt))
        file = paths.channel_file_name(name, generation, label, "rows")
        files: tuple[str, ...] = ()
        if rows and self.member.topology.readers(name):
            world.store.create(file, (attempt, rows), synced=False)
            files = (file,)
        sinks: dict[str, tuple[StagedFile, ...]] = {}
        for sink in self.stage.spec.sinks:
            staging = paths.staged_attempt_name(generation, label)
            staged = self._stage_rows(sink.name, staging, rows, sink.final)
            if staged:
                sinks[sink.name] = staged
        after = State(taken, emitted, self._watermark(taken, before))
        offsets: dict[str, Offset] = {"source": planned.source, "attempt": attempt}
        spark_watermark = self._report_watermark(after)
        return after, Prepared(
            batch, files, sinks, consumed=planned.consumed, offsets=offsets, watermark=spark_watermark
        )

    def _read(self, before: State, planned: Planned) -> tuple[Rows, dict[str, dict[int, int]]]:
        """The rows of a batch, per path after this stage, without late ones."""
        incoming: Rows = {}
        me = self.stage.name, self.stage.generation, self.stage.incarnation
        seen: dict[str, dict[int, int]] = {}
        low, high = self.folder.position.source, planned.source
        if high > low:
            incoming[self.stage.name] = self._on_time(low, high, before)
        for name, pairs in self.model.paths.items():
            start = self.folder.position.consumed.get(name, -1)
            unread = self._unread(name, start, planned.consumed[name])
            seen[name] = {}
            shown = {before_path: before.taken.get(path, 0) for before_path, path in pairs}
            starts = dict(shown)
            for batch, files in unread.items():
                for file in files:
                    attempt, rows = self.world.read_data(file, f"{self.stage.name} reads batch {batch}", me)
                    seen[name][batch] = attempt
                    shown = extend(shown, rows)
            for before_path, path in pairs:
                if shown[before_path] > starts[before_path]:
                    incoming[path] = self._on_time(starts[before_path], shown[before_path], before)
        return incoming, seen

    def _on_time(self, low: int, high: int, before: State) -> tuple[int, int]:
        late = before.watermark if self.model.event_time and before.watermark is not None else 0
        return (min(high, max(low, late)), high)

    def _watermark(self, taken: Mapping[Path, int], before: State) -> int | None:
        """Spark's watermark after a batch: the lowest over its inputs of the latest event time seen."""
        if not self.model.event_time:
            return None
        progress = input_progress(self.model, taken)
        if not progress or min(progress) == 0:
            return before.watermark
        return max(min(progress), before.watermark or 0)

    def _report_watermark(self, state: State) -> Watermark:
        if not self.model.event_time:
            return NONE
        return UNKNOWN if state.watermark is None else known(state.watermark)

    def _stage_rows(self, sink: str, staging: str, rows: Rows, final: bool) -> tuple[StagedFile, ...]:
        """Stages rows for a sink; for a final sink in one file per window end."""
        if not rows:
            return ()
        parts: dict[int | None, Rows] = {}
        if not final:
            parts[None] = rows
        else:
            for path, (low, high) in rows.items():
                while low < high:
                    window_end = (low // WINDOW + 1) * WINDOW
                    parts.setdefault(window_end, {})[path] = (low, min(high, window_end))
                    low = min(high, window_end)
        staged = []
        for end in sorted(parts, key=lambda e: e or 0):
            name = f"{staging_prefix(sink)}{staging}/{end or 0}"
            self.world.store.create(name, parts[end])
            staged.append(StagedFile(name, end))
        return tuple(staged)


def staging_prefix(sink: str) -> str:
    """The prefix for a sink's staged rows, with a folder per attempt at a batch."""
    return f"tables/{sink}/_cutwater/"


def input_progress(model: StageModel, taken: Mapping[Path, int]) -> list[int]:
    """The event-time progress per input. (Above a fan-in Spark would take the highest instead.)"""
    own = [taken.get(model.spec.name, 0)] if model.native else []
    return own + [max(taken.get(path, 0) for _, path in pairs) for pairs in model.paths.values()]


def closed(state: State) -> dict[Path, int]:
    """Per path, the events in windows that the watermark has closed."""
    end = (state.watermark or 0) // WINDOW * WINDOW
    return {path: max(min(high, end), state.emitted.get(path, 0)) for path, high in state.taken.items()}


def copy_folder(source: Folder, keep_plan: bool) -> Folder:
    """A new incarnation's folder, with everything up to the last batch that Spark committed."""
    return Folder(
        False,
        source.last,
        source.position,
        source.planned if keep_plan else None,
        {b: p for b, p in source.prepared.items() if b <= source.last},
    )


def folder_from_report(report: Any, inputs: tuple[str, ...]) -> Folder:
    """A folder rebuilt from a checkpoint, or an empty one."""
    if report is None:
        return Folder(False, -1, Planned(dict.fromkeys(inputs, -1), 0))
    return Folder(False, report.batch, Planned(dict(report.consumed), report.offsets.get("source", 0)))
