"""Publishing: the contents of an epoch for a sink, the duties of a sink, and performing them exactly once."""

from __future__ import annotations

import msgspec
import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.publish import (
    CommitPermit,
    Duty,
    RewindOrder,
    begin,
    contents,
    duties,
    newest_mark,
    oldest_needed,
    perform,
    read_manifest,
    stranded,
)
from tests.support.builders import Desk, Version, batch, begun, committed, journal_of, manifest

LEADER = r.Leader(1, "m0")


def staged(*files: tuple[str, int | None]) -> tuple[r.StagedFile, ...]:
    return tuple(r.StagedFile(name, end) for name, end in files)


# The contents of an epoch.


def test_an_epoch_is_the_files_of_its_batches_in_order() -> None:
    batches = [batch(n, sinks={"out": staged((f"f{n}", None)), "other": staged(("x", None))}) for n in (3, 4)]
    assert contents(batches, "out", (), None) == (("f3", "f4"), ())
    assert contents(batches, "third", (), None) == ((), ())


def test_a_final_sink_publishes_a_window_when_the_watermark_reaches_its_end() -> None:
    batches = [batch(0, sinks={"out": staged(("w10", 10), ("w20", 20), ("w30", 30))})]
    assert contents(batches, "out", (), None) == ((), staged(("w10", 10), ("w20", 20), ("w30", 30)))
    assert contents(batches, "out", (), 19) == (("w10",), staged(("w20", 20), ("w30", 30)))
    assert contents(batches, "out", (), 20) == (("w10", "w20"), staged(("w30", 30)))


def test_held_rows_come_before_new_ones() -> None:
    batches = [batch(7, sinks={"out": staged(("new", 10), ("newer", 40))})]
    held = staged(("old", 10), ("older", 40))
    assert contents(batches, "out", held, 20) == (("old", "new"), staged(("older", 40), ("newer", 40)))


# The duties of a sink. In these journals epoch N begins at 2N and is committed at 2N + 1.


def epochs(*numbers: int, generation: int = 1) -> list[r.JournalBody]:
    bodies: list[r.JournalBody] = []
    for n in numbers:
        bodies += [r.Begun(1, generation, n, 2 * n, 0, "h"), committed(n, 2 * n, generation)]
    return bodies


def steps(state: r.JournalState, transaction: int = 0) -> list[tuple[str, int, int]]:
    """The duties as (what, epoch, index)."""
    return [
        ("publish" if isinstance(d, CommitPermit) else "rewind", d.epoch, d.index)
        for d in duties(state, transaction)
    ]


def test_every_commit_after_the_tables_transaction_is_published_in_order() -> None:
    state = journal_of(LEADER, *epochs(1, 2, 3))
    assert steps(state) == [("publish", 1, 3), ("publish", 2, 5), ("publish", 3, 7)]
    assert steps(state, 3) == [("publish", 2, 5), ("publish", 3, 7)]
    assert steps(state, 7) == []


def test_only_committed_epochs_are_published() -> None:
    state = journal_of(LEADER, *epochs(1), begun(2, 4), r.Aborted(1, 1, 2, 4, "deadline"), begun(3, 6))
    assert steps(state) == [("publish", 1, 3)]


def test_a_restore_is_a_rewind_and_abandoned_commits_are_skipped() -> None:
    state = journal_of(LEADER, *epochs(1, 2, 3), r.Restored(1, 2, 1, {"a": 0}))
    assert steps(state, 7) == [("rewind", 1, 8)]
    assert steps(state, 5) == [("rewind", 1, 8)], "epoch 3 is never published"
    assert steps(state, 0) == [("publish", 1, 3), ("rewind", 1, 8)]


def test_a_rewind_names_the_commit_that_it_goes_back_to() -> None:
    state = journal_of(LEADER, *epochs(1, 2, 3), r.Restored(1, 2, 2, {"a": 0}))
    assert duties(state, 7) == [RewindOrder(2, 8, 5)]


