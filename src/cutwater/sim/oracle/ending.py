"""Invariants of the end of a schedule: everything is published, and nothing is missing or duplicated."""

from __future__ import annotations

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.sim.oracle.cuts import Cuts
from cutwater.sim.oracle.published_tables import PublishedTables


class Ending(Cuts, PublishedTables):
    """Checks the end of a schedule."""

    def all_settled(self) -> bool:
        return not self.unsettled()

    def unsettled(self) -> list[str]:
        """The sinks that have not yet reached the journal's head, with their marks."""
        head = self.ledger.head
        if head is None:
            return []
        index = self.ledger.history[head].index
        late = []
        for sink in sorted(self.world.graph.sinks()):
            table = self.world.tables[sink]
            mark = paths.mark_name(index, sink)
            if table.transaction > index or mark not in self.world.store.objects:
                late.append(sink)
        return late

    def _check_read(self, entry: r.Committed) -> None:
        """Every stage has read what its own source had when faults stopped."""
        for stage in self.world.graph.stages:
            if self.world.model.stages[stage].native:
                has = self._taken(stage, entry.generation, entry.cuts[stage]).get(stage, 0)
                had = self.world.available(stage, self.world.healed_ms)
                if has < had:
                    self.violation(
                        f"{stage} has read {has} events of its source, which had {had} long before"
                    )

    def final_check(self) -> None:
        """After a drain every sink shows every event of every source once per path, and every retained checkpoint can
        still be restored."""
        head = self.ledger.head
        assert head is not None
        self.check_kept()
        entry = self.ledger.history[head].entry
        self._check_read(entry)
        for sink, stage in self.world.graph.sinks().items():
            shown = self.world.tables[sink].versions[-1].shown
            self._check_shown(sink, self.ledger.history[head].index, shown)
            windowed = [s for s, m in self.world.model.stages.items() if m.windowed]
            for path in self.world.model.stages[stage].out_paths:
                passes = path.split(".")
                if self._is_final(sink, stage, entry.generation) or any(s in windowed for s in passes):
                    continue
                root = passes[0]
                made = self.emitted_by(root, entry.generation, entry.cuts[root]).get(root, 0)
                if shown.get(path, 0) != made:
                    self.violation(f"{sink} shows {shown.get(path, 0)} events of {path}; {root} gave {made}")
