"""Retention: what is kept, what expires, and what a process with incomplete knowledge may delete."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.effects import Pace, Stored
from cutwater.protocol.base.paths import generation_of
from cutwater.protocol.base.records import settled
from cutwater.protocol.base.watermark import UNKNOWN
from cutwater.protocol.member.journal import Fate, fate
from cutwater.protocol.member.retention import (
    deletable_data,
    deletable_states,
    expire,
    is_leftover,
    kept_epochs,
    named_objects,
    stage_floors,
)
from cutwater.protocol.member.stage import StagePhase
from cutwater.protocol.member.stage_log import trimmed
from cutwater.sim.process import Process
from cutwater.sim.scene import ProcessView
from tests.protocol.member.test_channel import histories
from tests.support.builders import (
    CHAIN,
    Play,
    calm_world,
    checkpoint,
    data_name,
    manifest,
    pipeline,
    report_of,
    rest,
    stage,
    state_name,
    until,
)
from tests.support.examples import examples

ALL = {"out": 10**6}
"""Every sink has settled everything."""


def play_with(commits: int, savepoint_at: int | None = None) -> Play:
    """A chain with that many committed epochs, one of which may be a savepoint."""
    play = Play(CHAIN)
    for number in range(1, commits + 1):
        for name in CHAIN.stages:
            play.batch(name)
        play.begin(savepoint="good" if number == savepoint_at else None)
        play.cut_all()
        play.commit()
    return play


def test_other_objects_do_not_count_as_marks_and_are_ignored() -> None:
    marks = [paths.mark_name(4, "t"), paths.mark_name(12, "t"), paths.mark_name(7, "u")]
    strays = [
        "published/t",
        "published/stray",
        "published/t/note.txt",
        "published/t/13.json",
        "published/t/x/000000000099.json",
    ]
    assert settled([*marks, *strays]) == {"t": 12, "u": 7, "t/x": 99}
    assert settled(strays[:-1]) == {}


# What is kept.


def test_the_newest_checkpoints_are_kept() -> None:
    assert kept_epochs(play_with(5).state, 2, ALL) == {4, 5}
    assert kept_epochs(play_with(1).state, 3, ALL) == {1}
    assert kept_epochs(r.JournalState(), 3, ALL) == set()


def test_savepoints_are_kept_beyond_the_newest() -> None:
    play = play_with(5, savepoint_at=2)
    assert kept_epochs(play.state, 1, ALL) == {2, 5}
    play.record(r.Savepoint(1, 1, "also", 3))
    assert kept_epochs(play.state, 1, ALL) == {2, 3, 5}
    play.record(r.Savepoint(1, 1, "good", 2, kept=False))
    assert kept_epochs(play.state, 1, ALL) == {3, 5}


def test_the_head_is_kept_even_if_it_is_old() -> None:
    """After a restore the head is the restore's target, until the next commit."""
    play = play_with(4)
    play.record(r.Restored(1, 2, 1, play.state.committed[1].cuts))
    assert kept_epochs(play.state, 1, ALL) == {1, 4}


def test_an_epoch_that_a_sink_has_not_settled_is_kept() -> None:
    play = play_with(5)
    third = play.state.committed[3].index
    assert kept_epochs(play.state, 1, {"out": third}) == {4, 5}
    assert kept_epochs(play.state, 1, {"out": third - 1}) == {3, 4, 5}
    assert kept_epochs(play.state, 1, {}) == {1, 2, 3, 4, 5}


def test_marks_show_how_far_a_sink_has_settled() -> None:
    names = [paths.mark_name(12, "out"), paths.mark_name(7, "out"), paths.mark_name(3, "db/table")]
    assert settled(names) == {"out": 12, "db/table": 3}


# What expires.


def test_what_is_not_kept_expires_once() -> None:
    play = play_with(4, savepoint_at=1)
    body = play.expire(2)
    assert body is not None
    assert body.epochs == (2,)
    assert play.state.committed.keys() == {1, 3, 4}
    assert play.expire(2) is None


def test_nothing_expires_if_everything_is_kept_or_nothing_exists() -> None:
    play = play_with(2)
    assert expire(play.state, 2, ALL, play.manifests) is None
    assert expire(play.state, 1, {}, play.manifests) is None
    assert expire(r.JournalState(), 1, ALL, {}) is None


def test_after_an_expiry_the_timeline_has_no_gap() -> None:
    play = play_with(4, savepoint_at=1)
    play.expire(1)
    assert play.state.committed[4].parent == 1
    assert play.state.committed[1].parent is None