def test_new_commits_follow_a_restore() -> None:
    new: list[r.JournalBody] = [r.Begun(1, 2, 4, 9, 0, "h"), r.Committed(1, 2, 4, 9, "", None, {"a": 1})]
    state = journal_of(LEADER, *epochs(1, 2, 3), r.Restored(1, 2, 1, {"a": 0}), *new)
    assert steps(state, 5) == [("rewind", 1, 8), ("publish", 4, 10)]
    assert steps(state, 8) == [("publish", 4, 10)]


def test_an_unpublished_target_is_published_before_the_rewind() -> None:
    state = journal_of(LEADER, *epochs(1, 2), r.Restored(1, 2, 2, {"a": 0}))
    assert steps(state, 3) == [("publish", 2, 5), ("rewind", 2, 6)]


def test_a_restore_from_a_restored_timeline_rewinds_twice() -> None:
    new: list[r.JournalBody] = [r.Begun(1, 2, 4, 7, 0, "h"), r.Committed(1, 2, 4, 7, "", None, {"a": 1})]
    state = journal_of(
        LEADER, *epochs(1, 2), r.Restored(1, 2, 1, {"a": 0}), *new, r.Restored(1, 3, 4, {"a": 1})
    )
    assert steps(state, 5) == [("rewind", 1, 6), ("publish", 4, 8), ("rewind", 4, 9)]
    assert duties(state, 8) == [RewindOrder(4, 9, 8)]


def test_a_second_restore_to_the_same_epoch_makes_the_first_unnecessary() -> None:
    state = journal_of(LEADER, *epochs(1, 2), r.Restored(1, 2, 1, {"a": 0}), r.Restored(1, 3, 1, {"a": 0}))
    assert steps(state, 5) == [("rewind", 1, 7)]
    assert steps(state, 6) == [("rewind", 1, 7)]
    assert steps(state, 7) == []


def test_a_restore_to_an_older_generation_skips_the_one_in_between() -> None:
    new: list[r.JournalBody] = [r.Begun(1, 2, 3, 7, 0, "h"), r.Committed(1, 2, 3, 7, "", None, {"a": 1})]
    state = journal_of(
        LEADER, *epochs(1, 2), r.Restored(1, 2, 1, {"a": 0}), *new, r.Restored(1, 3, 2, {"a": 0})
    )
    assert steps(state, 5) == [("rewind", 2, 9)]
    assert steps(state, 0) == [("publish", 1, 3), ("publish", 2, 5), ("rewind", 2, 9)]
    assert duties(state, 8) == [RewindOrder(2, 9, 5)]


# Performing duties on a table.


def release(epoch: int, *files: str) -> r.Manifest:
    return manifest(epoch, 2 * epoch, release={"out": files})


def permit(desk: Desk, epoch: int, *files: str) -> CommitPermit:
    """The permit to publish these files as this epoch, whose manifest is in the store."""
    data = r.encode(release(epoch, *files))
    desk.objects[paths.manifest_name(epoch, 2 * epoch)] = data
    state = journal_of(
        LEADER,
        *[None] * (2 * epoch - 2),
        r.Begun(1, 1, epoch, 2 * epoch, 0, "h"),
        committed(epoch, 2 * epoch, manifest=digest(data)),
    )
    (duty,) = duties(state, 0)
    assert isinstance(duty, CommitPermit)
    return duty


def mark(desk: Desk, index: int) -> r.Published:
    name = paths.mark_name(index, "out")
    return r.decode(name, desk.objects[name], r.Published)


def commits(desk: Desk) -> list[int]:
    """The transactions of the table's commits, in order."""
    return [version.transaction for version in desk.tables["out"][1:]]


def test_publishing_is_one_table_commit_and_a_mark() -> None:
    desk = Desk("out")
    desk.run(perform("out", permit(desk, 1, "f", "g")))
    assert desk.shown("out") == ("f", "g")
    assert commits(desk) == [3]
    assert mark(desk, 3) == r.Published(1, "out", 3, 1, 3, 2)


def test_an_epoch_without_rows_for_the_sink_is_only_marked() -> None:
    """The mark names the table's current version: before its first commit, and after one."""
    desk = Desk("out")
    desk.run(perform("out", permit(desk, 1)))
    assert mark(desk, 3) == r.Published(1, "out", 3, 0)
    desk.run(perform("out", permit(desk, 2, "f")))
    desk.run(perform("out", permit(desk, 3)))
    assert commits(desk) == [5]
    assert mark(desk, 7) == r.Published(3, "out", 7, 1, 5)


