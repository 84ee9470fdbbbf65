"""A real pipeline while it runs: its queries, draining it, and what its tables show then."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.records import JOURNAL, Aborted, Begun, Committed, JournalBody
from cutwater.spark.checkpoint import prepared
from tests.support.spark_helpers import NUMBERS, await_that, deliver, numbers, rows_of

WINDOWS = 9
"""Of a thousand rows, a tenth of a second apart, in windows of ten seconds: the last one is still open."""


@pytest.mark.parametrize("has_event_time", [True, False])
def test_a_source_without_rows_does_not_hold_back_final_tables_of_another_branch(
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


def test_drain_and_once_do_not_wait_for_the_trigger_of_a_stage_that_reads_a_channel(
    tmp_path: Path, spark: SparkSession
) -> None:
    deliver(tmp_path / "in", "0", numbers(range(5)))
    pipeline = cw.Pipeline("seldom", chain=False)

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
    await_that("its first batch", lambda: batches() > before)
    deliver(tmp_path / "in", "1", numbers(range(5, 8)))
    pipeline.drain(timeout="90s")
    assert [row[0] for row in rows_of(tmp_path / "out", "id")] == list(range(8))


def test_once_retries_a_drain_that_takes_longer_than_the_checkpoint_timeout(
    tmp_path: Path, spark: SparkSession, log_lines: list[str]
) -> None:
    """The sources are finished long before the stages behind them."""
    deliver(tmp_path / "in", "0", numbers(range(8)))
    pipeline = cw.Pipeline("once", chain=False)

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
    assert any("aborted (deadline)" in line for line in log_lines), log_lines


def test_several_checkpoints_may_be_in_progress_and_every_second_one_is_full(
    tmp_path: Path, spark: SparkSession
) -> None:
    deliver(tmp_path / "in", "0", numbers(range(6)))
    pipeline = cw.Pipeline("several", chain=False)

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
    def slow(source: DataFrame) -> DataFrame:
        def wait(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            time.sleep(3)
            yield from rows

        return source.select("id").coalesce(1).mapInArrow(wait, "id long")

    def bodies() -> list[JournalBody]:
        names = sorted((tmp_path / "state/journal").glob("*.json"))
        return [JOURNAL.open(name.read_bytes()).entry.body for name in names]

    def most_open() -> int:
        changes = [isinstance(b, Begun) - isinstance(b, Committed | Aborted) for b in bodies()]
        return max(itertools.accumulate(changes), default=0)

    pipeline.start(str(tmp_path / "state"), every="100ms", max_concurrent=2, full_every=2, spark=spark)
    try:
        await_that("two checkpoints in progress", lambda: most_open() == 2)
        await_that("four commits", lambda: sum(isinstance(b, Committed) for b in bodies()) >= 4)
    finally:
        pipeline.drain(timeout="90s")
    begun = {b.epoch: b.flags & Flags.FULL_SNAPSHOT for b in bodies() if isinstance(b, Begun)}
    committed = [b.epoch for b in bodies() if isinstance(b, Committed)]
    assert committed == sorted(committed)
    assert [bool(begun[epoch]) for epoch in committed[:4]] == [False, True, False, True]
    assert most_open() == 2
    assert rows_of(tmp_path / "out") == [(i,) for i in range(6)]


def test_a_query_that_somebody_else_stops_is_reported_and_restarted(
    tmp_path: Path, spark: SparkSession, log_lines: list[str]
) -> None:
    pipeline = cw.Pipeline("stopped", chain=False)

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
    assert sum("lost its query and restarts in 1 s (1 of 5)" in line for line in log_lines) == 2, log_lines


def test_a_query_that_somebody_stops_between_two_batches_is_not_taken_for_finished(
    tmp_path: Path, spark: SparkSession, log_lines: list[str]
) -> None:
    """No batch is in progress then, and there is no error; most of the input is still unread."""
    for part in range(12):
        deliver(tmp_path / "in", f"{part:02}", numbers([part]))
    pipeline = cw.Pipeline("between")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
    def copied(spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1)
        return files.parquet(str(tmp_path / "in")).select("id")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "ticks"))])
    def ticks(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load()  # does not support AvailableNow: it runs a single batch

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
    assert not any("'ticks' lost its query" in line for line in log_lines), log_lines


def test_a_drain_waits_until_the_last_batch_that_spark_has_committed_is_in_the_log(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query has ended with all its input, and its last batch has not been seen yet."""
    is_seen, real = Event(), prepared.committed
    monkeypatch.setattr(prepared, "committed", lambda *batch: real(*batch) if is_seen.is_set() else None)
    deliver(tmp_path / "in", "0", numbers(range(5)))
    pipeline = cw.Pipeline("late")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
    def kept(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in")).select("id")

    pipeline.start(str(tmp_path / "state"), every="1h", once=True, spark=spark)
    try:
        await_that("a drain is in progress", lambda: pipeline.status().state == "draining")
        assert list((tmp_path / "state").glob("stages/kept/1/spark/*/commits/0"))
        assert not pipeline.awaitTermination(3), "it was drained without its last batch"
        is_seen.set()
        assert pipeline.awaitTermination(90)
    finally:
        pipeline.stop()
    assert rows_of(tmp_path / "out") == [(i,) for i in range(5)]


def test_once_publishes_every_closed_window_if_a_stateless_stage_has_a_watermark_too(
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


def test_leaving_the_with_block_drains(tmp_path: Path, spark: SparkSession) -> None:
    with Copying(tmp_path, spark).start() as run:
        assert run.is_running
        assert isinstance(run.status(), cw.Status)
        assert [stage.name for stage in run.status().stages] == ["copied"]
    assert not run.is_running
    assert rows_of(tmp_path / "out") == [(i,) for i in range(5)]
    with pytest.raises(cw.UserError, match="is not running in this process"):
        run.status()


def test_an_error_in_the_with_block_stops_at_once_and_is_raised(tmp_path: Path, spark: SparkSession) -> None:
    copying = Copying(tmp_path, spark)
    with pytest.raises(ZeroDivisionError), copying.start() as run:
        raise ZeroDivisionError
    assert not run.is_running
    assert not (tmp_path / "out/_delta_log").exists(), "nothing was committed, so nothing is published"
    with copying.start():
        pass
    assert rows_of(tmp_path / "out") == [(i,) for i in range(5)]


def test_leaving_the_with_block_and_waiting_raise_the_error_of_the_pipeline(
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


def test_a_pipeline_that_failed_to_start_can_be_started_again(tmp_path: Path, spark: SparkSession) -> None:
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
