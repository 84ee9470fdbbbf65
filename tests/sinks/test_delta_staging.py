"""Delta tables: opening them from the store alone, durability, discarding attempts, buckets."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from cutwater.protocol.base.effects import TableHead
from cutwater.protocol.base.errors import StoreError
from cutwater.sinks import footers
from cutwater.sinks.delta import reading
from cutwater.sinks.delta.making import delta
from cutwater.sinks.footers import check_pages, statistics
from cutwater.sinks.registry import open_sink
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.delta_helpers import Make, clean_up_log, ids, make, table
from tests.support.sink_helpers import (
    ROWS,
    bucket,
    needs_server,
    publish,
    stage,
    stage_object,
    store,
)

__all__ = ["bucket", "make", "store", "table"]


def test_a_sink_with_a_relative_path_can_be_opened_from_anywhere(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = delta("out/table")
    sink.bind(store, "table", ROWS)
    publish(sink, 5, [1])
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert open_sink(store, "table").head() == TableHead(0, 5)


def test_a_sink_that_cannot_be_opened_is_named(make: Make, table: str, store: Store) -> None:
    with pytest.raises(StoreError, match="does not record where sink other writes to"):
        open_sink(store, "other")
    make()
    shutil.rmtree(table)
    with pytest.raises(StoreError, match=r"sink table cannot be opened.*no such folder"):
        open_sink(store, "table")


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the files and folders that were synced."""
    paths: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        paths.append(os.readlink(f"/proc/self/fd/{handle}"))
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return paths


def test_staged_files_are_durable_before_they_are_reported(make: Make, table: str, synced: list[str]) -> None:
    (name,) = stage(make(), "a", [1])
    file = Path(table, name)
    assert {str(file), *(str(folder) for folder in list(file.parents)[:4])} <= set(synced)


@pytest.mark.parametrize("to_version", [0, -1], ids=["to a version", "to before the first"])
def test_a_rewind_is_durable_when_it_returns(
    make: Make, table: str, synced: list[str], to_version: int
) -> None:
    sink = make()
    for transaction in (5, 6):
        publish(sink, transaction, [transaction])
    synced.clear()
    assert sink.rewind(1, 9, to_version) == 2
    log = Path(table, "_delta_log")
    assert {str(log / f"{2:020d}.json"), str(log)} <= set(synced)


def attempts(table: str) -> set[str]:
    return {folder.name for folder in Path(table, "_cutwater").glob("*/*")}


def test_leftover_folders_are_discarded_and_attempts_in_any_version_are_kept(make: Make, table: str) -> None:
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
    """Any attempt may be in the table then."""
    sink = make()
    for transaction in range(4):
        publish(sink, transaction + 1, [transaction])
    stage(sink, "failed", [99])
    Path(table, "_delta_log", f"{1:020d}.json").unlink()
    before = attempts(table)
    with pytest.raises(StoreError, match=r"begins at version 2, and there is no checkpoint"):
        sink.discard(keep=set())
    assert attempts(table) == before


@needs_server
def test_a_table_in_a_bucket(bucket: str, store: Store) -> None:
    sink = delta(f"{bucket}/table", partition_by="city")
    sink.bind(store, "table", ROWS)
    files = stage_object(sink, "a", [1], folder="city=a b%2Fc%25/")
    assert sink.publish(-1, 5, files) == 0
    assert reading.load(f"{bucket}/table").to_pyarrow_table().to_pylist() == [{"id": 1, "city": "a b/c%"}]
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


def test_a_file_with_the_wrong_size_is_reported(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    assert sink.problems(()) == []
    (file,) = (path for path in Path(table).rglob("*.parquet") if "_delta_log" not in path.parts)
    file.write_bytes(file.read_bytes() + b"x")
    (why,) = sink.problems(())
    assert f"has {file.stat().st_size} bytes, but according to the target {file.stat().st_size - 1}" in why


def test_an_unreadable_commit_of_the_table_is_named(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    publish(sink, 6, [2])
    assert sink.head() == TableHead(1, 6)
    Path(table, "_delta_log", f"{1:020}.json").write_bytes(b"{no")
    with pytest.raises(StoreError, match=rf"{1:020}\.json in the table is damaged"):
        sink.head()


def test_statistics_leave_out_dates_that_python_cannot_represent(tmp_path: Path) -> None:
    far = pa.array([3_000_000], pa.int32()).cast(pa.date32())
    pq.write_table(pa.table({"id": pa.array([1], pa.int64()), "day": far}), tmp_path / "x.parquet")
    found = json.loads(statistics(pq.read_metadata(tmp_path / "x.parquet")))
    assert found == {"numRecords": 1, "nullCount": {"id": 0, "day": 0}}
    opened = open_store(str(tmp_path))
    assert check_pages(opened, "x.parquet") == 1
    assert footers.read_footers(opened, []) == []


def test_a_column_of_nan_matches_any_bounds(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [float("nan")], "y": [None], "z": [0.5]}), tmp_path / "x.parquet")
    assert check_pages(open_store(str(tmp_path)), "x.parquet") == 1
