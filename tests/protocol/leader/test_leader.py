"""Leadership: one leader at a time, its decisions, and what it refuses."""

from __future__ import annotations

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import entry_name
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.base.wire import Ack, Heartbeat, Request, RequestKind, encode
from cutwater.protocol.leader.coordinator_actions import Action, Begin, Refuse
from cutwater.protocol.leader.leader import Leader, LeaderConfig, LeaderPhase
from cutwater.protocol.member.config import MemberConfig
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.member import Member
from cutwater.sim.process import Process, SimWord
from cutwater.sim.world import World
from tests.support.builders import (
    CHAIN,
    Desk,
    Version,
    ask,
    calm_world,
    checkpoint,
    damage,
    drain,
    entries,
    errors_of,
    leader_of,
    manifest_of,
    of,
    rest,
    restart_all,
    running_world,
    slow_down,
    until,
)

# One leader at a time.


def test_one_member_leads_and_the_others_follow() -> None:
    world = running_world()
    assert [p.leader.phase for p in world.processes].count(LeaderPhase.LEADING) == 1
    assert [(e.term, e.name) for e in entries(world, r.Leader)] == [(1, leader_of(world).name)]


def test_a_leader_that_sends_heartbeats_is_not_replaced() -> None:
    world = running_world()
    rest(world, 5_000)
    assert len(entries(world, r.Leader)) == 1


def cut_off_leader() -> tuple[World, Leader]:
    """The first leader is cut off while one of its epochs is open; another member leads."""
    world = running_world()
    old = leader_of(world)
    slow_down(world, "b", 4_000)
    ask(world, RequestKind.CHECKPOINT)
    rest(world, 60)
    assert world.oracle.ledger.open.keys() == {2}
    old.pause()
    until(world, lambda: any(p is not old for p in world.leaders()))
    return world, old.leader


def test_seed_a08_of_two_leaders_in_a_partition_only_one_decides() -> None:
    """Both sides reach the store; what the first leader writes after the second one's entry is void."""
    world = running_world()
    old = leader_of(world)
    others = [name for name in CHAIN.members() if name != old.name]
    world.network.blocked = {(old.name, o) for o in others} | {(o, old.name) for o in others}
    until(world, lambda: world.oracle.ledger.term == 2)
    ask(world, RequestKind.CHECKPOINT)
    rest(world, 3_000)
    world.network.blocked.clear()
    rest(world, 1_000)
    checkpoint(world)
    term = 0
    for name in world.store.list(paths.JOURNAL_PREFIX):
        body = r.JOURNAL.open(world.store.objects[name]).entry.body
        term = body.term if isinstance(body, r.Leader) else term
        assert body.term == term, "nobody writes in a term that is over"
    assert len(world.leaders()) == 1
    world.oracle.final_check()


def test_seed_a09_a_leader_that_lost_its_term_stops_and_says_why() -> None:
    world, old = cut_off_leader()
    new = next(p for p in world.leaders() if p.leader is not old)
    old_process = next(p for p in world.processes if p.leader is old)
    old_process.wake_up()
    until(world, lambda: old.phase is LeaderPhase.FOLLOWING, ms=1_000)
    assert old.story == f"term 1 is over: {new.name} leads"
    assert old.coordinator is None


def test_seed_a09_open_epochs_of_a_lost_term_never_commit() -> None:
    world, old = cut_off_leader()
    next(p for p in world.processes if p.leader is old).wake_up()
    until(world, lambda: world.oracle.epochs >= 2)
    rest(world, 3_000)
    assert 2 not in world.oracle.ledger.history
    state = leader_of(world).member.journal.state
    assert [(a.epoch, a.reason) for a in state.aborted] == [(2, "leader_changed")]
    assert all(version.transaction != 5 for version in world.tables["out"].versions)


def stray_ack(member: str, epoch: int, checkpoint_id: int, term: int) -> Ack:
    return Ack(member, "boot", epoch, checkpoint_id, term, True, None, NONE, {})


