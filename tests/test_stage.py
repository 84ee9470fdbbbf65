"""A hosted stage: its incarnations, its cuts, and how it comes to rest."""

from __future__ import annotations

import pytest

from cutwater.protocol import effects as fx
from cutwater.protocol import records as r
from cutwater.protocol.errors import IllegalStep, StoreError
from cutwater.protocol.stage import STAGE_PHASES, StagePhase
from cutwater.protocol.wire import RequestKind
from cutwater.sim.world import World
from tests.builders import (
    CHAIN,
    DIAMOND,
    all_phases,
    ask,
    calm_world,
    checkpoint,
    entries,
    of,
    phases,
    rest,
    running_world,
    slow_down,
    until,
)


def log_of(world: World, stage: str, generation: int = 1) -> list[r.StageBody]:
    """The bodies in a stage's log, in order."""
    names = world.store.list(r.stage_log_prefix(stage, generation))
    return [r.STAGE.open(world.store.objects[name]).entry.body for name in names]


def incarnations(world: World, stage: str) -> list[int]:
    return [body.incarnation for body in log_of(world, stage) if isinstance(body, r.Open)]


# Incarnations.


def test_a_stage_opens_its_log_before_its_query_runs() -> None:
    world = calm_world()
    seen: list[tuple[str, bool]] = []

    def perform(process: object, effect: fx.StartQuery) -> None:
        seen.append((effect.stage, effect.incarnation in incarnations(world, effect.stage)))

    for name in CHAIN.members():
        process = world.start(name)
        process._start_query = perform.__get__(process)  # type: ignore[method-assign]
    rest(world, 1_000)
    assert sorted(seen) == [("a", True), ("b", True), ("c", True)]


def test_the_restart_of_a_stage_after_its_query_failed_is_a_new_incarnation() -> None:
    world = running_world()
    rest(world)
    process = of(world, "m1")
    before = process.member.stages["b"]
    last = before.log.state.last
    process.restart_stage("b")
    until(world, lambda: process.member.stages["b"].phase is StagePhase.RUNNING)
    stage = process.member.stages["b"]
    assert incarnations(world, "b") == [before.incarnation, stage.incarnation]
    assert stage.incarnation > before.incarnation
    assert stage.log.state.last >= last, "it goes on where its predecessor was"
    assert not process.member.superseded, "its own next incarnation is no other process"
    checkpoint(world)
    world.oracle.final_check()


def test_a_batch_that_the_predecessor_committed_and_did_not_log_is_logged_first() -> None:
    world = running_world()
    rest(world)
    process = of(world, "m1")
    process.end("stage b")  # the appender is dead, the query goes on
    rest(world, 300)
    folder = world.folders["b", 1, process.member.stages["b"].incarnation]
    logged = world.oracle.stages["b", 1].last
    assert folder.last > logged
    committed = folder.last
    process.end("query b")
    process.restart_stage("b")
    until(world, lambda: process.member.stages["b"].log.state.last >= committed)
    bodies = log_of(world, "b")
    opened = max(i for i, body in enumerate(bodies) if isinstance(body, r.Open))
    after = [body.batch for body in bodies[opened + 1 :] if isinstance(body, r.Batch)]
    assert after[: committed - logged] == list(range(logged + 1, committed + 1))


def test_an_entry_of_a_fenced_incarnation_stops_it_and_changes_nothing() -> None:
    """A second process opens the stage while the first one sleeps in the middle of its work."""
    world = running_world()
    first = of(world, "m1")
    first.pause()
    second = world.start("m1")
    until(world, lambda: "b" in second.member.stages and second.member.stages["b"].incarnation > 0)
    rest(world)
    first.wake_up()
    until(world, lambda: first.member.superseded)
    assert first.member.stages["b"].phase is StagePhase.FENCED
    newest = incarnations(world, "b")[-1]
    bodies = log_of(world, "b")
    assert all(body.incarnation == newest for body in bodies[newest - 1 :])


def test_seed_a14_a_stage_whose_folder_is_lost_does_not_start_from_elsewhere_without_a_word() -> None:
    world = running_world()
    rest(world)
    world.io._apply[fx.ListFolders] = lambda effect: []
    of(world, "m1").restart_stage("b")
    with pytest.raises(StoreError, match=r"the Spark folders of stage b are gone.*Restore"):
        rest(world, 2_000)