def test_rewinding_restores_the_rows_under_the_restores_own_index() -> None:
    desk = Desk("out")
    desk.run(perform("out", permit(desk, 1, "f")))
    desk.run(perform("out", permit(desk, 2, "g")))
    desk.run(perform("out", RewindOrder(1, 6, 3)))
    assert desk.shown("out") == ("f",)
    assert commits(desk) == [3, 5, 6]
    assert mark(desk, 6) == r.Published(1, "out", 6, 3, 6)


@pytest.mark.parametrize("ever", [True, False], ids=["after rows", "before any rows"])
def test_a_table_is_rewound_to_an_epoch_without_rows(ever: bool) -> None:
    """No version has that epoch's transaction; the target is the version that was current at the time."""
    desk = Desk("out")
    desk.run(perform("out", permit(desk, 1, *(["f"] if ever else []))))
    desk.run(perform("out", permit(desk, 2)))
    desk.run(perform("out", permit(desk, 3, "g")))
    desk.run(perform("out", RewindOrder(2, 8, 5)))
    assert desk.shown("out") == (("f",) if ever else ())
    assert commits(desk) == [3, 7, 8][not ever :]
    assert mark(desk, 8).version == len(desk.tables["out"]) - 1


def test_an_epoch_without_rows_right_after_a_rewind_is_the_rewound_table() -> None:
    """The abandoned timeline and the rewind both precede it; the rewind counts."""
    desk = Desk("out")
    desk.run(perform("out", permit(desk, 1, "f")))
    desk.run(perform("out", permit(desk, 2, "abandoned")))
    desk.run(perform("out", RewindOrder(1, 6, 3)))
    desk.run(perform("out", permit(desk, 4)))
    desk.run(perform("out", permit(desk, 5, "g")))
    desk.run(perform("out", RewindOrder(4, 12, 9)))
    assert desk.shown("out") == ("f",)
    assert desk.tables["out"][mark(desk, 9).version].files == ("f",)


def before_a_crash(kind: str) -> tuple[Desk, Duty]:
    desk = Desk("out")
    first = permit(desk, 1, "f")
    if kind == "publish":
        return desk, first
    desk.run(perform("out", first))
    if kind == "no rows":
        return desk, permit(desk, 2)
    desk.run(perform("out", permit(desk, 2, "g")))
    return desk, RewindOrder(1, 6, 3)


@pytest.mark.parametrize("kind", ["publish", "no rows", "rewind"])
@pytest.mark.parametrize("answered", [True, False], ids=["answered", "answer lost"])
def test_seed_a12_a_sink_that_failed_to_publish_after_the_decision_is_retried_not_rolled_back(
    kind: str, answered: bool
) -> None:
    """Whichever effect is the last one before a crash, the next attempt ends with one commit and the mark."""
    whole, duty = before_a_crash(kind)
    start = len(whole.done)
    whole.run(perform("out", duty))
    for crash_after in range(len(whole.done) - start + 1):
        desk, duty = before_a_crash(kind)
        if not answered:
            desk.lose = [fx.PublishTable, fx.RewindTable, fx.Create, fx.ReadTable, fx.Read]
        desk.run(perform("out", duty), crash_after=crash_after)
        desk.lose = []
        desk.run(perform("out", duty))
        assert desk.tables == whole.tables
        assert mark(desk, duty.index) == mark(whole, duty.index)


def test_seed_a11_republishing_at_start_publishes_what_was_committed() -> None:
    """A table whose last commit lacks its mark, and two unpublished epochs."""
    desk = Desk("out")
    permits = [permit(desk, n, f"f{n}") for n in (1, 2, 3)]
    desk.run(perform("out", permits[0]), crash_after=4)
    assert commits(desk) == [3]
    assert not any(name.startswith(paths.MARK_PREFIX) for name in desk.objects)
    for duty in permits:
        desk.run(perform("out", duty))
    assert desk.shown("out") == ("f1", "f2", "f3")
    assert [mark(desk, index).version for index in (3, 5, 7)] == [1, 2, 3]


