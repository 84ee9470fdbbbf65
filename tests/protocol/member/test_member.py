"""A member: its part of a checkpoint, what it publishes, and what it does after a restart."""

from __future__ import annotations

import msgspec
import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Barrier
from cutwater.protocol.base.chain import Sealed
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.wire import Ack, Announcement, Phase, RequestKind, decode_message, encode_message
from cutwater.protocol.member.member import Member
from cutwater.protocol.member.next_query import QueryEnd
from cutwater.sim.process import SimWord
from cutwater.sim.scene import ProcessView
from cutwater.sim.world import World
from tests.support.builders import (
    CHAIN,
    Desk,
    Play,
    add_stage,
    ask,
    calm_world,
    checkpoint,
    entries,
    epochs_with_rows,
    leader_of,
    lose_query,
    mark_of,
    of,
    rest,
    restart_all,
    running_world,
    slow_down,
    state_name,
    table_commits,
    until,
)
from tests.support.configs import member_config

LATER_MS = 10**9


def member(play: Play) -> Member:
    """A member that knows this history."""
    found = Member("m2", "boot", CHAIN, member_config(), SimWord)
    found.journal.state = play.state
    return found


def committed_play() -> Play:
    play = Play(CHAIN)
    for name in CHAIN.stages:
        play.batch(name)
    play.cut_all()
    play.commit()
    return play


def test_an_unknown_member_is_refused_with_the_names_of_the_members() -> None:
    with pytest.raises(UserError, match="no stage names member 'm9'; the members are m0, m1, m2"):
        Member("m9", "boot", CHAIN, member_config(), SimWord)


def test_no_two_writes_have_the_same_nonce() -> None:
    first, second = member(Play(CHAIN)), Member("m2", "later", CHAIN, member_config(), SimWord)
    nonces = [first.nonce(), first.nonce(), second.nonce(), second.nonce()]
    assert len(set(nonces)) == 4


# The head's manifest.


def test_the_head_manifest_is_read_once_and_kept() -> None:
    play = committed_play()
    desk = Desk()
    desk.objects[paths.manifest_name(1, 3)] = r.encode(play.manifests[1])
    someone = member(play)
    assert desk.run(someone.head_manifest()) == play.manifests[1]
    reads = len(desk.done)
    assert desk.run(someone.head_manifest()) == play.manifests[1]
    assert len(desk.done) == reads


def test_before_the_first_commit_there_is_no_head_manifest() -> None:
    assert Desk().run(member(Play(CHAIN)).head_manifest()) is None


def test_a_damaged_head_manifest_is_named_and_rejected() -> None:
    desk = Desk()
    desk.objects[paths.manifest_name(1, 3)] = b'{"epoch": 1}'
    with pytest.raises(StoreError, match=r"checkpoints/1-3/manifest\.json.*restore an older checkpoint"):
        desk.run(member(committed_play()).head_manifest())


def test_a_missing_head_manifest_is_an_error_not_a_wait() -> None:
    """The journal is read to its end and its head has not expired, so the manifest will never appear."""
    with pytest.raises(StoreError, match=r"checkpoints/1-3/manifest\.json.*is missing"):
        Desk().run(member(committed_play()).head_manifest())


def restored_twice() -> tuple[Play, Desk, Member]:
    """Epochs 1 and 2, and a member that knows of the restore to 1, but not yet of the restore to 2."""
    play = committed_play()
    play.batch("a")
    play.cut_all()
    play.commit()
    desk = Desk()
    for epoch, kept in play.state.committed.items():
        desk.objects[paths.manifest_name(epoch, kept.checkpoint_id)] = r.encode(play.manifests[epoch])
    play.record(r.Restored(1, 2, 1, play.state.committed[1].cuts))
    return play, desk, member(play)


def go_to_epoch_2(play: Play) -> None:
    play.record(r.Restored(1, 3, 2, play.state.committed[2].cuts))


def test_a_manifest_that_becomes_outdated_while_it_is_read_is_discarded() -> None:
    play, desk, someone = restored_twice()

    def second_restore(effect: fx.Effect) -> None:
        desk.before = None
        go_to_epoch_2(play)

    desk.before = second_restore
    assert desk.run(someone.head_manifest()) == play.manifests[2]
    assert someone.manifest == play.manifests[2]


