"""Stores of older versions, and one of the current format (`tests/support/stores/`), can be opened and continued."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import cutwater as cw
from cutwater.cli.main import app
from cutwater.plan.known_sources import KnownSource
from cutwater.protocol.base.paths import FORMAT_NAME, JOURNAL_PREFIX, SOURCE_PREFIX, mark_name
from cutwater.protocol.base.records import decode
from cutwater.store.at_rest import read_journal
from cutwater.store.format import CURRENT
from cutwater.store.opening import open_store
from tests.support.small_store import small_pipeline, unpacked

HELD = 40
"""The number of rows in its table."""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Written before control objects had checksums, and before stores recorded their format."""
    return unpacked("before-checksums.tar.gz", tmp_path)


@pytest.fixture
def current(tmp_path: Path) -> Path:
    """Written by `tests.support.small_store`."""
    return unpacked(f"format-{CURRENT}.tar.gz", tmp_path)


def ids(base: Path) -> list[int]:
    rows = pq.ParquetDataset(cw.parquet_files(str(base / "out"))).read()
    return sorted(rows.column("id").to_pylist())


def rows_at(base: Path, savepoint: str) -> int:
    """How many rows the table had at a savepoint, or has at the newest checkpoint."""
    version = cw.tables(str(base / "state"), savepoint)["out"]
    return pq.ParquetDataset(cw.parquet_files(str(base / "out"), version)).read().num_rows  # type: ignore[no-any-return]


def continue_and_restore(base: Path, spark: SparkSession) -> None:
    """Run the pipeline on a store: no row is missing or twice, neither with the newest checkpoint nor with a
    savepoint."""
    pipeline = small_pipeline(base)
    before, good = ids(base), rows_at(base, "good")
    assert before == list(range(len(before)))
    for restore, held in ((None, len(before)), ("good", good)):
        pipeline.run(str(base / "state"), spark=spark, once=True, every="1h", restore=restore)
        found = ids(base)
        assert found == list(range(len(found)))
        assert len(found) > held


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
    assert len(ids(old)) == HELD
    continue_and_restore(old, spark)
    store = open_store(str(old / "state"))
    state = read_journal(store).state
    assert state.head is not None
    written = store.read(mark_name(state.committed[state.head].index, "out"))
    assert written is not None
    assert b'"sum":' in written
    shown = CliRunner().invoke(app, ["verify", "--store", str(old / "state")])
    assert shown.exit_code == 0, shown.output


def test_a_store_of_the_current_format_says_so_and_has_no_problems(current: Path) -> None:
    store = open_store(str(current / "state"))
    assert msgspec.json.decode(store.read(FORMAT_NAME) or b"")["version"] == CURRENT
    (source,) = store.list(SOURCE_PREFIX)
    assert decode(source, store.read(source) or b"", KnownSource).stage == "files"
    for prefix in (JOURNAL_PREFIX, "published/", "sinks/", "graph/", SOURCE_PREFIX):
        names = [name for name in store.list(prefix) if name.endswith(".json")]
        assert names
        assert all(b'"sum":' in (store.read(name) or b"") for name in names), names
    shown = CliRunner().invoke(app, ["verify", "--store", str(current / "state")])
    assert shown.exit_code == 0, shown.output
    assert len(ids(current)) == rows_at(current, "latest")


def test_a_store_of_the_current_format_continues_and_can_be_restored(
    current: Path, spark: SparkSession
) -> None:
    continue_and_restore(current, spark)
    shown = CliRunner().invoke(app, ["verify", "--store", str(current / "state")])
    assert shown.exit_code == 0, shown.output
