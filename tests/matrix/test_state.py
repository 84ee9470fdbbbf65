"""State over many batches and restarts, in every form that Spark keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

import cutwater as cw
from tests.support.spark_helpers import NUMBERS, deliver, numbers, rows_of

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STATE = "org.apache.spark.sql.execution.streaming.state"
RUNS, FILES = 4, 40
"""Enough that the file source compacts its log several times within a run, and across restarts."""


def read(spark: SparkSession, folder: Path) -> DataFrame:
    found: DataFrame = spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1).parquet(str(folder))
    return found


@pytest.mark.parametrize("provider", ["RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider"])
def test_many_batches_over_restarts(spark: SparkSession, tmp_path: Path, provider: str) -> None:
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, f"{STATE}.{provider}")

    def make() -> cw.Pipeline:
        pipeline = cw.Pipeline("many")

        @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
        def once_each(spark: SparkSession) -> DataFrame:
            return read(spark, tmp_path / "in").select("id").dropDuplicates(["id"])

        return pipeline

    try:
        for run in range(RUNS):
            for part in range(run * FILES, (run + 1) * FILES):
                deliver(tmp_path / "in", f"{part:04}", numbers([part, part // 2]))  # half of them come again
            make().run(str(tmp_path / "store"), every="2s", retained=3, once=True, spark=spark)
            assert rows_of(tmp_path / "out") == [(n,) for n in range((run + 1) * FILES)]
    finally:
        spark.conf.set(PROVIDER, before or "")


class Total(StatefulProcessor):
    """The running total per key."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self.total = handle.getValueState("total", "total double")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timers: Any) -> Iterator[pd.DataFrame]:
        found = self.total.get() if self.total.exists() else None
        total = found[0] if found is not None else 0.0
        total += sum(float(batch["amount"].sum()) for batch in rows)
        self.total.update((total,))
        yield pd.DataFrame({"key": [key[0]], "total": [total]})

    def close(self) -> None: ...


def test_transform_with_state(spark: SparkSession, tmp_path: Path) -> None:
    def make() -> cw.Pipeline:
        pipeline = cw.Pipeline("totals")

        @pipeline.stage
        def keyed(spark: SparkSession) -> DataFrame:
            return read(spark, tmp_path / "in").selectExpr("id % 3 key", "amount")

        @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
        def totals(keyed: DataFrame) -> DataFrame:
            return keyed.groupBy("key").transformWithStateInPandas(
                Total(), outputStructType="key long, total double", outputMode="append", timeMode="None"
            )

        return pipeline

    for run in range(3):
        deliver(tmp_path / "in", f"{run}", numbers(range(run * 9, run * 9 + 9)))
        make().run(str(tmp_path / "store"), once=True, spark=spark)
    wanted = [
        (key, float(sum(n for n in range(run * 9 + 9) if n % 3 == key)))
        for key in range(3)
        for run in range(3)
    ]
    assert rows_of(tmp_path / "out") == wanted