def test_a_manifest_that_was_read_too_slowly_does_not_replace_a_newer_one() -> None:
    """One actor reads the first restore's manifest slowly, while another one reads the second's."""
    play, desk, someone = restored_twice()
    slow = someone.head_manifest()
    answer = desk.perform(next(slow))
    go_to_epoch_2(play)
    assert desk.run(someone.head_manifest()) == play.manifests[2]
    with pytest.raises(StopIteration) as stop:
        slow.send(answer)
    assert stop.value.value == play.manifests[2]
    assert someone.manifest == play.manifests[2], "it has the readers' in-flight batches"


# Announcements.


def begun_behind(someone: Member) -> Sealed[r.JournalBody]:
    """An entry that may follow directly after what a member knows."""
    view = someone.journal.view
    return view.seal(r.Begun(2, 1, 1, view.last + 1, 0, "topology"), "nonce")


def informed(entries: int = 2) -> Member:
    """A live member that knows `entries` entries."""
    someone = Member("m2", "boot", CHAIN, member_config(), SimWord)
    someone.live = True
    for term in range(1, entries + 1):
        someone.journal.view.push(someone.journal.view.seal(r.Leader(term, "m0"), f"n{term}"))
    someone.woken.clear()
    return someone


def announce(index: int, data: bytes) -> Announcement:
    return Announcement(Phase.PREPARE, Barrier(3, 1).pack(), 1, 1, index, entry=msgspec.Raw(data))


def test_an_announced_entry_that_follows_the_known_ones_counts_as_read() -> None:
    someone = informed()
    sealed = begun_behind(someone)
    arrived = decode_message(encode_message(announce(3, sealed.data)))
    assert isinstance(arrived, Announcement)
    someone.on_announcement("m0", arrived)
    assert someone.journal.index == 3
    assert someone.journal.view.entries[-1] == sealed, "byte for byte, so that the chain continues from it"
    assert someone.woken == ["journal"]
    assert someone.journal.state.open.keys() == {1}
    someone.on_announcement("m0", arrived)
    assert someone.journal.index == 3, "a repeated announcement changes nothing"


@pytest.mark.parametrize("wrong", ["damaged", "none", "another chain", "later", "not live", "not the leader"])
def test_an_announced_entry_that_does_not_follow_is_looked_up_in_the_store(wrong: str) -> None:
    someone = informed()
    sealed = begun_behind(informed(3) if wrong == "later" else someone)
    index, data = sealed.entry.index, sealed.data
    if wrong == "damaged":
        data = b'{"index":3}'
    elif wrong == "none":
        data = b"null"
    elif wrong == "another chain":
        other = Member("m1", "boot", CHAIN, member_config(), SimWord)
        for term in (1, 2):
            other.journal.view.push(other.journal.view.seal(r.Leader(term, "m1"), f"other {term}"))
        data = begun_behind(other).data
    someone.live = wrong != "not live"
    someone.on_announcement("m1" if wrong == "not the leader" else "m0", announce(index, data))
    assert someone.journal.index == 2
    assert someone.woken == ["journal"], "it reads the announced entry"
    assert someone._heard == index


def test_followers_do_not_read_announced_entries() -> None:
    world = calm_world()
    world.member_config = msgspec.structs.replace(
        world.member_config, poll_ms=1_500
    )  # so that members rarely poll
    for name in world.graph.members():
        world.start(name)
    until(world, lambda: world.oracle.epochs == 1 and world.oracle.all_settled())
    rest(world)
    reads: list[str] = []
    draw_fault = world.io._draw_fault

    def watch(process: ProcessView, effect: fx.AnyOperation) -> str | None:
        if isinstance(effect, fx.ReadMany | fx.Read) and process is not leader_of(world):
            names = effect.names if isinstance(effect, fx.ReadMany) else (effect.name,)
            reads.extend(name for name in names if name.startswith(paths.JOURNAL_PREFIX))
        return draw_fault(process, effect)

    world.io._draw_fault = watch  # type: ignore[method-assign]
    checkpoint(world)
    assert reads == []


# Its part of a checkpoint.


def acks_of(world: World) -> list[Ack]:
    """Collects every ack that is sent from now on."""
    sent: list[Ack] = []
    sending = world.oracle.sending

    def watch(process: object, message: object) -> None:
        if isinstance(message, Ack):
            sent.append(message)
        sending(process, message)  # type: ignore[arg-type]

    world.oracle.sending = watch  # type: ignore[method-assign]
    return sent


