"""Invariants of restores: the target, others' changes to tables, dropped and added stages."""

from __future__ import annotations

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.effects import ReadTableHistory
from cutwater.sim.ledger import Kept
from cutwater.sim.oracle.facts import Facts
from cutwater.sim.topology import Path


class Restores(Facts):
    """Checks restores."""

    def _restored(self, body: r.Restored, index: int) -> None:
        ledger = self.ledger
        target = ledger.kept.get(body.epoch)
        if target is None:
            self.violation(f"restored to epoch {body.epoch}, which is not kept")
        if target.entry.cuts != body.forks and not body.moved:
            self.violation(f"restored to epoch {body.epoch} at positions other than those of its cut")
        asked = self.world.requests.get(body.request)
        if asked is not None and asked.name is not None and ledger.savepoints.get(asked.name) != body.epoch:
            self.violation(f"restored to epoch {body.epoch}, which is no longer savepoint {asked.name}")
        self._check_others(body, target)
        self._check_in_flight(body)
        ledger.open, ledger.drained = {}, False
        ledger.floors, ledger.pinned = {}, ()
        ledger.parents[body.generation] = target.entry.generation
        ledger.generation = body.generation
        ledger.forks[body.generation] = body
        ledger.by_index[index] = body
        ledger.head, ledger.watermark = body.epoch, target.entry.watermark
        for stage, batch in body.forks.items():
            parent = target.entry.generation
            for table in (self.emitted, self.taken):
                table[stage, body.generation, batch] = table.get((stage, parent, batch), {})
        if body.topology is not None:
            self._check_dropped(body, body.topology)
            ledger.topology, ledger.topology_hash = body.topology, body.topology_hash
        ledger.graphs[body.generation] = self.world.graph
        self._bear_stages(body)

    def looked_back(self, process: str, effect: ReadTableHistory) -> None:
        """Remembers when a process read what others did to a table."""
        self._looked_back_ms[process, effect.sink, effect.transaction] = self.world.now_ms

    def _check_others(self, body: r.Restored, target: Kept) -> None:
        """A restore does not undo others' changes to a table unless it is forced. Changes at the same time as the
        restore are exempt, because it cannot know them."""
        sinks = (body.topology or self.world.graph).sinks()
        for sink, table in self.world.tables.items():
            known_ms = self._looked_back_ms.get((self.ledger.leader, sink, target.index), self.world.now_ms)
            is_marked = paths.mark_name(target.index, sink) in self.world.store.objects
            version = table.find(target.index)
            if sink not in sinks or not is_marked or version is None or body.force:
                continue
            if any(ms < known_ms for ms in table.foreign(version)):
                self.violation(f"the restore of epoch {body.epoch} undoes changes by others to {sink}")

    def _check_in_flight(self, body: r.Restored) -> None:
        """Rows in flight to a stage that nobody has dropped before are read, unless the restore is forced."""
        graph = body.topology or self.world.graph
        for flight in self.manifests[body.epoch].in_flight:
            reader = graph.stages.get(flight.reader)
            is_read = reader is not None and flight.producer in reader.inputs
            if is_read or body.force or flight.reader not in self.world.graph.stages:
                continue
            if any(flight.batches.values()):
                self.violation(
                    f"the restore of epoch {body.epoch} loses rows in flight from {flight.producer} to {flight.reader}"
                )

    def _check_dropped(self, body: r.Restored, topology: r.Topology) -> None:
        """No stage is dropped unless the request says so."""
        request = self.world.requests.get(body.request)
        said = set(request.drop) if request is not None else set()
        gone = self.world.graph.stages.keys() - topology.stages.keys() - said
        if gone:
            self.violation(
                f"stages {sorted(gone)} were dropped by the restore of {body.request}, which does not name them"
            )
        for stage, spec in topology.stages.items():
            if not set(spec.inputs) <= topology.stages.keys():
                self.violation(f"{stage} reads {spec.inputs}, but not all of them are in the graph")
            report = self.manifests[body.epoch].stages.get(stage)
            keeps = report is not None and stage not in body.reset
            if keeps and report is not None and set(spec.inputs) != report.consumed.keys():
                self.violation(
                    f"{stage} keeps its state and reads {spec.inputs}, not {sorted(report.consumed)}"
                )

    def _bear_stages(self, body: r.Restored) -> None:
        """A stage that the checkpoint does not have starts at its cut, and skips what its inputs had emitted."""
        for stage, model in self.world.model.stages.items():
            if stage in self.world.graph.stages and stage not in body.forks:
                passed: dict[Path, int] = {}
                for producer, pairs in model.paths.items():
                    made = self.emitted_by(producer, body.generation, body.forks.get(producer, -1))
                    passed.update({after: made.get(before, 0) for before, after in pairs})
                for table in (self.emitted, self.taken):
                    table[stage, body.generation, -1] = passed

    def birth(self, sink: str, index: int) -> dict[Path, int] | None:
        """What a sink skips because its stage begins with the restore at `index`; `None` if it does not."""
        body, stage = self.ledger.by_index[index], self._stage_of(sink)
        if not isinstance(body, r.Restored) or stage in body.forks:
            return None
        return self.emitted.get((stage, body.generation, -1))  # none, if the stage was not in that graph
