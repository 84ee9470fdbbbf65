"""Delta tables as sinks: publishing and rewinding, done again, by many at once, and by zombies."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from cutwater.protocol.base.effects import TableHead, TableHistory
from cutwater.protocol.base.errors import StoreError, UserError
from tests.support.delta_helpers import Make, append, ids, make, table
from tests.support.sink_helpers import (
    at_once,
    publish,
    stage,
    store,
)

__all__ = ["make", "store", "table"]


def test_rows_are_seen_when_they_are_published_and_not_before(make: Make, table: str) -> None:
    sink = make()
    assert sink.head() == TableHead(-1, 0)
    files = stage(sink, "a", [1, 2])
    assert not DeltaTable.is_deltatable(table)
    assert sink.publish(-1, 5, files, epoch=3) == 0
    assert sink.head() == TableHead(0, 5)
    assert ids(table) == [1, 2]
    assert publish(sink, 8, [3]) == 1
    assert (ids(table), ids(table, 0)) == ([1, 2, 3], [1, 2])
    assert DeltaTable(table).history(1)[0]["cutwaterEpoch"] == 8


def test_a_successor_finds_what_was_published_before_the_crash(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    files = stage(sink, "b", [2])
    assert sink.publish(0, 7, files) == 1

    successor = make()
    assert successor.head() == TableHead(1, 7)
    assert successor.publish(0, 7, files) is None
    assert successor.publish(1, 7, files) is None
    assert successor.find(7) == 1
    assert ids(table) == [1, 2]


@pytest.mark.parametrize("first", [True, False], ids=["new table", "old table"])
def test_of_many_that_publish_the_same_at_once_one_does(make: Make, table: str, first: bool) -> None:
    sinks = [make() for _ in range(4)]
    expected = -1 if first else publish(sinks[0], 4, [9])
    assert expected is not None
    files = stage(sinks[0], "a", [1])
    answers = at_once(*(lambda s=s: s.publish(expected, 5, files) for s in sinks))
    assert sorted(answers, key=str) == [expected + 1, None, None, None]
    assert {sink.head() for sink in sinks} == {TableHead(expected + 1, 5)}
    assert ids(table) == ([1] if first else [1, 9])


def test_a_zombie_cannot_publish_what_was_abandoned(make: Make, table: str) -> None:
    sink, zombie = make(), make()
    publish(sink, 5, [1])
    late = stage(zombie, "late", [2])
    assert sink.rewind(0, 9, 0) == 1
    assert zombie.publish(0, 7, late) is None
    assert zombie.publish(zombie.head().version, 7, late) is None
    assert ids(table) == [1]


def test_others_may_append_in_between(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    append(table, 100)
    files = stage(sink, "a", [2])
    assert sink.publish(0, 7, files) is None
    assert sink.head() == TableHead(1, 5)
    assert sink.publish(1, 7, files) == 2
    assert ids(table) == [1, 2, 100]
    assert [sink.find(t) for t in (4, 5, 6, 7, 99)] == [-1, 0, 0, 2, 2]


def test_a_rewind_brings_rows_back_and_publishing_goes_on(make: Make, table: str) -> None:
    sink = make()
    for transaction in (5, 6, 7):
        publish(sink, transaction, [transaction])
    assert sink.rewind(2, 9, 0) == 3
    assert (ids(table), sink.head()) == ([5], TableHead(3, 9))
    assert publish(sink, 11, [11]) == 4
    assert ids(table) == [5, 11]
    assert [sink.find(t) for t in (5, 6, 7, 8, 9, 10, 11)] == [0, 1, 2, 2, 3, 3, 4]
    assert sink.rewind(4, 12, 1) == 5  # to a version of the timeline that was abandoned
    assert ids(table) == [5, 6]


def test_a_rewind_that_is_done_again_does_nothing(make: Make, table: str) -> None:
    sink = make()
    for transaction in (5, 6):
        publish(sink, transaction, [transaction])
    assert sink.rewind(1, 9, 0) == 2
    successor = make()
    assert successor.rewind(1, 9, 0) is None
    assert successor.rewind(2, 9, 0) is None
    assert (ids(table), successor.head(), successor.find(9)) == ([5], TableHead(2, 9), 2)


def test_of_many_that_rewind_at_once_one_does(make: Make, table: str) -> None:
    sinks = [make() for _ in range(4)]
    for transaction in (5, 6):
        publish(sinks[0], transaction, [transaction])
    answers = at_once(*(lambda s=s: s.rewind(1, 9, 0) for s in sinks))
    assert sorted(answers, key=str) == [2, None, None, None]
    assert (ids(table), DeltaTable(table).version()) == ([5], 2)


def test_a_rewind_to_where_the_table_is_still_carries_its_transaction(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    assert sink.rewind(0, 9, 0) == 1
    assert (ids(table), sink.head()) == ([1], TableHead(1, 9))


def test_a_rewind_to_before_the_table_was_made_empties_it(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    assert sink.find(4) == -1
    assert sink.rewind(0, 9, -1) == 1
    assert sink.rewind(1, 10, -1) == 2
    assert (ids(table), sink.head()) == ([], TableHead(2, 10))
    publish(sink, 11, [2])
    assert ids(table) == [2]


def test_a_rewind_without_a_table_makes_an_empty_one_that_stops_zombies(make: Make, table: str) -> None:
    sink, zombie = make(), make()
    late = stage(zombie, "late", [1])
    assert sink.rewind(-1, 9, -1) == 0
    assert zombie.publish(-1, 5, late) is None
    assert zombie.publish(0, 5, late) is None
    assert ids(table) == []


def test_a_rewind_does_not_undo_what_others_did(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    publish(sink, 6, [2])
    append(table, 100)
    with pytest.raises(UserError, match=r"version 2 \(WRITE\).*--force"):
        sink.rewind(2, 9, 0)
    assert ids(table) == [1, 2, 100]
    assert sink.rewind(2, 9, 2) == 3  # nothing of theirs lies behind that
    assert make().rewind(3, 10, 0, force=True) == 4
    assert ids(table) == [1]


def test_a_table_tells_what_became_of_it_since_any_of_its_versions(make: Make, table: str) -> None:
    sink = make()
    assert sink.history(4) == TableHistory(0)
    publish(sink, 5, [1])
    publish(sink, 7, [2])
    assert (sink.history(4), sink.history(6), sink.history(9)) == (
        TableHistory(0), TableHistory(5, 1), TableHistory(7, 1),
    )  # fmt: skip
    write_deltalake(table, DeltaTable(table).to_pyarrow_table(), mode="append")
    assert sink.history(4) == TableHistory(0, 0, ("version 2 (WRITE)",))
    assert make().history(7) == TableHistory(7, 1, ("version 2 (WRITE)",))


def test_what_changed_no_rows_is_in_nobodys_way(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    publish(sink, 6, [2])
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(dry_run=False)
    head = sink.head().version
    assert head > 1
    assert sink.rewind(head, 9, 0) == head + 1
    assert ids(table) == [1]


def test_a_full_vacuum_takes_nothing_that_is_staged(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    files = stage(sink, "a", [2])
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert sink.publish(sink.head().version, 7, files) is not None
    assert ids(table) == [1, 2]


def test_a_rewind_to_files_that_are_gone_says_so(make: Make, table: str) -> None:
    """Some engines' VACUUM takes what is no longer in the table, wherever it lies."""
    sink = make()
    publish(sink, 5, [1])
    files = stage(sink, "a", [2])
    sink.publish(0, 6, files)
    sink.rewind(1, 7, 0)
    Path(table, files[0]).unlink()
    with pytest.raises(StoreError, match="by VACUUM or by hand"):
        sink.rewind(2, 9, 1)
    assert (ids(table), sink.head()) == ([1], TableHead(2, 7))


def test_vacuum_after_a_compaction_and_a_rewind_leaves_a_table_that_can_go_on(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    publish(sink, 6, [2])
    DeltaTable(table).optimize.compact()
    sink.rewind(2, 7, 0)
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    publish(sink, 9, [3])
    assert ids(table) == [1, 3]


def test_a_staged_file_that_is_gone_is_an_error_and_no_commit(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    (name,) = stage(sink, "a", [2])
    Path(table, name).unlink()
    with pytest.raises(StoreError, match=r"part-0\.parquet is gone"):
        sink.publish(0, 7, (name,))
    assert DeltaTable(table).version() == 0


def test_a_rewind_to_before_the_table_empties_one_with_a_single_version(make: Make, table: str) -> None:
    sink = make()
    assert publish(sink, 1, [1, 2]) == 0
    assert sink.rewind(0, 2, -1) == 1
    assert ids(table) == []
