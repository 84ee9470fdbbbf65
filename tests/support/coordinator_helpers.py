"""Helpers for tests of the coordinator: the parts of the leader and the members."""

from typing import Any

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.records import StageReport
from cutwater.protocol.base.watermark import known
from cutwater.protocol.base.wire import Ack
from cutwater.protocol.leader.coordinator import Coordinator
from cutwater.protocol.leader.coordinator_actions import (
    Action,
    Begin,
    Decide,
)
from cutwater.protocol.leader.quorum import AckOutcome
from tests.support.configs import coordinator_config

PLAIN = Begin(Flags.NONE)


def make(members: str = "ab", now_ms: int = 0, **config: Any) -> Coordinator:
    config = {"interval_ms": 1_000, "timeout_ms": 500} | config
    return Coordinator(coordinator_config(**config), members, 3, now_ms)


def ack(member: str, epoch: int, error: str | None = None, term: int = 3) -> Ack:
    report = StageReport(
        f"stage {member}", 1, epoch, False, consumed={}, offsets={}, watermark=known(5), state={}
    )
    reports = {report.stage: report}
    return Ack(member, "boot", epoch, epoch * 10, term, error is None, error, known(5), reports)


def begin(c: Coordinator, epoch: int, now_ms: int) -> list[Action]:
    """Answers a `Begin` as the leader does. In these tests checkpoint ids are ten times the epoch."""
    return c.begun(epoch, epoch * 10, now_ms)


def started(members: str = "ab", **config: Any) -> Coordinator:
    """With epoch 1 in flight since 0."""
    c = make(members, **config)
    assert c.tick(0) == [PLAIN]
    assert begin(c, 1, 0) == []
    return c


def all_ack(c: Coordinator, epoch: int, now_ms: int) -> list[Action]:
    actions: list[Action] = []
    for member in c.members:
        outcome, more = c.on_ack(ack(member, epoch), now_ms)
        assert outcome is AckOutcome.COUNTED
        actions += more
    return actions


def decided(epoch: int, members: str = "ab") -> Decide:
    return Decide(epoch, epoch * 10, {m: ack(m, epoch) for m in members})


def run_one(c: Coordinator, epoch: int, now_ms: int) -> list[Action]:
    """Plays a checkpoint from its `Begin` to its commit."""
    begin(c, epoch, now_ms)
    assert all_ack(c, epoch, now_ms) == [decided(epoch, "".join(c.members))]
    return c.committed(epoch, now_ms)


def snapshot(c: Coordinator) -> str:
    """The whole state of a coordinator."""
    flights = [{**{s: getattr(f, s) for s in f.__slots__}, "quorum": f.acked} for f in c.in_flight()]
    return repr((flights, {k: v for k, v in vars(c).items() if k != "_flights"}))
