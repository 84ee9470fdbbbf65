"""A function as a sink.

What can go wrong: it raises; the process dies between the call and the record of it; a zombie calls late; a restore
brings back rows that were held; it has no name.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession

from cutwater.protocol.base.effects import TableHead
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.paths import Attempt, staged_attempt_name
from cutwater.sinks import SinkFailed
from cutwater.sinks.footers import Footers
from cutwater.sinks.foreach_epoch import REMEMBERED, ForeachEpochSink, foreach_epoch
from cutwater.sinks.registry import open_sink
from cutwater.store.contract import Store
from tests.support.sink_helpers import ROWS, publish, schema, stage, store, write_with_spark

__all__ = ["store"]


SPARK: Any = SimpleNamespace()
Calls = list[tuple[int, list[int]]]
Make = Callable[..., ForeachEpochSink]


@pytest.fixture
def calls() -> Calls:
    return []


class Read:
    """Files as rows, without Spark."""

    def __init__(self, spark: Any) -> None:
        assert spark is SPARK

    def frame(self, urls: list[str], schema: str) -> Any:
        assert schema == json.dumps(json.loads(ROWS))
        tables = [pq.read_table(url.removeprefix("file://")) for url in urls]
        rows = [SimpleNamespace(id=i) for table in tables for i in table["id"].to_pylist()]
        return SimpleNamespace(collect=lambda: rows)


@pytest.fixture
def make(store: Store, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(sys.modules["cutwater.sinks.foreach_epoch"], "Files", Read)

    def note(rows: DataFrame, epoch: int) -> None:
        calls.append((epoch, sorted(row.id for row in rows.collect())))

    def bound(
        function: Any = note, rows: str = ROWS, mode: str = "append", **options: Any
    ) -> ForeachEpochSink:
        sink = foreach_epoch(function, **options)
        sink.output_mode = mode
        sink.bind(store, "note", rows)
        sink.attach(SPARK)
        return sink

    return bound


def test_the_function_gets_the_rows_of_an_epoch_once_it_is_committed(make: Make, calls: Calls) -> None:
    sink = make()
    assert (sink.name, sink.head()) == ("note", TableHead(-1, 0))
    files = stage(sink, "a", [1, 2]) + stage(sink, "b", [3])
    assert calls == []
    assert sink.publish(-1, 5, files, epoch=2) == 5
    assert calls == [(2, [1, 2, 3])]
    assert sink.head() == TableHead(5, 5)


def test_a_call_that_was_recorded_is_not_made_again(make: Make, calls: Calls) -> None:
    sink = make()
    files = stage(sink, "a", [1])
    assert sink.publish(-1, 5, files, epoch=2) == 5
    successor = make()
    assert successor.publish(-1, 5, files, epoch=2) is None
    assert successor.publish(5, 5, files, epoch=2) is None
    assert successor.find(5) == 5
    assert len(calls) == 1


def test_a_call_without_a_record_is_made_again_with_the_same_rows(make: Make, calls: Calls) -> None:
    class Killed(BaseException):
        """The process dies after the call."""

    def dying(rows: DataFrame, epoch: int) -> None:
        calls.append((epoch, sorted(row.id for row in rows.collect())))
        raise Killed

    files = stage(make(), "a", [1, 2])
    with pytest.raises(Killed):
        make(dying).publish(-1, 5, files, epoch=2)
    assert make().publish(-1, 5, files, epoch=2) == 5
    assert calls == [(2, [1, 2]), (2, [1, 2])]


def test_an_error_of_the_function_is_reported_and_the_call_retried(make: Make, calls: Calls) -> None:
    def failing(rows: DataFrame, epoch: int) -> None:
        raise LookupError("the mail server is down")

    sink = make(failing)
    files = stage(sink, "a", [1])
    with pytest.raises(SinkFailed, match=r"note.*epoch 2.*LookupError: the mail server is down") as caught:
        sink.publish(-1, 5, files, epoch=2)
    assert isinstance(caught.value, OSError)
    assert isinstance(caught.value.__cause__, LookupError)
    assert make().publish(-1, 5, files, epoch=2) == 5
    assert calls == [(2, [1])]


def test_an_error_of_spark_in_the_function_is_reported_without_the_stack_of_the_jvm(make: Make) -> None:
    class Py4JJavaError(Exception):
        pass

    def failing(rows: DataFrame, epoch: int) -> None:
        raise Py4JJavaError(
            "An error occurred while calling o11318.collectToPython.\n: org.apache.spark.SparkException: [FAILED_READ] x"
            "\n\tat org.apache.A.b(A.scala:1)\nCaused by: java.io.IOException: disk\n\tat org.apache.C.d(C.scala:2)\n"
        )

    sink = make(failing)
    with pytest.raises(SinkFailed) as caught:
        sink.publish(-1, 5, stage(sink, "a", [1]), epoch=2)
    assert str(caught.value) == (
        "sink note: its function failed on epoch 2: Py4JJavaError: org.apache.spark.SparkException: [FAILED_READ] x; "
        "caused by java.io.IOException: disk"
    )


def test_a_restore_undoes_no_call_and_stops_zombies(make: Make, calls: Calls) -> None:
    sink, zombie = make(), make()
    publish(sink, 5, [1])
    late = stage(zombie, "late", [2])
    assert sink.find(5) == 5
    assert sink.rewind(5, 9, 5) == 9
    assert sink.rewind(5, 9, 5) is None
    assert zombie.publish(5, 7, late, epoch=7) is None
    assert zombie.publish(9, 7, late, epoch=7) is None
    assert publish(sink, 11, [3]) == 11
    assert calls == [(5, [1]), (11, [3])]
    assert [sink.find(t) for t in (4, 5, 8, 9, 10, 11)] == [-1, 5, 5, 9, 9, 11]


def test_only_calls_after_the_target_of_a_restore_cannot_be_undone(make: Make) -> None:
    sink = make()
    publish(sink, 5, [1])
    assert not sink.cannot_undo(5)
    assert sink.rewind(5, 9, 5) == 9
    assert not sink.cannot_undo(5), "that was a restore, and not a call"
    publish(sink, 11, [2])
    assert sink.cannot_undo(5)
    assert sink.cannot_undo(-1)
    assert not sink.cannot_undo(11)


def test_files_that_a_faster_process_has_removed_are_not_an_error(
    make: Make, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow, fast = make(), make()
    files = stage(slow, "a", [1])
    check = Footers.check

    def check_late(footers: Footers, store: Store, names: tuple[str, ...]) -> list[Any]:
        monkeypatch.setattr(Footers, "check", check)
        fast.publish(-1, 5, files, epoch=2)
        fast.discard(keep=set())
        return check(footers, store, names)

    monkeypatch.setattr(Footers, "check", check_late)
    assert slow.publish(-1, 5, files, epoch=2) is None
    assert calls == [(2, [1])]


def test_files_are_kept_while_a_checkpoint_names_them(make: Make, store: Store, calls: Calls) -> None:
    """A restore may bring back a checkpoint that still held rows which were passed to the function later."""
    sink = make()
    files = stage(sink, "held", [1])
    sink.publish(-1, 5, files, epoch=2)
    stage(sink, "failed", [2])
    sink.discard(keep={"held"})
    assert sink.rewind(5, 9, -1) == 9
    assert sink.publish(9, 11, files, epoch=4) == 11
    assert calls == [(2, [1]), (4, [1])]
    sink.discard(keep=set())
    assert {name.split("/")[2] for name in store.list("staged/note/")} == {"done"}
    assert sink.head() == TableHead(11, 11)


def test_the_records_of_calls_can_be_read_from_the_store_alone(store: Store) -> None:
    sink = foreach_epoch(print, name="note")
    sink.bind(store, "note", ROWS)
    assert sink.rewind(-1, 9, -1) == 9
    opened = open_sink(store, "note")
    assert (opened.head(), opened.find(8), opened.find(10)) == (TableHead(9, 9), -1, 9)


def test_records_do_not_pile_up(make: Make, store: Store) -> None:
    sink = make()
    for transaction in range(1, REMEMBERED + 20):
        sink.rewind(sink.head().version, transaction, -1)
    assert len(store.list("staged/note/done/")) == REMEMBERED
    assert sink.head() == TableHead(REMEMBERED + 19, REMEMBERED + 19)


def test_a_window_is_passed_to_the_function_when_it_is_closed(store: Store, spark: SparkSession) -> None:
    rows = spark.sql("select id, window(timestamp_seconds(60 * id), '1 minute') window from range(3)")
    seen: list[Any] = []
    sink = foreach_epoch(lambda df, epoch: seen.append(df), final_by="window.end", name="note")
    sink.bind(store, "note", rows.schema.json())
    sink.attach(spark)
    staged = write_with_spark(sink, "a", rows)
    assert sorted(file.end or 0 for file in staged) == [60_000, 120_000, 180_000]
    sink.publish(-1, 5, tuple(f.name for f in staged if f.end is not None and f.end <= 120_000), epoch=1)
    (given,) = seen
    assert given.columns == ["id", "window"]
    assert sorted(given.collect()) == sorted(rows.where("id < 2").collect())


def of_batch(number: int) -> str:
    return staged_attempt_name(1, Attempt(3, number, "abcd"))


def test_in_complete_mode_the_function_gets_the_last_batch_of_an_epoch(make: Make, calls: Calls) -> None:
    sink = make(mode="complete")
    files = stage(sink, of_batch(10), [4, 5]) + stage(sink, of_batch(9), [1, 2, 3])
    assert sink.publish(-1, 5, files, epoch=2) == 5
    assert sink.publish(5, 7, stage(sink, of_batch(11), [6]) + stage(sink, of_batch(12), []), epoch=3) == 7
    assert calls == [(2, [4, 5]), (3, [])], "the last batch of epoch 3 has an empty result"
    assert stage(make(), "1-3-13-abcd", []) == (), "in append mode a file without rows says nothing"


def test_in_update_mode_each_row_says_from_which_batch_it_is(store: Store, spark: SparkSession) -> None:
    seen: list[Any] = []
    sink = foreach_epoch(lambda rows, epoch: seen.append((rows.dtypes, rows.collect())), name="note")
    sink.output_mode = "update"
    sink.bind(store, "note", ROWS)
    sink.attach(spark)
    files = stage(sink, of_batch(10), [1]) + stage(sink, of_batch(9), [1, 2])
    assert sink.publish(-1, 5, files, epoch=2) == 5
    ((columns, rows),) = seen
    assert columns == [("id", "bigint"), ("city", "string"), ("_batch", "bigint")]
    assert sorted((row.id, row._batch) for row in rows) == [(1, 9), (1, 10), (2, 9)]


def test_in_update_mode_no_column_of_the_user_is_named_as_the_batch_is(make: Make, store: Store) -> None:
    rows = schema(id="long", _Batch="long")
    with pytest.raises(UserError, match="gets a column '_Batch'"):
        make(rows=rows, mode="update")
    assert store.list("sinks/") == []
    assert make(rows=rows).schema == make(rows=rows, mode="complete").schema


@pytest.mark.parametrize("mode", ["complete", "update"])
def test_a_file_that_is_not_of_a_batch_is_not_shown(make: Make, calls: Calls, mode: str) -> None:
    sink = make(mode=mode)
    with pytest.raises(StoreError, match="not a file of a batch"):
        sink.publish(-1, 5, stage(sink, "a", [1]), epoch=2)
    assert calls == []


def test_a_lambda_needs_a_name() -> None:
    with pytest.raises(UserError, match=r"Give it another name with name="):
        foreach_epoch(lambda rows, epoch: None)
    assert foreach_epoch(lambda rows, epoch: None, name="mail").name == "mail"


def test_only_the_newest_records_of_calls_are_kept(store: Store) -> None:
    sink = foreach_epoch(print, "note")
    sink.bind(store, "note", ROWS)
    assert (sink.head(), sink.find(9)) == (TableHead(-1, 0), -1)
    assert sink.rewind(-1, 1, -1) == 1
    for transaction in range(2, REMEMBERED + 4):
        assert sink.rewind(transaction - 1, transaction, 0) == transaction
    assert sink.rewind(2, REMEMBERED + 9, 0) is None, "it has moved on since"
    last = REMEMBERED + 3
    assert sink.head() == TableHead(last, last)
    assert len(sink._transactions()) == REMEMBERED
    assert [sink.find(t) for t in (3, 4, last, last + 5)] == [-1, 4, last, last]
    with pytest.raises(UserError, match="needs a Spark session and an epoch"):
        sink.publish(last, last + 1, (), epoch=2)
    assert sink.publish(last, last, (), epoch=2) is None
