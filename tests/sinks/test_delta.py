"""Delta tables as sinks.

What can go wrong: a crash after the commit and before its mark; the same publish twice, later or at the same
time; a zombie that is behind; others that write to, compact, clean up or remove the table; values that paths
and JSON cannot hold as they are; a rewind over what others did, over a table that was not there, or over
files that are gone; rows that do not fit; two stores that write to one table.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from datetime import date, datetime
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError
from pyspark.sql import SparkSession

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import TableHead, TableHistory
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.member.publish import duties, perform
from cutwater.sinks import SinkFailed, open_sinks
from cutwater.sinks.cleanup import tidy
from cutwater.sinks.contract import is_data, partition_values
from cutwater.sinks.delta.log import FORGETS_AFTER
from cutwater.sinks.delta.sink import DeltaSink, delta
from cutwater.sinks.delta.sink import _is_elsewhere as is_elsewhere
from cutwater.sinks.footers import INDEXED_COLUMNS, check_pages, statistics
from cutwater.sinks.schemas import misfit
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.builders import committed, journal_of, manifest
from tests.support.sink_helpers import (
    ROWS,
    at_once,
    bucket,
    drive,
    needs_server,
    publish,
    schema,
    stage,
    stage_object,
    store,
    write_with_spark,
)

__all__ = ["bucket", "store"]

Make = Callable[..., DeltaSink]


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture
def make(table: str, store: Store) -> Make:
    """Makes the sink as each process does that hosts it."""

    def bound(rows: str = ROWS, store: Store = store, **options: Any) -> DeltaSink:
        sink = delta(table, **options)
        sink.bind(store, "table", rows)
        return sink

    return bound


def ids(table: str, version: int | None = None) -> list[int]:
    rows = DeltaTable(table, version=version).to_pyarrow_table()
    return sorted(rows.column("id").to_pylist())


def append(table: str, *numbers: int) -> None:
    """What somebody else adds."""
    write_deltalake(
        table, pa.table({"id": pa.array(numbers, pa.int64()), "city": ["else"] * len(numbers)}), mode="append"
    )


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


# --- tables that were there before ------------------------------------------------------------------------


def test_an_old_table_is_added_to_and_keeps_what_it_had(make: Make, table: str) -> None:
    append(table, 1)
    append(table, 2)
    sink = make()
    assert sink.head() == TableHead(1, 0)
    assert publish(sink, 5, [3]) == 2
    assert [sink.find(t) for t in (4, 5)] == [1, 2]
    assert sink.rewind(2, 9, 1) == 3
    assert ids(table) == [1, 2]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (schema(id="long", city="string", more="string"), "no column more"),
        (schema(id="integer", city="string"), "id is integer, and long in the table"),
        (schema(id="long", city="date"), "city is date"),
    ],
)
def test_rows_that_do_not_fit_an_old_table_are_refused(make: Make, table: str, rows: str, why: str) -> None:
    append(table, 1)
    with pytest.raises(UserError, match=why):
        make(rows)


def test_rows_that_may_be_null_do_not_fit_where_the_table_allows_no_nulls(make: Make, table: str) -> None:
    strict = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("city", pa.string())])
    write_deltalake(table, pa.table({"id": [1], "city": ["x"]}, schema=strict))
    with pytest.raises(UserError, match="id can be null"):
        make()
    make(ROWS.replace('"nullable": true', '"nullable": false', 1))


def test_columns_that_only_the_table_has_are_null(make: Make, table: str) -> None:
    write_deltalake(table, pa.table({"id": [1], "city": ["x"], "more": [True]}))
    publish(make(), 5, [2])
    assert DeltaTable(table).to_pyarrow_table().sort_by("id").column("more").to_pylist() == [True, None]


def test_a_table_that_wants_more_than_plain_files_is_refused(make: Make, table: str) -> None:
    append(table, 1)
    DeltaTable(table).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(UserError, match=r"delta\.constraints\.positive"):
        make()


def test_other_partition_columns_are_refused(make: Make, table: str) -> None:
    append(table, 1)
    with pytest.raises(UserError, match="partitioned by"):
        make(partition_by="city")


def test_a_change_of_the_table_under_a_running_sink_is_noticed(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    files = stage(sink, "a", [2])
    assert sink.head() == TableHead(0, 5)
    write_deltalake(table, pa.table({"id": ["text"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(UserError, match="id is long, and string in the table"):
        sink.publish(sink.head().version, 7, files)


@pytest.mark.parametrize(
    ("rows", "options", "why"),
    [
        (schema(id="variant"), {}, "variant"),
        (schema(**{"a b": "long"}), {}, "rename"),
        (schema(id="long", at="timestamp"), {"partition_by": ["at"]}, "to_date"),
        (schema(id="long", price="decimal(9,2)"), {"partition_by": ["price"]}, "use another column"),
        (schema(id="long"), {"partition_by": ["day"]}, "they have id"),
    ],
)
def test_what_no_delta_table_can_hold_is_refused(
    make: Make, rows: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        make(rows, **options)


def test_two_stores_that_write_to_one_table_do_not_take_each_other_for_themselves(
    make: Make, table: str, tmp_path: Path
) -> None:
    """A fresh store begins with low journal indexes: its rows must not pass for old ones."""
    first = make()
    publish(first, 500, [1])
    second = make(store=open_store(str(tmp_path / "other"), create=True))
    assert second.head() == TableHead(0, 0)
    assert publish(second, 5, [2]) == 1
    assert ids(table) == [1, 2]
    assert (first.head(), second.head()) == (TableHead(1, 500), TableHead(1, 5))
    with pytest.raises(UserError, match="--force"):
        first.rewind(1, 501, 0)
    second.discard(keep=set())
    first.discard(keep=set())
    assert ids(table) == [1, 2]


# --- history ----------------------------------------------------------------------------------------------


def clean_up_log(table: str, before: int) -> None:
    """Makes a checkpoint, and removes the commits before it, as readers and writers of Delta do in time."""
    DeltaTable(table, version=before).create_checkpoint()
    for version in range(before):
        Path(table, "_delta_log", f"{version:020d}.json").unlink()


def test_history_that_was_cleaned_up_is_not_guessed(make: Make, table: str) -> None:
    sink = make()
    for transaction in range(10, 20):
        publish(sink, transaction, [transaction])
    clean_up_log(table, before=4)  # whose transaction is 14
    assert [make().find(t) for t in (12, 13, 14, 15, 30)] == [None, None, 4, 5, 9]
    assert sink.rewind(9, 40, 4) == 10
    assert ids(table) == [10, 11, 12, 13, 14]


def test_a_version_whose_commit_is_gone_is_found_in_the_checkpoint(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 10, [1])
    for number in range(100, 105):
        append(table, number)
    publish(sink, 20, [2])
    clean_up_log(table, before=3)
    assert [sink.find(t) for t in (9, 10, 15, 20)] == [None, 3, 3, 6]


def test_a_sink_that_slept_while_the_log_was_cleaned_up_sees_the_newest_version(
    make: Make, table: str
) -> None:
    sleeper, sink = make(), make()
    publish(sink, 10, [1])
    assert sleeper.head() == TableHead(0, 10)
    for transaction in range(11, 18):
        publish(sink, transaction, [transaction])
    files = stage(sink, "late", [99])
    clean_up_log(table, before=5)
    assert sleeper.publish(0, 30, files) is None  # the place behind version 0 is free again
    assert sleeper.head() == TableHead(7, 17)
    assert ids(table) == [1, *range(11, 18)]


@pytest.mark.slow
def test_a_thousand_publishes(make: Make, table: str) -> None:
    sink = make()
    files = [stage(sink, f"a{i}", [i]) for i in range(1000)]
    for i, names in enumerate(files):
        assert sink.publish(i - 1, i + 1, names) == i
    assert (ids(table), make().head()) == (list(range(1000)), TableHead(999, 1000))
    log = [file.name for file in Path(table, "_delta_log").iterdir()]
    assert sum(name.endswith(".checkpoint.parquet") for name in log) == 10
    assert sink.find(500) == 499


# --- a table that forgets -----------------------------------------------------------------------------------


def forgetful_table(table: str) -> None:
    """What somebody else has made: a table that forgets transactions after a second."""
    DeltaTable.create(
        table,
        schema=pa.schema([("id", pa.int64()), ("city", pa.string())]),
        configuration={FORGETS_AFTER: "interval 1 second"},
    )


def forget(table: str) -> None:
    """Time goes by, rows are rewritten and a checkpoint is made, without old transactions."""
    DeltaTable(table).optimize.compact()
    while any(DeltaTable(table).transaction_version(app) is not None for app in apps(table)):
        DeltaTable(table).create_checkpoint()


def apps(table: str) -> set[str]:
    log = Path(table, "_delta_log").glob("*.json")
    actions = [json.loads(line) for file in log for line in file.read_text().splitlines()]
    return {action["txn"]["appId"] for action in actions if "txn" in action}


def test_a_transaction_that_the_table_forgot_is_found_in_its_log(make: Make, table: str) -> None:
    """A crash came between the last commit and its mark: nothing but the log tells of it."""
    forgetful_table(table)
    sink = make()
    for transaction in (5, 6):
        publish(sink, transaction, [transaction])
    files = stage(sink, "last", [7])
    assert sink.publish(2, 7, files) == 3
    forget(table)
    again = make()
    assert again.head() == TableHead(4, 7)
    assert again.publish(4, 7, files) is None
    assert [again.find(t) for t in (4, 5, 6, 7, 8)] == [0, 1, 2, 3, 3]
    assert ids(table) == [5, 6, 7]


def test_a_running_sink_does_not_forget_with_its_table(make: Make, table: str) -> None:
    forgetful_table(table)
    sink = make()
    publish(sink, 5, [5])
    append(table, 100)
    assert sink.head() == TableHead(2, 5)
    forget(table)
    clean_up_log(table, before=3)
    assert sink.head() == TableHead(3, 5)
    assert make().head() == TableHead(3, 0, forgetful=True)


def test_a_table_that_forgot_and_lost_its_log_gets_no_marked_epoch_again(
    make: Make, table: str, store: Store
) -> None:
    forgetful_table(table)
    sink = make()
    bodies: list[r.JournalBody] = [r.Leader(1, "m0")]
    for epoch in (1, 2, 3):
        release = {"table": stage(sink, f"attempt-{epoch}", [epoch])}
        data = r.encode(manifest(epoch, 2 * epoch, release=release))
        store.create(paths.manifest_name(epoch, 2 * epoch), data)
        bodies += [
            r.Begun(1, 1, epoch, 2 * epoch, 0, "h"),
            committed(epoch, 2 * epoch, manifest=digest(data)),
        ]
    state = journal_of(*bodies)
    for duty in duties(state, 0):
        drive(store, sink, perform("table", duty))
    forget(table)
    clean_up_log(table, before=DeltaTable(table).version())
    again = make()
    assert again.head().forgetful
    for duty in duties(state, again.head().transaction):
        drive(store, again, perform("table", duty))
    assert ids(table) == [1, 2, 3]


def test_a_table_with_a_short_log_has_not_forgotten_who_never_was_there(make: Make, table: str) -> None:
    for number in range(6):
        append(table, number)
    clean_up_log(table, before=3)
    sink = make()
    assert sink.head() == TableHead(5, 0)
    assert [sink.find(t) for t in (0, 100)] == [5, 5], "nothing of this is its own"
    publish(sink, 7, [7])
    assert (make().head(), make().find(6)) == (TableHead(6, 7), 5)


def test_a_table_that_forgets_is_warned_of(make: Make, table: str, caplog: pytest.LogCaptureFixture) -> None:
    forgetful_table(table)
    make()
    assert FORGETS_AFTER in caplog.text


# --- what a restore needs -----------------------------------------------------------------------------------


def age(table: str, days: int) -> None:
    """Every commit was made so many days earlier."""
    for file in Path(table, "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        for action in actions:
            if "commitInfo" in action:
                action["commitInfo"]["timestamp"] -= days * 86_400_000
        file.write_text("".join(json.dumps(action) + "\n" for action in actions))
        made = file.stat().st_mtime - days * 86_400
        os.utime(file, (made, made))


def versions_in_log(table: str) -> list[int]:
    return sorted(int(file.stem) for file in Path(table, "_delta_log").glob("*.json") if file.stem.isdigit())


@pytest.mark.parametrize("rewinds", [True, False], ids=["going back", "publishing"])
@pytest.mark.parametrize("whose", ["ours", "others"])
def test_no_history_is_removed_however_old(make: Make, table: str, whose: str, rewinds: bool) -> None:
    if whose == "others":
        append(table, 0)
    sink = make()
    first = publish(sink, 1, [1])
    assert first is not None
    for transaction in range(2, 120):
        publish(sink, transaction, [transaction])
    age(table, days=400)  # with a checkpoint that is as old
    for transaction in range(120, 206):
        version = sink.head().version
        if rewinds and transaction > 190:  # one of them is the two hundredth commit
            assert sink.rewind(version, transaction, version - 1) == version + 1
        else:
            publish(sink, transaction, [transaction])
    assert versions_in_log(table) == list(range(make().head().version + 1))
    assert make().find(1) == first
    assert sink.rewind(sink.head().version, 300, first) is not None
    assert ids(table) == ([0, 1] if whose == "others" else [1])


def test_what_no_checkpoint_needs_is_trimmed_when_it_is_old(make: Make, table: str) -> None:
    sink = make()
    for transaction in range(1, 351):
        publish(sink, transaction, [transaction])
    sink.trim(300)
    assert versions_in_log(table) == list(range(350)), "it is not old"
    age(table, days=31)
    sink.trim(1)
    assert versions_in_log(table) == list(range(350)), "it is needed"
    sink.trim(260)  # the version before it of which the log has a checkpoint is 199
    assert versions_in_log(table) == list(range(199, 350))
    assert not Path(table, "_delta_log", f"{99:020d}.checkpoint.parquet").exists()
    again = make()
    assert [again.find(t) for t in (199, 200, 260, 350)] == [None, 199, 259, 349]
    assert again.rewind(349, 400, 259) == 350
    assert ids(table) == list(range(1, 261))


def test_tidying_up_keeps_what_the_oldest_kept_checkpoint_needs(make: Make, table: str) -> None:
    sink = make()
    for transaction in range(1, 206):
        publish(sink, transaction, [transaction])
    age(table, days=31)
    kept: list[r.JournalBody] = [
        r.Begun(1, 1, 1, 102, 0, "h"),
        committed(1, 102, cut=200),
    ]  # at 103: version 102
    state = journal_of(r.Leader(1, "m0"), *[None] * 100, *kept)
    tidy(sink, "a", state, [manifest(1, 102)])
    assert versions_in_log(table) == list(range(99, 205))
    assert sink.find(103) == 102


def test_history_of_tables_that_others_made_is_theirs(make: Make, table: str) -> None:
    append(table, 0)
    sink = make()
    for transaction in range(1, 150):
        publish(sink, transaction, [transaction])
    age(table, days=400)
    sink.trim(149)
    assert versions_in_log(table) == list(range(150))


def test_a_table_of_ours_says_that_its_log_is_kept(make: Make, table: str) -> None:
    publish(make(), 1, [1])
    assert DeltaTable(table).metadata().configuration["delta.enableExpiredLogCleanup"] == "false"


def test_a_version_whose_files_are_gone_is_not_found(make: Make, table: str) -> None:
    sink = make(partition_by="city")
    for transaction in (5, 6, 7):
        publish(sink, transaction, [transaction])
    assert sink.find(6) == 1
    sink.rewind(2, 8, 0)
    publish(sink, 9, [9])
    assert [sink.find(t) for t in (5, 6, 7, 8, 9)] == [0, 1, 2, 3, 4]
    next(Path(table, "_cutwater").glob("*/attempt-6/*")).unlink()
    assert [sink.find(t) for t in (5, 6, 7, 8, 9)] == [0, None, None, 3, 4]
    for transaction, version in ((6, 1), (7, 2)):
        with pytest.raises(StoreError, match="by VACUUM or by hand"):
            sink.rewind(4, 20 + transaction, version)
    assert sink.rewind(4, 30, 3) == 5


def test_names_with_odd_characters_are_found_as_they_lie_there(make: Make, table: str) -> None:
    write_deltalake(
        table, pa.table({"id": [1, 2], "city": ["a b/c%d=e:f", "ü"]}), partition_by=["city"], mode="append"
    )
    sink = make(partition_by="city")
    publish(sink, 5, [3])
    DeltaTable(table).delete("id < 3")
    publish(sink, 6, [4])
    assert [sink.find(t) for t in (4, 5)] == [0, 1]
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    assert [sink.find(t) for t in (4, 5, 6)] == [None, None, 3]


def test_who_cannot_go_back_goes_on_under_another_name_and_path(
    make: Make, table: str, store: Store, tmp_path: Path
) -> None:
    """The error says what to do, and that works: the new table begins at the checkpoint."""
    sink = make()
    bodies: list[r.JournalBody] = [r.Leader(1, "m0")]

    def epoch(number: int, generation: int, **release: tuple[str, ...]) -> None:
        place = len(bodies) + 1
        data = r.encode(manifest(number, place, release=release))
        store.create(paths.manifest_name(number, place), data)
        begun = r.Begun(1, generation, number, place, 0, "h")
        bodies.extend([begun, committed(number, place, generation, manifest=digest(data))])

    def settle(sink: DeltaSink) -> None:
        for duty in duties(journal_of(*bodies), sink.head().transaction):
            drive(store, sink, perform(sink.name, duty))

    for number in (1, 2, 3):
        epoch(number, 1, table=stage(sink, f"{number}", [number]))
    settle(sink)
    clean_up_log(table, before=2)
    bodies.append(r.Restored(1, 2, 1, {"a": 0}))
    with pytest.raises(StoreError, match=r"cannot go back to epoch 1.*another name and path.*--drop table"):
        settle(make())
    other = delta(str(tmp_path / "other"))
    other.bind(store, "other", ROWS)
    settle(other)
    epoch(4, 2, other=stage(other, "4", [4]))
    settle(other)
    assert ids(str(tmp_path / "other")) == [4]
    assert ids(table) == [1, 2, 3]


# --- writers that look first and then write -----------------------------------------------------------------


@pytest.mark.parametrize("behind", [False, True], ids=["at once", "when others have come behind"])
def test_a_commit_that_was_overwritten_is_noticed_and_its_rows_come_again(
    make: Make, table: str, behind: bool
) -> None:
    """A log store without conditional puts found version 2 free, and puts its commit there after ours."""
    sink = make()
    for transaction in (5, 6):
        publish(sink, transaction, [transaction])
    theirs = f"{table}-theirs"
    shutil.copytree(table, theirs)
    append(theirs, 100)
    publish(sink, 7, [7])
    assert sink.head() == TableHead(2, 7)
    if behind:
        append(table, 101)
        assert sink.head() == TableHead(3, 7)
    shutil.copy(Path(theirs, "_delta_log", f"{2:020d}.json"), Path(table, "_delta_log"))
    for data in Path(theirs).glob("*.parquet"):
        shutil.copy(data, table)
    with pytest.raises(StoreError, match=r"version 2 of .* overwritten by another writer \(WRITE\).*--force"):
        sink.publish(sink.head().version, 8, stage(sink, "next", [8]))
    assert 7 not in ids(table)

    again = make()  # what the error says is done: everything goes back to before it
    version = again.head().version
    assert again.find(6) == 1
    assert again.rewind(version, 9, 1, force=True) == version + 1
    publish(again, 10, [7])
    assert ids(table) == [5, 6, 7]


# --- whoever has only the store -----------------------------------------------------------------------------


def test_a_sink_is_asked_by_whoever_has_only_the_store(
    make: Make, table: str, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(partition_by="city", final_by="at")
    for transaction in (5, 6):
        publish(sink, transaction, [transaction])
    monkeypatch.chdir(tmp_path)  # a command may run anywhere
    opened = open_sinks(store, ["table"])["table"]
    assert (opened.name, opened.partition_by, opened.final_by) == ("table", ("city",), "at")
    assert opened.head() == TableHead(1, 6)
    assert [opened.find(t) for t in (4, 5, 6)] == [-1, 0, 1]


def test_a_relative_path_is_known_from_everywhere(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = delta("out/table")
    sink.bind(store, "table", ROWS)
    publish(sink, 5, [1])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert open_sinks(store, ["table"])["table"].head() == TableHead(0, 5)


def test_what_cannot_be_asked_is_named(make: Make, table: str, store: Store) -> None:
    with pytest.raises(StoreError, match="does not say where sink other writes to"):
        open_sinks(store, ["other"])
    make()
    shutil.rmtree(table)
    with pytest.raises(StoreError, match=r"sink table cannot be asked.*no such folder"):
        open_sinks(store, ["table"])


def test_a_sink_keeps_its_name(make: Make, table: str, store: Store) -> None:
    """Under another name it would neither go back with a restore nor show what it held."""
    make()
    renamed = delta(table, name="renamed")
    with pytest.raises(UserError, match=r"write name='table', or give it a path of its own"):
        renamed.bind(store, "renamed", ROWS)
    delta(f"{table}-2", name="renamed").bind(store, "renamed", ROWS)
    named = delta(table, name="table")
    named.bind(store, named.name, ROWS)


def test_a_sink_whose_table_was_moved_goes_on_there(make: Make, table: str, store: Store) -> None:
    publish(make(), 5, [1])
    shutil.move(table, f"{table}-2")
    moved = delta(f"{table}-2", name="table")
    moved.bind(store, "table", ROWS)
    assert moved.head() == TableHead(0, 5)
    assert open_sinks(store, ["table"])["table"].head() == TableHead(0, 5)


# --- durability ---------------------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files and folders that were made durable, by their paths."""
    paths: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_staged_files_are_durable_before_anybody_names_them(
    make: Make, table: str, synced: list[str]
) -> None:
    (name,) = stage(make(), "a", [1])
    file = Path(table, name)
    assert {str(file), *(str(folder) for folder in list(file.parents)[:4])} <= set(synced)