def test_an_ack_carries_the_reports_of_all_stages_of_its_member() -> None:
    world = running_world()
    acks = acks_of(world)
    found = checkpoint(world)
    assert {ack.member for ack in acks} == {"m0", "m1", "m2"}
    for ack in acks:
        assert (ack.ok, ack.epoch, ack.checkpoint_id, ack.term) == (True, 2, found.checkpoint_id, 1)
        assert ack.boot == of(world, ack.member).member.boot
        assert ack.reports == {name: found.stages[name] for name in CHAIN.hosted(ack.member)}


def test_a_member_acks_only_when_all_its_stages_are_cut() -> None:
    world = running_world()
    slow_down(world, "b")
    acks = acks_of(world)
    ask(world, RequestKind.CHECKPOINT)
    rest(world, 100)
    assert {ack.member for ack in acks} == {"m0"}
    until(world, lambda: world.oracle.epochs == 2)
    assert {ack.member for ack in acks} == {"m0", "m1", "m2"}


def test_a_failed_stage_refuses_the_checkpoint_and_says_why() -> None:
    world = running_world()
    rest(world)
    of(world, "m1").member.failures["b"] = "out of memory"
    ask(world, RequestKind.CHECKPOINT)
    until(world, lambda: bool(entries(world, r.Aborted)))
    (aborted,) = entries(world, r.Aborted)
    assert (aborted.reason, aborted.detail) == ("member_refused", "m1: stage b failed: out of memory")


def test_a_restore_revives_a_stage_that_was_given_up() -> None:
    """A new generation is a new start: failures of the old one do not count."""
    world = running_world()
    epoch = checkpoint(world).epoch
    lose_query(of(world, "m1"), "b", QueryEnd.HOPELESS)
    ask(world, RequestKind.CHECKPOINT)
    until(world, lambda: bool(entries(world, r.Aborted)))
    ask(world, RequestKind.RESTORE, epoch=epoch)
    until(world, lambda: bool(entries(world, r.Restored)))
    rest(world)
    assert checkpoint(world).generation == 2
    assert not of(world, "m1").member.hopeless


# Giving up.


def busy_world(tolerated: int | None, timeout_ms: int = 5_000) -> World:
    """A world with one checkpoint after the other."""
    world = calm_world(tolerated=tolerated, interval_ms=50, timeout_ms=timeout_ms)
    for name in CHAIN.members():
        world.start(name)
    until(world, lambda: world.oracle.epochs >= 2)
    return world


def who_give_up(world: World, ms: int) -> dict[str, str]:
    """The members that give up within `ms`, with their reasons; no process really ends."""
    gave_up: dict[str, str] = {}

    def ends(process: ProcessView, why: str) -> None:
        gave_up[process.name] = why

    world.chaos.ends = ends  # type: ignore[method-assign]
    rest(world, ms)
    return gave_up


def test_a_given_up_stage_ends_only_its_own_member() -> None:
    world = busy_world(tolerated=2)
    assert leader_of(world).name == "m0"
    while lose_query(of(world, "m1"), "b") is not None:
        pass
    gave_up = who_give_up(world, 3_000)
    assert list(gave_up) == ["m1"]
    assert "3 checkpoints in a row have failed because of this member" in gave_up["m1"]
    assert "the last with member_refused: m1: stage b failed: lost" in gave_up["m1"]


def test_a_stage_that_can_never_start_ends_its_member_with_the_first_failed_checkpoint() -> None:
    world = busy_world(tolerated=5)
    lose_query(of(world, "m1"), "b", QueryEnd.HOPELESS)
    gave_up = who_give_up(world, 3_000)
    assert list(gave_up) == ["m1"]
    assert gave_up["m1"].startswith("gives up: 1 checkpoint")


def test_nobody_gives_up_while_a_member_is_away() -> None:
    """`b` cannot be cut without a barrier of `a`, whose member is gone: that is the fault of neither m1 nor m2."""
    world = busy_world(tolerated=0, timeout_ms=200)
    world.stop(of(world, "m0"))
    assert who_give_up(world, 5_000) == {}
    assert any(a.reason == "deadline" for a in entries(world, r.Aborted))


def test_a_woken_process_does_not_give_up_for_a_checkpoint_that_its_successor_has_acked() -> None:
    world = busy_world(tolerated=0, timeout_ms=200)
    rest(world)
    zombie = of(world, "m1")
    zombie.pause()
    world.start("m1")
    world.stop(of(world, "m2"))
    until(world, lambda: any(a.late == ("m2",) for a in entries(world, r.Aborted)))
    zombie.wake_up()
    who_give_up(world, 1_000)
    assert zombie.member.journal.state.aborted, "it has read the entries"
    assert zombie.member.given_up is None


