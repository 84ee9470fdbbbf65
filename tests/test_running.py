"""A real pipeline while it runs: what happens to its queries, how it comes to rest, and what its tables show then."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw
from tests.spark_helpers import NUMBERS, deliver, numbers, rows_of

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