def test_the_inbox_of_a_former_leader_is_dropped() -> None:
    leader = Leader(Member("m0", "boot", CHAIN, MemberConfig(), SimWord), LeaderConfig())
    leader.on_message(stray_ack("m1", 1, 3, 1))
    assert not leader._inbox
    assert leader.member.woken == []
    leader.phase = LeaderPhase.LEADING
    leader.on_message(stray_ack("m1", 1, 3, 1))
    assert leader.member.woken == ["lead"]
    leader.phase = LeaderPhase.FOLLOWING
    assert list(leader._lead(2)) == []
    assert not leader._inbox, "a new term begins without unprocessed messages of the old one"


def test_a_repeated_message_to_a_busy_leader_is_queued_once() -> None:
    """An ack has the reports of all stages of its member, and is repeated every half second until the decision."""
    leader = Leader(Member("m0", "boot", CHAIN, MemberConfig(), SimWord), LeaderConfig())
    leader.phase = LeaderPhase.LEADING
    for _ in range(1_000):
        for name in ("m1", "m2"):
            leader.on_message(stray_ack(name, 1, 3, 1))
        leader.on_message(Request(RequestKind.CHECKPOINT, "r1"))
    assert len(leader._inbox) == 3
    leader.on_message(stray_ack("m1", 2, 5, 1))
    leader.on_message(Request(RequestKind.CHECKPOINT, "r2"))
    assert len(leader._inbox) == 5


@pytest.mark.parametrize(
    ("epoch_off", "id_off", "term_off"), [(0, 0, -1), (0, -1, 0), (-1, 0, 0)], ids=["term", "id", "epoch"]
)
def test_seed_a03_an_ack_of_another_checkpoint_commits_nothing(
    epoch_off: int, id_off: int, term_off: int
) -> None:
    world = running_world()
    slow_down(world, "b", 3_000)
    ask(world, RequestKind.CHECKPOINT)
    rest(world, 60)
    (begun,) = world.oracle.ledger.open.values()
    for name in CHAIN.members():
        ack = stray_ack(name, begun.epoch + epoch_off, begun.checkpoint_id + id_off, begun.term + term_off)
        leader_of(world).deliver(name, encode(ack))
    rest(world, 100)
    assert world.oracle.ledger.open.keys() == {begun.epoch}
    until(world, lambda: world.oracle.epochs == 2)


@pytest.mark.parametrize(("who", "term"), [("m1", 2), ("m1", 4), ("m2", 3), ("stranger", 3)])
def test_only_a_heartbeat_of_the_leader_in_its_term_counts(who: str, term: int) -> None:
    leader = Leader(Member("m0", "boot", CHAIN, MemberConfig(), SimWord), LeaderConfig())
    leader.member.journal.state.term, leader.member.journal.state.leader = 3, "m1"
    leader.member.now_ms = 100
    leader.on_heartbeat(Heartbeat(who, "boot", term, 9))
    assert leader._seen_ms == 0
    leader.on_heartbeat(Heartbeat("m1", "boot", 3, 9))
    assert leader._seen_ms == 100


def sleeping_follower() -> tuple[World, Process]:
    """A follower that was paused for long, with the missed heartbeats still unread."""
    world = running_world()
    follower = of(world, "m2")
    assert leader_of(world) is not follower
    follower.pause()
    rest(world, 5_000)
    return world, follower


def test_a_woken_follower_does_not_unseat_a_healthy_leader() -> None:
    world, follower = sleeping_follower()
    follower.mail = []
    follower.wake_up()
    rest(world, 3_000)
    assert len(entries(world, r.Leader)) == 1


def test_a_woken_follower_without_a_leader_leads_after_its_whole_timeout() -> None:
    world, follower = sleeping_follower()
    for name in ("m0", "m1"):
        world.stop(of(world, name))
    follower.wake_up()
    rest(world, world.leader_config.timeout_ms)
    assert follower.leader.phase is LeaderPhase.FOLLOWING
    until(world, lambda: follower.leader.phase is LeaderPhase.LEADING)


def late_follower(late_ms: int) -> int:
    """How long a follower without heartbeats whose checks are always late has waited when it campaigns."""
    member = Member("m0", "boot", CHAIN, MemberConfig(), SimWord)
    member.live = True
    leader = Leader(member, LeaderConfig(timeout_ms=3_000, heartbeat_ms=1_000))
    actor = leader.run()
    effect = next(actor)
    while isinstance(effect, fx.Wait):
        member.now_ms += effect.ms + late_ms
        effect = actor.send(None)
    return member.now_ms