def test_a_member_whose_stage_is_too_slow_gives_up_and_those_that_wait_for_it_do_not() -> None:
    world = busy_world(tolerated=0, timeout_ms=200)
    rest(world)
    slow_down(world, "b", ms=60_000, each_ms=10_000)
    assert list(who_give_up(world, 3_000)) == ["m1"]


def test_a_commit_resets_the_count_of_failures() -> None:
    world = running_world(tolerated=1)
    member = of(world, "m1").member
    for failed in range(1, 4):
        member.failures["b"] = "bad state"
        ask(world, RequestKind.CHECKPOINT)
        rest(world, 500)
        assert len(entries(world, r.Aborted)) == failed
        member.failures = {}
        checkpoint(world)
    assert member.given_up is None


def test_failures_of_its_predecessor_do_not_count_against_a_process() -> None:
    world = busy_world(tolerated=None)
    lose_query(of(world, "m1"), "b", QueryEnd.HOPELESS)
    until(world, lambda: len(entries(world, r.Aborted)) > 3)
    world.stop(of(world, "m1"))
    world.member_config = msgspec.structs.replace(world.member_config, tolerated_failures=0)
    again = world.start("m1")
    rest(world, 2_000)
    assert again.member.given_up is None


def test_invalid_numbers_are_refused() -> None:
    with pytest.raises(UserError, match="restarts is -1; give 0 or more"):
        member_config(restarts=-1)
    with pytest.raises(UserError, match="tolerated_failures is -2; give 0 or more"):
        member_config(tolerated_failures=-2)


def test_missing_state_refuses_the_checkpoint() -> None:
    world = running_world()
    until(world, lambda: of(world, "m2").member.stages["c"].log.state.last >= 0)
    slow_down(world, "c", each_ms=4_000)  # its query needs its state only at the end of a batch
    rest(world, 150)
    last = of(world, "m2").member.stages["c"].log.state.last
    world.store.delete(state_name("c", last))
    ask(world, RequestKind.CHECKPOINT, unaligned=True)
    until(world, lambda: bool(entries(world, r.Aborted)))
    (aborted,) = entries(world, r.Aborted)
    assert aborted.detail == f"m2: the state of stage c at batch {last} is missing"


def test_a_full_snapshot_copies_the_state_below_the_checkpoints_folder() -> None:
    world = running_world()
    found = checkpoint(world, full=True)
    folder = paths.checkpoint_prefix(found.epoch, found.checkpoint_id)
    for name, report in found.stages.items():
        (copy,) = report.state
        assert copy == f"{folder}state/{name}/{report.batch}"
        original = world.store.objects[world.state_name(name, 1, report.incarnation, report.batch)]
        assert world.store.objects[copy] == original
    plain = checkpoint(world)
    assert all(name.startswith("stages/") for report in plain.stages.values() for name in report.state)


# Publishing, and restarts.


def unpublished_world() -> World:
    """Epoch 2 is committed, the sink fails, and then every process crashes."""
    world = running_world()
    rest(world)
    world.tables["out"].failing_until_ms = LATER_MS
    ask(world, RequestKind.CHECKPOINT)
    until(world, lambda: world.oracle.epochs == 2)
    rest(world)
    for process in list(world.processes):
        world.stop(process)
    return world


def test_seed_a12_a_sink_that_fails_after_the_decision_publishes_when_it_recovers() -> None:
    world = running_world()
    world.tables["out"].failing_until_ms = LATER_MS
    rest(world)
    ask(world, RequestKind.CHECKPOINT)
    until(world, lambda: world.oracle.epochs == 2)
    rest(world)
    ask(world, RequestKind.CHECKPOINT)
    until(world, lambda: world.oracle.epochs == 3)
    assert entries(world, r.Aborted) == []
    assert table_commits(world) == []
    world.tables["out"].failing_until_ms = 0
    until(world, world.oracle.all_settled)
    assert table_commits(world) == [world.oracle.ledger.history[epoch].index for epoch in (2, 3)]


def test_seed_a11_a_committed_unpublished_epoch_is_published_at_start() -> None:
    world = unpublished_world()
    index = world.oracle.ledger.history[2].index
    world.tables["out"].failing_until_ms = 0
    world.start("m2")
    until(world, world.oracle.all_settled, ms=500)
    assert world.tables["out"].head().transaction == index
    assert mark_of(world, 2) == r.Published(2, "out", index, 1, index, mark_of(world, 2).files)


