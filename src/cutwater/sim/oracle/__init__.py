"""The oracle: sees everything that becomes durable, and checks the invariants of the design.

It interprets the logs independently (`ledger.py`), and knows which events every attempt at a batch really read and
wrote. So it knows exactly which events are in every committed cut and every table version.

One module per group of invariants; all work on the same `Facts`.
"""

from __future__ import annotations

from typing import Protocol

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.sim.oracle.deletions import Deletions
from cutwater.sim.oracle.ending import Ending
from cutwater.sim.oracle.facts import Violation
from cutwater.sim.oracle.journal import JournalEntries
from cutwater.sim.oracle.processes import Processes
from cutwater.sim.oracle.stage_logs import StageLogs
from cutwater.sim.spark import SparkScene

__all__ = ["Oracle", "Violation", "WatchedScene"]


class WatchedScene(SparkScene, Protocol):
    """A world with its oracle."""

    @property
    def oracle(self) -> Oracle: ...


class Oracle(JournalEntries, StageLogs, Ending, Deletions, Processes):
    """Checks one world."""

    def created(self, name: str, data: bytes) -> None:
        if paths.journal_entry_of(name) is not None:
            self._journal_entry(r.JOURNAL.open(data))
        elif (of := paths.stage_entry_of(name)) is not None:
            self._stage_entry(of.stage, of.generation, r.STAGE.open(data))
        elif paths.mark_of(name) is not None:
            mark = r.decode(name, data, r.Published)
            shown = self.world.tables[mark.sink].versions[mark.version].shown
            self._check_shown(mark.sink, mark.index, shown)