@pytest.mark.parametrize("to_version", [0, -1], ids=["to a version", "to before the first"])
def test_a_rewind_is_durable_before_it_is_believed(
    make: Make, table: str, synced: list[str], to_version: int
) -> None:
    sink = make()
    for transaction in (5, 6):
        publish(sink, transaction, [transaction])
    synced.clear()
    assert sink.rewind(1, 9, to_version) == 2
    log = Path(table, "_delta_log")
    assert {str(log / f"{2:020d}.json"), str(log)} <= set(synced)


# --- discarding -------------------------------------------------------------------------------------------


def attempts(table: str) -> set[str]:
    return {folder.name for folder in Path(table, "_cutwater").glob("*/*")}


def test_only_attempts_that_nobody_names_are_discarded(make: Make, table: str) -> None:
    sink = make()
    for name in ("published", "rewound", "kept", "failed"):
        stage(sink, name, [len(name)])
    prefix = next(Path(table, "_cutwater").iterdir()).name
    sink.publish(-1, 1, (f"_cutwater/{prefix}/published/part-0.parquet",))
    sink.publish(0, 2, (f"_cutwater/{prefix}/rewound/part-0.parquet",))
    sink.rewind(1, 3, 0)
    leftover = Path(table, "_cutwater", prefix, "failed", "_temporary", "0", ".crc")
    leftover.parent.mkdir(parents=True)
    leftover.touch()

    make().discard(keep={"kept"})
    assert attempts(table) == {"published", "rewound", "kept"}
    sink.discard(keep={"kept"})
    assert sink.rewind(2, 4, 1) == 3
    assert ids(table) == [7, 9]
    make().discard(keep=set())
    assert attempts(table) == {"published", "rewound"}


