"""Performing the duties of a sink on its table exactly once."""

from __future__ import annotations

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.member.publish import (
    Duty,
    RewindOrder,
    duties,
    perform,
)
from tests.support.builders import Desk, journal_of
from tests.support.publish_helpers import LEADER, commits, epochs, mark, permit


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