def test_a_follower_whose_checks_are_always_late_still_campaigns() -> None:
    assert late_follower(late_ms=0) == 3_000
    assert late_follower(late_ms=900) == 3_800
    assert late_follower(late_ms=1_500) == 7_000, "the timeout counts from its first late check"


def test_a_growing_journal_shows_a_leader_even_if_its_messages_are_lost() -> None:
    world = running_world(interval_ms=100)
    leads = leader_of(world).name
    world.network.blocked |= {(leads, m) for m in CHAIN.members()}
    rest(world, 3_000)
    assert [e.name for e in entries(world, r.Leader)] == [leads]


def test_a_leader_whose_term_is_over_drops_its_remaining_work() -> None:
    lead = leader_of(running_world()).leader
    state = lead.member.journal.state
    term, coordinator = state.term, lead.coordinator
    assert coordinator is not None
    state.term += 1
    actions: list[Action] = [Begin(Flags.NONE), Refuse("r", FailureReason.DRAINING, "")]
    assert list(lead._perform_all(term, coordinator, actions)) == []
    with pytest.raises(StopIteration) as stop:
        next(lead.record(term, lambda index: r.Leader(term, "m0")))
    assert stop.value.value is False


# Requests.


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
    assert leader_of(world).leader.story == "none is in flight"
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
    until(world, lambda: 2 not in world.oracle.ledger.kept)
    drain(world)


def test_a_savepoint_is_not_replaced_by_another_of_the_same_name() -> None:
    world = running_world(retained=1)
    first = checkpoint(world, RequestKind.SAVEPOINT, name="before-deploy")
    ask(world, RequestKind.SAVEPOINT, name="before-deploy")
    rest(world, 2_000)
    assert first.epoch in world.oracle.ledger.kept
    assert leader_of(world).leader.story == "there is a savepoint 'before-deploy' already (epoch 2)"


def test_retention_deletes_what_only_expired_checkpoints_needed() -> None:
    world = running_world(retained=1)
    found = checkpoint(world, full=True)
    folder = paths.checkpoint_prefix(found.epoch, found.checkpoint_id)
    assert world.store.list(folder)
    checkpoint(world)
    rest(world, 1_000)
    assert world.store.list(folder) == []
    assert world.store.list(paths.CHECKPOINT_PREFIX)


# Restore.


def test_seed_e09_an_older_checkpoint_can_be_restored() -> None:
    world = running_world()
    target = checkpoint(world)
    shown = dict(world.tables["out"].versions[-1].shown)
    checkpoint(world)
    assert world.tables["out"].versions[-1].shown != shown
    ask(world, RequestKind.RESTORE, epoch=target.epoch)
    until(world, lambda: bool(entries(world, r.Restored)))
    (restored,) = entries(world, r.Restored)
    assert (restored.epoch, restored.generation) == (2, 2)
    assert restored.forks == {name: report.batch for name, report in target.stages.items()}
    until(world, lambda: world.oracle.epochs == 4 and world.oracle.all_settled())
    places = world.oracle.ledger.by_index
    (back,) = (v for v in world.tables["out"].versions[1:] if places[v.transaction] == restored)
    assert back.shown == shown, "the table was rewound past the later epochs"
    drain(world)


def test_a_restore_records_in_the_journal_which_stages_it_resets() -> None:
    world = running_world()
    ask(world, RequestKind.RESTORE, epoch=1, reset=("c", "b"))
    until(world, lambda: bool(entries(world, r.Restored)))
    assert entries(world, r.Restored)[0].reset == ("b", "c")


def test_seed_a14_a_restore_to_an_unknown_epoch_is_refused_with_the_reason() -> None:
    world = running_world()
    ask(world, RequestKind.RESTORE, epoch=99)
    rest(world, 60)
    assert leader_of(world).leader.story == "no checkpoint of epoch 99 is kept"
    ask(world, RequestKind.RESTORE, name="typo")
    rest(world, 60)
    assert leader_of(world).leader.story == "there is no savepoint 'typo'"
    ask(world, RequestKind.RESTORE, epoch=1, reset=("c", "typo"))
    rest(world, 60)
    assert leader_of(world).leader.story == "--reset typo: there is no such stage; there are a, b, c"
    assert entries(world, r.Restored) == []
    assert world.oracle.ledger.generation == 1