def test_republishing_at_start_marks_epochs_without_rows_in_order() -> None:
    """Others have committed between the crash and the start: existing marks stay unchanged."""
    desk = Desk("out")
    permits = [permit(desk, 1, "f"), permit(desk, 2), permit(desk, 3), permit(desk, 4, "g")]
    desk.run(perform("out", permits[0]))
    desk.run(perform("out", permits[1]))
    desk.run(perform("out", permits[2]), crash_after=3)
    assert paths.mark_name(7, "out") not in desk.objects, "the crash came before its mark"
    desk.foreign_commit("out", "theirs")
    for duty in permits:
        desk.run(perform("out", duty))
    assert desk.shown("out") == ("f", "theirs", "g")
    assert [mark(desk, index).version for index in (3, 5, 7, 9)] == [1, 1, 2, 3]


@pytest.mark.parametrize("files", [("f",), ()], ids=["rows", "no rows"])
def test_repeating_a_duty_changes_nothing(files: tuple[str, ...]) -> None:
    desk = Desk("out")
    duty = permit(desk, 1, *files)
    desk.run(perform("out", duty))
    before = list(desk.tables["out"]), dict(desk.objects)
    desk.run(perform("out", duty))
    assert (desk.tables["out"], desk.objects) == before


@pytest.mark.parametrize("files", [("f",), ()], ids=["rows", "no rows"])
def test_a_zombie_with_an_older_transaction_changes_nothing(files: tuple[str, ...]) -> None:
    desk = Desk("out")
    old = permit(desk, 1, *files)
    desk.run(perform("out", permit(desk, 2, "g")))
    before = list(desk.tables["out"]), dict(desk.objects)
    desk.run(perform("out", old))
    assert (desk.tables["out"], desk.objects) == before


def test_a_zombie_that_wakes_up_right_before_its_commit_changes_nothing() -> None:
    """Its successor publishes and continues between the zombie's read of the table and its commit."""
    desk = Desk("out")
    old, new = permit(desk, 1, "f"), permit(desk, 2, "g")
    zombie = perform("out", old)
    effect = next(zombie)
    while not isinstance(effect, fx.PublishTable):
        effect = zombie.send(desk.perform(effect))
    desk.run(perform("out", old))
    desk.run(perform("out", new))
    before = list(desk.tables["out"])
    desk.perform(effect)
    desk.run(zombie)
    assert desk.tables["out"] == before


def test_a_lost_answer_of_a_table_commit_does_not_cause_a_second_commit() -> None:
    desk = Desk("out")
    desk.lose = [fx.PublishTable]
    desk.run(perform("out", permit(desk, 1, "f")))
    assert commits(desk) == [3]
    assert mark(desk, 3).version == 1


def test_a_table_that_has_moved_is_read_again() -> None:
    desk = Desk("out")
    duty = permit(desk, 1, "f")

    def somebody_else_commits(effect: fx.Effect) -> None:
        if isinstance(effect, fx.PublishTable) and len(desk.tables["out"]) < 3:
            desk.foreign_commit("out", "theirs")

    desk.before = somebody_else_commits
    desk.run(perform("out", duty))
    assert desk.shown("out") == ("theirs", "theirs", "f")
    assert mark(desk, 3).version == 3


def test_a_mark_names_the_epochs_own_version_even_if_others_commit_right_after_it() -> None:
    desk = Desk("out")
    duty = permit(desk, 1, "f")

    def somebody_else_commits(effect: fx.Effect) -> None:
        if isinstance(effect, fx.ReadTable) and len(desk.tables["out"]) == 2:
            desk.foreign_commit("out", "theirs")

    desk.before = somebody_else_commits
    desk.run(perform("out", duty))
    assert desk.tables["out"][mark(desk, 3).version].files == ("f",)


def test_a_rewind_without_history_fails_with_advice() -> None:
    desk = Desk("out")
    for epoch in (1, 2):
        desk.run(perform("out", permit(desk, epoch, f"f{epoch}")))
    desk.oldest["out"] = 2
    with pytest.raises(
        StoreError, match=r"sink out cannot go back to epoch 1.*newer checkpoint.*`--drop out`"
    ):
        desk.run(perform("out", RewindOrder(1, 6, 3)))
    assert desk.shown("out") == ("f1", "f2")