def test_a_floor_is_the_lowest_position_of_the_readers_at_the_newest_checkpoint() -> None:
    reports = [
        report_of("a", r.BarrierAt(1, 1, 3, 1, 9, False, consumed={}, offsets={}, watermark=UNKNOWN)),
        report_of("b", r.BarrierAt(1, 1, 3, 1, 7, True, consumed={"a": 6}, offsets={}, watermark=UNKNOWN)),
        report_of("c", r.BarrierAt(1, 1, 3, 1, 4, False, consumed={"b": 7}, offsets={}, watermark=UNKNOWN)),
    ]
    state = r.JournalState(topology=CHAIN)
    assert stage_floors(state, manifest(1, 3, reports)) == {"a": 6, "b": 7, "c": 4}


def test_checkpoints_expire_after_a_stage_was_added() -> None:
    play = play_with(2)
    play.record(r.TopologySet(1, 1, "new", pipeline(*CHAIN.stages.values(), stage("x", "a"))))
    body = expire(play.state, 1, ALL, play.manifests)
    assert body is not None
    assert body.epochs == (1,)


def test_in_flight_batches_of_a_retained_checkpoint_are_pinned() -> None:
    play = Play(CHAIN)
    play.batch("a")
    play.begin(savepoint="good")
    play.cut_all(unaligned=["b"])
    play.commit()
    for _ in range(2):
        for name in CHAIN.stages:
            play.batch(name)
        play.cut_all()
        play.commit()
    body = play.expire(1)
    assert body is not None
    assert body.epochs == (2,)
    assert body.pinned == (data_name("a", 0),)
    assert body.floors == {"a": 2, "b": 1, "c": 1}
    found = [Stored(data_name("a", n), 1, n) for n in range(3)]
    assert deletable_data(play.state, "a", play.stages["a"], found) == [data_name("a", 1), data_name("a", 2)]


def forked() -> Play:
    """A first generation with epochs 1 and 2, and a second one from epoch 2 with epoch 3."""
    play = play_with(2)
    play.record(r.Restored(1, 2, 2, play.state.committed[2].cuts))
    _commit_in_second(play, 3)
    return play


def _commit_in_second(play: Play, epoch: int, in_flight: tuple[r.InFlight, ...] = ()) -> None:
    play.record(r.Begun(1, 2, epoch, len(play.entries) + 1, 0, "h"))
    cuts = dict.fromkeys(CHAIN.stages, epoch)
    reports = {
        s: r.StageReport(
            s,
            1,
            epoch,
            False,
            consumed=dict.fromkeys(CHAIN.stages[s].inputs, epoch),
            offsets={},
            watermark=UNKNOWN,
            state={},
        )
        for s in CHAIN.stages
    }
    play.manifests[epoch] = msgspec.structs.replace(
        manifest(epoch, len(play.entries), reports.values(), in_flight), generation=2
    )
    play.record(r.Committed(1, 2, epoch, len(play.entries), "", None, cuts))


def test_a_generation_expires_when_no_retained_checkpoint_needs_it() -> None:
    play = forked()
    body = expire(play.state, 2, ALL, play.manifests)
    assert body is not None
    assert (body.epochs, body.generations) == ((1,), ())
    body = expire(play.state, 1, ALL, play.manifests)
    assert body is not None
    assert (body.epochs, body.generations) == ((1, 2), (1,))
    play.record(body)
    assert play.state.generations.keys() == {2}


def test_a_generation_stays_while_a_retained_checkpoint_names_one_of_its_files() -> None:
    play = forked()
    carried = r.InFlight("a", "b", 1, 2, {2: (data_name("a", 2),)})
    _commit_in_second(play, 4, (carried,))
    body = expire(play.state, 1, ALL, play.manifests)
    assert body is not None
    assert (body.epochs, body.generations) == ((1, 2, 3), ())


def test_a_generation_stays_while_a_stage_has_not_read_what_was_in_flight_when_it_began() -> None:
    """A full checkpoint names its own copies; the stage reads the files that were there when it started."""
    play = play_with(2)
    carried = r.InFlight("a", "b", 1, 3, {2: (data_name("a", 2),), 3: (data_name("a", 3),)})
    play.manifests[2] = msgspec.structs.replace(play.manifests[2], in_flight=(carried,))
    play.record(r.Restored(1, 2, 2, play.state.committed[2].cuts))
    _commit_in_second(play, 3)
    full, reader = play.manifests[3], play.manifests[3].stages["b"]
    for read, epochs, generations in ((2, (1,), ()), (3, (1, 2), (1,))):
        there = msgspec.structs.replace(reader, consumed={"a": read})
        play.manifests[3] = msgspec.structs.replace(full, stages={**full.stages, "b": there})
        body = expire(play.state, 1, ALL, play.manifests)
        assert body is not None
        assert (body.epochs, body.generations) == (epochs, generations)


