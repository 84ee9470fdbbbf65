"""A stage that a restore resets."""

from __future__ import annotations

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import records as r
from cutwater.protocol.base.watermark import UNKNOWN
from cutwater.protocol.base.wire import RequestKind
from cutwater.sim.world import World
from tests.support.builders import (
    all_phases,
    ask,
    calm_world,
    checkpoint,
    drain,
    entries,
    of,
    pipeline,
    rest,
    running_world,
    slow_down,
    stage,
    until,
)
from tests.support.stage_logs import log_of


def reset(world: World, epoch: int, *names: str) -> list[fx.MakeFolder]:
    """Restores an epoch with these stages reset. Returns the folders that are made until all stages run."""
    made = folders_made(world)
    before = world.oracle.ledger.generation
    ask(world, RequestKind.RESTORE, epoch=epoch, reset=names)
    until(world, lambda: world.oracle.ledger.generation == before + 1)
    until(world, lambda: len(made) == len(world.model.stages))
    return made


def folders_made(world: World) -> list[fx.MakeFolder]:
    """Collects every operation that makes a Spark folder from now on."""
    made: list[fx.MakeFolder] = []
    make = world.io._make_folder

    def watch(process: object, actor: object, token: int, effect: fx.MakeFolder) -> None:
        made.append(effect)
        make(process, actor, token, effect)  # type: ignore[arg-type]

    world.io._make_folder = watch  # type: ignore[method-assign]
    return made


def opened(world: World, name: str, generation: int = 2) -> r.Open:
    first = log_of(world, name, generation)[0]
    assert isinstance(first, r.Open)
    return first


def reports(made: list[fx.MakeFolder]) -> dict[str, r.StageReport]:
    return {effect.stage: effect.report for effect in made if effect.report is not None}


def test_a_reset_root_starts_without_state_after_what_it_had_read() -> None:
    """Its table and its readers already have the rows that it had read: it must not read them again."""
    world = running_world()
    target = checkpoint(world)
    cut = target.stages["a"]
    assert cut.batch >= 0
    made = reset(world, target.epoch, "a")
    assert opened(world, "a") == r.Open(1, cut.batch, consumed={}, offsets=cut.offsets, watermark=UNKNOWN)
    assert {m.stage: m.reset for m in made} == {"a": True, "b": False, "c": False}
    found = reports(made)
    assert found["a"] == r.StageReport(
        "a", 0, cut.batch, False, consumed={}, offsets=cut.offsets, watermark=UNKNOWN, state=cut.state
    )
    assert {name: found[name] for name in "bc"} == {name: target.stages[name] for name in "bc"}
    checkpoint(world)
    drain(world)


def test_a_reset_stage_in_the_middle_continues_after_what_its_reader_has_read() -> None:
    world = running_world()
    target = checkpoint(world)
    checkpoint(world)
    cuts = {name: report.batch for name, report in target.stages.items()}
    assert target.stages["c"].consumed == {"b": cuts["b"]}
    made = reports(reset(world, target.epoch, "b"))
    assert opened(world, "b") == r.Open(
        1, cuts["b"], consumed={"a": cuts["a"]}, offsets=target.stages["b"].offsets, watermark=UNKNOWN
    )
    assert made["c"] == target.stages["c"]
    checkpoint(world)
    first = next(body for body in log_of(world, "b", 2) if isinstance(body, r.Batch))
    assert first.batch == cuts["b"] + 1
    drain(world)


def test_unread_batches_of_a_reset_stage_are_still_read() -> None:
    """They are in flight in the checkpoint, and were produced before the reset."""
    world = running_world()
    slow_down(world, "c", 2_000)
    hosts = {name: p.member for p in world.processes for name in p.member.stages}
    until(world, lambda: hosts["b"].log("b").state.consumed["a"] == hosts["a"].log("a").state.last)
    ask(world, RequestKind.CHECKPOINT, unaligned=True)
    until(world, lambda: world.oracle.epochs == 2 and world.oracle.all_settled())
    target = world.oracle.manifests[2]
    assert ("b", "c") in [(f.producer, f.reader) for f in target.in_flight]
    reset(world, 2, "b")
    assert opened(world, "b").batch > opened(world, "c").consumed["b"]
    drain(world)


def test_a_reset_stage_reads_what_it_had_in_flight() -> None:
    world = running_world()
    slow_down(world, "b", 2_000)
    ask(world, RequestKind.CHECKPOINT, unaligned=True)
    until(world, lambda: world.oracle.epochs == 2 and world.oracle.all_settled())
    target = world.oracle.manifests[2]
    assert target.in_flight[0].reader == "b"
    reset(world, 2, "b")
    assert opened(world, "b").consumed == target.stages["b"].consumed
    assert target.stages["b"].consumed["a"] < target.stages["a"].batch
    drain(world)


def test_a_final_sink_of_a_reset_stage_publishes_the_rows_held_back_for_it() -> None:
    """Output staged before the cut is not part of its state: it is released when its window is closed."""
    topology = pipeline(stage("a"), stage("b", "a", "m1", [r.SinkSpec("out", final=True)]))
    world = calm_world(topology)
    for model in world.model.stages.values():
        model.event_time = True
    for name in topology.members():
        world.start(name)
    until(world, lambda: world.oracle.epochs == 1)
    cuts = (checkpoint(world) for _ in range(20))
    target = next(cut for cut in cuts if cut.held.get("out"))
    held = {file.name for file in target.held["out"]}
    reset(world, target.epoch, "b")
    drain(world)
    later = [m for e, m in world.oracle.manifests.items() if e > target.epoch]
    assert held <= {name for manifest in later for name in manifest.release["out"]}


def test_each_restore_resets_only_what_it_names() -> None:
    """The second restore comes before the first has had an effect, the third goes to a checkpoint after the second."""
    world = running_world()
    target = checkpoint(world)
    first = list(reset(world, target.epoch, "b"))
    second = reset(world, target.epoch, "c")
    assert [made.stage for made in first if made.reset] == ["b"]
    assert [made.stage for made in second if made.reset] == ["c"]
    assert reports(second)["b"] == target.stages["b"]
    after = checkpoint(world)
    third = reports(reset(world, after.epoch))
    assert third == after.stages, "a stage that was reset once has its own state now"
    assert [body.reset for body in entries(world, r.Restored)] == [("b",), ("c",), ()]
    drain(world)


@pytest.mark.parametrize("committed", [False, True], ids=["before a commit", "after a commit"])
def test_a_reset_holds_until_the_generations_first_commit(committed: bool) -> None:
    """Its folder is lost, so it starts again from the newest checkpoint: the restored one, without its state, or one of
    its own generation, with its state."""
    world = running_world()
    target = checkpoint(world)
    world.rates = dict.fromkeys(world.rates, 0.0)
    reset(world, target.epoch, "b")
    until(world, lambda: all_phases(world, "running") and world.oracle.epochs == 3)
    rest(world)
    after = world.oracle.manifests[3]
    assert after.stages["b"].batch == target.stages["b"].batch, "no batch has run since"
    if not committed:
        reset(world, target.epoch, "b")
    made = folders_made(world)
    world.io.list_folders = lambda operation: []  # type: ignore[method-assign]
    of(world, "m1").member.start_stage("b")
    until(world, lambda: bool(made))
    (effect,) = made
    assert effect.source is None
    assert effect.report is not None
    if committed:
        assert effect.report == after.stages["b"]
        assert effect.report.state
    else:
        assert (effect.report.batch, effect.reset) == (target.stages["b"].batch, True)
