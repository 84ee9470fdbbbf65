"""Marks as evidence: tables that forget, overwritten commits, and manifests that retention has deleted."""

from __future__ import annotations

import msgspec
import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.publish import (
    RewindOrder,
    begin,
    duties,
    newest_mark,
    perform,
    read_manifest,
)
from tests.support.builders import Desk, Version, journal_of
from tests.support.publish_helpers import LEADER, commits, epochs, permit, release


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
    (duty,) = duties(restored.state, 5)
    desk.run(perform("out", duty))
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
    mark = r.decode("mark", desk.objects[paths.mark_name(5, "out")], r.Published)
    assert (mark.epoch, mark.sink, mark.index, mark.version) == (whole.epoch, "out", 5, whole.version)
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