# Cuts.


def test_a_root_cuts_at_its_last_batch_at_once() -> None:
    world = running_world()
    slow_down(world, "a")
    last = of(world, "m0").member.stages["a"].log.state.last
    ask(world, RequestKind.CHECKPOINT)
    rest(world, 40)
    barriers = [b for b in log_of(world, "a") if isinstance(b, r.BarrierAt)]
    assert (barriers[-1].epoch, barriers[-1].batch) == (2, last)
    assert not of(world, "m0").member.stages["a"].quiet, "a batch is running meanwhile"


def test_a_fan_in_cuts_aligned_with_nothing_left_before_the_barriers() -> None:
    world = running_world(DIAMOND)
    slow_down(world, "b", 400)
    found = checkpoint(world)
    assert found.in_flight == ()
    assert not any(report.unaligned for report in found.stages.values())
    cuts = {name: report.batch for name, report in found.stages.items()}
    for reader, spec in DIAMOND.stages.items():
        for producer in spec.inputs:
            assert found.stages[reader].consumed[producer] <= cuts[producer]


def test_a_stage_is_cut_once_per_epoch() -> None:
    world = running_world()
    checkpoint(world)
    epochs = [body.epoch for body in log_of(world, "b") if isinstance(body, r.BarrierAt)]
    assert epochs == [1, 2]


# Drain.


def draining_world() -> World:
    """A drain is under way; `b` is slow and keeps it open."""
    world = running_world()
    slow_down(world, "b", 3_000)
    ask(world, RequestKind.DRAIN)
    until(world, lambda: phases(world)["a"] == "resting", ms=500)
    return world


def test_a_drain_cuts_a_stage_only_when_it_has_nothing_to_do_and_then_it_rests() -> None:
    world = draining_world()
    assert phases(world) == {"a": "resting", "b": "running", "c": "running"}
    stage = of(world, "m1").member.stages["b"]
    assert (stage.quiet, stage.draining) == (False, True)
    assert 2 not in stage.log.state.barriers
    assert 2 in of(world, "m0").member.stages["a"].log.state.barriers


def test_a_drained_pipeline_has_nothing_in_flight_and_stops_only_after_the_commit() -> None:
    world = draining_world()
    until(world, lambda: phases(world)["b"] == "resting")
    assert entries(world, r.Committed)[-1].epoch == 1
    assert "stopped" not in phases(world).values()
    until(world, lambda: all_phases(world, "stopped"))
    assert entries(world, r.Committed)[-1].epoch == 2
    assert world.oracle.manifests[2].in_flight == ()
    until(world, world.oracle.all_settled)
    world.oracle.final_check()


def test_a_drain_that_aborts_lets_everybody_go_on() -> None:
    world = draining_world()
    ask(world, RequestKind.CANCEL)
    rest(world, 50)
    assert all_phases(world, "running")
    assert entries(world, r.Aborted)[-1].reason == "cancelled"
    assert checkpoint(world).epoch == 3


def test_a_drained_pipeline_stays_at_rest_until_it_is_started_again() -> None:
    world = running_world()
    ask(world, RequestKind.DRAIN)
    until(world, lambda: all_phases(world, "stopped") and world.oracle.all_settled())
    index = world.oracle.ledger.last
    rest(world, 3_000)
    assert world.oracle.ledger.last == index, "nobody campaigns and nobody begins"
    world.chaos.start_again()
    until(world, lambda: world.oracle.epochs == 3)
    assert all_phases(world, "running")
    assert len(incarnations(world, "b")) == 2
    world.oracle.final_check()


# The table.


@pytest.mark.parametrize("phase", [StagePhase.STOPPED, StagePhase.FENCED])
def test_what_has_ended_takes_no_further_step(phase: StagePhase) -> None:
    for event in {event for _, event in STAGE_PHASES.steps}:
        with pytest.raises(IllegalStep, match="it is final"):
            STAGE_PHASES.next(phase, event)


def test_an_illegal_step_changes_nothing() -> None:
    world = running_world()
    stage = of(world, "m0").member.stages["a"]
    with pytest.raises(IllegalStep, match="no step 'opened' from phase 'running'"):
        stage._step("opened")
    assert stage.phase is StagePhase.RUNNING
