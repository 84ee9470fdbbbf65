"""Invariants of the stage logs: incarnations, batches, barriers."""

from __future__ import annotations

from typing import assert_never

from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import Sealed, follows
from cutwater.protocol.base.watermark import WatermarkKind
from cutwater.sim.ledger import StageLedger
from cutwater.sim.oracle.facts import Facts, short


class StageLogs(Facts):
    """Checks each entry of a stage's log."""

    def _stage_entry(self, stage: str, generation: int, sealed: Sealed[r.StageBody]) -> None:
        entry = sealed.entry
        key = stage, generation
        ledger = self.stages.setdefault(key, StageLedger())
        if entry.index <= ledger.snapshot or generation in self.ledger.gone_generations:
            return  # a late write at a place that nobody reads any more
        if not follows(self._stage_chains.get(key), sealed):
            self.violation(f"log entry {entry.index} of {stage} does not continue at {ledger.last_index}")
        self._stage_chains[key] = sealed
        ledger.last_index = entry.index
        ledger.hashes[entry.index] = sealed.hash
        if entry.snapshot == entry.index:
            ledger.snapshot = entry.index
        body = entry.body
        if self.world.tracer is not None:
            self.world.trace(None, f"log of {stage}/{generation} {entry.index}: {short(body)}")
        if isinstance(body, r.Open):
            if ledger.incarnation == 0:
                ledger.last, ledger.consumed = body.batch, body.consumed
                self.emitted.setdefault((stage, generation, body.batch), {})
                self.taken.setdefault((stage, generation, body.batch), {})
            ledger.incarnation = entry.index
            return
        if body.incarnation != ledger.incarnation:
            self.violation(
                f"{stage}: incarnation {body.incarnation} wrote after {ledger.incarnation} had opened"
            )
        match body:
            case r.Batch():
                self._batch(stage, generation, ledger, body)
            case r.BarrierAt():
                self._barrier(stage, generation, ledger, body)
            case r.StageSnapshot():
                pass
            case _:
                assert_never(body)

    def _barrier(self, stage: str, generation: int, ledger: StageLedger, body: r.BarrierAt) -> None:
        if body.epoch in ledger.barriers:
            self.violation(f"{stage} was cut twice for epoch {body.epoch}")
        if (body.epoch, body.checkpoint_id) not in self.ledger.begun_ids:
            self.violation(f"{stage} was cut for epoch {body.epoch}, which was never begun")
        if body.batch != ledger.last:
            self.violation(f"{stage} was cut at {body.batch}, its last batch is {ledger.last}")
        is_idle = body.watermark.kind is WatermarkKind.IDLE
        if is_idle and (stage, generation, body.incarnation) not in self.world.rested:
            self.violation(f"{stage} reports that it is idle, but always had something to do")
        ledger.barriers[body.epoch] = body

    def _batch(self, stage: str, generation: int, ledger: StageLedger, body: r.Batch) -> None:
        if body.batch != ledger.last + 1:
            self.violation(f"{stage}: batch {body.batch} logged after batch {ledger.last}")
        attempt = self.world.attempts[int(body.offsets["attempt"])]
        if attempt.dropped:
            self.violation(f"{stage}: {attempt.dropped} rows were later than the watermark and dropped")
        folder = self.world.folders.get((stage, generation, body.incarnation))
        if folder is None or folder.last < body.batch:
            self.violation(f"{stage}: batch {body.batch} is visible before Spark has committed it")
        before = self._taken(stage, generation, ledger.last)
        for producer, pairs in self.world.model.stages[stage].paths.items():
            position = body.consumed[producer]
            if position < ledger.consumed.get(producer, -1):
                self.violation(f"{stage} moved back in {producer}")
            made = self.emitted_by(producer, generation, position)
            for path, after in pairs:
                if attempt.taken.get(after, 0) != made.get(path, 0):
                    self.violation(
                        f"{stage}: at batch {body.batch} it has {attempt.taken.get(after, 0)} events of "
                        f"{path}; {producer} had made {made.get(path, 0)} by its batch {position}"
                    )
            self._check_versions(stage, generation, producer, attempt.inputs.get(producer, {}))
        for path, count in before.items():
            if attempt.taken.get(path, 0) < count:
                self.violation(f"{stage}: events of {path} would be counted twice at batch {body.batch}")
        ledger.last, ledger.consumed = body.batch, body.consumed
        ledger.batches[body.batch] = body
        self.emitted[stage, generation, body.batch] = attempt.emitted
        self.taken[stage, generation, body.batch] = attempt.taken

    def _check_versions(self, stage: str, generation: int, producer: str, seen: dict[int, int]) -> None:
        """All readers see the one version of a batch that is in the log."""
        for batch, attempt in seen.items():
            logged = self._logged(producer, generation, batch)
            if logged is None or logged.offsets["attempt"] != attempt:
                self.violation(f"{stage} read another version of batch {batch} of {producer} than was logged")
