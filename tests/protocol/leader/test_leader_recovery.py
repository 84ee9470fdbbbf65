"""Restores, drained pipelines, and damage, as a leader sees them."""

from __future__ import annotations

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.events import ManifestUnreadable
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import entry_name
from cutwater.protocol.base.wire import RequestKind
from cutwater.protocol.leader.leader import Leader, LeaderPhase
from cutwater.protocol.leader.whole_journal import expect_whole_journal
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.member import Member
from cutwater.sim.process import SimWord
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
    refusal,
    rest,
    restart_all,
    running_world,
    until,
)
from tests.support.configs import leader_config, member_config

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
    assert refusal(world) == "no checkpoint of epoch 99 is kept"
    ask(world, RequestKind.RESTORE, name="typo")
    rest(world, 60)
    assert refusal(world) == "there is no savepoint 'typo'"
    ask(world, RequestKind.RESTORE, epoch=1, reset=("c", "typo"))
    rest(world, 60)
    assert refusal(world) == "--reset typo: there is no such stage; there are a, b, c"
    assert entries(world, r.Restored) == []
    assert world.oracle.ledger.generation == 1


def test_an_epoch_that_was_abandoned_before_it_was_published_cannot_be_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "cutwater.sim.io.TABLES", {fx.PublishTable}
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
    assert refusal(world).startswith("epoch 2 was abandoned before sink 'out'")
    assert "abandoned" in refusal(world)
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
    (event,) = (e for e in leader_of(world).member.events if isinstance(e, ManifestUnreadable))
    assert (event.epoch, name in event.error) == (1, True)
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
    member = Member("m0", "boot", CHAIN, member_config(), SimWord)
    desk.run(follow(member.journal.view))
    member.live = True
    return Leader(member, leader_config()), desk


def test_nobody_leads_with_a_journal_whose_newest_entries_were_lost() -> None:
    leader, desk = campaigner(3, mark=4)
    with pytest.raises(
        StoreError, match=r"ends at entry 3, but published/out/000000000004.json is of a later one"
    ):
        desk.run(leader._campaign.run())
    assert len([name for name in desk.objects if name.startswith(paths.JOURNAL_PREFIX)]) == 3
    for mark in (None, 3):
        leader, desk = campaigner(3, mark)
        assert desk.run(leader._campaign.run()) == 4


def test_a_mark_of_an_entry_that_arrived_meanwhile_is_not_a_loss() -> None:
    leader, desk = campaigner(3, mark=4)
    sealed = leader.member.journal.view.seal(r.Leader(4, "m1"), "other")
    desk.objects[entry_name(paths.JOURNAL_PREFIX, 4)] = sealed.data
    assert desk.run(expect_whole_journal(leader.member.journal)) is False
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
    assert desk.run(leader._campaign.run()) is None
    assert (view.last, leader.member.journal.state.leader) == (4, "m1")


def test_nothing_is_published_to_a_table_that_is_ahead_of_the_journal() -> None:
    leader, desk = campaigner(3, mark=None)
    desk.tables["out"].append(Version(7, ("rows",)))
    with pytest.raises(StoreError, match="the table of sink out has the result of entry 7"):
        desk.run(leader.member._publish("out"))
    assert desk.shown("out") == ("rows",)
