"""The watermark that a stage reports: of stages with and without event time, idle ones, and drained ones."""

from __future__ import annotations

import msgspec
import pytest

from cutwater.protocol.base import records as r
from cutwater.protocol.base.watermark import NONE, UNKNOWN, Watermark, WatermarkKind, idle, known
from cutwater.protocol.base.wire import RequestKind
from cutwater.protocol.member.activity import RestPhase
from cutwater.protocol.member.config import StagePlan
from cutwater.sim.world import World
from tests.support.builders import (
    CHAIN,
    ask,
    begun,
    calm_world,
    checkpoint,
    drain,
    of,
    rest,
    running_world,
    slow_down,
    until,
)


@pytest.mark.parametrize(
    ("watermark", "is_idle", "quiet", "draining", "reported"),
    [
        (known(7), False, False, False, known(7)),
        (known(7), False, True, False, known(7)),
        (known(7), False, False, True, known(7)),
        (known(7), False, True, True, idle(7)),
        (known(7), True, True, False, idle(7)),
        (UNKNOWN, False, True, False, UNKNOWN),
        (UNKNOWN, True, True, False, idle()),
        (UNKNOWN, False, True, True, idle()),
        (idle(7), False, False, False, known(7)),
        (idle(), False, False, False, UNKNOWN),
        (NONE, False, True, False, UNKNOWN),
    ],
)
def test_an_idle_or_drained_stage_does_not_hold_back_the_watermark(
    watermark: Watermark, is_idle: bool, quiet: bool, draining: bool, reported: Watermark
) -> None:
    """A stage that is quiet between two batches is not idle: its next rows may have any event time."""
    hosted = of(running_world(), "m0").member.stages["a"]
    hosted.member.plans["a"] = StagePlan()
    hosted.log.state.watermark = watermark
    hosted.activity.idle, hosted.draining = is_idle, draining
    hosted.activity.rest = RestPhase.QUIET if quiet else RestPhase.GOING
    assert hosted._barrier_entry(begun(2, 9), False).watermark == reported


def reported(world: World, name: str, checkpoint_of: r.Manifest | None = None) -> Watermark:
    return (checkpoint_of or checkpoint(world)).stages[name].watermark


def test_a_stage_without_event_time_says_so_before_its_first_batch() -> None:
    world = calm_world()
    world.rates["a"] = 0.0
    for name in CHAIN.members():
        world.start(name)
    until(world, lambda: world.oracle.epochs == 1)
    assert {s.watermark for s in world.oracle.manifests[1].stages.values()} == {NONE}


def event_time_world(idle_after_ms: int = 10_000) -> World:
    """No stage has a row to read; those of `a` may arrive later."""
    world = calm_world()
    world.member_config = msgspec.structs.replace(world.member_config, idle_after_ms=idle_after_ms)
    for model in world.model.stages.values():
        model.event_time = True
    world.rates["a"] = 0.0
    for name in CHAIN.members():
        world.start(name)
    until(world, lambda: world.oracle.epochs == 1)
    return world


def test_a_stage_that_never_had_a_row_holds_back_the_watermark_until_it_is_idle() -> None:
    world = event_time_world(idle_after_ms=2_000)
    assert reported(world, "a") == UNKNOWN
    rest(world, 2_500)
    assert reported(world, "a") == idle()
    world.rates["a"] = 0.05
    rest(world)
    assert reported(world, "a").kind is WatermarkKind.KNOWN


def test_a_stage_that_never_had_a_row_does_not_hold_back_the_watermark_of_a_drain() -> None:
    world = event_time_world()
    drain(world)
    assert world.oracle.ledger.head is not None
    last = world.oracle.manifests[world.oracle.ledger.head]
    assert {s.watermark for s in last.stages.values()} == {idle()}


def test_a_stage_that_was_idle_at_a_checkpoint_is_not_idle_after_its_restore() -> None:
    world = event_time_world(idle_after_ms=100)
    world.rates["a"] = 0.05
    rest(world)
    world.rates["a"] = 0.0
    found = checkpoint(world)
    stood = reported(world, "a", found).ms
    assert reported(world, "a", found) == idle(stood)
    assert stood is not None
    world.rates["a"] = 0.05
    slow_down(world, "a", ms=60_000, each_ms=5_000)
    ask(world, RequestKind.RESTORE, epoch=found.epoch)
    until(world, lambda: of(world, "m0").member.stages["a"].generation == 2)
    assert reported(world, "a") == known(stood), "it has rows to read, but no batch yet"
