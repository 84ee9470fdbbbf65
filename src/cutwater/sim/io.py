"""Performs the effects that reach durable things: the store, tables, Spark folders. With faults.

An effect is applied at one moment and answered at that moment or a later one; between the two, anything may
happen, and the process that asked may be gone. A write may fail, happen without an answer, or happen
after its failure was reported.
"""

from __future__ import annotations

from typing import Any

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.member.retention import Stored
from cutwater.sim.oracle import WatchedScene
from cutwater.sim.scene import ActorView, ProcessView
from cutwater.sim.spark import START, GoneForZombie, copy_folder, folder_from_report
from cutwater.sim.store import RowsOverlap, TableVersion, extend

WRITES = {fx.Create, fx.Delete, fx.Copy, fx.PublishTable, fx.RewindTable}
TABLES = {fx.ReadTable, fx.FindTableVersion, fx.ReadTableHistory, fx.PublishTable, fx.RewindTable}
LATEST_MS = 1_500
"""How long after its failure was reported a write may still happen."""

SLOW_MS = 600
"""How long one operation may take beside others that are quick."""

STUCK_MS = 4_000
"""How long a write may be on its way while the process that asked for it sleeps or is dead."""


class Io:
    """The durable side of a world."""

    def __init__(self, world: WatchedScene) -> None:
        self.world = world
        self._apply: dict[type, Any] = {
            fx.Create: self._create,
            fx.Read: lambda e: self.world.store.objects.get(e.name),
            fx.ReadMany: lambda e: [self.world.store.objects.get(name) for name in e.names],
            fx.List: lambda e: self.world.store.list(e.prefix, e.after),
            fx.ListMany: lambda e: [self.world.store.list(*place) for place in e.places],
            fx.Delete: self._delete,
            fx.Copy: self._copy,
            fx.Checksum: lambda e: [self.world.store.checksum(name) for name in e.names],
            fx.ReadTable: lambda e: self.world.tables[e.sink].head(),
            fx.FindTableVersion: lambda e: self.world.tables[e.sink].find(e.transaction),
            fx.ReadTableHistory: lambda e: self.world.tables[e.sink].history(e.transaction),
            fx.PublishTable: self._publish,
            fx.RewindTable: self._rewind,
            fx.ListFolders: self._list_folders,
            fx.FindState: self._find_state,
            fx.FindStored: self._find_stored,
        }

    def perform(self, process: ProcessView, actor: ActorView, effect: fx.Effect) -> None:
        world = self.world
        kind = type(effect)
        if kind in TABLES and process in world.processes:
            world.oracle.check_caught_up(process, "publishes")
        delay = world.between(1, world.table_ms if kind in TABLES else world.io_ms)
        if world.rng.random() < world.faults.slow_io:
            world.fault("slow operation")
            delay = world.between(20, SLOW_MS)
        if isinstance(effect, fx.MakeFolder):
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

    def _draw_fault(self, process: ProcessView, effect: fx.Effect) -> str | None:
        world, faults, rng = self.world, self.world.faults, self.world.rng
        kind = type(effect)
        if kind in TABLES and world.tables[effect.sink].failing_until_ms > world.now_ms:  # type: ignore[union-attr]
            return "sink fails"
        down = process.store_down_until_ms > world.now_ms
        if kind in WRITES:
            draw = rng.random()
            for name, fault in (
                ("write_failed", "failed write"),
                ("write_lost_answer", "lost answer"),
                ("write_late", "late write"),
                ("write_stuck", "stuck write"),
            ):
                draw -= getattr(faults, name)
                if draw < 0:
                    return fault
            if kind is fx.Create and draw < faults.false_exists and effect.name not in world.store.objects:  # type: ignore[union-attr]
                return "false exists"
        elif rng.random() < faults.read_failed:
            return "failed read"
        return "store down" if down else None

    def answer(self, effect: fx.Effect) -> Any:
        """Applies an effect at once, and answers it."""
        return self._apply[type(effect)](effect)

    def _apply_only(self, effect: fx.Effect) -> None:
        self._apply[type(effect)](effect)

    def _apply_and_answer(
        self, process: ProcessView, actor: ActorView, token: int, effect: fx.Effect
    ) -> None:
        answer = self._apply[type(effect)](effect)
        if actor.token != token or not process.alive:
            return
        if isinstance(effect, fx.ReadTableHistory):
            self.world.oracle.looked_back(process.name, effect)
        if self.world.rng.random() < 0.3:
            process.resume_later(self.world.between(1, 5), actor, answer)
        else:
            process.resume(actor, token, answer)

    # --- the store and tables -------------------------------------------------------------------------

    def _create(self, effect: fx.Create) -> fx.Answer:
        created = self.world.store.create(effect.name, effect.data)
        if created:
            self.world.oracle.created(effect.name, effect.data)
        return fx.CREATED if created else fx.EXISTS

    def _copy(self, effect: fx.Copy) -> fx.Answer | None:
        """What a zombie copies may be gone already; what comes of it then, nobody commits."""
        if effect.source not in self.world.store.objects:
            return None
        self.world.store.create(effect.target, self.world.store.objects[effect.source], synced=False)
        return fx.DONE

    def _delete(self, effect: fx.Delete) -> fx.Answer:
        for name in effect.names:
            if name in self.world.store.objects:
                self.world.oracle.deleting(name)
                self.world.store.delete(name)
        return fx.DONE

    def _publish(self, effect: fx.PublishTable) -> int | None:
        table = self.world.tables[effect.sink]
        if table.head().version != effect.expected_version:
            return None
        shown = table.versions[-1].shown
        try:
            for name in effect.files:
                shown = extend(shown, self.world.read_staged(name, effect.sink))
        except RowsOverlap as error:
            self.world.oracle.violation(f"sink {effect.sink}: {error}")
        table.versions.append(TableVersion(effect.transaction, shown))
        self.world.oracle.published(effect.sink, effect.transaction, shown)
        return table.head().version

    def _rewind(self, effect: fx.RewindTable) -> int | None:
        table = self.world.tables[effect.sink]
        if table.head().version != effect.expected_version:
            return None
        # What a stage passes over that begins at the cut counts as shown: later rows continue it.
        passed = self.world.oracle.birth(effect.sink, effect.transaction) or {}
        shown = {**table.versions[effect.to_version].shown, **passed}
        table.versions.append(TableVersion(effect.transaction, shown))
        self.world.oracle.rewound(effect.sink, effect.transaction, shown)
        return table.head().version

    # --- Spark's folders ------------------------------------------------------------------------------

    def _list_folders(self, effect: fx.ListFolders) -> list[int]:
        return [
            inc
            for (stage, generation, inc), folder in self.world.folders.items()
            if stage == effect.stage and generation == effect.generation and folder.complete
        ]

    def _make_folder(self, process: ProcessView, actor: ActorView, token: int, effect: fx.MakeFolder) -> None:
        """Copies what is there now; the folder is complete only later, if the process lives to see it."""
        world, key = self.world, (effect.stage, effect.generation, effect.incarnation)
        if effect.source is not None:
            source = world.folders[effect.stage, effect.generation, effect.source]
            folder = copy_folder(source, world.rng.random() < 0.5)
            try:
                state = world.state_at(
                    effect.stage, effect.generation, effect.source, folder.last, effect.incarnation
                )
            except GoneForZombie:
                process.resume(actor, token, fx.FAILED)
                return
        else:
            folder = folder_from_report(effect.report, world.model.stages[effect.stage].spec.inputs)
            state = START if effect.reset else world.state_of_report(effect.stage, effect.report)
        world.folders[key] = folder
        world.put_state(*key, folder.last, state)
        world.schedule(world.between(1, 10), self._finish_folder, process, actor, token, effect)

    def _finish_folder(
        self, process: ProcessView, actor: ActorView, token: int, effect: fx.MakeFolder
    ) -> None:
        if not process.alive or actor.token != token:
            return
        folder = self.world.folders[effect.stage, effect.generation, effect.incarnation]
        folder.complete = True
        process.resume(actor, token, fx.DONE)

    def _find_state(self, effect: fx.FindState) -> dict[str, str] | None:
        if effect.batch < 0:
            return {}
        name = self.world.state_name(effect.stage, effect.generation, effect.incarnation, effect.batch)
        state = self.world.store.objects.get(name)
        if state is None:
            return None
        if effect.copy_to is not None:
            name = f"{effect.copy_to}{effect.batch}"
            self.world.store.create(name, state, synced=False)
        checksum = self.world.store.checksum(name)
        return None if checksum is None else {name: checksum}

    def _find_stored(self, effect: fx.FindStored) -> tuple[list[Stored], list[Stored]]:
        of = effect.stage, effect.generation
        data = [_data(name) for name in self.world.store.list(paths.channel_prefix(*of))]
        states = [_state(name) for name in self.world.store.list(paths.spark_folders_prefix(*of))]
        newest = max((state.incarnation for state in states), default=0)
        return data, [_unmarked(state) if state.incarnation < newest else state for state in states]


def _unmarked(state: Stored) -> Stored:
    """Some folders have lost the mark that says which batches need their files."""
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
