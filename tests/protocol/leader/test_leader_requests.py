"""Requests to the leader: cancellations, unaligned checkpoints, savepoints."""

from __future__ import annotations

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.wire import RequestKind
from cutwater.sim.world import World
from tests.support.builders import (
    ask,
    checkpoint,
    drain,
    entries,
    leader_of,
    of,
    refusal,
    rest,
    running_world,
    slow_down,
    until,
)


def test_a_cancelled_checkpoint_aborts_and_its_batches_belong_to_the_next_one() -> None:
    world = running_world()
    slow_down(world, "b")
    ask(world, RequestKind.CHECKPOINT)
    rest(world, 60)
    ask(world, RequestKind.CANCEL)
    rest(world, 60)
    (aborted,) = entries(world, r.Aborted)
    assert (aborted.epoch, aborted.reason, aborted.detail) == (2, "cancelled", "by request")
    assert checkpoint(world).epoch == 3
    world.oracle.final_check()


def test_cancelling_nothing_is_refused_with_a_message() -> None:
    world = running_world()
    rest(world)
    ask(world, RequestKind.CANCEL)
    rest(world, 60)
    assert refusal(world) == "none is in flight"
    assert entries(world, r.Aborted) == []


def test_an_unaligned_checkpoint_has_the_unread_batches_of_a_slow_stage_in_flight() -> None:
    world = running_world()
    slow_down(world, "b", 3_000)
    ask(world, RequestKind.CHECKPOINT, unaligned=True)
    until(world, lambda: world.oracle.epochs == 2, ms=300)
    found = world.oracle.manifests[2]
    assert found.flags & Flags.UNALIGNED
    assert found.stages["b"].unaligned
    assert not found.stages["a"].unaligned
    assert in_flight_is_right(found)


def in_flight_is_right(found: r.Manifest) -> bool:
    """The one range between the slow stage's position and its input's cut, with its files."""
    (flight,) = found.in_flight
    consumed, cut = found.stages["b"].consumed["a"], found.stages["a"].batch
    assert (flight.producer, flight.reader, flight.after, flight.upto) == ("a", "b", consumed, cut)
    assert flight.batches.keys() == set(range(consumed + 1, cut + 1))
    return all(name in found.objects() for files in flight.batches.values() for name in files)


def test_a_checkpoint_that_aligns_too_slowly_is_turned_unaligned() -> None:
    world = running_world(alignment_timeout_ms=50)
    slow_down(world, "b", 3_000)
    ask(world, RequestKind.CHECKPOINT)
    until(world, lambda: world.oracle.epochs == 2, ms=400)
    found = world.oracle.manifests[2]
    assert not found.flags & Flags.UNALIGNED, "it began as an aligned checkpoint"
    assert found.stages["b"].unaligned
    assert in_flight_is_right(found)


def test_in_flight_batches_are_read_after_a_restore() -> None:
    world = running_world()
    slow_down(world, "b", 2_000)
    ask(world, RequestKind.CHECKPOINT, unaligned=True)
    until(world, lambda: world.oracle.epochs == 2 and world.oracle.all_settled())
    assert world.oracle.manifests[2].in_flight
    ask(world, RequestKind.RESTORE, epoch=2)
    until(world, lambda: world.oracle.ledger.generation == 2)
    until(world, lambda: world.oracle.epochs == 3 and world.oracle.all_settled())
    drain(world)


def test_a_savepoint_is_full_named_and_kept_beyond_retention() -> None:
    world = running_world(retained=1)
    found = checkpoint(world, RequestKind.SAVEPOINT, name="before-deploy")
    assert (found.savepoint, found.flags) == ("before-deploy", Flags.FULL_SNAPSHOT)
    for _ in range(3):
        checkpoint(world)
    rest(world, 1_000)
    assert sorted(world.oracle.ledger.kept) == [2, 5]
    assert leader_of(world).member.journal.state.savepoints == {"before-deploy": 2}
    ask(world, RequestKind.RESTORE, name="before-deploy")
    until(world, lambda: world.oracle.ledger.generation == 2)
    until(world, lambda: world.oracle.epochs == 6)
    drain(world)


def flying_savepoint(world: World) -> r.Manifest:
    """A savepoint that turned unaligned, with rows in flight to the slow stage `b`."""
    slow_down(world, "b", 60_000)
    ask(world, RequestKind.SAVEPOINT, name="good")
    until(world, lambda: world.oracle.epochs == 2 and world.oracle.all_settled())
    found = world.oracle.manifests[2]
    assert found.stages["b"].unaligned
    assert any(files for flight in found.in_flight for files in flight.batches.values())
    return found