def test_attempts_in_a_cleaned_up_log_are_not_discarded(make: Make, table: str) -> None:
    sink = make()
    for transaction in range(10):
        publish(sink, transaction + 1, [transaction])
    clean_up_log(table, before=5)
    stage(sink, "failed", [99])
    make().discard(keep=set())
    assert attempts(table) == {f"attempt-{n}" for n in range(1, 11)}
    assert ids(table) == list(range(10))


def test_nothing_is_discarded_while_the_log_cannot_be_read(make: Make, table: str) -> None:
    """What is not known to be in the table may be in it."""
    sink = make()
    for transaction in range(4):
        publish(sink, transaction + 1, [transaction])
    stage(sink, "failed", [99])
    Path(table, "_delta_log", f"{1:020d}.json").unlink()
    before = attempts(table)
    with pytest.raises(StoreError, match=r"begins at version 2, and there is no checkpoint"):
        sink.discard(keep=set())
    assert attempts(table) == before


# --- buckets ----------------------------------------------------------------------------------------------


@needs_server
def test_a_table_in_a_bucket(bucket: str, store: Store) -> None:
    sink = delta(f"{bucket}/table", partition_by="city")
    sink.bind(store, "table", ROWS)
    files = stage_object(sink, "a", [1], folder="city=a b%2Fc%25/")
    assert sink.publish(-1, 5, files) == 0
    assert DeltaTable(f"{bucket}/table").to_pyarrow_table().to_pylist() == [{"id": 1, "city": "a b/c%"}]
    assert sink.publish(0, 6, stage_object(sink, "b", [2], folder="city=x/")) == 1
    assert sink.publish(0, 6, files) is None
    assert (sink.find(5), sink.rewind(1, 9, 0), sink.head()) == (0, 2, TableHead(2, 9))
    assert ids(f"{bucket}/table") == [1]
    stage_object(sink, "failed", [3], folder="city=x/")
    sink.discard(keep=set())
    left = open_store(f"{bucket}/table").list("_cutwater/")
    assert [name.split("/")[2] for name in left] == ["a", "b"]
    with pytest.raises(StoreError, match="is gone"):
        sink.publish(2, 10, ("_cutwater/nothing.parquet",))


