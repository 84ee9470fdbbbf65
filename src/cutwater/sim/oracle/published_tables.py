"""Invariants of tables: what a sink shows at each epoch, and in which order."""

from __future__ import annotations

from cutwater.protocol.base import records as r
from cutwater.sim.oracle.restores import Restores
from cutwater.sim.topology import WINDOW, Path


class PublishedTables(Restores):
    """Checks each commit of a table."""

    def published(self, sink: str, transaction: int, shown: dict[Path, int]) -> None:
        body = self.ledger.by_index.get(transaction)
        if not isinstance(body, r.Committed):
            self.violation(f"{sink} published under index {transaction}, which is not a commit")
        self._check_order(sink)
        self._check_shown(sink, transaction, shown)
        self.world.trace(None, f"{sink} shows epoch {body.epoch}")

    def rewound(self, sink: str, transaction: int, shown: dict[Path, int]) -> None:
        body = self.ledger.by_index.get(transaction)
        if not isinstance(body, r.Restored):
            self.violation(f"{sink} went back under index {transaction}, which is not a restore")
        self._check_order(sink)
        self._check_shown(sink, transaction, shown)
        self.world.trace(None, f"{sink} is back at epoch {body.epoch}")

    def _check_order(self, sink: str) -> None:
        before, after = self.world.tables[sink].versions[-2:]
        if after.transaction <= before.transaction:
            self.violation(f"{sink}: index {after.transaction} came after {before.transaction}")

    def _check_shown(self, sink: str, index: int, shown: dict[Path, int]) -> None:
        """Compares a sink with the commit or restore at `index`."""
        epoch = self.ledger.by_index[index].epoch
        born = self.birth(sink, index)
        if born is not None:
            expected = {p: n for p, n in born.items() if n}
        elif self._is_part(sink, index):
            expected = self.expected(sink, epoch)
        else:  # the stage had been dropped, and is back by now: meanwhile its table stayed as it was
            before = [v.shown for v in self.world.tables[sink].versions if v.transaction < index]
            expected = {p: n for p, n in before[-1].items() if n}
        if {p: n for p, n in shown.items() if n} != expected:
            self.violation(f"{sink} at epoch {epoch} shows {shown}, but should show {expected}")

    def _is_part(self, sink: str, index: int) -> bool:
        """Whether the sink's stage is part of the commit or restore at `index`."""
        stage, body = self._stage_of(sink), self.ledger.by_index[index]
        if isinstance(body, r.Restored) and stage not in self.ledger.graphs[body.generation].stages:
            return False
        return stage in self.ledger.history[body.epoch].entry.cuts

    def expected(self, sink: str, epoch: int) -> dict[Path, int]:
        """The last event of each path that a sink should show at an epoch, according to what its stage had emitted."""
        stage = self._stage_of(sink)
        entry = self.ledger.history[epoch].entry
        if stage not in entry.cuts:
            return {}
        made = self.emitted_by(stage, entry.generation, entry.cuts[stage])
        if not self._is_final(sink, stage, entry.generation):
            return {p: n for p, n in made.items() if n}
        end, born = (entry.watermark or 0) // WINDOW * WINDOW, self._skipped(stage, entry.generation)
        shown = {p: max(min(n, end), born.get(p, 0)) for p, n in made.items()}
        return {p: n for p, n in shown.items() if n}

    def _skipped(self, stage: str, generation: int) -> dict[Path, int]:
        """What a stage skipped when it began, if it began with a restore: no window of that is left to close."""
        number: int | None = generation
        while number in self.ledger.forks and stage in self.ledger.forks[number].forks:
            number = self.ledger.parents.get(number)
        return self.emitted.get((stage, number, -1), {}) if number in self.ledger.forks else {}
