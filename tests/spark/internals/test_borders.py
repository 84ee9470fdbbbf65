"""Borders between stages of one query, and what would change without the conditions for chaining."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater.spark.internals.borders import at_border, observed_rows
from cutwater.spark.plan import channel_schema, read_plan, row_schema
from tests.support.spark_helpers import NUMBERS, START_US, deliver, numbers


def border(frame: DataFrame, stage: str = "clean") -> DataFrame:
    return at_border(frame, stage, channel_schema(stage, frame.schema))


def test_a_readers_code_sees_only_rows_that_the_stage_before_it_gives(spark: SparkSession) -> None:
    """Without a border the optimizer tests a row with the reader's function first: it is the cheaper half for it."""

    @F.udf("boolean")
    def is_large(by: int) -> bool:
        return 100 / by > 10

    @F.udf("boolean")
    def is_not_zero(by: int) -> bool:
        return by != 0

    clean = spark.range(5).where(is_not_zero("id"))
    with pytest.raises(Exception, match="ZeroDivisionError"):
        clean.where(is_large("id")).collect()
    assert border(clean).where(is_large("id")).count() == 4


def run(frame: DataFrame, checkpoint: Path) -> tuple[list[Any], Any]:
    """The rows of a query that reads all that there is, and the query."""
    found: list[Any] = []

    def collect(frame: DataFrame, batch: int) -> None:
        found.extend(frame.collect())

    query = frame.writeStream.foreachBatch(collect).option("checkpointLocation", str(checkpoint))
    running = query.trigger(availableNow=True).start()
    running.awaitTermination()
    return found, running


def test_a_stage_that_is_used_twice_would_be_computed_twice(spark: SparkSession, tmp_path: Path) -> None:
    deliver(tmp_path / "in", "0", numbers(range(3)))
    files = spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))
    made = border(files.select("id", F.expr("uuid()").alias("key")))
    assert read_plan(made.union(made)).stateful == ""
    rows, _ = run(made.union(made), tmp_path / "cp")
    assert len({row.key for row in rows}) == 6, "a channel would have three"


def test_a_border_declares_what_a_channel_declares(spark: SparkSession) -> None:
    made = spark.range(1).select(
        "id", F.lit("a").alias("text"), F.array(F.lit(1)).alias("list"), F.col("id").cast("string").alias("kept"),
        F.struct(F.lit(1).alias("one")).alias("inner"),
    )  # fmt: skip
    assert not all(field.nullable for field in made.schema)
    found = border(made)
    assert found.schema == row_schema(made.schema)
    assert found.collect() == made.collect()
    names = [child.name() for child in _outputs(found.groupBy("text").count())]
    assert names == ["text", "count"]
    plan = found.groupBy("text").count()._jdf.queryExecution().optimizedPlan()
    assert plan.output().head().nullable(), "the optimizer does not find out that it is never null"


def _outputs(frame: DataFrame) -> list[Any]:
    found = frame._jdf.queryExecution().analyzed().output()
    return [found.apply(i) for i in range(found.size())]


def test_a_border_that_changes_nothing_adds_no_projection(spark: SparkSession) -> None:
    made = spark.range(1).select(F.col("id").cast("string").cast("long").alias("maybe"))
    nodes = str(border(made)._jdf.queryExecution().analyzed().toString())
    assert nodes.startswith("CollectMetrics cutwater: rows of clean"), nodes


def test_rows_are_counted_at_each_border() -> None:
    metrics: dict[str, Any] = {
        "cutwater: rows of clean": {"rows": 3},
        "cutwater: rows of parts": None,
        "rows of clean": {"n": 9},
        "cutwater: rows of the day": {"n": 9},
    }
    assert observed_rows(metrics, ["clean", "parts", "new"]) == {"clean": 3}


def test_what_the_user_observes_is_not_a_border(spark: SparkSession) -> None:
    def stages(name: str) -> list[str]:
        one, other = (spark.readStream.format("rate").load() for _ in range(2))
        mine = one.observe(name, F.count(F.lit(1)).alias("n"))
        plan = read_plan(border(mine).union(border(other, "more")), ["clean", "more"])
        return [leaf.stage for leaf in plan.leaves]

    for name in ("rows of clean", "rows of the day", "cutwater: rows of the day"):
        assert stages(name) == ["clean", "more"]
    with pytest.raises(AnalysisException, match="cutwater: rows of more"):
        stages("cutwater: rows of more")


@pytest.mark.parametrize(
    ("make", "stateful"),
    [
        (lambda s, t: s.where("id > 3").select("id").union(s.select("id")), ""),
        (lambda s, t: s.selectExpr("explode(array(id))").repartition(3), ""),
        (lambda s, t: s.join(t, "id"), ""),
        (lambda s, t: s.join(t.groupBy("id").count(), "id", "left"), ""),
        (lambda s, t: s.mapInPandas(lambda rows: rows, s.schema), ""),
        (lambda s, t: s.withColumn("twice", F.udf("long")(lambda i: 2 * i)("id")), ""),
        (lambda s, t: s.distinct(), "Deduplicate"),
        (lambda s, t: s.limit(3), "GlobalLimit"),
        (lambda s, t: s.dropDuplicates(["id"]), "Deduplicate"),
        (lambda s, t: s.groupBy("id").count(), "Aggregate"),
        (lambda s, t: s.alias("a").join(s.alias("b"), "id"), "Join"),
        (lambda s, t: s.select("id").intersect(s.select("id")), "Intersect"),
    ],
)  # fmt: skip
def test_operators_that_keep_state_are_known(
    spark: SparkSession, make: Callable[[DataFrame, DataFrame], DataFrame], stateful: str
) -> None:
    stream = spark.readStream.format("rate").load().withColumnRenamed("value", "id")
    assert read_plan(make(stream, spark.range(3))).stateful == stateful


def test_a_watermark_would_also_act_on_the_reader(spark: SparkSession, tmp_path: Path) -> None:
    """The reader drops duplicates and has no watermark: it keeps every row, however late. With the producer's watermark
    in its query it does not."""

    def rows(ids: list[int], seconds: list[int]) -> pa.Table:
        at = pa.array([START_US + s * 1_000_000 for s in seconds], pa.timestamp("us", tz="UTC"))
        return pa.table({"id": pa.array(ids, pa.int64()), "amount": [1.0] * len(ids), "ts": at})

    for number, (ids, seconds) in enumerate([([1], [1000]), ([2], [1001]), ([3], [5])]):
        deliver(tmp_path / "in", f"{number}", rows(ids, seconds))
        aged = 1_700_000_000 + number  # Spark reads them in the order of their ages
        os.utime(tmp_path / "in" / f"{number}.parquet", (aged, aged))

    def kept(watermark: bool) -> list[int]:
        files = spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1)
        clean = files.parquet(str(tmp_path / "in"))
        clean = border(clean.withWatermark("ts", "1 second") if watermark else clean)
        rows, query = run(clean.dropDuplicates(["id", "ts"]), tmp_path / f"cp-{watermark}")
        counted = [observed_rows(progress.observedMetrics, ["clean"]) for progress in query.recentProgress]
        assert sum(rows.get("clean", 0) for rows in counted) == 3
        return sorted(row.id for row in rows)

    assert kept(False) == [1, 2, 3]
    assert kept(True) == [1, 2]