# --- what Spark writes ------------------------------------------------------------------------------------

MANY_KINDS = """
    select * from values
    (1L, 'a b/c%d=e:f', date'2024-01-02', 1.50BD, timestamp_ntz'2024-01-02 03:04:05.123456',
     timestamp'2024-01-02 03:04:05.123456', array(1, 2), map('a', 1), named_struct('n', 3, 'x', 'y'),
     x'00', 1.5D),
    (2L, null, null, null, null, null, null, null, null, null, null),
    (3L, 'ü "x"', date'1900-01-02', -1.50BD, timestamp_ntz'9999-01-02 03:04:05',
     timestamp'1900-01-02 03:04:05', array(null), map('a', null), named_struct('n', null, 'x', null),
     x'', double('NaN'))
    as t(id, city, day, price, local, at, list, map, struct, bytes, ratio)"""


def test_every_kind_of_value_comes_back(make: Make, table: str, spark: SparkSession) -> None:
    rows = spark.sql(MANY_KINDS)
    sink = make(rows.schema.json(), partition_by=["city", "day", "local"])
    files = write_with_spark(sink, "a", rows)
    assert sink.publish(-1, 1, tuple(f.name for f in files)) == 0
    back = DeltaTable(table).to_pyarrow_table().select(rows.columns).sort_by("id")
    expected = rows.toArrow().sort_by("id")
    assert back.schema.field("at").type == pa.timestamp("us", "UTC")
    assert str(back.to_pylist()) == str(expected.to_pylist())  # as text: NaN is not equal to itself

    dataset = DeltaTable(table).to_pyarrow_dataset()
    found = duckdb.from_arrow(dataset).filter("city = 'ü \"x\"'").project("id, day, price").fetchall()
    assert [str(value) for value in found[0]] == ["3", "1900-01-02", "-1.50"]

    assert sink.rewind(0, 2, -1) == 1
    assert sink.rewind(1, 3, 0) == 2
    assert ids(table) == [1, 2, 3]


