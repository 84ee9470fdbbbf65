"""A hosted stage: its incarnations, its cuts, its drain, and queries that end."""

from __future__ import annotations

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import IllegalStep, StoreError
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.base.wire import RequestKind
from cutwater.protocol.member.member import Member
from cutwater.protocol.member.next_query import QueryEnd
from cutwater.protocol.member.stage import STAGE_PHASES, StagePhase
from cutwater.sim.process import SimWord
from cutwater.sim.world import World
from tests.support.builders import (
    CHAIN,
    DIAMOND,
    Desk,
    Play,
    all_phases,
    ask,
    calm_world,
    checkpoint,
    drain,
    entries,
    errors_of,
    lose_query,
    of,
    phases,
    rest,
    running_world,
    slow_down,
    until,
)
from tests.support.configs import member_config
from tests.support.stage_logs import incarnations, log_of

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


def test_a_stage_restarts_as_a_new_incarnation_after_its_query_failed() -> None:
    world = running_world()
    rest(world)
    process = of(world, "m1")
    before = process.member.stages["b"]
    last = before.log.state.last
    lose_query(process, "b")
    until(world, lambda: process.member.stages["b"].incarnation > before.incarnation)
    rest(world)
    stage = process.member.stages["b"]
    assert incarnations(world, "b") == [before.incarnation, stage.incarnation]
    assert stage.incarnation > before.incarnation
    assert stage.log.state.last >= last, "it continues where its predecessor was"
    assert not process.member.superseded, "its own next incarnation is not another process"
    checkpoint(world)
    world.oracle.final_check()


def test_a_batch_that_the_predecessor_committed_but_did_not_log_is_logged_first() -> None:
    world = running_world()
    rest(world)
    process = of(world, "m1")
    process.end("stage b")  # the appender is dead, the query continues
    rest(world, 300)
    folder = world.folders["b", 1, process.member.stages["b"].incarnation]
    logged = world.oracle.stages["b", 1].last
    assert folder.last > logged
    committed = folder.last
    process.end("query b")
    process.member.start_stage("b")
    until(world, lambda: process.member.stages["b"].log.state.last >= committed)
    bodies = log_of(world, "b")
    opened = max(i for i, body in enumerate(bodies) if isinstance(body, r.Open))
    after = [body.batch for body in bodies[opened + 1 :] if isinstance(body, r.Batch)]
    assert after[: committed - logged] == list(range(logged + 1, committed + 1))


def test_an_entry_of_a_fenced_incarnation_stops_it_and_changes_nothing() -> None:
    """A second process opens the stage while the first one is paused in the middle of its work."""
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


def test_seed_a14_a_stage_whose_folder_is_lost_does_not_silently_start_from_elsewhere() -> None:
    world = running_world()
    rest(world)
    world.io.list_folders = lambda operation: []  # type: ignore[method-assign]
    lose_query(of(world, "m1"), "b")
    with pytest.raises(StoreError, match=r"the Spark folders of stage b are missing.*Restore"):
        rest(world, 2_000)


def test_a_folder_of_an_unknown_incarnation_shows_that_the_log_lost_entries() -> None:
    world = calm_world()
    world.io.list_folders = lambda operation: [7] if operation.stage == "b" else []  # type: ignore[method-assign]
    for name in CHAIN.members():
        world.start(name)
    (said,) = errors_of(world)
    assert said.startswith(
        "StoreError: stage b has a Spark folder of incarnation 7, which its log does not have"
    )
    assert [body for body in log_of(world, "b") if not isinstance(body, r.Open)] == []


def test_a_stage_of_an_expired_generation_does_not_open() -> None:
    """It reads the newest manifest while its process learns of two restores, and of the expiry of the first."""
    play = Play(CHAIN)
    play.cut_all()
    play.commit()
    cuts = play.state.head_cuts
    play.record(r.Restored(1, 2, 1, cuts))
    desk = Desk()
    desk.objects[paths.manifest_name(1, 3)] = r.encode(play.manifests[1])
    someone = Member("m2", "boot", CHAIN, member_config(), SimWord)
    someone.journal.state = play.state
    someone.generation = 2
    someone.start_stage("c")

    def more_restores(effect: fx.Effect) -> None:
        if isinstance(effect, fx.Read):
            desk.before = None
            play.record(r.Restored(1, 3, 1, cuts))
            play.record(r.Expired(1, 3, (), (2,), {}, ()))

    desk.before = more_restores
    assert desk.run(someone.stages["c"]._open()) is False
    assert not any(isinstance(effect, fx.Create) for effect in desk.done)


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


def test_a_batch_records_its_size_in_the_log() -> None:
    hosted = of(running_world(), "m0").member.stages["a"]
    logged = hosted._batch_entry(
        r.Prepared(7, ("f",), {}, consumed={}, offsets={"source": "3:1"}, watermark=NONE, rows=3, size=90)
    )
    assert (logged.rows, logged.size, logged.offsets) == (3, 90, {"source": "3:1"})


