"""A real pipeline while it runs: what happens to its queries, how it comes to rest, and what its tables show then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw
from cutwater.spark.checkpoint import incarnations as folders
from tests.support.spark_helpers import NUMBERS, await_that, deliver, numbers, rows_of

WINDOWS = 9
"""Of a thousand rows, a tenth of a second apart, in windows of ten seconds: the last one is still open."""


@pytest.mark.parametrize("has_event_time", [True, False])
def test_a_source_without_a_row_holds_back_no_final_table_of_another_branch(
    tmp_path: Path, spark: SparkSession, has_event_time: bool
) -> None:
    deliver(tmp_path / "in", "0", numbers(range(1_000)))
    (tmp_path / "empty").mkdir()
    pipeline = cw.Pipeline("final")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "windows"), final_by="window.end")])
    def windows(spark: SparkSession) -> DataFrame:
        rows = spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))
        return rows.withWatermark("ts", "1 second").groupBy(F.window("ts", "10 seconds")).count()

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "other"))])
    def other(spark: SparkSession) -> DataFrame:
        rows = spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "empty"))
        return rows.withWatermark("ts", "1 second").dropDuplicates(["id", "ts"]) if has_event_time else rows

    pipeline.run(str(tmp_path / "state"), every="1h", once=True, spark=spark)
    assert [row[0] for row in rows_of(tmp_path / "windows", "count")] == [100] * WINDOWS


def test_neither_a_drain_nor_once_waits_for_the_trigger_of_a_stage_that_reads_a_channel(
    tmp_path: Path, spark: SparkSession
) -> None:
    deliver(tmp_path / "in", "0", numbers(range(5)))
    pipeline = cw.Pipeline("seldom")

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))

    @pipeline.stage(trigger="1h", sinks=[cw.delta(str(tmp_path / "out"))])
    def seldom(source: DataFrame) -> DataFrame:
        return source

    pipeline.start(str(tmp_path / "state"), every="1h", once=True, spark=spark)
    assert pipeline.awaitTermination(90)
    pipeline.stop()
    assert [row[0] for row in rows_of(tmp_path / "out", "id")] == list(range(5))

    def batches() -> int:
        commits = (tmp_path / "state/stages/seldom").glob("*/spark/*/commits/*")
        return max(int(commit.name) for commit in commits if commit.name.isdigit())

    before = batches()
    pipeline.start(str(tmp_path / "state"), every="1h", spark=spark)
    await_that("the batch with which it begins", lambda: batches() > before)
    deliver(tmp_path / "in", "1", numbers(range(5, 8)))
    pipeline.drain(timeout="90s")
    assert [row[0] for row in rows_of(tmp_path / "out", "id")] == list(range(8))


def test_a_drain_that_takes_longer_than_a_checkpoint_may_is_tried_until_once_can_end(
    tmp_path: Path, spark: SparkSession, told: list[str]
) -> None:
    """The sources have given all long before what is behind them has worked through it."""
    deliver(tmp_path / "in", "0", numbers(range(8)))
    pipeline = cw.Pipeline("once")

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
    def slow(source: DataFrame) -> DataFrame:
        def wait(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            time.sleep(8)
            yield from rows

        return source.select("id").coalesce(1).mapInArrow(wait, "id long")

    pipeline.run(
        str(tmp_path / "state"), every="1h", timeout="2s", once=True, spark=spark, tolerated_failures=None,
    )  # fmt: skip
    assert rows_of(tmp_path / "out") == [(i,) for i in range(8)]
    assert any("aborted (deadline)" in line for line in told), told


def test_a_query_that_somebody_else_stops_is_missed_reported_and_started_again(
    tmp_path: Path, spark: SparkSession, told: list[str]
) -> None:
    pipeline = cw.Pipeline("stopped")

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
    def copied(source: DataFrame) -> DataFrame:
        return source.select("id")

    def shown() -> list[tuple[int]]:
        return rows_of(tmp_path / "out") if (tmp_path / "out/_delta_log").exists() else []

    deliver(tmp_path / "in", "0", numbers(range(3)))
    pipeline.start(str(tmp_path / "state"), every="1s", spark=spark)
    try:
        await_that("the first rows", lambda: shown() == [(i,) for i in range(3)])
        for query in pipeline.queries.values():
            query.stop()
        deliver(tmp_path / "in", "1", numbers(range(3, 6)))
        await_that("the rows after the stop", lambda: shown() == [(i,) for i in range(6)])
    finally:
        pipeline.stop()
    assert sum("has lost its query and is started again in 1 s (1 of 5)" in line for line in told) == 2, told


def test_a_query_that_somebody_stops_between_two_batches_has_not_taken_all(
    tmp_path: Path, spark: SparkSession, told: list[str]
) -> None:
    """Nothing is under way then, and no error tells of it; most of the input is still unread."""
    for part in range(12):
        deliver(tmp_path / "in", f"{part:02}", numbers([part]))
    pipeline = cw.Pipeline("between")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
    def copied(spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1)
        return files.parquet(str(tmp_path / "in")).select("id")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "ticks"))])
    def ticks(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load()  # which knows no available now: one batch is all

    def is_between() -> bool:
        found = [tmp_path.glob(f"state/stages/copied/1/spark/*/{kind}/*") for kind in ("offsets", "commits")]
        planned, committed = ({path.name for path in paths if path.name.isdigit()} for paths in found)
        return planned == committed and "2" in committed

    pipeline.start(str(tmp_path / "state"), every="1h", once=True, spark=spark)
    try:
        query = await_that("its query", lambda: pipeline.queries.get("copied"))
        assert query.name == "between.copied"
        await_that("a moment between two batches", is_between)
        query.stop()
        assert pipeline.awaitTermination(120)
    finally:
        pipeline.stop()
    assert rows_of(tmp_path / "out") == [(i,) for i in range(12)]
    assert not any("'ticks' has lost its query" in line for line in told), told


def test_a_drain_waits_until_the_last_batch_that_spark_has_committed_is_in_the_log(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query has ended with all that was there, and nobody has yet seen its last batch."""
    is_seen, real = Event(), folders.committed
    monkeypatch.setattr(folders, "committed", lambda *batch: real(*batch) if is_seen.is_set() else None)
    deliver(tmp_path / "in", "0", numbers(range(5)))
    pipeline = cw.Pipeline("late")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
    def kept(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in")).select("id")

    pipeline.start(str(tmp_path / "state"), every="1h", once=True, spark=spark)
    try:
        await_that("a drain is under way", lambda: pipeline.status().state == "draining")
        assert list((tmp_path / "state").glob("stages/kept/1/spark/*/commits/0"))
        assert not pipeline.awaitTermination(3), "it has come to rest without its last batch"
        is_seen.set()
        assert pipeline.awaitTermination(90)
    finally:
        pipeline.stop()
    assert rows_of(tmp_path / "out") == [(i,) for i in range(5)]


def test_once_shows_all_that_one_batch_closes_when_a_stage_without_state_has_a_watermark_too(
    tmp_path: Path, spark: SparkSession
) -> None:
    deliver(tmp_path / "in", "0", numbers(range(1_000)))
    pipeline = cw.Pipeline("daily")

    @pipeline.stage
    def clean(spark: SparkSession) -> DataFrame:
        rows = spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))
        return rows.withWatermark("ts", "1 second")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "windows"), final_by="window.end")])
    def windows(clean: DataFrame) -> DataFrame:
        return clean.withWatermark("ts", "1 second").groupBy(F.window("ts", "10 seconds")).count()

    pipeline.run(str(tmp_path / "state"), every="1h", once=True, spark=spark)
    assert [row[0] for row in rows_of(tmp_path / "windows", "count")] == [100] * WINDOWS


