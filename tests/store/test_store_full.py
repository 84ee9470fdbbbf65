"""A store on a full or read-only disk: this is reported, nothing hangs, and the run continues when there is space."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from pyspark.sql import DataFrame, SparkSession
from typer.testing import CliRunner

import cutwater as cw
from cutwater.cli.main import app
from cutwater.protocol.base.errors import CutwaterError
from tests.support.spark_helpers import NUMBERS, await_that, deliver, numbers, rows_of

SIZE = 4 << 20
LEFT = 48 << 10
FULL = "No space left on device"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small separate disk."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def new_pipeline(base: Path) -> cw.Pipeline:
    pipeline = cw.Pipeline("full", chain=False)

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(base / "in"))

    @pipeline.stage(sinks=[cw.delta(str(base / "out"))])
    def copy(source: DataFrame) -> DataFrame:
        return source.select("id")

    return pipeline


def fill(disk: Path, left: int) -> Path:
    """Fills a disk except for `left` bytes, and returns the file that takes up the rest."""
    ballast = disk / "ballast"
    free = os.statvfs(disk)
    with suppress(OSError):
        ballast.write_bytes(bytes(max(0, free.f_bavail * free.f_bsize - left)))
    return ballast


def test_a_full_disk_is_reported_and_the_run_continues_or_fails_clearly_and_nothing_is_lost(
    spark: SparkSession, tmp_path: Path, disk: Path, log_lines: list[str]
) -> None:
    deliver(tmp_path / "in", "one", numbers(range(20)))
    new_pipeline(tmp_path).run(str(disk / "store"), spark=spark, once=True)
    deliver(tmp_path / "in", "two", numbers(range(20, 4_000)))
    ballast = fill(disk, LEFT)
    pipeline = new_pipeline(tmp_path)

    def run() -> None:
        try:
            pipeline.run(str(disk / "store"), spark=spark, once=True, every="1s", restarts=1)
        except CutwaterError as error:
            log_lines.append(f"ended: {error}")

    running = Thread(target=run)
    running.start()
    await_that("somebody says that the disk is full", lambda: any(FULL in line for line in log_lines), 180)
    ballast.unlink()
    running.join(180)
    assert not running.is_alive(), "it hangs"
    assert not any("Traceback" in line for line in log_lines)
    if any(line.startswith("ended: ") for line in log_lines):
        new_pipeline(tmp_path).run(str(disk / "store"), spark=spark, once=True)
    assert [row[0] for row in rows_of(tmp_path / "out")] == list(range(4_000))


def test_a_read_only_store_is_refused_for_a_run_and_can_be_inspected(
    spark: SparkSession, tmp_path: Path, disk: Path
) -> None:
    deliver(tmp_path / "in", "one", numbers(range(20)))
    store = str(disk / "store")
    new_pipeline(tmp_path).run(store, spark=spark, once=True)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    with pytest.raises(CutwaterError, match=r"cannot be used as a store: Read-only file system"):
        new_pipeline(tmp_path).run(store, spark=spark, once=True)
    for words in (["verify"], ["checkpoints"], ["tables"], ["status"]):
        shown = CliRunner().invoke(app, [*words, "--store", store])
        assert shown.exit_code == 0, shown.output
    for words in (["restore", "latest"], ["savepoint", "good", "--epoch", "latest"]):
        shown = CliRunner().invoke(app, [*words, "--store", store])
        assert shown.exit_code != 0, shown.output
        assert isinstance(shown.exception, SystemExit), repr(shown.exception)
        assert "Read-only file system" in shown.output + shown.stderr
    assert [row[0] for row in rows_of(tmp_path / "out")] == list(range(20))