def test_a_generation_stays_until_every_sink_has_passed_its_restore() -> None:
    play = play_with(2)
    for generation in (2, 3):
        play.record(r.Restored(1, generation, 2, play.state.committed[2].cuts))
    restore = play.state.generations[2].index
    early = expire(play.state, 1, {"out": restore - 1}, play.manifests)
    late = expire(play.state, 1, {"out": restore}, play.manifests)
    assert early is not None
    assert late is not None
    assert early.epochs == late.epochs == (1,)
    assert (early.generations, late.generations) == ((), (2,))


def test_right_after_a_restore_nothing_of_the_new_generation_has_a_floor() -> None:
    play = play_with(3)
    play.record(r.Restored(1, 2, 3, play.state.committed[3].cuts))
    body = expire(play.state, 1, ALL, play.manifests)
    assert body is not None
    assert (body.floors, body.pinned) == ({}, ())


# What may be deleted.


def test_attempts_at_a_logged_batch_other_than_the_logged_one_may_be_deleted() -> None:
    log = Play(CHAIN)
    log.batch("a")
    found = [Stored(data_name("a", 0, attempt), 1, 0) for attempt in (0, 1, 2)]
    assert deletable_data(log.state, "a", log.stages["a"], found) == [
        data_name("a", 0, 1),
        data_name("a", 0, 2),
    ]


def test_attempts_at_unlogged_batches_are_kept() -> None:
    log = Play(CHAIN)
    log.batch("a")
    found = [Stored(data_name("a", 1), 1, 1), Stored(data_name("a", 1, 1), 2, 1)]
    assert deletable_data(log.state, "a", log.stages["a"], found) == []


def test_state_of_the_last_batch_of_cuts_and_of_open_barriers_is_kept() -> None:
    play = play_with(2)
    play.batch("a")
    play.begin()
    play.cut("a")
    play.batch("a")
    play.batch("a")
    found = [Stored(state_name("a", n), 1, n) for n in range(5)]
    assert deletable_states(play.state, "a", 1, play.stages["a"], found) == [state_name("a", 3)]
    play.abort()
    assert deletable_states(play.state, "a", 1, play.stages["a"], found) == [
        state_name("a", 2),
        state_name("a", 3),
    ]


def test_checkpoints_of_another_generation_do_not_keep_state_of_this_one() -> None:
    play = play_with(1)
    for _ in range(3):
        play.batch("a")
    found = [Stored(state_name("a", 0, 2), 1, 0)]
    assert deletable_states(play.state, "a", 2, play.stages["a"], found) == []
    play.abort()
    play.expire(1)
    without = r.StageState(1, 3)
    assert deletable_states(play.state, "a", 2, without, found) == [state_name("a", 0, 2)]
    assert deletable_states(play.state, "a", 1, without, found) == []


def test_files_of_unknown_batches_are_deleted_only_if_no_retained_manifest_names_them() -> None:
    play = play_with(2)
    play.batch("a")
    found = [Stored(name, 1, -1, -1, unknown=True) for name in ("named", "not named")]
    assert deletable_states(play.state, "a", 1, play.stages["a"], found, {"named"}) == ["not named"]
    assert deletable_states(play.state, "a", 1, play.stages["a"], found, None) == []
    play.begin()
    play.cut("a")  # its checkpoint may name the file when it commits
    assert deletable_states(play.state, "a", 1, play.stages["a"], found, {"named"}) == []


def everything(play: Play, name: str) -> tuple[list[Stored], list[Stored]]:
    """Two attempts at every batch of a stage and at the next two batches, and all states."""
    batches = range(play.stages[name].last + 3)
    data = [Stored(data_name(name, n, attempt), 1, n) for n in batches for attempt in (0, 1)]
    return data, [Stored(state_name(name, n), 1, n) for n in batches]