@pytest.mark.parametrize("force", [True, False])
def test_a_rewind_is_forced_if_its_own_restore_was(force: bool) -> None:
    """The restore before it was the opposite, and has no influence."""
    state = journal_of(
        LEADER,
        *epochs(1, 2),
        r.Restored(1, 2, 1, {"a": 0}, force=not force),
        r.Begun(1, 2, 3, 7, 0, "h"),
        r.Committed(1, 2, 3, 7, "", None, {"a": 1}),
        r.Restored(1, 3, 3, {"a": 1}, force=force),
    )
    assert duties(state, 5)[0] == RewindOrder(1, 6, 3, not force)
    assert duties(state, 8) == [RewindOrder(3, 9, 8, force)]
    desk = Desk("out")
    desk.run(perform("out", permit(desk, 4, "f")))
    desk.run(perform("out", RewindOrder(4, 10, 9, force)))
    (rewind,) = [effect for effect in desk.done if isinstance(effect, fx.RewindTable)]
    assert rewind.force is force


# A table that forgets its transactions. The marks are evidence too.


def forget(desk: Desk) -> None:
    """The table forgets all its transactions, and its log goes back no further than that."""
    desk.oldest["out"] = len(desk.tables["out"]) - 1
    desk.tables["out"] = [msgspec.structs.replace(v, transaction=0) for v in desk.tables["out"]]


@pytest.mark.parametrize("files", [("f",), ()], ids=["rows", "no rows"])
def test_a_marked_epoch_is_not_published_again(files: tuple[str, ...]) -> None:
    desk = Desk("out")
    duty = permit(desk, 1, *files)
    desk.run(perform("out", duty))
    forget(desk)
    before = list(desk.tables["out"]), dict(desk.objects)
    desk.run(perform("out", duty))
    assert (desk.tables["out"], desk.objects) == before


def test_a_marked_rewind_is_not_repeated() -> None:
    desk = Desk("out")
    desk.run(perform("out", permit(desk, 1, "f")))
    desk.run(perform("out", RewindOrder(1, 4, 3)))
    desk.run(perform("out", permit(desk, 3, "g")))
    forget(desk)
    desk.run(perform("out", RewindOrder(1, 4, 3)))
    assert desk.shown("out") == ("f", "g")


def test_a_zombie_is_stopped_by_a_mark_written_after_its_read_of_the_table() -> None:
    """Its successor does the same and the table forgets, all before the zombie reads the marks."""
    desk = Desk("out")
    duty = permit(desk, 1, "f")

    def the_other_is_faster(effect: fx.Effect) -> None:
        if isinstance(effect, fx.List):
            desk.before = None
            desk.run(perform("out", duty))
            forget(desk)

    desk.before = the_other_is_faster
    desk.run(perform("out", duty))
    assert desk.shown("out") == ("f",)


def known_journal(*bodies: r.JournalBody) -> Journal:
    journal = Journal()
    journal.state = journal_of(*bodies)
    journal.view.last = len(bodies)
    return journal


def test_a_sink_begins_after_what_its_marks_or_its_table_name() -> None:
    desk, journal = Desk("out"), known_journal(LEADER, *epochs(1, 2, 3))
    assert desk.run(begin("out", journal)) == 0
    desk.run(perform("out", permit(desk, 1, "f")))
    assert desk.run(begin("out", journal)) == 3
    desk.run(perform("out", permit(desk, 2)))
    assert desk.run(begin("out", journal)) == 5, "it had no rows, so only its mark shows it"
    forget(desk)
    assert desk.run(begin("out", journal)) == 5
    desk.run(perform("out", permit(desk, 3, "g")), crash_after=4)
    assert desk.run(begin("out", journal)) == 6, "it is in the table, but has no mark yet"


