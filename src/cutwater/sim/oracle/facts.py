"""What the oracle knows: the ledgers, and which events each batch really read and wrote."""

from __future__ import annotations

from typing import Any, NoReturn

import msgspec

from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import Sealed
from cutwater.protocol.member.stage import Stage
from cutwater.sim.ledger import Ledger, StageLedger
from cutwater.sim.scene import ProcessView
from cutwater.sim.spark import SparkScene
from cutwater.sim.topology import Path


class Violation(Exception):
    """An invariant does not hold."""


class Facts:
    """The facts that all groups of invariants share."""

    def __init__(self, world: SparkScene) -> None:
        self.world = world
        self.ledger = Ledger()
        self.stages: dict[tuple[str, int], StageLedger] = {}
        self.epochs = 0
        self.manifests: dict[int, r.Manifest] = {}
        self.acks: set[tuple[str, int, int, int]] = set()
        self.refusals: set[tuple[str, int, int, int]] = set()
        self.emitted: dict[tuple[str, int, int], dict[Path, int]] = {}
        self.taken: dict[tuple[str, int, int], dict[Path, int]] = {}
        self._chain: Sealed[Any] | None = None
        self._stage_chains: dict[tuple[str, int], Sealed[Any]] = {}
        self._named: dict[str, set[int]] = {}
        self._stopped: list[Stage] = []
        self._without_query: set[Stage] = set()
        self._worked: set[tuple[ProcessView, str]] = set()
        """The processes, with their stages, whose queries have begun a batch."""
        self._cannot_run: set[ProcessView] = set()
        """The processes whose configuration is wrong."""
        self._looked_back_ms: dict[tuple[str, str, int], int] = {}

    def violation(self, what: str) -> NoReturn:
        raise Violation(f"at {self.world.now_ms} ms: {what}")

    def emitted_by(self, stage: str, generation: int, batch: int) -> dict[Path, int]:
        """The last event of each path that a stage had emitted after a batch."""
        return self._lookup(self.emitted, stage, generation, batch)

    def _taken(self, stage: str, generation: int, batch: int) -> dict[Path, int]:
        return self._lookup(self.taken, stage, generation, batch)

    def _lookup(
        self, table: dict[tuple[str, int, int], dict[Path, int]], stage: str, generation: int, batch: int
    ) -> dict[Path, int]:
        number: int | None = generation
        while number is not None:
            found = table.get((stage, number, batch))
            if found is not None:
                return found
            number = self.ledger.parents.get(number)
        if batch >= 0:
            self.violation(f"batch {batch} of {stage} is not in any log")
        return {}

    def _logged(self, stage: str, generation: int, batch: int) -> r.Batch | None:
        number: int | None = generation
        while number is not None:
            ledger = self.stages.get((stage, number))
            found = ledger.batches.get(batch) if ledger is not None else None
            fork = self.ledger.forks.get(number)
            if fork is None or batch > fork.forks.get(stage, -1):
                return found
            number = self.ledger.parents.get(number)
        return None

    def is_open(self, stage: str, generation: int, incarnation: int) -> bool:
        """Whether an incarnation is the one that may write, in the current timeline."""
        ledger = self.stages.get((stage, generation))
        current = ledger is not None and ledger.incarnation == incarnation
        return current and generation == self.ledger.generation

    def _stage_of(self, sink: str) -> str:
        return next(n for n, m in self.world.model.stages.items() for k in m.spec.sinks if k.name == sink)

    def _is_final(self, sink: str, stage: str, generation: int) -> bool:
        graph = self.ledger.graphs.get(generation, self.world.model.topology)
        return any(k.final for k in graph.stages[stage].sinks if k.name == sink)


def short(body: object) -> str:
    """A short description of a record, for traces and violations."""
    name = type(body).__name__
    words = []
    for field in (
        "term",
        "name",
        "generation",
        "epoch",
        "checkpoint_id",
        "batch",
        "incarnation",
        "watermark",
        "epochs",
    ):
        value = getattr(body, field, None)
        if value is not None and not isinstance(value, msgspec.Struct):
            words.append(f"{field}={value}")
    return f"{name}({', '.join(words)})"
