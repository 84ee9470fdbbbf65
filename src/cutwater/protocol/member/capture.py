"""A member's part of each checkpoint: when all its stages are cut, it acks with their reports; if one of them cannot be
cut, it refuses."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.effects import FAILED, FindState, Procedure, Send, Wait, ask
from cutwater.protocol.base.events import EpochCaptured, Event
from cutwater.protocol.base.paths import state_copies_prefix
from cutwater.protocol.base.records import BarrierAt, Begun, StageReport, Topology, position_of
from cutwater.protocol.base.transitions import Table
from cutwater.protocol.base.watermark import UNKNOWN, lowest
from cutwater.protocol.base.wire import Ack, SourcesDone
from cutwater.protocol.member.config import MemberConfig
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.stage_log import StageLog


class CapturePhase(Enum):
    OPEN = "open"
    CAPTURED = "captured"
    REFUSED = "refused"
    DECIDED = "decided"


CAPTURE = Table(
    "capture",
    "One checkpoint, as a member sees it",
    CapturePhase.OPEN,
    {
        (CapturePhase.OPEN, "all_stages_cut"): CapturePhase.CAPTURED,
        (CapturePhase.OPEN, "stage_failed"): CapturePhase.REFUSED,
        (CapturePhase.OPEN, "decided"): CapturePhase.DECIDED,
        (CapturePhase.CAPTURED, "decided"): CapturePhase.DECIDED,
        (CapturePhase.REFUSED, "decided"): CapturePhase.DECIDED,
    },
)


class Captured(Protocol):
    """The member whose stages are captured. `failures` and `damage` say why it refuses."""

    name: str
    boot: str
    topology: Topology
    config: MemberConfig
    journal: Journal
    generation: int
    failures: dict[str, str]
    damage: str | None

    @property
    def sources_done(self) -> bool: ...
    def log(self, stage: str) -> StageLog: ...
    def observe(self, event: Event) -> None: ...


class Capture:
    """The acks of one member, by checkpoint id, until the checkpoints are decided."""

    def __init__(self, member: Captured) -> None:
        self._member = member
        self.acks: dict[int, Ack] = {}
        self._phases: dict[int, CapturePhase] = {}

    def run(self) -> Procedure[None]:
        """The actor that acks, and repeats its acks until they are decided."""
        member = self._member
        while True:
            for epoch in sorted(member.journal.state.open):
                begun = member.journal.state.open.get(epoch)
                if begun is not None and (begun.generation == member.generation or member.damage):
                    yield from self._capture_one(begun)
            for ack in list(self.acks.values()):
                yield Send(member.journal.state.leader, ack)
            if member.sources_done and member.journal.state.leader not in (None, member.name):
                done = SourcesDone(member.name, member.boot, member.generation)
                yield Send(member.journal.state.leader, done)
            yield Wait(member.config.resend_ms)

    def forget_decided(self) -> None:
        """Drops the acks of checkpoints that are no longer open."""
        live = {begun.checkpoint_id for begun in self._member.journal.state.open.values()}
        for checkpoint_id in [c for c in self.acks if c not in live]:
            del self.acks[checkpoint_id]
            CAPTURE.next(self._phases.pop(checkpoint_id), "decided")

    def forget_all(self) -> None:
        """Drops all acks: another generation begins."""
        self.acks, self._phases = {}, {}

    def _capture_one(self, begun: Begun) -> Procedure[None]:
        if begun.checkpoint_id in self.acks:
            return
        member = self._member
        if member.failures or member.damage:
            failed = [f"stage {s} failed: {e}" for s, e in sorted(member.failures.items())]
            error = "; ".join([*failed, member.damage] if member.damage else failed)
            self._acknowledge(begun, "stage_failed", error, {})
            return
        barriers: dict[str, BarrierAt] = {}
        for name in member.topology.hosted(member.name):
            at = member.log(name).state.barriers.get(begun.epoch)
            if at is None or at.checkpoint_id != begun.checkpoint_id:
                return
            barriers[name] = at
        reports: dict[str, StageReport] = {}
        for name, at in barriers.items():
            report = yield from self._report(begun, name, at)
            if report is None:
                return
            reports[name] = report
        if begun.epoch in member.journal.state.open:
            self._acknowledge(begun, "all_stages_cut", None, reports)

    def _report(self, begun: Begun, name: str, at: BarrierAt) -> Procedure[StageReport | None]:
        copy_to = None
        if begun.flags & Flags.FULL_SNAPSHOT:
            copy_to = state_copies_prefix(begun.epoch, begun.checkpoint_id, name)
        files = yield from ask(FindState(name, begun.generation, at.incarnation, at.batch, copy_to))
        if files is FAILED:
            return None
        if files is None:
            error = f"the state of stage {name} at batch {at.batch} is missing"
            self._acknowledge(begun, "stage_failed", error, {})
            return None
        return StageReport(name, at.incarnation, at.batch, at.unaligned, files, **position_of(at))

    def _acknowledge(
        self, begun: Begun, event: str, error: str | None, reports: dict[str, StageReport]
    ) -> None:
        phase = self._phases.get(begun.checkpoint_id, CAPTURE.start)
        self._phases[begun.checkpoint_id] = CAPTURE.next(phase, event)
        watermark = lowest(r.watermark for r in reports.values()) if error is None else UNKNOWN
        self.acks[begun.checkpoint_id] = Ack(
            member=self._member.name,
            boot=self._member.boot,
            epoch=begun.epoch,
            checkpoint_id=begun.checkpoint_id,
            term=begun.term,
            ok=error is None,
            error=error,
            watermark=watermark,
            reports=reports,
        )
        if error is None:
            self._member.observe(EpochCaptured(begun.epoch))