# Drain.


def draining_world() -> World:
    """A drain is in progress; `b` is slow and keeps it open."""
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


def test_after_an_aborted_drain_everything_continues() -> None:
    world = draining_world()
    ask(world, RequestKind.CANCEL)
    rest(world, 50)
    assert all_phases(world, "running")
    assert entries(world, r.Aborted)[-1].reason == "cancelled"
    assert checkpoint(world).epoch == 3


def test_a_drained_pipeline_stays_at_rest_until_it_is_restarted() -> None:
    world = running_world()
    ask(world, RequestKind.DRAIN)
    until(world, lambda: all_phases(world, "stopped") and world.oracle.all_settled())
    index = world.oracle.ledger.last
    rest(world, 3_000)
    assert world.oracle.ledger.last == index, "nobody campaigns or begins a checkpoint"
    world.chaos.start_again()
    until(world, lambda: world.oracle.epochs == 3)
    assert all_phases(world, "running")
    assert len(incarnations(world, "b")) == 2
    world.oracle.final_check()


# The table.


@pytest.mark.parametrize("phase", [StagePhase.STOPPED, StagePhase.FENCED])
def test_an_ended_stage_takes_no_further_step(phase: StagePhase) -> None:
    for event in {event for _, event in STAGE_PHASES.steps}:
        with pytest.raises(IllegalStep, match="it is final"):
            STAGE_PHASES.next(phase, event)


def test_an_illegal_step_changes_nothing() -> None:
    world = running_world()
    stage = of(world, "m0").member.stages["a"]
    with pytest.raises(IllegalStep, match="no step 'opened' from phase 'running'"):
        stage._step("opened")
    assert stage.phase is StagePhase.RUNNING


# Queries that end.


@pytest.mark.parametrize("end", [QueryEnd.STOPPED, QueryEnd.FAILED, QueryEnd.OVERLOADED])
def test_a_query_is_restarted_whether_it_failed_or_was_stopped(end: QueryEnd) -> None:
    world = running_world()
    process = of(world, "m1")
    before = process.member.stages["b"].incarnation
    assert lose_query(process, "b", end) == 1_000
    rest(world, 990)
    assert process.member.stages["b"].incarnation == before
    rest(world, 100)
    assert process.member.stages["b"].incarnation > before
    assert process.member.tries == {}, "it has had a batch since"
    drain(world)


def test_the_pause_before_a_restart_grows_each_time_until_the_query_is_given_up() -> None:
    member = of(running_world(), "m1").member
    waits = [member.query_ended("b", QueryEnd.STOPPED, "lost") for _ in range(6)]
    assert waits == [1_000, 2_000, 4_000, 8_000, 16_000, None]
    assert member.failures == {"b": "lost"}


def test_a_query_that_was_too_slow_to_start_gets_more_attempts_with_bounded_pauses() -> None:
    member = of(running_world(), "m1").member
    waits = [member.query_ended("b", QueryEnd.OVERLOADED, "lost") for _ in range(21)]
    assert waits[4:] == [16_000] + [30_000] * 15 + [None]


def test_a_query_that_cannot_continue_is_given_up_at_once() -> None:
    world = running_world()
    assert lose_query(of(world, "m1"), "b", QueryEnd.HOPELESS) is None
    assert of(world, "m1").member.failures == {"b": "lost"}
    rest(world, 5_000)
    assert len(incarnations(world, "b")) == 1


@pytest.mark.parametrize(
    ("end", "has_worked", "is_wrong"),
    [
        (QueryEnd.REFUSED, False, True),
        (QueryEnd.REFUSED, True, False),
        (QueryEnd.UNFIT, False, True),
        (QueryEnd.UNFIT, True, True),
    ],
)
def test_a_query_that_can_never_run_shows_that_the_configuration_is_wrong(
    end: QueryEnd, has_worked: bool, is_wrong: bool
) -> None:
    member = of(running_world(), "m1").member
    assert member.worked == {"b"}
    if not has_worked:
        member.worked.clear()
    after_ms = member.query_ended("b", end, "no such option")
    if is_wrong:
        assert (after_ms, member.misconfigured) == (None, ("b", end, "no such option"))
    else:
        assert (after_ms, member.misconfigured) == (1_000, None)
    assert member.failures == {}


def test_a_query_that_ends_at_rest_is_restarted_only_if_the_drain_fails() -> None:
    world = running_world()
    slow_down(world, "c", ms=3_000)
    rest(world, 200)
    ask(world, RequestKind.DRAIN)
    until(world, lambda: phases(world)["a"] == "resting")
    before = len(incarnations(world, "a"))
    assert lose_query(of(world, "m0"), "a", QueryEnd.STOPPED) is None
    assert of(world, "m0").member.tries == {}
    rest(world, 200)
    assert len(incarnations(world, "a")) == before
    ask(world, RequestKind.CANCEL)
    until(world, lambda: len(incarnations(world, "a")) == before + 1)
    drain(world)