@given(histories(), st.data())
@examples(150)
def test_outdated_knowledge_never_deletes_what_newer_knowledge_keeps(play: Play, data: st.DataObject) -> None:
    for name in play.topology.stages:
        files, states = everything(play, name)
        state = play.journal_at(data.draw(st.integers(0, len(play.entries))))
        log = play.stage_at(name, data.draw(st.integers(0, len(play.logs[name]))))
        gone = deletable_data(state, name, log, files)
        assert set(gone) <= set(deletable_data(play.state, name, play.stages[name], files))
        gone = deletable_states(state, name, 1, log, states)
        assert set(gone) <= set(deletable_states(play.state, name, 1, play.stages[name], states))


@given(histories())
@examples(100)
def test_nothing_that_a_retained_checkpoint_names_is_deleted(play: Play) -> None:
    named = named_objects(play.manifests[epoch] for epoch in play.state.committed)
    for name in play.topology.stages:
        files, states = everything(play, name)
        assert not named & set(deletable_data(play.state, name, play.stages[name], files))
        assert not named & set(deletable_states(play.state, name, 1, play.stages[name], states))


def test_an_outdated_journal_keeps_the_state_of_a_cut_in_a_compacted_log() -> None:
    play = play_with(1)
    before_the_commit = play.journal_at(len(play.entries) - 1)
    play.batch("a")
    not_over = {e for e in play.stages["a"].barriers if fate(play.state, e) is not Fate.OVER}
    compacted = trimmed(play.stages["a"], 0, not_over)
    found = [Stored(state_name("a", 0), 1, 0)]
    assert deletable_states(play.state, "a", 1, compacted, found) == []
    assert deletable_states(before_the_commit, "a", 1, compacted, found) == []


def phases(process: Process) -> dict[str, StagePhase]:
    return {name: stage.phase for name, stage in process.member.stages.items()}


def test_a_successor_that_is_behind_in_the_journal_deletes_no_state_of_a_commit() -> None:
    """A stage's log is compacted right after a commit. A new process of its member reads that log while its reads of
    the journal fail, so it does not know of the commit, and does not go on before it does."""
    world = calm_world()
    world.member_config = msgspec.structs.replace(world.member_config, compact_after=8)
    for name in CHAIN.members():
        world.start(name)
    until(world, lambda: world.oracle.epochs == 1)
    rest(world)
    successor = world.start("m1")
    start_stage = successor.member.start_stage

    def start_and_sleep(name: str, pace: Pace | None = None) -> None:
        start_stage(name, pace)
        successor.pause()

    successor.member.start_stage = start_and_sleep  # type: ignore[method-assign]
    successor.member._take_entry = lambda announcement: None  # type: ignore[method-assign]
    rest(world, 100)
    assert successor.paused
    checkpoint(world)
    rest(world)
    assert world.oracle.stages["b", 1].snapshot, "the log was compacted"
    draw_fault, end_ms = world.io._draw_fault, world.now_ms + 500

    def fail_journal(process: ProcessView, effect: fx.AnyOperation) -> str | None:
        names = effect.names if isinstance(effect, fx.ReadMany) else ()
        names = (effect.name,) if isinstance(effect, fx.Read) else names
        of_journal = any(name.startswith(paths.JOURNAL_PREFIX) for name in names)
        if process is successor and of_journal and world.now_ms < end_ms:
            return "failed read"
        return draw_fault(process, effect)

    world.io._draw_fault = fail_journal  # type: ignore[method-assign]
    successor.wake_up()
    rest(world, 400)
    assert phases(successor) == {"b": StagePhase.OPENING}
    assert successor.member.journal.state.head == 1, "it does not know yet"
    rest(world, 1_000)
    assert phases(successor) == {"b": StagePhase.RUNNING}
    assert successor.member.journal.state.head == 2
    world.oracle.final_check()


def test_leftovers_are_the_objects_in_the_folders_of_epochs_that_are_over() -> None:
    play = play_with(2)
    play.begin()
    play.abort()
    play.begin()

    def over() -> list[int]:
        return [
            e for e in range(1, 7) if is_leftover(play.state, f"{paths.checkpoint_prefix(e, 9)}manifest.json")
        ]

    assert over() == [3], "aborted; 4 is open, 5 unknown"
    play.expire(1)
    assert over() == [1, 3]
    for strange in ("checkpoints/notes.txt", "checkpoints/1-9", "checkpoints/x-y/z", "elsewhere/1-9/x"):
        assert not is_leftover(play.state, strange), "it is not Cutwater's"


def test_the_generation_is_in_the_names() -> None:
    assert generation_of(data_name("a", 3, generation=4)) == 4
    assert generation_of(state_name("a", 3)) == 1
    assert generation_of("checkpoints/1-2/state/a/3") is None
    assert generation_of("tables/out/_cutwater/1-2") is None