def test_seed_a13_recovery_publishes_a_decided_epoch_before_anything_else() -> None:
    """Its sinks publish before its stages open, and the next output of the stages comes after that."""
    world = unpublished_world()
    world.tables["out"].failing_until_ms = 0
    process = world.start("m2")
    spawned: list[str] = []
    spawn = process.spawn

    def watch(name: str, procedure: object) -> None:
        spawned.append(name)
        spawn(name, procedure)  # type: ignore[arg-type]

    process.spawn = watch  # type: ignore[method-assign]
    for name in ("m0", "m1"):
        world.start(name)
    until(world, lambda: world.oracle.epochs == 3 and world.oracle.all_settled())
    assert spawned.index("publish out") < spawned.index("stage c")
    decided, *others = epochs_with_rows(world)
    assert decided == world.oracle.ledger.history[2].index
    assert table_commits(world) == [decided, *others]
    world.oracle.final_check()  # every row once


def test_a_sink_whose_last_commit_lacks_its_mark_gets_it_at_start() -> None:
    world = running_world()
    checkpoint(world)
    index = world.oracle.ledger.history[2].index
    assert table_commits(world) == [index]
    crash_before_the_mark(world, index)
    world.start("m2")
    until(world, world.oracle.all_settled, ms=500)
    assert table_commits(world) == [index], "only the mark was missing"


@pytest.mark.parametrize("behind_rows", [False, True])
def test_an_epoch_without_rows_that_lacks_its_mark_gets_it_at_start(behind_rows: bool) -> None:
    """The table does not know about it, so the member continues from the last epoch that the table knows."""
    world = running_world()
    if behind_rows:
        checkpoint(world)
        world.rates = dict.fromkeys(world.rates, 0.0)
        checkpoint(world)
    index = world.oracle.ledger.history[3 if behind_rows else 1].index
    before = table_commits(world)
    crash_before_the_mark(world, index)
    world.start("m2")
    until(world, world.oracle.all_settled, ms=500)
    assert table_commits(world) == before == epochs_with_rows(world)
    assert mark_of(world, 3 if behind_rows else 1).version == len(before)


def crash_before_the_mark(world: World, index: int) -> None:
    for process in list(world.processes):
        world.stop(process)
    world.store.delete(paths.mark_name(index, "out"))
    assert not world.oracle.all_settled()


def test_a_member_that_was_away_knows_every_decision_before_it_acts() -> None:
    world = running_world()
    world.stop(of(world, "m1"))
    slowly = world.oracle.ledger.last
    for _ in range(12):
        ask(world, RequestKind.CHECKPOINT)
        ask(world, RequestKind.CANCEL)
        rest(world, 150)
    assert world.oracle.ledger.last > slowly + 16, "more than a small gap"
    back = world.start("m1")
    assert back.must_know == world.oracle.ledger.last
    assert checkpoint(world).epoch > 12  # the oracle checks that it neither acks nor publishes too early


def test_a_process_that_was_superseded_by_another_of_its_member_says_so() -> None:
    world = running_world()
    first = of(world, "m1")
    assert not first.member.superseded
    second = world.start("m1")
    until(world, lambda: first.member.superseded)
    assert not second.member.superseded
    rest(world, 1_000)
    checkpoint(world)
    world.oracle.final_check()


def test_everything_continues_after_all_members_crash() -> None:
    world = running_world()
    rest(world)
    restart_all(world)
    until(world, lambda: world.oracle.epochs == 2 and world.oracle.all_settled())
    world.oracle.final_check()


def test_a_member_alone_waits_for_the_others() -> None:
    world = calm_world(timeout_ms=500)
    world.start("m0")
    rest(world, 2_000)
    assert world.oracle.epochs == 0
    assert {a.reason for a in entries(world, r.Aborted)} == {"deadline"}
    assert "m1, m2" in entries(world, r.Aborted)[0].detail


def test_an_added_stage_starts_at_the_cut() -> None:
    world = running_world(retained=1)
    for _ in range(3):
        checkpoint(world)
    add_stage(world, "x", "a", "m1")
    until(world, lambda: bool(world.store.list(paths.stage_log_prefix("x", 2))))
    name = world.store.list(paths.stage_log_prefix("x", 2))[0]
    opened = r.STAGE.open(world.store.objects[name]).entry.body
    assert isinstance(opened, r.Open)
    assert opened.consumed == {"a": world.oracle.manifests[4].stages["a"].batch}
    checkpoint(world)
