"""The checker's own interpretation of the stage logs: incarnations, batches, barriers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import assert_never

from cutwater.protocol.base import records as r
from cutwater.sim.checker.evidence import At, Findings, Log, Trace, Variant
from cutwater.sim.checker.history import History

Barriers = dict[tuple[str, int], tuple[r.BarrierAt, tuple[At, ...]]]
"""By stage and checkpoint id."""


@dataclass(slots=True)
class StageReader:
    """Reads the log of one stage in one generation."""

    stage: str
    generation: int
    log: Log
    history: History
    findings: Findings
    barriers: Barriers
    _sure: bool = True
    _incarnation: int = 0
    _last: int | None = None
    _consumed: dict[str, int] = field(default_factory=dict)
    _cut: dict[int, tuple[At, ...]] = field(default_factory=dict)
    """By epoch."""

    def read(self) -> None:
        before = 0
        for index, variant in self.log.chain.items():
            if index != before + 1:
                self._sure, self._last, self._consumed = False, None, {}
            before = index
            self._entry(index, variant)

    def _wrong(self, rule: str, what: str, *lines: At) -> None:
        self.findings.wrong(rule, f"{self.log.name}: {what}", *lines)

    def _entry(self, index: int, variant: Variant) -> None:
        body: r.StageBody = variant.entry.body
        if isinstance(body, r.Open):
            if body.incarnation != index:
                self._wrong(
                    "incarnation", f"entry {index} opens incarnation {body.incarnation}", *variant.lines
                )
                return
            if self._incarnation == 0 and self._sure:
                self._last, self._consumed = body.batch, body.consumed
            self._incarnation = index
            return
        if body.incarnation != self._incarnation:
            if self._sure or body.incarnation < self._incarnation:
                what = f"entry {index} has incarnation {body.incarnation}, but {self._incarnation} is open"
                rule = "barrier" if isinstance(body, r.BarrierAt) else "incarnation"
                self._wrong(rule, what, *variant.lines)
                return
            self._incarnation = body.incarnation
        match body:
            case r.Batch():
                self._batch(body, variant)
            case r.BarrierAt():
                self._barrier(body, variant)
            case r.StageSnapshot():
                if not self._sure:
                    self._last, self._consumed = body.state.last, body.state.consumed
                    self._sure = True
                for at in body.state.barriers.values():
                    self.barriers.setdefault((self.stage, at.checkpoint_id), (at, variant.lines))
            case _:
                assert_never(body)

    def _batch(self, body: r.Batch, variant: Variant) -> None:
        if self._sure and self._last is not None and body.batch != self._last + 1:
            self._wrong("batch", f"batch {body.batch} follows batch {self._last}", *variant.lines)
        for producer, position in body.consumed.items():
            if position < self._consumed.get(producer, -1):
                self._wrong("batch", f"batch {body.batch} moves back in {producer}", *variant.lines)
        self._last, self._consumed = body.batch, body.consumed

    def _barrier(self, body: r.BarrierAt, variant: Variant) -> None:
        where = f"the barrier of epoch {body.epoch}, checkpoint {body.checkpoint_id},"
        if body.epoch in self._cut:
            self._wrong("barrier", f"{where} occurs twice", *self._cut[body.epoch], *variant.lines)
            return
        self._cut[body.epoch] = variant.lines
        if self._sure and self._last is not None and body.batch != self._last:
            self._wrong(
                "barrier",
                f"{where} follows batch {body.batch}, but the last batch is {self._last}",
                *variant.lines,
            )
        begun = self.history.begun.get(body.checkpoint_id)
        if begun is not None and (begun.epoch, begun.generation) == (body.epoch, self.generation):
            self.barriers.setdefault((self.stage, body.checkpoint_id), (body, variant.lines))
        elif begun is not None or body.checkpoint_id in self.history.log.chain:
            entry = self.history.log.chain.get(body.checkpoint_id)
            lines = entry.lines if entry is not None else ()
            self._wrong("barrier", f"{where} belongs to no checkpoint that was begun", *lines, *variant.lines)
        else:
            self.findings.not_recorded["BEGUN of a barrier"] += 1


def read_stages(trace: Trace, history: History, findings: Findings) -> Barriers:
    """Reads all stage logs, and returns the valid barriers."""
    barriers: Barriers = {}
    for (stage, generation), log in sorted(trace.stages.items()):
        StageReader(stage, generation, log, history, findings, barriers).read()
    return barriers