def test_an_epoch_that_was_abandoned_before_it_was_published_cannot_be_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "cutwater.sim.io.TABLES", fx.PublishTable
    )  # only publishing fails; the table can still be read
    world = running_world()
    rest(world)
    world.tables["out"].failing_until_ms = world.now_ms + 1_000
    ask(world, RequestKind.CHECKPOINT)
    until(world, lambda: world.oracle.epochs == 2)
    ask(world, RequestKind.RESTORE, epoch=1)
    until(world, lambda: world.oracle.ledger.generation == 2)
    ask(world, RequestKind.RESTORE, epoch=2)
    rest(world, 100)
    assert leader_of(world).leader.story.startswith("epoch 2 was abandoned before sink 'out'")
    assert "abandoned" in leader_of(world).leader.story
    assert world.oracle.ledger.generation == 2


# After a drain.


def drained_world() -> World:
    """Drained for the second time: the processes that started it again after the first drain are still running."""
    world = running_world()
    drain(world)
    world.chaos.start_again()
    until(world, lambda: world.oracle.epochs == 3 and world.oracle.all_settled())
    return world


def test_a_process_restarts_a_drained_pipeline_only_once() -> None:
    world = drained_world()
    drain(world)
    world.stop(leader_of(world))
    index = world.oracle.ledger.last
    rest(world, 5_000)
    assert world.oracle.ledger.last == index, "the others miss the leader, and do nothing"
    assert not world.leaders()


def test_a_member_that_learns_of_the_drain_when_it_campaigns_does_not_lead() -> None:
    """When it begins to miss the leader, its journal ends before the drain's commit."""
    world = running_world()
    late = next(p for p in world.processes if p is not leader_of(world))
    rest(world)
    ask(world, RequestKind.DRAIN)
    until(world, lambda: bool(late.member.journal.state.open))
    late.end("journal")
    late.member._take_entry = lambda announcement: None  # type: ignore[method-assign]
    until(world, lambda: world.oracle.ledger.drained and world.oracle.all_settled())
    assert not late.member.journal.state.drained
    for process in list(world.processes):
        if process is not late:
            world.stop(process)
    index = world.oracle.ledger.last
    until(
        world, lambda: late.member.journal.state.drained
    )  # through its campaign: nothing else reads any more
    rest(world, 3_000)
    assert world.oracle.ledger.last == index
    assert late.leader.phase is LeaderPhase.FOLLOWING


# Damage.


def test_seed_a14_no_valid_checkpoint_is_an_error_and_never_a_silent_fresh_start() -> None:
    world = running_world()
    checkpoint(world)
    name = manifest_of(world, 2)
    damage(world, name)
    restart_all(world)
    rest(world, 3_000)
    for process in world.processes:
        said = process.member.damage
        assert said is not None
        assert said.startswith(f"{name} is not the manifest that epoch 2 was committed with")
        assert "restore an older checkpoint" in said
        assert process.member.stages == {}, "nothing has started"
    assert world.oracle.epochs == 2, "nothing was committed over it"
    aborted = entries(world, r.Aborted)[0]
    assert aborted.reason == "member_refused"
    assert name in aborted.detail


def test_seed_e09_an_older_checkpoint_can_be_restored_if_the_newest_is_damaged() -> None:
    world = running_world()
    older = checkpoint(world)
    checkpoint(world)
    damage(world, manifest_of(world, 3))
    restart_all(world)
    rest(world, 2_000)
    ask(world, RequestKind.RESTORE, epoch=older.epoch)
    until(world, lambda: world.oracle.epochs == 4 and world.oracle.all_settled())
    assert [body.epoch for body in entries(world, r.Restored)] == [older.epoch]
    assert [process.member.damage for process in world.processes] == [None] * 3
    drain(world)