@pytest.mark.parametrize("pending", [True, False], ids=["an epoch without a mark", "all marked"])
def test_nothing_is_guessed_about_a_table_without_evidence(pending: bool) -> None:
    """Neither the table's transactions nor its log show whether epoch 2 is in it."""
    desk = Desk("out")
    desk.run(perform("out", permit(desk, 1, "f")))
    forget(desk)
    desk.forgetful.add("out")
    journal = known_journal(LEADER, *epochs(1, 2) if pending else epochs(1))
    if pending:
        with pytest.raises(
            StoreError, match=r"whether epoch 2 is in the table of sink out.*`--restore latest"
        ):
            desk.run(begin("out", journal))
    else:
        assert desk.run(begin("out", journal)) == 3
        desk.run(perform("out", permit(desk, 2, "g")))
        assert desk.shown("out") == ("f", "g")


def test_a_replaced_table_is_not_mistaken_for_the_marked_one() -> None:
    desk, journal = Desk("out"), known_journal(LEADER, *epochs(1, 2))
    for epoch in (1, 2):
        desk.run(perform("out", permit(desk, epoch, f"f{epoch}")))
    desk.tables["out"] = desk.tables["out"][:1]
    with pytest.raises(StoreError, match=r"at version 0, and was at version 2 when epoch 2.*another name"):
        desk.run(begin("out", journal))


OVERWRITTEN = {
    "another's commit": Version(3, ("f1", "f2", "foreign")),
    "none of the files": Version(5, ("f1",)),
    "one file less": Version(5, ("f1", "f2")),
}


@pytest.mark.parametrize("version", OVERWRITTEN.values(), ids=OVERWRITTEN.keys())
@pytest.mark.parametrize("empty", [False, True], ids=["the newest mark", "behind it an epoch without rows"])
def test_an_overwritten_commit_is_noticed_by_the_next_process(version: Version, empty: bool) -> None:
    desk, journal = Desk("out"), known_journal(LEADER, *epochs(1, 2, 3))
    desk.run(perform("out", permit(desk, 1, "f1")))
    desk.run(perform("out", permit(desk, 2, "f2", "f3")))
    if empty:
        desk.run(perform("out", permit(desk, 3)))
    assert desk.run(begin("out", journal)) == (7 if empty else 5)
    desk.tables["out"][2] = version
    if empty and version.transaction == 5:
        return  # only the mark of that epoch says how many files it had
    with pytest.raises(StoreError, match=r"version 2 of the table of sink out no longer has.*--force"):
        desk.run(begin("out", journal))


def test_the_advice_for_an_overwritten_commit_works() -> None:
    desk = Desk("out")
    desk.run(perform("out", permit(desk, 1, "f1")))
    desk.run(perform("out", permit(desk, 2, "f2")))
    desk.tables["out"][2] = Version(3, ("f1", "foreign"))
    restored = known_journal(LEADER, *epochs(1, 2), r.Restored(1, 2, 1, {"a": 0}))
    assert desk.run(begin("out", restored)) == 5
    desk.run(perform("out", *duties(restored.state, 5)))
    assert (desk.shown("out"), desk.run(begin("out", restored))) == (("f1",), 6)


def test_a_table_whose_log_was_cleaned_up_is_accepted() -> None:
    desk, journal = Desk("out"), known_journal(LEADER, *epochs(1, 2))
    desk.run(perform("out", permit(desk, 1, "f1")))
    desk.foreign_commit("out", "theirs")
    desk.oldest["out"] = 2
    assert desk.run(begin("out", journal)) == 3


def test_if_retention_deletes_a_mark_while_it_is_read_a_newer_one_is_used() -> None:
    desk = Desk("out")
    desk.run(perform("out", permit(desk, 1, "f")))

    def the_other_goes_on(effect: fx.Effect) -> None:
        if isinstance(effect, fx.Read):
            desk.before = None
            desk.run(perform("out", permit(desk, 2, "g")))
            del desk.objects[paths.mark_name(3, "out")]

    desk.before = the_other_goes_on
    assert desk.run(newest_mark("out")) == (5, r.Published(2, "out", 5, 2, 5, 1))