def test_files_say_what_is_in_them(make: Make, table: str, spark: SparkSession) -> None:
    rows = spark.sql(MANY_KINDS).coalesce(1)
    sink = make(rows.schema.json())
    files = write_with_spark(sink, "a", rows)
    sink.publish(-1, 1, tuple(f.name for f in files))
    log = Path(table, "_delta_log", f"{0:020d}.json").read_text()
    (add,) = [json.loads(line)["add"] for line in log.splitlines() if '"add"' in line]
    stats = json.loads(add["stats"])
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {
        "id": 1,
        "city": "a b/c%d=e:f",
        "day": "1900-01-02",
        "price": -1.5,
        "local": "2024-01-02T03:04:05.123456",
        "at": "1900-01-02T03:04:05.000000Z",
        "struct": {"n": 3, "x": "y"},
    }
    assert stats["maxValues"]["at"] == "2024-01-02T03:04:05.123456Z"
    assert stats["nullCount"]["struct"] == {"n": 2, "x": 2}
    assert stats["nullCount"]["bytes"] == 1
    assert not {"list", "map"} & stats["nullCount"].keys()
    assert DeltaTable(table).scan(predicate="id > 3").read_all().num_rows == 0


def test_what_is_said_of_a_file_is_short_and_never_wrong() -> None:
    """Long texts are cut where that is safe; infinity is no JSON; a row group may have nothing but nulls."""
    rows = {"text": ["b" * 50, "a" * 50, None], "number": [1.0, float("inf"), None], "few": [None, None, 7]}
    data = BytesIO()
    pq.write_table(pa.table(rows), data, row_group_size=1)
    stats = json.loads(statistics(pq.read_metadata(data)))
    assert stats == {
        "numRecords": 3,
        "minValues": {"text": "a" * 32, "few": 7},
        "maxValues": {"few": 7},
        "nullCount": {"text": 1, "number": 1, "few": 2},
    }


