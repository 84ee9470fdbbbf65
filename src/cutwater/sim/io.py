"""Performs the effects on durable state, with faults: the store, tables, Spark folders.

An effect is applied at one moment and answered at that moment or later. In between anything may happen, and the process
that asked may be gone. A write may fail, take effect without an answer, or take effect after its failure was reported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast, get_args

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base.effects import Stored
from cutwater.protocol.base.performer import (
    Checksums,
    Contents,
    Incarnations,
    NameLists,
    Names,
    StoredFiles,
    perform,
)
from cutwater.protocol.base.records import Prepared
from cutwater.sim.oracle import WatchedScene
from cutwater.sim.scene import ActorView, ProcessView
from cutwater.sim.spark import START, GoneForZombie, copy_folder, folder_from_report
from cutwater.sim.store import RowsOverlap, TableVersion, extend
from cutwater.store.perform import StorePerformer

# Looking up the type is many times as fast as `isinstance`, which is slow for what is not a `Struct` of that type.
WRITES = frozenset((fx.Create, fx.Delete, fx.Copy, fx.PublishTable, fx.RewindTable))
TABLES = frozenset(get_args(fx.TableEffect))
"""The operations that fail when their table fails."""
LATEST_MS = 1_500
"""How long after its reported failure a write may still take effect."""

SLOW_MS = 600
"""How long a slow operation may take."""

STUCK_MS = 4_000
"""How long a write may take while the process that requested it is paused or dead."""


class WatchedObjects:
    """The modelled store as operations use it. The oracle is notified of everything created and deleted."""

    def __init__(self, world: WatchedScene) -> None:
        self._world = world
        self._store = world.store

    def create(self, name: str, data: bytes) -> bool:
        created = self._store.create(name, data)
        if created:
            self._world.oracle.created(name, data)
        return created

    def read(self, name: str) -> bytes | None:
        return self._store.objects.get(name)

    def read_many(self, names: Sequence[str]) -> Contents:
        return [self._store.objects.get(name) for name in names]

    def list(self, prefix: str, after: str = "") -> Names:
        return self._store.list(prefix, after)

    def list_many(self, places: Sequence[tuple[str, str]]) -> NameLists:
        return [self._store.list(*place) for place in places]

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self._store.objects:
                self._world.oracle.deleting(name)
                self._store.delete(name)

    def copy(self, source: str, target: str) -> None:
        """A zombie's source may be gone already; nobody commits the result then."""
        if source not in self._store.objects:
            raise FileNotFoundError(source)
        self._store.create(target, self._store.objects[source], synced=False)

    def checksum_many(self, names: Sequence[str]) -> Checksums:
        return [self._store.checksum(name) for name in names]


