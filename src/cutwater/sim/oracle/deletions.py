"""Invariants of deletions: nothing is deleted that may still be needed."""

from __future__ import annotations

from cutwater.protocol.base import paths
from cutwater.sim.oracle.facts import Facts


class Deletions(Facts):
    """Checks each deletion."""

    def deleting(self, name: str) -> None:
        ledger = self.ledger
        if self._named.get(name):
            self.violation(f"{name} is deleted, but epochs {sorted(self._named[name])} need it")
        index = paths.journal_entry_of(name)
        if index is not None and index >= ledger.snapshot:
            self.violation(f"{name} is deleted, but no snapshot covers it")
        of_checkpoint = paths.checkpoint_of(name)
        if of_checkpoint is not None:
            epoch = of_checkpoint.epoch
            if epoch in ledger.kept or epoch in ledger.open:
                self.violation(f"{name} is deleted, but epoch {epoch} has not expired")
        if paths.generation_of(name) == ledger.generation:
            self._deleting_of_stage(name)

    def _deleting_of_stage(self, name: str) -> None:
        entry = paths.stage_entry_of(name)
        if entry is not None and entry.index >= self.stages[entry.stage, entry.generation].snapshot:
            self.violation(f"{name} is deleted, but no snapshot covers it")
        file = paths.channel_file_of(name)
        if file is not None:
            logged = self.stages[file.stage, file.generation].batches.get(file.attempt.batch)
            if logged is not None and name in logged.files:
                for reader in self.world.graph.readers(file.stage):
                    if self._position(reader, file.stage, file.generation) < file.attempt.batch:
                        self.violation(f"{name} is deleted, but {reader} has not read it")

    def _position(self, reader: str, producer: str, generation: int) -> int:
        ledger = self.stages.get((reader, generation))
        if ledger is None or ledger.incarnation == 0:
            return -1
        return ledger.consumed.get(producer, -1)