def test_windows_are_staged_apart_and_shown_when_they_are_closed(
    make: Make, table: str, spark: SparkSession
) -> None:
    rows = spark.sql(
        "select id, window, city from (select id, window(timestamp_seconds(60 * id), '1 minute') window, "
        "if(id % 2 = 0, 'even', null) city from range(4))"
    )
    sink = make(rows.schema.json(), final_by="window.end", partition_by="city")
    staged = write_with_spark(sink, "a", rows)
    assert sorted({file.end for file in staged}) == [60_000, 120_000, 180_000, 240_000]
    closed = tuple(file.name for file in staged if file.end is not None and file.end <= 120_000)
    sink.publish(-1, 1, closed)
    assert ids(table) == [0, 1]
    sink.publish(0, 2, tuple(file.name for file in staged if file.name not in closed))
    back = DeltaTable(table).to_pyarrow_table().sort_by("id")
    assert back.column_names == ["id", "window", "city"]
    assert back.column("city").to_pylist() == ["even", None, "even", None]


def test_an_end_between_two_milliseconds_is_not_over_too_early(make: Make, spark: SparkSession) -> None:
    rows = spark.sql("select timestamp_micros(c) at from values (60000000), (60000001), (null) as t(c)")
    staged = write_with_spark(make(rows.schema.json(), final_by="at"), "a", rows)
    assert sorted([f.end for f in staged], key=str) == [60_000, 60_001, None]


