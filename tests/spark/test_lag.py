"""How far a query is behind its own sources."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cutwater.spark.lag import source_lags
from cutwater.store.stage_status import SourceLag
from tests.support.spark_helpers import await_that

NOW = 1_767_225_600.0
LENGTH = 10


def test_kafka_is_behind_by_partition_and_in_all() -> None:
    source = {
        "description": "KafkaV2[Subscribe[t]]",
        "endOffset": '{"t":{"0":10,"1":5}}',
        "latestOffset": '{"t":{"0":25,"1":5,"2":3}}',
    }
    (lag,) = source_lags(None, {"sources": [source]}, NOW)
    assert lag == SourceLag("KafkaV2[Subscribe[t]]", 18, None, {"t-0": 15, "t-1": 0, "t-2": 3})


@pytest.mark.parametrize("offset", ["None", None, "12", '{"logOffset":3}', '{"channel":"a","batch":2}'])
def test_sources_that_cannot_tell_have_no_lag(offset: str | None) -> None:
    assert (
        source_lags(
            None, {"sources": [{"description": "x", "endOffset": offset, "latestOffset": offset}]}, NOW
        )
        == ()
    )
    assert source_lags(None, {}, NOW) == ()


@pytest.mark.parametrize(
    ("ramp", "timestamp", "lag"),
    [
        (0, "2025-12-31T23:59:18.400Z", {"rows": 410, "seconds": 41.0}),
        (0, "2025-12-31T23:59:59.100Z", {"rows": 0, "seconds": 0.0}),
        (0, "2026-01-01T00:00:01.000Z", {"rows": 0, "seconds": 0.0}),
        (30, "2025-12-31T23:59:50.000Z", {"seconds": 10.0}),
    ],
    ids=["slow", "quick", "another clock", "ramp"],
)
def test_a_rate_source_is_behind_by_the_time_since_its_last_batch_was_planned(
    ramp: int, timestamp: str, lag: dict[str, Any]
) -> None:
    name = f"RateStreamV2[rowsPerSecond=10, rampUpTimeSeconds={ramp}, numPartitions=default"
    source = {"description": name, "endOffset": "12", "latestOffset": "12"}
    assert source_lags(None, {"timestamp": timestamp, "sources": [source]}, NOW) == (SourceLag(name, **lag),)
    assert source_lags(None, {"sources": [source]}, NOW) == ()


def test_sparks_own_rate_source_falls_behind_during_a_slow_batch(spark: SparkSession, tmp_path: Path) -> None:
    seen: list[SourceLag] = []

    def batch(_: Any, number: int) -> None:
        deadline = time.monotonic() + 30
        while number > 0 and not seen and time.monotonic() < deadline:
            time.sleep(0.2)
            lags = source_lags(query, query.lastProgress or {}, time.time())
            seen.extend(lag for lag in lags if lag.seconds is not None and lag.seconds >= 2)

    frame = spark.readStream.format("rate").option("rowsPerSecond", 7).load()
    query: Any = (
        frame.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path / "c")).start()
    )
    try:
        await_that("a slow batch", lambda: bool(seen))
    finally:
        query.stop()
    assert seen[0].seconds is not None
    assert seen[0].rows == 7 * seen[0].seconds


def test_a_source_that_reports_its_backlog_as_metrics_is_believed() -> None:
    delta = {
        "description": "DeltaSource[s3://b/t]",
        "endOffset": '{"sourceVersion":1,"reservoirId":"a","reservoirVersion":3216,"index":3214}',
        "latestOffset": None,
        "metrics": {"numBytesOutstanding": "3456", "numFilesOutstanding": "8", "other": "1"},
    }
    kinesis = {"description": "KinesisV2[s]", "metrics": {"maxMsBehindLatest": "2500.0"}}
    odd = {"description": "Odd[]", "metrics": {"numFilesOutstanding": "many", "numBytesOutstanding": None}}
    assert source_lags(None, {"sources": [delta, kinesis, odd]}, NOW) == (
        SourceLag("DeltaSource[s3://b/t]", files=8, bytes=3456),
        SourceLag("KinesisV2[s]", seconds=2.5),
    )


def lags_in_second_batch(
    spark: SparkSession, folder: Path, options: dict[str, str], trigger: dict[str, Any]
) -> list[SourceLag]:
    """Reads nine files in at least two batches, and returns the lags that are told during the second."""
    seen: list[tuple[SourceLag, ...]] = []
    write_files(folder / "in", 9)

    def batch(_: Any, number: int) -> None:
        if number == 1:
            deadline = time.monotonic() + 30
            while query.lastProgress is None and time.monotonic() < deadline:
                time.sleep(0.05)  # the progress of the first batch is reported a moment after it
            seen.append(source_lags(query, query.lastProgress or {}, time.time()))
        else:
            write_files(folder / "in", 18)

    frame = spark.readStream.options(**options).text(str(folder / "in"))
    writer = frame.writeStream.foreachBatch(batch).option("checkpointLocation", str(folder / "c"))
    query: Any = writer.trigger(**trigger).start() if trigger else writer.start()
    try:
        await_that("the second batch", lambda: bool(seen))
    finally:
        query.stop()
    return list(seen[0])


def write_files(folder: Path, count: int) -> None:
    folder.mkdir(exist_ok=True)
    for number in range(count):
        file = folder / f"{number:03}.txt"
        if not file.exists():
            (folder / f".{number}").write_text("x" * LENGTH)
            (folder / f".{number}").rename(file)


def test_a_file_source_with_a_limit_reports_how_many_files_and_bytes_wait(
    spark: SparkSession, tmp_path: Path
) -> None:
    (lag,) = lags_in_second_batch(spark, tmp_path, {"maxFilesPerTrigger": "2"}, {})
    assert lag.source.startswith("FileStreamSource[")
    assert lag.files == 5  # of nine, two are in each of the first two batches
    assert lag.bytes == 5 * LENGTH


@pytest.mark.parametrize(
    ("options", "trigger"),
    [
        ({}, {}),
        ({"maxFilesPerTrigger": "2", "latestFirst": "true"}, {}),
        ({"maxFilesPerTrigger": "2"}, {"availableNow": True}),
    ],
    ids=["unlimited", "latest first", "available now"],
)
def test_the_lag_of_a_file_source_without_a_list_of_waiting_files_is_unknown_and_not_zero(
    spark: SparkSession, tmp_path: Path, options: dict[str, str], trigger: dict[str, Any]
) -> None:
    assert lags_in_second_batch(spark, tmp_path, options, trigger) == []