@pytest.mark.parametrize("files", [("g",), ()], ids=["with rows", "without rows"])
@pytest.mark.parametrize("harm", [b"", b"{", None], ids=["emptied", "cut off", "that of another epoch"])
def test_a_damaged_newest_mark_is_rewritten(files: tuple[str, ...], harm: bytes | None) -> None:
    desk, journal = Desk("out"), known_journal(LEADER, *epochs(1, 2))
    desk.run(perform("out", permit(desk, 1, "f")))
    desk.run(perform("out", permit(desk, 2, *files)))
    whole = r.decode("mark", desk.objects[paths.mark_name(5, "out")], r.Published)
    desk.objects[paths.mark_name(5, "out")] = (
        desk.objects[paths.mark_name(3, "out")] if harm is None else harm
    )
    assert desk.run(begin("out", journal)) == 5
    told = r.decode("mark", desk.objects[paths.mark_name(5, "out")], r.Published)
    assert (told.epoch, told.sink, told.index, told.version) == (whole.epoch, "out", 5, whole.version)
    assert desk.shown("out") == ("f", *files)


@pytest.mark.parametrize("files", [("g",), ()], ids=["with rows", "without rows"])
def test_after_a_crash_while_a_mark_is_rewritten_the_duty_writes_it(files: tuple[str, ...]) -> None:
    desk, journal = Desk("out"), known_journal(LEADER, *epochs(1, 2))
    desk.run(perform("out", permit(desk, 1, "f")))
    desk.run(perform("out", permit(desk, 2, *files)))
    del desk.objects[paths.mark_name(5, "out")]  # the crash came after the deletion
    assert desk.run(begin("out", journal)) < 5
    desk.run(perform("out", permit(desk, 2, *files)))
    assert paths.mark_name(5, "out") in desk.objects
    assert desk.shown("out") == ("f", *files)


def test_a_damaged_mark_of_a_table_that_forgets_still_says_that_its_epoch_is_published() -> None:
    desk, journal = Desk("out"), known_journal(LEADER, *epochs(1))
    desk.run(perform("out", permit(desk, 1, "f")))
    desk.objects[paths.mark_name(3, "out")] = b""
    forget(desk)
    desk.forgetful.add("out")
    assert desk.run(begin("out", journal)) == 3
    desk.run(perform("out", permit(desk, 1, "f")))
    assert desk.shown("out") == ("f",)


def test_other_objects_do_not_count_as_marks() -> None:
    desk, journal = Desk("out"), known_journal(LEADER, *epochs(1))
    desk.objects["published/out/README"] = b"hello"
    assert desk.run(begin("out", journal)) == 0
    desk.run(perform("out", permit(desk, 1, "f")))
    assert desk.shown("out") == ("f",)


def test_a_manifest_deleted_by_retention_means_that_the_table_has_moved_on() -> None:
    """Another process settles the epoch, and it expires, between our reads of the table and of the manifest."""
    desk = Desk("out")
    old, new = permit(desk, 1, "f"), permit(desk, 2, "g")

    def the_other_goes_on(effect: fx.Effect) -> None:
        if isinstance(effect, fx.Read):
            desk.before = None
            desk.run(perform("out", new))
            del desk.objects[paths.manifest_name(1, 2)]

    desk.before = the_other_goes_on
    desk.run(perform("out", old))
    assert desk.shown("out") == ("g",)


@pytest.mark.parametrize("marked", [1, 2], ids=["it is marked", "a later one is marked"])
def test_a_manifest_deleted_by_retention_is_not_missed_for_an_epoch_without_rows(marked: int) -> None:
    """The table does not show that another process settled it, because there was no commit. The marks do, even if
    retention has left only the newest of them."""
    desk = Desk("out")
    old, new = permit(desk, 1), permit(desk, 2)
    desk.run(perform("out", (old, new)[marked - 1]))
    before = dict(desk.objects)
    del before[paths.manifest_name(1, 2)]
    desk.objects = dict(before)
    desk.run(perform("out", old))
    assert (commits(desk), desk.objects) == ([], before)


def test_an_earlier_epochs_mark_does_not_settle_a_lost_manifest() -> None:
    desk = Desk("out")
    desk.run(perform("out", permit(desk, 1)))
    duty = permit(desk, 2)
    del desk.objects[paths.manifest_name(2, 4)]
    with pytest.raises(StoreError, match=r"the manifest of epoch 2 is missing, and sink out has not"):
        desk.run(perform("out", duty))


