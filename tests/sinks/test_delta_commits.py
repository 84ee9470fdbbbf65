"""Delta commits: what they record, and how they get along with other writers, OPTIMIZE and VACUUM."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake

from cutwater.protocol.base.effects import TableHead, TableHistory
from cutwater.protocol.base.errors import StoreError, UserError
from tests.support.delta_helpers import Make, append, ids, make, table
from tests.support.sink_helpers import (
    publish,
    stage,
    store,
)

__all__ = ["make", "store", "table"]


def test_a_commit_records_its_epoch(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1, 2])
    assert publish(sink, 8, [3]) == 1
    assert (ids(table), ids(table, 0)) == ([1, 2, 3], [1, 2])
    assert DeltaTable(table).history(1)[0]["cutwaterEpoch"] == 8


def test_others_may_append_between_epochs(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    append(table, 100)
    files = stage(sink, "a", [2])
    assert sink.publish(0, 7, files) is None
    assert sink.head() == TableHead(1, 5)
    assert sink.publish(1, 7, files) == 2
    assert ids(table) == [1, 2, 100]
    assert [sink.find(t) for t in (4, 5, 6, 7, 99)] == [-1, 0, 0, 2, 2]


def test_a_rewind_does_not_undo_changes_by_others(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    publish(sink, 6, [2])
    append(table, 100)
    with pytest.raises(UserError, match=r"version 2 \(WRITE\).*--force"):
        sink.rewind(2, 9, 0)
    assert ids(table) == [1, 2, 100]
    assert sink.rewind(2, 9, 2) == 3  # that undoes no change of theirs
    assert make().rewind(3, 10, 0, force=True) == 4
    assert ids(table) == [1]


def test_history_lists_changes_by_others_since_a_version(make: Make, table: str) -> None:
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


def test_a_rewind_ignores_commits_that_change_no_rows(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    publish(sink, 6, [2])
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(dry_run=False)
    head = sink.head().version
    assert head > 1
    assert sink.rewind(head, 9, 0) == head + 1
    assert ids(table) == [1]


@pytest.mark.parametrize("value", ["a+b", "é&!$'(),;:@-_.", "%25 %2F#?*[]{}|^`<>"])
def test_what_others_remove_is_removed_whatever_is_in_its_path(make: Make, table: str, value: str) -> None:
    """A file is removed by its path, so the path has to be spelled as others spell it: a restore and OPTIMIZE of the
    Delta library, which decode and encode it, did not remove what we had added with another spelling."""
    sink = make(partition_by="city")
    for transaction in (1, 2):
        folder = Path(sink.staging(f"a{transaction}").removeprefix("file://"), f"city={value}")
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"id": [transaction]}), folder / "part-0.parquet")
        files = tuple(file.name for file in sink.staged(f"a{transaction}"))
        sink.publish(sink.head().version, transaction, files)
    DeltaTable(table).optimize.compact()
    assert ids(table) == [1, 2]
    sink.rewind(sink.head().version, 3, 1)
    assert ids(table) == [1, 2]
    sink.rewind(sink.head().version, 4, 0)
    assert ids(table) == [1]


def test_a_full_vacuum_removes_no_staged_files(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    files = stage(sink, "a", [2])
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    assert sink.publish(sink.head().version, 7, files) is not None
    assert ids(table) == [1, 2]


def test_a_rewind_to_a_vacuumed_version_says_so(make: Make, table: str) -> None:
    """The VACUUM of some engines removes every file that is no longer in the table."""
    sink = make()
    publish(sink, 5, [1])
    files = stage(sink, "a", [2])
    sink.publish(0, 6, files)
    sink.rewind(1, 7, 0)
    Path(table, files[0]).unlink()
    with pytest.raises(StoreError, match="by VACUUM or by hand"):
        sink.rewind(2, 9, 1)
    assert (ids(table), sink.head()) == ([1], TableHead(2, 7))


def test_publishing_continues_after_compaction_rewind_and_vacuum(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    publish(sink, 6, [2])
    DeltaTable(table).optimize.compact()
    sink.rewind(2, 7, 0)
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    publish(sink, 9, [3])
    assert ids(table) == [1, 3]