def test_final_by_must_be_a_timestamp(make: Make, spark: SparkSession) -> None:
    rows = spark.range(1)
    with pytest.raises(UserError, match="final_by='id' is a long"):
        make(rows.schema.json(), final_by="id").writer(rows)


def test_a_batch_without_rows_stages_nothing(make: Make, spark: SparkSession) -> None:
    rows = spark.range(1).where("id > 5")
    assert write_with_spark(make(rows.schema.json()), "a", rows) == []


# --- files and columns, without Spark ---------------------------------------------------------------------------


def test_what_is_said_of_a_file_covers_dates_times_and_structs_and_not_lists() -> None:
    at = datetime(2024, 1, 2, 3, 4, 5, 123456)
    rows = pa.table(
        {
            "list": [[1, 2], [3]],
            "pair": pa.array([{"n": 1, "m": {"x": "b"}}, {"n": None, "m": {"x": "a"}}]),
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "day": [date(2024, 1, 2), date(1900, 1, 2)],
            "local": [at, at],
            "at": pa.array([at, at], pa.timestamp("us", "UTC")),
            "yes": [True, False],
            "bytes": [b"a", b"b"],
        }
    )
    data = BytesIO()
    pq.write_table(rows, data)
    stats = json.loads(statistics(pq.read_metadata(data)))
    assert stats["minValues"] == {
        "pair": {"n": 1, "m": {"x": "a"}},
        "day": "1900-01-02",
        "local": "2024-01-02T03:04:05.123456",
        "at": "2024-01-02T03:04:05.123456Z",
    }
    assert stats["maxValues"]["pair"] == {"n": 1, "m": {"x": "b"}}
    assert stats["maxValues"]["day"] == "2024-01-02"
    assert stats["nullCount"] == {
        "pair": {"n": 1, "m": {"x": 0}}, "day": 0, "local": 0, "at": 0, "yes": 0, "bytes": 0,
    }  # fmt: skip


def test_only_the_first_columns_are_described() -> None:
    data = BytesIO()
    pq.write_table(pa.table({f"c{n}": [n] for n in range(INDEXED_COLUMNS + 1)}), data)
    stats = json.loads(statistics(pq.read_metadata(data)))
    assert list(stats["nullCount"]) == [f"c{n}" for n in range(INDEXED_COLUMNS)]


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_file_is_read_to_its_end_to_be_called_whole(tmp_path: Path, kind: str) -> None:
    store = open_store(str(tmp_path / "files") if kind == "local" else "memory://", create=True)
    data = BytesIO()
    pq.write_table(pa.table({"id": list(range(1000))}), data, write_page_checksum=True)
    store.put("a.parquet", data.getvalue())
    assert check_pages(store, "a.parquet") == 1000
    broken = bytearray(data.getvalue())
    broken[len(broken) // 3] ^= 1
    store.put("a.parquet", bytes(broken))
    with pytest.raises(StoreError, match=r"a\.parquet is damaged"):
        check_pages(store, "a.parquet")
    with pytest.raises(StoreError, match=r"b\.parquet is gone"):
        check_pages(store, "b.parquet")


LIST = {"type": "array", "elementType": "long", "containsNull": False}
MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False}


@pytest.mark.parametrize(
    ("table", "rows", "why"),
    [
        (LIST, LIST, None),
        (LIST, LIST | {"containsNull": True}, "c has nulls in it, and the table allows none there"),
        (LIST | {"containsNull": True}, LIST, None),
        (LIST, LIST | {"elementType": "string"}, "c.element is string, and long in the table"),
        (MAP, MAP, None),
        (MAP, MAP | {"valueContainsNull": True}, "c has nulls in it, and the table allows none there"),
        (MAP, MAP | {"keyType": "long"}, "c.key is long, and string in the table"),
        (MAP, MAP | {"valueType": "date"}, "c.value is date, and long in the table"),
        (LIST, MAP, "c is map, and array in the table"),
        ("long", LIST, "c is array, and long in the table"),
    ],
)
def test_rows_fit_a_table_down_to_what_is_in_lists_and_maps(table: Any, rows: Any, why: str | None) -> None:
    assert misfit(table, rows, "c") == why


