"""Parquet files as a sink: the same dangers as with Delta tables, and versions that are our own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from cutwater.protocol.base.effects import TableHead, TableHistory
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.sinks import open_sinks
from cutwater.sinks.parquet import LIST_ALL_EVERY, ParquetSink, parquet, parquet_files
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.sink_helpers import (
    ROWS,
    at_once,
    bucket,
    needs_server,
    publish,
    schema,
    stage,
    stage_object,
    store,
    write_with_spark,
)

__all__ = ["bucket", "store"]

Make = Callable[..., ParquetSink]


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "files")


@pytest.fixture
def make(folder: str, store: Store) -> Make:
    """Makes the sink as each process does that hosts it."""

    def bound(rows: str = ROWS, store: Store = store, **options: Any) -> ParquetSink:
        sink = parquet(folder, **options)
        sink.bind(store, "files", rows)
        return sink

    return bound


def ids(folder: str, version: int | None = None) -> list[int]:
    return [
        i for file in parquet_files(folder, version) for i in pq.read_table(file).column("id").to_pylist()
    ]


def test_files_are_listed_when_they_are_published_in_that_order(make: Make, folder: str) -> None:
    sink = make()
    assert sink.head() == TableHead(-1, 0)
    files = stage(sink, "b", [2])
    assert parquet_files(folder) == []
    assert sink.publish(-1, 5, files, epoch=1) == 0
    assert publish(sink, 6, [1]) == 1
    assert sink.head() == TableHead(1, 6)
    assert (ids(folder), ids(folder, 0), ids(folder, -1)) == ([2, 1], [2], [])
    with pytest.raises(UserError, match="no version 2; its versions are 0 to 1"):
        parquet_files(folder, 2)


def test_a_folder_that_is_not_there_has_no_files_to_list(folder: str) -> None:
    with pytest.raises(StoreError, match="no such folder"):
        parquet_files(folder)


def test_a_successor_finds_what_was_published_before_the_crash(make: Make, folder: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    files = stage(sink, "b", [2])
    assert sink.publish(0, 7, files) == 1
    successor = make()
    assert successor.head() == TableHead(1, 7)
    assert successor.publish(0, 7, files) is None
    assert successor.publish(1, 7, files) is None
    assert (successor.find(7), ids(folder)) == (1, [1, 2])


@pytest.mark.parametrize("first", [True, False], ids=["first version", "later version"])
def test_of_many_that_publish_the_same_at_once_one_does(make: Make, folder: str, first: bool) -> None:
    sinks = [make() for _ in range(4)]
    expected = -1 if first else publish(sinks[0], 4, [9])
    assert expected is not None
    files = stage(sinks[0], "a", [1])
    answers = at_once(*(lambda s=s: s.publish(expected, 5, files) for s in sinks))
    assert sorted(answers, key=str) == [expected + 1, None, None, None]
    assert {sink.head() for sink in sinks} == {TableHead(expected + 1, 5)}
    assert ids(folder) == ([1] if first else [9, 1])


def test_a_rewind_brings_files_back_and_publishing_goes_on(make: Make, folder: str) -> None:
    sink, zombie = make(), make()
    for transaction in (5, 6, 7):
        publish(sink, transaction, [transaction])
    late = stage(zombie, "late", [8])
    assert sink.rewind(2, 9, 0) == 3
    assert zombie.publish(2, 8, late) is None
    assert zombie.publish(3, 8, late) is None
    assert sink.rewind(3, 9, 0) is None
    assert (ids(folder), sink.head()) == ([5], TableHead(3, 9))
    assert publish(sink, 11, [11]) == 4
    assert (ids(folder), ids(folder, 2)) == ([5, 11], [5, 6, 7])
    assert [sink.find(t) for t in (4, 5, 6, 7, 8, 9, 10, 11, 12)] == [-1, 0, 1, 2, 2, 3, 3, 4, 4]


def test_a_rewind_to_before_the_first_version_leaves_nothing(make: Make, folder: str) -> None:
    sink, zombie = make(), make()
    late = stage(zombie, "late", [8])
    assert sink.rewind(-1, 4, -1) == 0
    assert zombie.publish(-1, 3, late) is None
    publish(sink, 5, [1])
    assert sink.rewind(1, 9, -1) == 2
    assert ids(folder) == []


def test_a_rewind_to_files_that_are_gone_says_so(make: Make, folder: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    publish(sink, 6, [2])
    Path(parquet_files(folder)[0]).unlink()
    with pytest.raises(StoreError, match=r"1 of its files are gone.*part-0\.parquet"):
        sink.rewind(1, 9, 0)
    assert sink.head() == TableHead(1, 6)


def test_a_version_whose_files_are_gone_is_not_found(make: Make, folder: str) -> None:
    sink = make()
    for transaction in (5, 6, 7):
        publish(sink, transaction, [transaction])
    sink.rewind(2, 8, 0)
    assert [sink.find(t) for t in (4, 5, 6, 7, 8)] == [-1, 0, 1, 2, 3]
    next(Path(folder, "_cutwater").glob("*/attempt-6/*")).unlink()
    assert [sink.find(t) for t in (4, 5, 6, 7, 8)] == [-1, 0, None, None, 3]
    with pytest.raises(StoreError, match="1 of its files are gone"):
        sink.rewind(3, 9, 1)
    assert sink.rewind(3, 9, 0) == 4


def test_a_sink_is_asked_by_whoever_has_only_the_store(make: Make, store: Store) -> None:
    sink = make(partition_by="city")
    publish(sink, 5, [1])
    opened = open_sinks(store, ["files"])["files"]
    assert (opened.partition_by, opened.head(), opened.find(4)) == (("city",), TableHead(0, 5), -1)


def test_a_sink_keeps_its_name(make: Make, folder: str, store: Store) -> None:
    make()
    with pytest.raises(UserError, match="write name='files'"):
        parquet(folder).bind(store, "renamed", ROWS)


def test_a_staged_file_that_is_gone_is_an_error_and_no_version(make: Make, folder: str) -> None:
    sink = make()
    (name,) = stage(sink, "a", [1])
    Path(folder, name).unlink()
    with pytest.raises(StoreError, match="is gone"):
        sink.publish(-1, 5, (name,))
    assert sink.head() == TableHead(-1, 0)


def test_two_stores_that_write_to_one_folder_do_not_take_each_other_for_themselves(
    make: Make, folder: str, tmp_path: Path
) -> None:
    first = make()
    publish(first, 500, [1])
    second = make(store=open_store(str(tmp_path / "other"), create=True))
    assert publish(second, 5, [2]) == 1
    assert (first.head(), second.head()) == (TableHead(1, 500), TableHead(1, 5))
    assert (first.find(500), second.find(4), second.find(5)) == (0, 0, 1)
    with pytest.raises(UserError, match="--force"):
        first.rewind(1, 501, 0)
    first.discard(keep=set())
    second.discard(keep=set())
    assert ids(folder) == [1, 2]
    assert make().rewind(1, 501, 0, force=True) == 2
    assert ids(folder) == [1]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (schema(id="long", city="string", more="string"), "no column more"),
        (schema(id="integer", city="string"), "id is integer"),
        (schema(id="long"), "columns that the rows do not have"),
    ],
)
def test_rows_that_look_different_from_those_that_are_there_are_refused(
    make: Make, rows: str, why: str
) -> None:
    early = make(rows)  # when there was nothing to compare with
    publish(make(), 5, [1])
    with pytest.raises(UserError, match=why):
        make(rows)
    with pytest.raises(UserError, match=why):
        early.publish(0, 6, ())


@pytest.mark.slow
def test_a_thousand_versions(make: Make, folder: str) -> None:
    sink = make()
    files = [stage(sink, f"a{i}", [i]) for i in range(1000)]
    for i, names in enumerate(files):
        assert sink.publish(i - 1, i + 1, names) == i
    assert len(parquet_files(folder)) == 1000
    assert (ids(folder, 149), sink.find(500), make().head()) == (list(range(150)), 499, TableHead(999, 1000))
    assert sink.rewind(999, 2000, 549) == 1000
    assert ids(folder) == list(range(550))


def test_only_attempts_that_nobody_names_are_discarded(make: Make, folder: str) -> None:
    sink = make()
    publish(sink, 1, [1])
    publish(sink, 2, [2])
    sink.rewind(1, 3, 0)
    stage(sink, "kept", [3])
    stage(sink, "failed", [4])
    make().discard(keep={"kept"})
    (own,) = [f for f in Path(folder, "_cutwater").iterdir() if f.name != "versions"]
    assert {attempt.name for attempt in own.iterdir()} == {"attempt-1", "attempt-2", "kept"}
    publish(sink, 4, [5])
    sink.discard(keep=set())
    assert {attempt.name for attempt in own.iterdir()} == {"attempt-1", "attempt-2", "attempt-4"}
    assert ids(folder) == [1, 5]


@needs_server
def test_files_in_a_bucket(bucket: str, store: Store) -> None:
    sink = parquet(f"{bucket}/files")
    sink.bind(store, "files", schema(id="long"))
    assert sink.publish(-1, 5, stage_object(sink, "a", [1])) == 0
    assert sink.publish(0, 6, stage_object(sink, "b", [2])) == 1
    files = parquet_files(f"{bucket}/files")
    assert [file.split("/")[-2] for file in files] == ["a", "b"]
    assert open_store(files[1].rsplit("/", 1)[0]).exists("part-0.parquet")
    assert sink.rewind(1, 9, 0) == 2
    assert parquet_files(f"{bucket}/files") == files[:1]


def test_what_spark_wrote_is_read_by_spark_duckdb_and_arrow(
    make: Make, folder: str, spark: SparkSession
) -> None:
    rows = spark.sql(
        "select id, window(timestamp_seconds(60 * id), '1 minute') window, "
        "if(id % 2 = 0, 'a/b=c %', null) kind from range(4)"
    )
    sink = make(rows.schema.json(), partition_by="kind", final_by="window.end")
    staged = write_with_spark(sink, "a", rows)
    assert sorted(file.end or 0 for file in staged) == [60_000, 120_000, 180_000, 240_000]
    sink.publish(-1, 1, tuple(f.name for f in staged if f.end is not None and f.end < 200_000))
    files = parquet_files(folder)

    back = spark.read.parquet(*files)
    assert back.columns == ["id", "window", "kind"]
    assert sorted(back.collect()) == sorted(rows.where("id < 3").collect())
    found = duckdb.read_parquet(files, hive_partitioning=False).order("id")
    assert found.columns == ["id", "window", "kind"]
    assert found.project("id, kind").fetchall() == [(0, "a/b=c %"), (1, None), (2, "a/b=c %")]
    assert sorted(ids(folder)) == [0, 1, 2]


def test_what_is_no_version_is_passed_over(make: Make, folder: str) -> None:
    publish(make(), 5, [1])
    Path(folder, "_cutwater/versions/README").write_text("hello")
    assert make().head() == TableHead(0, 5)
    assert publish(make(), 6, [2]) == 1
    assert ids(folder) == [1, 2]


def test_every_so_often_a_version_lists_all_files(
    make: Make, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[ParquetSink.__module__], "LIST_ALL_EVERY", 3)
    sink = make()
    for number in range(8):
        assert sink.publish(number - 1, number + 1, stage(sink, f"a{number}", [number])) == number
        assert ids(folder) == list(range(number + 1))
    assert [ids(folder, version) for version in (2, 3, 4, 6)] == [list(range(n + 1)) for n in (2, 3, 4, 6)]


def test_every_hundredth_version_lists_all_files_in_tables_that_are_there_already() -> None:
    assert LIST_ALL_EVERY == 100, "readers rely on it: another number cannot read what older versions wrote"


def test_before_its_first_version_a_table_had_nothing(make: Make, folder: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    assert sink.history(4) == TableHistory(0, 0, ())
    assert sink.history(5) == TableHistory(5, 1, ())


def test_files_of_a_table_that_are_gone_or_damaged_are_told(make: Make, folder: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    assert sink.problems(()) == []
    (file,) = (Path(path) for path in parquet_files(folder))
    data = file.read_bytes()
    file.write_bytes(data[:-1])
    (why,) = sink.problems(())
    assert "is damaged" in why
    file.unlink()
    (why,) = sink.problems(())
    assert why.endswith("is missing, which the target shows")
    for version in Path(folder, "_cutwater", "versions").iterdir():
        version.write_bytes(b"no")
    assert len(sink.problems(())) == 1