def test_a_lost_manifest_of_an_unpublished_epoch_is_an_error_not_a_wait() -> None:
    desk = Desk("out")
    duty = permit(desk, 1, "f")
    del desk.objects[paths.manifest_name(1, 2)]
    with pytest.raises(StoreError, match=r"the manifest of epoch 1 is missing, and sink out has not"):
        desk.run(perform("out", duty))
    assert commits(desk) == []


def test_a_manifest_that_is_not_the_committed_one_is_named() -> None:
    desk = Desk("out")
    duty = permit(desk, 1, "f")
    desk.objects[paths.manifest_name(1, 2)] = r.encode(release(1, "forged"))
    with pytest.raises(StoreError, match=r"checkpoints/1-2/manifest.json is not the manifest.*verify"):
        desk.run(perform("out", duty))
    assert commits(desk) == []


def test_reading_a_manifest_is_retried_after_a_store_error() -> None:
    desk = Desk("out")
    duty = permit(desk, 1, "f")
    desk.lose = [fx.Read, fx.Read]
    assert desk.run(read_manifest(duty.checkpoint)) == release(1, "f")


# Sinks that a changed graph no longer has.


def graph(**sinks: str) -> r.Topology:
    """A graph of stages with one sink each."""
    stages = [r.StageSpec(stage, (), "m0", (r.SinkSpec(sink, final=True),)) for stage, sink in sinks.items()]
    return r.Topology({spec.name: spec for spec in stages})


TARGET = journal_of(LEADER, *epochs(1)).committed[1]


def left_behind(after: r.Topology, settled: int = 3, held: bool = True, dropped: tuple[str, ...] = ()) -> str:
    files = {"old": staged(("w10", 10))} if held else {}
    cut = manifest(1, 2, release={"old": (), "other": ()}, held=files)
    before = graph(a="old", b="other")
    return "; ".join(stranded(cut, TARGET, before, after, {"old": settled, "other": 3}, dropped))


def test_a_sink_is_not_renamed_while_it_holds_back_rows() -> None:
    """The rows that it holds back are in the manifest under its old name, and would never be published."""
    cut = manifest(1, 2, held={"old": staged(("w10", 10))})
    assert contents([], "new", cut.held.get("new", ()), 100) == ((), ())
    assert "'old', which is gone, holds 1 files" in left_behind(graph(a="new", b="other"))
    assert "name='old'" in left_behind(graph(a="new", b="other"))
    assert left_behind(graph(a="old", b="other")) == ""
    assert left_behind(graph(c="old", b="other")) == "", "another stage may feed it"


def test_a_sink_is_not_renamed_while_it_has_something_to_publish() -> None:
    after = graph(a="new", b="other")
    assert "'old', which is gone, has not published everything up to epoch 1" in left_behind(after, 2, False)
    assert left_behind(after, settled=3, held=False) == ""


@pytest.mark.parametrize("dropped", ["old", "a"], ids=["the sink", "its stage"])
def test_rows_that_a_sink_holds_back_are_dropped_with_it_on_request(dropped: str) -> None:
    assert left_behind(graph(b="other"), 0, dropped=(dropped,)) == ""
    assert left_behind(graph(b="other"), 0, dropped=("b",)) != ""


# What tables must keep.


def test_a_table_keeps_what_the_oldest_retained_checkpoint_needs() -> None:
    state = journal_of(LEADER, *epochs(1, 2, 3))
    assert oldest_needed(state, 7) == 3
    gone = journal_of(LEADER, *epochs(1, 2, 3), r.Expired(1, 1, (1, 2), (), {}, ()))
    assert oldest_needed(gone, 7) == 7
    assert oldest_needed(journal_of(LEADER), 0) is None


def test_a_table_keeps_what_a_pending_rewind_needs() -> None:
    """Its target has expired meanwhile. That does not happen before every sink has followed, but a member with an
    outdated journal must not be misled either."""
    state = journal_of(
        LEADER, *epochs(1, 2), r.Restored(1, 2, 1, {"a": 0}), *[r.Expired(1, 2, (1,), (), {}, ())]
    )
    assert oldest_needed(state, 5) == 3
    assert oldest_needed(state, 6) == 5