def test_a_savepoint_names_nothing_outside_its_folder_and_the_tables() -> None:
    world = running_world(alignment_timeout_ms=50)
    found = flying_savepoint(world)
    folder = paths.checkpoint_prefix(found.epoch, found.checkpoint_id)
    assert {name for name in found.objects() if not name.startswith(folder)} == set()
    (flight,) = found.in_flight
    logged = of(world, "m0").member.log("a").state.batches
    assert flight.batches.keys() == set(range(flight.after + 1, flight.upto + 1))
    for batch, files in flight.batches.items():
        for copy, original in zip(files, logged[batch].files, strict=True):
            assert copy == f"{folder}channels/a/{batch}/{original.rsplit('/', 1)[1]}"
            assert world.store.objects[copy] == world.store.objects[original]


def test_an_incremental_checkpoint_does_not_copy_in_flight_batches() -> None:
    world = running_world(alignment_timeout_ms=50)
    slow_down(world, "b", 3_000)
    found = checkpoint(world)
    assert found.in_flight
    assert all(name.startswith("stages/") for name in found.objects())
    assert not any("/channels/" in name for name in world.store.list(paths.CHECKPOINT_PREFIX))


def test_a_savepoint_can_be_restored_without_the_data_of_the_stages() -> None:
    world = running_world(alignment_timeout_ms=50, retained=1)
    flying_savepoint(world)
    for process in list(world.processes):
        world.stop(process)
    gone = [name for name in world.store.list("stages/") if "/data/" in name or name.startswith("stages/b/")]
    assert gone
    for name in gone:
        world.store.delete(name)
    world.start("m0")  # alone it can process the request, and nobody reads the missing files
    until(world, lambda: bool(world.leaders()))
    ask(world, RequestKind.RESTORE, name="good")
    until(world, lambda: world.oracle.ledger.generation == 2)
    for name in ("m1", "m2"):
        world.start(name)
    until(world, lambda: world.oracle.epochs == 3, ms=60_000)
    drain(world)


def test_a_savepoint_with_missing_rows_in_flight_is_aborted_with_a_message() -> None:
    world = running_world(alignment_timeout_ms=50)
    slow_down(world, "b", 60_000)
    lost = next(n for n in reversed(world.store.list("stages/a/1/data/")))
    world.store.delete(lost)
    ask(world, RequestKind.SAVEPOINT, name="good")
    until(world, lambda: bool(entries(world, r.Aborted)), ms=500)
    (aborted,) = entries(world, r.Aborted)
    assert aborted.epoch == 2
    assert lost in aborted.detail


def test_batches_in_flight_since_a_savepoint_stay_when_it_is_forgotten() -> None:
    world = running_world(alignment_timeout_ms=50, retained=1)
    found = flying_savepoint(world)
    ask(world, RequestKind.RESTORE, name="good")
    until(world, lambda: world.oracle.epochs == 3 and world.oracle.all_settled())
    later = world.oracle.manifests[3]
    assert later.objects().keys() & found.objects().keys(), "b has not read them yet"
    ask(world, RequestKind.FORGET, name="good")
    checkpoint(world, full=True)
    assert 2 in world.oracle.ledger.kept, "b reads the files of the savepoint, not the copies of a later one"
    world.slow_until_ms.clear()
    until(world, lambda: all(b > 2 for b in of(world, "m1").member.log("b").state.batches))
    checkpoint(world)
    until(world, lambda: 2 not in world.oracle.ledger.kept)
    drain(world)


def test_a_savepoint_is_not_replaced_by_another_of_the_same_name() -> None:
    world = running_world(retained=1)
    first = checkpoint(world, RequestKind.SAVEPOINT, name="before-deploy")
    ask(world, RequestKind.SAVEPOINT, name="before-deploy")
    rest(world, 2_000)
    assert first.epoch in world.oracle.ledger.kept
    assert refusal(world) == "savepoint 'before-deploy' already exists (epoch 2)"


def test_retention_deletes_what_only_expired_checkpoints_needed() -> None:
    world = running_world(retained=1)
    found = checkpoint(world, full=True)
    folder = paths.checkpoint_prefix(found.epoch, found.checkpoint_id)
    assert world.store.list(folder)
    checkpoint(world)
    rest(world, 1_000)
    assert world.store.list(folder) == []
    assert world.store.list(paths.CHECKPOINT_PREFIX)