class Io(StorePerformer):
    """The durable side of a world."""

    def __init__(self, world: WatchedScene) -> None:
        super().__init__(WatchedObjects(world))
        self.world = world

    def perform(self, process: ProcessView, actor: ActorView, effect: fx.AnyOperation) -> None:
        world = self.world
        of_table = type(effect) in TABLES
        if of_table and process in world.processes:
            world.oracle.check_caught_up(process, "publishes")
        delay = world.between(1, world.table_ms if of_table else world.io_ms)
        if world.rng.random() < world.faults.slow_io:
            world.fault("slow operation")
            delay = world.between(20, SLOW_MS)
        sleeps = world.faults.publisher_sleeps
        publishes = sleeps and type(effect) is fx.PublishTable and process in world.processes
        if publishes and world.rng.random() < sleeps:
            delay = world.chaos.replace(process)
        if type(effect) is fx.MakeFolder:
            world.schedule(delay, self._make_folder, process, actor, actor.token, effect)
            return
        fault = self._draw_fault(process, effect)
        if fault is not None:
            world.fault(fault)
            if fault == "stuck write":
                world.schedule(world.between(300, STUCK_MS), self._apply_only, effect)
                world.chaos.interrupt(process)
                process.resume_later(1, actor, fx.FAILED)
                return
            if isinstance(effect, fx.Delete):
                effect = fx.Delete(effect.names[: world.between(0, len(effect.names))])
            if fault == "lost answer":
                world.schedule(delay, self._apply_only, effect)
            elif fault == "late write":
                world.schedule(world.between(delay, LATEST_MS), self._apply_only, effect)
            answer = fx.EXISTS if fault == "false exists" else fx.FAILED
            process.resume_later(delay + 1, actor, answer)
            return
        world.schedule(delay, self._apply_and_answer, process, actor, actor.token, effect)

    def _draw_fault(self, process: ProcessView, effect: fx.AnyOperation) -> str | None:
        world, faults, draw = self.world, self.world.faults, self.world.rng.random
        kind = type(effect)
        if kind in TABLES:
            table = world.tables[cast(fx.TableEffect, effect).sink]
            if table.failing_until_ms > world.now_ms:
                return "sink fails"
        if kind in WRITES:
            left = draw()
            for probability, fault in (
                (faults.write_failed, "failed write"),
                (faults.write_lost_answer, "lost answer"),
                (faults.write_late, "late write"),
                (faults.write_stuck, "stuck write"),
            ):
                left -= probability
                if left < 0:
                    return fault
            may_lie = left < faults.false_exists and type(effect) is fx.Create
            if may_lie and cast(fx.Create, effect).name not in world.store.objects:
                return "false exists"
        elif draw() < faults.read_failed:
            return "failed read"
        return "store down" if process.store_down_until_ms > world.now_ms else None

    def answer(self, effect: fx.Effect) -> Any:
        """Applies an operation immediately and returns its answer. Accepts only operations."""
        assert isinstance(effect, fx.Operation), effect
        return perform(self, effect)

    def _apply_only(self, effect: fx.AnyOperation) -> None:
        perform(self, effect)

    def _apply_and_answer(
        self, process: ProcessView, actor: ActorView, token: int, effect: fx.AnyOperation
    ) -> None:
        answer = perform(self, effect)
        if actor.token != token or not process.alive:
            return
        if type(effect) is fx.ReadTableHistory:
            self.world.oracle.looked_back(process.name, effect)
        if self.world.rng.random() < 0.3:
            process.resume_later(self.world.between(1, 5), actor, answer)
        else:
            process.resume(actor, token, answer)

    # --- the store: the most frequent operations, without a detour ------------------------------------

    def list(self, operation: fx.List) -> Names:
        return self.world.store.list(operation.prefix, operation.after)

    def read(self, operation: fx.Read) -> bytes | None:
        return self.world.store.objects.get(operation.name)

    # --- tables ---------------------------------------------------------------------------------------

    def read_table(self, operation: fx.ReadTable) -> fx.TableHead:
        return self.world.tables[operation.sink].head()

    def find_table_version(self, operation: fx.FindTableVersion) -> int | None:
        return self.world.tables[operation.sink].find(operation.transaction)

    def read_table_history(self, operation: fx.ReadTableHistory) -> fx.TableHistory | None:
        return self.world.tables[operation.sink].history(operation.transaction)

    def publish_table(self, operation: fx.PublishTable) -> int | None:
        table = self.world.tables[operation.sink]
        if table.head().version != operation.expected_version:
            return None
        shown = table.versions[-1].shown
        try:
            for name in operation.files:
                shown = extend(shown, self.world.read_staged(name, operation.sink))
        except RowsOverlap as error:
            self.world.oracle.violation(f"sink {operation.sink}: {error}")
        table.versions.append(TableVersion(operation.transaction, shown))
        self.world.oracle.published(operation.sink, operation.transaction, shown)
        return table.head().version

    def rewind_table(self, operation: fx.RewindTable) -> int | None:
        table = self.world.tables[operation.sink]
        if table.head().version != operation.expected_version:
            return None
        # What a stage that begins at the cut skips counts as shown: later rows continue from there.
        passed = self.world.oracle.birth(operation.sink, operation.transaction) or {}
        shown = {**table.versions[operation.to_version].shown, **passed}
        table.versions.append(TableVersion(operation.transaction, shown))
        self.world.oracle.rewound(operation.sink, operation.transaction, shown)
        return table.head().version

    # --- Spark's folders ------------------------------------------------------------------------------

    def list_folders(self, operation: fx.ListFolders) -> Incarnations:
        return [
            inc
            for (stage, generation, inc), folder in self.world.folders.items()
            if stage == operation.stage and generation == operation.generation and folder.complete
        ]

    def _make_folder(self, process: ProcessView, actor: ActorView, token: int, effect: fx.MakeFolder) -> None:
        """Copies the current contents. The folder is complete only later, if the process survives until then."""
        if self.make_folder(effect) is fx.FAILED:
            process.resume(actor, token, fx.FAILED)
            return
        self.world.schedule(self.world.between(1, 10), self._finish_folder, process, actor, token, effect)

    def make_folder(self, operation: fx.MakeFolder) -> fx.Done | fx.Failed:
        """Creates a folder that is not complete yet."""
        world, key = self.world, (operation.stage, operation.generation, operation.incarnation)
        try:
            if operation.source is not None:
                source = world.folders[operation.stage, operation.generation, operation.source]
                folder = copy_folder(source, world.rng.random() < 0.5)
                state = world.state_at(
                    operation.stage,
                    operation.generation,
                    operation.source,
                    folder.last,
                    operation.incarnation,
                )
            else:
                folder = folder_from_report(operation.report, world.model.stages[operation.stage].spec.inputs)
                state = START if operation.reset else world.state_of_report(*key, operation.report)
        except GoneForZombie:
            return fx.FAILED
        world.folders[key] = folder
        world.put_state(*key, folder.last, state)
        return fx.DONE

    def _finish_folder(
        self, process: ProcessView, actor: ActorView, token: int, effect: fx.MakeFolder
    ) -> None:
        if not process.alive or actor.token != token:
            return
        folder = self.world.folders[effect.stage, effect.generation, effect.incarnation]
        folder.complete = True
        process.resume(actor, token, fx.DONE)

    def read_prepared(self, operation: fx.ReadPrepared) -> Prepared | None:
        return self.world.read_prepared(operation)

    def start_query(self, operation: fx.StartQuery) -> None:
        raise AssertionError(f"{operation}: a process starts its own queries")

    def find_state(self, operation: fx.FindState) -> dict[str, str] | None:
        if operation.batch < 0:
            return {}
        name = self.world.state_name(
            operation.stage, operation.generation, operation.incarnation, operation.batch
        )
        state = self.world.store.objects.get(name)
        if state is None:
            return None
        if operation.copy_to is not None:
            name = f"{operation.copy_to}{operation.batch}"
            self.world.store.create(name, state, synced=False)
        checksum = self.world.store.checksum(name)
        return None if checksum is None else {name: checksum}

    def find_stored(self, operation: fx.FindStored) -> StoredFiles:
        of = operation.stage, operation.generation
        data = [_data(name) for name in self.world.store.list(paths.channel_prefix(*of))]
        states = [_state(name) for name in self.world.store.list(paths.spark_folders_prefix(*of))]
        known = [state for state in states if state.incarnation <= operation.incarnation]
        return data, [_unmarked(s) if s.incarnation < operation.incarnation else s for s in known]


def _unmarked(state: Stored) -> Stored:
    """A folder that has lost the mark that says which batches need its files."""
    if state.incarnation % 2:
        return state
    return Stored(state.name, state.incarnation, -1, -1, unknown=True)


def _data(name: str) -> Stored:
    of = paths.channel_file_of(name)
    assert of is not None
    return Stored(name, of.attempt.incarnation, of.attempt.batch)


def _state(name: str) -> Stored:
    of = paths.spark_file_of(name)
    assert of is not None
    return Stored(name, of.incarnation, int(paths.file_name(of.file)))
