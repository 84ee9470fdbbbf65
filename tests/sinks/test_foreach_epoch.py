"""A function as a sink.

What can go wrong: it raises; the process dies after the call and before the record of it; a zombie calls
late; a restore brings back rows that are held; nobody says what to call it.
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
from cutwater.sinks import SinkFailed, open_sinks
from cutwater.sinks.footers import Footers
from cutwater.sinks.foreach_epoch import REMEMBERED, ForeachEpochSink, foreach_epoch
from cutwater.store.contract import Store
from tests.support.sink_helpers import ROWS, publish, stage, store, write_with_spark

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

    def bound(function: Any = note, rows: str = ROWS, **options: Any) -> ForeachEpochSink:
        sink = foreach_epoch(function, **options)
        sink.bind(store, "note", rows)
        sink.attach(SPARK)
        return sink

    return bound


def test_the_function_gets_the_rows_of_an_epoch_once_it_is_committed(make: Make, calls: Calls) -> None:
    sink = make()
    assert (sink.name, sink.rewinds, sink.head()) == ("note", False, TableHead(-1, 0))
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
        """The process dies behind the call."""

    def dying(rows: DataFrame, epoch: int) -> None:
        calls.append((epoch, sorted(row.id for row in rows.collect())))
        raise Killed

    files = stage(make(), "a", [1, 2])
    with pytest.raises(Killed):
        make(dying).publish(-1, 5, files, epoch=2)
    assert make().publish(-1, 5, files, epoch=2) == 5
    assert calls == [(2, [1, 2]), (2, [1, 2])]


def test_a_function_that_raises_is_tried_again_and_heard(make: Make, calls: Calls) -> None:
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


def test_a_restore_takes_nothing_back_and_stops_zombies(make: Make, calls: Calls) -> None:
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


def test_rows_without_their_files_are_an_error_and_no_call(make: Make, store: Store, calls: Calls) -> None:
    sink = make()
    files = stage(sink, "a", [1])
    store.delete(files)
    with pytest.raises(StoreError, match="is gone"):
        sink.publish(-1, 5, files, epoch=2)
    assert (calls, sink.head()) == ([], TableHead(-1, 0))


def test_files_that_a_faster_process_has_cleared_away_are_no_error(
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


def test_files_are_there_until_nobody_names_them(make: Make, store: Store, calls: Calls) -> None:
    """A restore may bring back a checkpoint in which rows were still held that have been given since."""
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


def test_what_was_called_is_known_to_whoever_has_only_the_store(store: Store) -> None:
    sink = foreach_epoch(print, name="note")
    sink.bind(store, "note", ROWS)
    assert sink.rewind(-1, 9, -1) == 9
    opened = open_sinks(store, ["note"])["note"]
    assert (opened.head(), opened.find(8), opened.find(10)) == (TableHead(9, 9), -1, 9)


def test_records_do_not_pile_up(make: Make, store: Store) -> None:
    sink = make()
    for transaction in range(1, REMEMBERED + 20):
        sink.rewind(sink.head().version, transaction, -1)
    assert len(store.list("staged/note/done/")) == REMEMBERED
    assert sink.head() == TableHead(REMEMBERED + 19, REMEMBERED + 19)


def test_a_window_is_given_when_it_is_closed(store: Store, spark: SparkSession) -> None:
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


def test_a_function_without_a_name_needs_one() -> None:
    with pytest.raises(UserError, match=r"Give it one with name="):
        foreach_epoch(lambda rows, epoch: None)
    assert foreach_epoch(lambda rows, epoch: None, name="mail").name == "mail"


def test_what_was_done_is_known_by_its_records_and_only_so_many_are_kept(store: Store) -> None:
    sink = foreach_epoch(print, "note")
    sink.bind(store, "note", ROWS)
    assert (sink.head(), sink.find(9)) == (TableHead(-1, 0), -1)
    assert sink.rewind(-1, 1, -1) == 1
    for transaction in range(2, REMEMBERED + 4):
        assert sink.rewind(transaction - 1, transaction, 0) == transaction
    assert sink.rewind(2, REMEMBERED + 9, 0) is None, "it has gone on since"
    last = REMEMBERED + 3
    assert sink.head() == TableHead(last, last)
    assert len(sink._transactions()) == REMEMBERED
    assert [sink.find(t) for t in (3, 4, last, last + 5)] == [-1, 4, last, last]
    with pytest.raises(UserError, match="needs a Spark session and an epoch"):
        sink.publish(last, last + 1, (), epoch=2)
    assert sink.publish(last, last, (), epoch=2) is None
