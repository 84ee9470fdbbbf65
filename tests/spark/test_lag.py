"""How far a query is behind its own sources."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cutwater.spark.lag import source_lags
from cutwater.store.status import SourceLag
from tests.support.spark_helpers import await_that


def test_kafka_is_behind_by_partition_and_in_all() -> None:
    source = {
        "description": "KafkaV2[Subscribe[t]]",
        "endOffset": '{"t":{"0":10,"1":5}}',
        "latestOffset": '{"t":{"0":25,"1":5,"2":3}}',
    }
    (lag,) = source_lags(None, {"sources": [source]})
    assert lag == SourceLag("KafkaV2[Subscribe[t]]", 18, None, {"t-0": 15, "t-1": 0, "t-2": 3})


@pytest.mark.parametrize("offset", ["None", None, "12", '{"logOffset":3}', '{"channel":"a","batch":2}'])
def test_sources_that_cannot_tell_have_no_lag(offset: str | None) -> None:
    assert (
        source_lags(None, {"sources": [{"description": "x", "endOffset": offset, "latestOffset": offset}]})
        == ()
    )
    assert source_lags(None, {}) == ()


def test_a_file_source_reports_how_many_files_wait(spark: SparkSession, tmp_path: Path) -> None:
    for _ in range(9):
        spark.range(1).coalesce(1).write.mode("append").parquet(str(tmp_path / "in"))
    frame = spark.readStream.schema("id long").option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "in"))
    seen: list[tuple[SourceLag, ...]] = []

    def batch(_: Any, number: int) -> None:
        if number == 1:
            seen.append(source_lags(query, query.lastProgress or {}))
        while number == 1 and not seen[0]:
            time.sleep(0.05)  # the progress of the first batch is reported a moment after it
            seen[0] = source_lags(query, query.lastProgress or {})

    query: Any = (
        frame.writeStream.foreachBatch(batch).option("checkpointLocation", str(tmp_path / "c")).start()
    )
    try:
        await_that("the lag of the second batch", lambda: len(seen) == 1 and bool(seen[0]))
    finally:
        query.stop()
    ((lag,),) = seen
    assert lag.source.startswith("FileStreamSource[")
    assert lag.files == 5  # of nine, two are in each of the first two batches