class Copying:
    """A pipeline that copies numbers from `in` to `out`."""

    def __init__(self, base: Path, spark: SparkSession) -> None:
        self.base, self.spark = base, spark
        self.pipeline = cw.Pipeline("copying")

        @self.pipeline.stage(sinks=[cw.delta(str(base / "out"))])
        def copied(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema(NUMBERS).parquet(str(base / "in")).select("id")

    def start(self) -> cw.Pipeline:
        deliver(self.base / "in", "0", numbers(range(5)))
        return self.pipeline.start(str(self.base / "state"), every="1h", spark=self.spark)


def test_leaving_the_block_drains(tmp_path: Path, spark: SparkSession) -> None:
    with Copying(tmp_path, spark).start() as run:
        assert run.is_running
        assert isinstance(run.status(), cw.Status)
        assert [stage.name for stage in run.status().stages] == ["copied"]
    assert not run.is_running
    assert rows_of(tmp_path / "out") == [(i,) for i in range(5)]
    with pytest.raises(cw.UserError, match="is not running in this process"):
        run.status()


def test_an_error_in_the_block_stops_at_once_and_is_what_is_raised(
    tmp_path: Path, spark: SparkSession
) -> None:
    copying = Copying(tmp_path, spark)
    with pytest.raises(ZeroDivisionError), copying.start() as run:
        raise ZeroDivisionError
    assert not run.is_running
    assert not (tmp_path / "out/_delta_log").exists(), "nothing was committed, so nothing is published"
    with copying.start():
        pass
    assert rows_of(tmp_path / "out") == [(i,) for i in range(5)]


def test_a_pipeline_that_fails_raises_that_when_its_block_is_left_and_when_it_is_waited_for(
    tmp_path: Path, spark: SparkSession
) -> None:
    copying = Copying(tmp_path, spark)

    def leave() -> None:
        with copying.start() as run:
            assert run._runtime is not None
            run._runtime._on_failure(cw.UserError("no more"))

    with pytest.raises(cw.UserError, match="no more"):
        leave()
    run = copying.start()
    assert run._runtime is not None
    run._runtime._on_failure(cw.UserError("no more"))
    with pytest.raises(cw.UserError, match="no more"):
        run.awaitTermination("60s")
    assert not run.is_running


def test_a_pipeline_that_could_not_start_can_be_started_again(tmp_path: Path, spark: SparkSession) -> None:
    copying = Copying(tmp_path, spark)
    (tmp_path / "in").mkdir()
    with pytest.raises(cw.UserError, match="contains no pipeline yet"):
        copying.pipeline.start(str(tmp_path / "state"), spark=spark, restore="good")
    run = copying.start()
    assert not run.awaitTermination(0.1)
    with pytest.raises(cw.UserError, match="is already running"):
        copying.start()
    run.checkpoint()
    with pytest.raises(cw.UserError, match="flight"):
        run.cancel_checkpoint()
    run.drain()
    assert rows_of(tmp_path / "out") == [(i,) for i in range(5)]
