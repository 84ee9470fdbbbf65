"""A micro-batch and its targets: all of them get the same rows, each in its own layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession

from cutwater.sinks import Sink, delta, parquet
from cutwater.spark.query import BatchWriter
from cutwater.stores import Store, open_store

NEVER_THE_SAME = """
    select id, reflect('java.util.UUID', 'randomUUID') drawn, id % 3 kind,
    window(timestamp_seconds(60 * (id % 4)), '1 minute') window from range(100)"""
"""Each time that this is computed other values come of it."""


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql(NEVER_THE_SAME)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


def writer(store: Store, rows: DataFrame, sinks: Sequence[Sink], has_readers: bool) -> BatchWriter:
    for sink in sinks:
        sink.bind(store, sink.name, rows.schema.json())
    return BatchWriter(store, "s", 1, 1, -1, rows.schema, (), sinks, has_readers, False, lambda batch: None)


def drawn(folder: Path, names: Sequence[str]) -> list[str]:
    found = [value for name in names for value in pq.ParquetFile(folder / name).read()["drawn"].to_pylist()]
    return sorted(found)


@pytest.mark.parametrize("has_readers", [True, False], ids=["with readers", "only sinks"])
def test_every_target_of_a_batch_shows_the_same_version_of_its_rows(
    tmp_path: Path, store: Store, rows: DataFrame, has_readers: bool
) -> None:
    sinks = [
        delta(str(tmp_path / "plain")),
        delta(str(tmp_path / "parts"), partition_by="kind"),
        parquet(str(tmp_path / "files"), partition_by="kind"),
        delta(str(tmp_path / "final"), final_by="window.end"),
    ]
    files, staged, count, _ = writer(store, rows, sinks, has_readers)._write(rows, "1-0-a")
    seen = {name: drawn(tmp_path / name, [f.name for f in found]) for name, found in staged.items()}
    if has_readers:
        seen["channel"] = drawn(tmp_path / "store", files)
    assert count == 100
    assert seen.keys() == {"plain", "parts", "files", "final", *(["channel"] if has_readers else [])}
    assert len(set(seen["plain"])) == 100
    assert all(values == seen["plain"] for values in seen.values())


def test_a_final_sink_beside_a_channel_has_its_windows_apart(
    tmp_path: Path, store: Store, rows: DataFrame
) -> None:
    """A link to the channel's file would put all windows into one, and show them at once."""
    sinks = [delta(str(tmp_path / "final"), final_by="window.end")]
    _, staged, _, _ = writer(store, rows, sinks, has_readers=True)._write(rows, "1-0-a")
    assert {file.end for file in staged["final"]} == {60_000, 120_000, 180_000, 240_000}
    for file in staged["final"]:
        ids = pq.ParquetFile(tmp_path / "final" / file.name).read()["id"].to_pylist()
        assert file.end is not None
        assert {i % 4 for i in ids} == {file.end // 60_000 - 1}