def test_a_column_that_must_have_a_value_must_be_given_one() -> None:
    def struct(nullable: bool, *names: str) -> Any:
        fields = [{"name": n, "type": "long", "nullable": nullable, "metadata": {}} for n in names]
        return {"type": "struct", "fields": fields}

    assert misfit(struct(False, "a", "b"), struct(False, "a")) == (
        "the table's column b must have a value, and the rows do not have it"
    )
    assert misfit(struct(True, "a", "b"), struct(True, "a")) is None
    assert (
        misfit(struct(False, "a"), struct(True, "a"), "x")
        == "x.a can be null, and the table allows no nulls there"
    )
    assert misfit(struct(True, "a"), struct(False, "a")) is None


def test_a_table_with_local_times_asks_for_readers_that_know_them(make: Make, table: str) -> None:
    sink = make(schema(id="long", city="string", local="timestamp_ntz"))
    assert publish(sink, 1, [1]) == 0
    protocol = DeltaTable(table).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == protocol.writer_features == ["timestampNtz"]


def test_a_plain_table_asks_for_nothing_special(make: Make, table: str) -> None:
    publish(make(), 1, [1])
    protocol = DeltaTable(table).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_a_rewind_to_before_the_table_empties_one_with_a_single_version(make: Make, table: str) -> None:
    sink = make()
    assert publish(sink, 1, [1, 2]) == 0
    assert sink.rewind(0, 2, -1) == 1
    assert ids(table) == []


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("part-0.parquet", True), ("city=a/part-0.parquet", True), ("_city=a/part-0.parquet", True),
        ("part-0.txt", False), ("_temporary/0/part-0.parquet", False), (".hidden/part-0.parquet", False),
        (".part-0.parquet", False), ("_part-0.parquet", False), ("city=a/_temporary/part-0.parquet", False),
    ],
)  # fmt: skip
def test_only_what_a_job_has_committed_is_data(name: str, counts: bool) -> None:
    assert is_data(name) is counts


def test_bounds_are_told_only_if_every_part_of_a_file_has_them() -> None:
    def part(**what: Any) -> Any:
        return SimpleNamespace(**({"has_null_count": True, "null_count": 0, "num_values": 1} | what))

    parts = [part(has_min_max=True, min=5, max=6), part(has_min_max=False)]
    footer = SimpleNamespace(
        num_rows=2,
        num_row_groups=2,
        row_group=lambda group: SimpleNamespace(column=lambda _: SimpleNamespace(statistics=parts[group])),
        schema=SimpleNamespace(to_arrow_schema=lambda: pa.schema([("id", pa.int64())])),
    )
    assert json.loads(statistics(footer)) == {
        "numRecords": 2, "minValues": {}, "maxValues": {}, "nullCount": {"id": 0},
    }  # fmt: skip
    parts[1] = part(has_min_max=True, min=1, max=2)
    assert json.loads(statistics(footer))["minValues"] == {"id": 1}
    parts[0] = part(has_null_count=False)
    assert json.loads(statistics(footer))["nullCount"] == {}


def test_staged_windows_are_known_by_their_folders(make: Make, table: str) -> None:
    sink = make(final_by="at")
    for folder in ("__cutwater_end=60000", "__cutwater_end=__HIVE_DEFAULT_PARTITION__"):
        place = Path(sink.staging("a").removeprefix("file://"), folder)
        place.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), place / "part-0.parquet")
        pq.write_table(pa.table({"id": []}), place / "part-1.parquet")
    assert [file.end for file in sink.staged("a")] == [60_000, None]
    assert sink.measure(sink.staged("a"))[0] == 2


def test_a_table_that_cannot_be_read_is_an_error_of_the_sink(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make()
    publish(sink, 1, [1])
    publish(sink, 2, [2])

    def fail(*_: object, **__: object) -> None:
        raise DeltaError("no such luck")

    monkeypatch.setattr(sys.modules[DeltaSink.__module__], "DeltaTable", fail)
    with pytest.raises(SinkFailed, match="no such luck"):
        sink.rewind(1, 3, 0)


@pytest.mark.parametrize(
    ("name", "elsewhere"),
    [("s3://other/a.parquet", True), ("/other/a.parquet", True), ("a/b.parquet", False)],
)
def test_files_of_a_shallow_clone_lie_elsewhere(name: str, elsewhere: bool) -> None:
    assert is_elsewhere(name) is elsewhere


def test_partition_values_are_read_from_folders_that_name_a_column() -> None:
    name = "1-1-0-a/city/day=2024%2D01/kind=__HIVE_DEFAULT_PARTITION__/other=x/part=0.parquet"
    found = partition_values(name, ["city", "day", "kind", "part"])
    assert found == {"day": "2024-01", "kind": None}