def test_a_damaged_old_checkpoint_is_reported_and_does_not_end_the_pipeline() -> None:
    """Epoch 1 is published, epoch 2 is the head; nothing needs the manifest of epoch 1 any more."""
    world = running_world(retained=2, interval_ms=500)
    until(world, lambda: world.oracle.epochs == 2 and world.oracle.all_settled())
    name = manifest_of(world, 1)
    damage(world, name)
    restart_all(world)
    until(world, lambda: world.oracle.epochs == 4)
    assert name in leader_of(world).leader.story
    until(world, lambda: world.oracle.epochs == 12)
    rest(world)
    assert 1 not in world.oracle.ledger.kept


def test_a_missing_old_manifest_does_not_end_retention() -> None:
    world = running_world(retained=2)
    checkpoint(world)
    world.store.delete(manifest_of(world, 1))
    for _ in range(4):
        checkpoint(world)
    rest(world, 1_000)
    assert sorted(world.oracle.ledger.kept) == [5, 6]


def test_seed_a14_a_lost_journal_is_an_error_and_never_a_silent_fresh_start() -> None:
    world = running_world()
    checkpoint(world)
    for name in world.store.list(paths.JOURNAL_PREFIX):
        world.store.delete(name)
    again = calm_world()
    again.store.objects, again.store._names = world.store.objects, world.store._names
    restart_all(again)
    said = errors_of(again)
    assert said
    assert all(line.startswith("StoreError: the journal is empty, but the store holds ") for line in said)
    assert again.store.list(paths.JOURNAL_PREFIX) == [], "nobody has started a new one"


def campaigner(entries_known: int, mark: int | None) -> tuple[Leader, Desk]:
    """A candidate that knows `entries_known` journal entries, and a store with a mark of an entry that may be later."""
    journal, desk = Journal(), Desk("out")
    for term in range(1, entries_known + 1):
        sealed = journal.view.seal(r.Leader(term, "m0"), f"n{term}")
        journal.view.push(sealed)
        desk.objects[entry_name(paths.JOURNAL_PREFIX, term)] = sealed.data
    if mark is not None:
        desk.objects[paths.mark_name(mark, "out")] = r.seal(r.Published(1, "out", mark, 0))
    member = Member("m0", "boot", CHAIN, MemberConfig(), SimWord)
    desk.run(follow(member.journal.view))
    member.live = True
    return Leader(member, LeaderConfig()), desk


def test_nobody_leads_with_a_journal_whose_newest_entries_were_lost() -> None:
    leader, desk = campaigner(3, mark=4)
    with pytest.raises(
        StoreError, match=r"ends at entry 3, but published/out/000000000004.json is of a later one"
    ):
        desk.run(leader._campaign())
    assert len([name for name in desk.objects if name.startswith(paths.JOURNAL_PREFIX)]) == 3
    for mark in (None, 3):
        leader, desk = campaigner(3, mark)
        assert desk.run(leader._campaign()) == 4


def test_a_mark_of_an_entry_that_arrived_meanwhile_is_not_a_loss() -> None:
    leader, desk = campaigner(3, mark=4)
    sealed = leader.member.journal.view.seal(r.Leader(4, "m1"), "other")
    desk.objects[entry_name(paths.JOURNAL_PREFIX, 4)] = sealed.data
    assert desk.run(leader._expect_whole_journal()) is False
    assert leader.member.journal.state.leader == "m1"


def test_a_term_that_began_while_the_marks_were_read_is_not_reused() -> None:
    """Another actor of the same process follows the journal meanwhile."""
    leader, desk = campaigner(3, mark=None)
    view = leader.member.journal.view

    def the_journal_grows(effect: fx.Effect) -> None:
        if isinstance(effect, fx.List) and effect.prefix == paths.MARK_PREFIX:
            sealed = view.seal(r.Leader(4, "m1"), "other")
            desk.objects[entry_name(paths.JOURNAL_PREFIX, 4)] = sealed.data
            view.push(sealed)

    desk.before = the_journal_grows
    assert desk.run(leader._campaign()) is None
    assert (view.last, leader.member.journal.state.leader) == (4, "m1")


def test_nothing_is_published_to_a_table_that_is_ahead_of_the_journal() -> None:
    leader, desk = campaigner(3, mark=None)
    desk.tables["out"].append(Version(7, ("rows",)))
    with pytest.raises(StoreError, match="the table of sink out has what entry 7 ordered"):
        desk.run(leader.member._publish("out"))
    assert desk.shown("out") == ("rows",)
