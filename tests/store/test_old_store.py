"""A store written before control objects had checksums (`tests/support/stores/`) can be opened and continued."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import cutwater as cw
from cutwater.cli.main import app
from cutwater.protocol.base.paths import JOURNAL_PREFIX, mark_name
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store

HELD = 40
"""The number of rows in its table."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    with tarfile.open(
        Path(__file__).parents[1] / "support" / "stores" / "before-checksums.tar.gz"
    ) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def ids(base: Path) -> list[int]:
    rows = pq.ParquetDataset(cw.parquet_files(str(base / "out"))).read()
    return sorted(rows.column("id").to_pylist())


def rows_at(base: Path, savepoint: str) -> int:
    """How many rows the table had at a savepoint."""
    state = read_journal(open_store(str(base / "state"))).state
    version = cw.tables(str(base / "state"), state.savepoints[savepoint])["out"]
    return pq.ParquetDataset(cw.parquet_files(str(base / "out"), version)).read().num_rows  # type: ignore[no-any-return]


def test_it_has_no_checksums_and_still_no_problems(old: Path) -> None:
    store = open_store(str(old / "state"))
    for prefix in (JOURNAL_PREFIX, "stages/", "published/", "sinks/", "graph/", "checkpoints/"):
        names = [name for name in store.list(prefix) if name.endswith(".json")]
        assert names
        assert not any(b'"sum":' in (store.read(name) or b"") for name in names)
    shown = CliRunner().invoke(app, ["verify", "--store", str(old / "state")])
    assert shown.exit_code == 0, shown.output
    assert cw.tables(str(old / "state")) == {"out": 2}


def test_it_continues_and_can_be_restored(old: Path, spark: SparkSession) -> None:
    pipeline = cw.Pipeline("old")

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        numbers = spark.readStream.format(
            "rate-micro-batch"
        )  # its offsets contain no paths, so the store can be moved
        return numbers.option("rowsPerBatch", 5).option("startTimestamp", 0).load()

    @pipeline.stage(sinks=[cw.parquet(str(old / "out"))])
    def kept(source: DataFrame) -> DataFrame:
        return source.selectExpr("value as id")

    assert ids(old) == list(range(HELD))
    good = rows_at(old, "good")
    for restore, held in ((None, HELD), ("good", good)):
        pipeline.run(str(old / "state"), spark=spark, once=True, every="1h", restore=restore)
        found = ids(old)
        assert found == list(range(len(found)))
        assert len(found) > held
    store = open_store(str(old / "state"))
    state = read_journal(store).state
    assert state.head is not None
    written = store.read(mark_name(state.committed[state.head].index, "out"))
    assert written is not None
    assert b'"sum":' in written
    shown = CliRunner().invoke(app, ["verify", "--store", str(old / "state")])
    assert shown.exit_code == 0, shown.output
