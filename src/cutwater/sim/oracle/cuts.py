"""Invariants of a committed cut: its manifest, its watermark, its positions."""

from __future__ import annotations

import msgspec

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.watermark import WatermarkKind
from cutwater.sim.ledger import Kept, is_drain
from cutwater.sim.oracle.facts import Facts
from cutwater.sim.spark import input_progress
from cutwater.sim.store import checksum_of
from cutwater.sim.topology import WINDOW


class Cuts(Facts):
    """Checks commits."""

    def _committed(self, begun: r.Begun, body: r.Committed, index: int) -> None:
        ledger = self.ledger
        for member in self.world.graph.members():
            if (member, body.epoch, body.checkpoint_id, body.term) not in self.acks:
                self.violation(f"epoch {body.epoch} committed without an ack of {member} for this checkpoint")
        name = paths.manifest_name(body.epoch, body.checkpoint_id)
        data = self.world.store.objects.get(name)
        if data is None:
            self.violation(f"epoch {body.epoch} committed without a manifest")
        manifest = msgspec.json.decode(data, type=r.Manifest)
        self.manifests[body.epoch] = manifest
        self._check_watermark(body, manifest)
        self._check_cut(body, manifest)
        kept = Kept(body, index, begun.flags, ledger.head)
        ledger.kept[body.epoch] = ledger.history[body.epoch] = kept
        ledger.by_index[index] = body
        ledger.head, ledger.watermark, ledger.drained = body.epoch, body.watermark, is_drain(begun)
        ledger.drained_ms = self.world.now_ms
        if begun.savepoint is not None:
            if begun.savepoint in ledger.savepoints:
                self.violation(f"the name of savepoint {begun.savepoint} is moved from its epoch")
            ledger.savepoints[begun.savepoint] = body.epoch
        self.epochs += 1
        for named in manifest.objects():
            self._named.setdefault(named, set()).add(body.epoch)
        self._check_objects(body.epoch)
        if is_drain(begun):
            self._check_drained(body, manifest)

    def check_kept(self) -> None:
        """Every retained checkpoint can be restored."""
        for epoch in self.ledger.kept:
            self._check_objects(epoch)

    def _check_objects(self, epoch: int) -> None:
        """Everything that a manifest names exists, and its checksum holds."""
        for named, checksum in self.manifests[epoch].objects().items():
            content = self.world.store.objects.get(named)
            if content is None:
                self.violation(f"epoch {epoch} names {named}, which does not exist")
            if checksum is not None and checksum_of(content) != checksum:
                self.violation(f"epoch {epoch} names {named}, which has changed since")

    def _check_watermark(self, body: r.Committed, manifest: r.Manifest) -> None:
        before, reports = self.ledger.watermark, manifest.stages.values()
        for report in reports:
            has_time = self.world.model.stages[report.stage].event_time
            if has_time == (report.watermark.kind is WatermarkKind.NONE):
                self.violation(f"{report.stage} reports {report.watermark.kind.value} of its event time")
        known = [w.ms for s in reports if (w := s.watermark).kind is WatermarkKind.KNOWN and w.ms is not None]
        unknown = any(s.watermark.kind is WatermarkKind.UNKNOWN for s in reports)
        if body.watermark == before:
            return
        if body.watermark is None or (before is not None and body.watermark < before):
            self.violation(f"the watermark went back from {before} to {body.watermark}")
        idle = [w.ms for s in reports if (w := s.watermark).kind is WatermarkKind.IDLE and w.ms is not None]
        if unknown or body.watermark > min(known or idle, default=-1):
            self.violation(f"the watermark passed a stage's: {body.watermark}, reported {sorted(known)}")

    def _check_cut(self, body: r.Committed, manifest: r.Manifest) -> None:
        for stage in self.world.graph.stages:
            model = self.world.model.stages[stage]
            report = manifest.stages.get(stage)
            ledger = self.stages.get((stage, body.generation))
            if report is None or ledger is None:
                self.violation(f"epoch {body.epoch} has no cut of {stage}")
            barrier = ledger.barriers.get(body.epoch)
            if barrier is None or barrier.batch != report.batch or body.cuts[stage] != report.batch:
                self.violation(f"epoch {body.epoch}: {stage} was not cut at {report.batch} in its log")
            if report.batch > ledger.last:
                self.violation(f"epoch {body.epoch}: {stage} was cut at {report.batch}, after its last batch")
            for producer, pairs in model.paths.items():
                made = self.emitted_by(producer, body.generation, body.cuts[producer])
                got = self._taken(stage, body.generation, report.batch)
                for before, after in pairs:
                    have, want = got.get(after, 0), made.get(before, 0)
                    if have > want or (have < want and not report.unaligned):
                        self.violation(
                            f"epoch {body.epoch}: {stage} has {have} events of {before}; "
                            f"{producer} made {want}"
                        )

    def _check_drained(self, body: r.Committed, manifest: r.Manifest) -> None:
        if any(files for flight in manifest.in_flight for files in flight.batches.values()):
            self.violation(f"epoch {body.epoch} drained the pipeline and left batches in flight")
        times = [s.watermark.ms for s in manifest.stages.values() if s.watermark.ms is not None]
        unknown = any(s.watermark.kind is WatermarkKind.UNKNOWN for s in manifest.stages.values())
        if unknown:
            self.violation(
                f"epoch {body.epoch} drained the pipeline, but a stage at rest held back the watermark"
            )
        if times and (body.watermark or 0) < min(times):
            self.violation(f"epoch {body.epoch} drained at {body.watermark}; all stages are at {min(times)}")
        for stage in self.world.graph.stages:
            model = self.world.model.stages[stage]
            if model.windowed:
                taken = self._taken(stage, body.generation, body.cuts[stage])
                made = self.emitted_by(stage, body.generation, body.cuts[stage])
                end = min(input_progress(model, taken), default=0) // WINDOW * WINDOW
                if any(made.get(path, 0) < min(n, end) for path, n in taken.items()):
                    self.violation(f"epoch {body.epoch}: {stage} was drained before its windows were emitted")
