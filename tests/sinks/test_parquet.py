"""Parquet files as a sink: versions, schemas, buckets, and what readers see."""

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
from cutwater.sinks.parquet import LIST_ALL_EVERY, ParquetSink, parquet, parquet_files
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.sink_helpers import (
    ROWS,
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
    """Make the sink, as each process does."""

    def bound(rows: str = ROWS, store: Store = store, **options: Any) -> ParquetSink:
        sink = parquet(folder, **options)
        sink.bind(store, "files", rows)
        return sink

    return bound


def ids(folder: str, version: int | None = None) -> list[int]:
    return [
        i for file in parquet_files(folder, version) for i in pq.read_table(file).column("id").to_pylist()
    ]


def test_files_are_listed_in_the_order_of_publishing(make: Make, folder: str) -> None:
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


def test_listing_a_missing_folder_is_an_error(folder: str) -> None:
    with pytest.raises(StoreError, match="no such folder"):
        parquet_files(folder)


def test_a_rewind_to_files_that_are_gone_says_so(make: Make, folder: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    publish(sink, 6, [2])
    Path(parquet_files(folder)[0]).unlink()
    with pytest.raises(StoreError, match=r"1 of its files are gone.*part-0\.parquet"):
        sink.rewind(1, 9, 0)
    assert sink.head() == TableHead(1, 6)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (schema(id="long", city="string", more="string"), "no column more"),
        (schema(id="integer", city="string"), "id is integer"),
        (schema(id="long"), "columns that are missing from the rows"),
    ],
)
def test_rows_with_another_schema_than_the_existing_files_are_refused(
    make: Make, rows: str, why: str
) -> None:
    early = make(rows)  # before there were files to compare with
    publish(make(), 5, [1])
    with pytest.raises(UserError, match=why):
        make(rows)
    with pytest.raises(UserError, match=why):
        early.publish(0, 6, ())


@pytest.mark.slow
def test_a_thousand_versions_can_be_published(make: Make, folder: str) -> None:
    sink = make()
    files = [stage(sink, f"a{i}", [i]) for i in range(1000)]
    for i, names in enumerate(files):
        assert sink.publish(i - 1, i + 1, names) == i
    assert len(parquet_files(folder)) == 1000
    assert (ids(folder, 149), sink.find(500), make().head()) == (list(range(150)), 499, TableHead(999, 1000))
    assert sink.rewind(999, 2000, 549) == 1000
    assert ids(folder) == list(range(550))


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


def test_files_can_be_read_with_spark_duckdb_and_arrow(make: Make, folder: str, spark: SparkSession) -> None:
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


def test_other_files_beside_the_versions_are_ignored(make: Make, folder: str) -> None:
    publish(make(), 5, [1])
    Path(folder, "_cutwater/versions/README").write_text("hello")
    assert make().head() == TableHead(0, 5)
    assert publish(make(), 6, [2]) == 1
    assert ids(folder) == [1, 2]


def test_some_versions_list_all_files(make: Make, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[ParquetSink.__module__], "LIST_ALL_EVERY", 3)
    sink = make()
    for number in range(8):
        assert sink.publish(number - 1, number + 1, stage(sink, f"a{number}", [number])) == number
        assert ids(folder) == list(range(number + 1))
    assert [ids(folder, version) for version in (2, 3, 4, 6)] == [list(range(n + 1)) for n in (2, 3, 4, 6)]


def test_every_hundredth_version_lists_all_files() -> None:
    assert LIST_ALL_EVERY == 100, "readers rely on it: another number cannot read existing tables"


def test_history_before_the_first_version_is_empty(make: Make, folder: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    assert sink.history(4) == TableHistory(0, 0, ())
    assert sink.history(5) == TableHistory(5, 1, ())


def test_missing_and_damaged_files_are_reported(make: Make, folder: str) -> None:
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
    assert why.endswith(", which the target shows, is missing")
    for version in Path(folder, "_cutwater", "versions").iterdir():
        version.write_bytes(b"no")
    assert len(sink.problems(())) == 1
