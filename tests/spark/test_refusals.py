"""Plans that Spark refuses when their query starts, refused before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw
from cutwater.protocol.base.errors import UserError
from cutwater.spark.internals.plans import CHECKS
from cutwater.spark.refusals import first_sentences, why_refused
from cutwater.spark.session import copy_session


def counted(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "1 minute")).count()


def numbers(rows: DataFrame) -> DataFrame:
    return rows.sparkSession.range(3).withColumnRenamed("id", "value")


REFUSED: list[tuple[str, Callable[[DataFrame], DataFrame], str, str]] = [
    ("append", lambda r: r.groupBy("value").count(), "aggregations without watermark", "withWatermark"),
    ("append", lambda r: r.orderBy("value"), "Sorting is not supported", "sort where the table is read"),
    ("update", lambda r: counted(r).groupBy("window").count(), "stateful operation", "two stages"),
    (
        "complete",
        lambda r: r,
        "Invalid streaming output mode: complete",
        "output_mode='append', or aggregate",
    ),
    (
        "append",
        lambda r: numbers(r).join(r, "value", "left"),
        "LeftOuter join",
        "the side whose rows are all kept",
    ),
    (
        "append",
        lambda r: r.join(r.withColumnRenamed("timestamp", "t"), "value", "left"),
        "watermark",
        "BETWEEN",
    ),
    ("append", lambda r: r.select("value").union(numbers(r)), "Union between", "readStream too"),
    ("append", lambda r: counted(r).agg(F.countDistinct("count")), "without watermark", "withWatermark"),
    ("update", lambda r: r.limit(3), "Limits", "output_mode='append'"),
    ("append", lambda r: r.sample(0.5), "Sampling is not supported on streaming DataFrames/Datasets", ""),
    (
        "append",
        lambda r: r.withColumn("n", F.expr("row_number() OVER (PARTITION BY value ORDER BY timestamp)")),
        "Window function is not supported",
        "transformWithState",
    ),
]


def test_what_spark_would_refuse_is_reported_with_what_to_do(spark: SparkSession) -> None:
    session = copy_session(spark)
    rows = session.readStream.format("rate").load()
    for mode, plan, reason, advice in REFUSED:
        said = why_refused(plan(rows), mode)
        assert said is not None, reason
        assert reason in said
        assert advice in said
        assert "SQLSTATE" not in said
        assert "Relation" not in said, "the plan is pages long"
    assert why_refused(counted(rows), "append") is None
    assert why_refused(rows.groupBy("value").count(), "update") is None
    session.conf.set(CHECKS, "false")
    assert why_refused(rows.orderBy("value"), "append") is None, "Spark would not refuse it either"


def test_the_settings_of_the_stages_session_count(spark: SparkSession) -> None:
    """Its stages may set what Spark's check looks at, while another session is active."""
    session = copy_session(spark)
    twice = counted(session.readStream.format("rate").load()).groupBy("window").count()
    assert why_refused(twice, "update") is not None
    session.conf.set("spark.sql.streaming.statefulOperator.checkCorrectness.enabled", "false")
    assert why_refused(twice, "update") is None
    assert spark.conf.get("spark.sql.streaming.statefulOperator.checkCorrectness.enabled") == "true"


def test_a_pipeline_with_refused_plans_ends_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    pipeline = cw.Pipeline("wrong")

    @pipeline.stage
    def rows(spark: SparkSession) -> DataFrame:
        return spark.readStream.format("rate").load()

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "sorted"))])
    def sorted_rows(rows: DataFrame) -> DataFrame:
        return rows.orderBy("value")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "counts"))])
    def counts(rows: DataFrame) -> DataFrame:
        return rows.groupBy("value").count()

    with pytest.raises(UserError, match=r"(?s)2 mistakes:.*'sorted_rows'.*'counts'"):
        pipeline.start(str(tmp_path / "state"), spark=spark)
    assert not (tmp_path / "sorted").exists()
    assert not (tmp_path / "state/journal").exists()


SYNTAX = "Syntax error at 'x'. (line 1, pos 5)"


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("[A.B] No. SQLSTATE: 42KDE", "No"),
        ("Sorting is not supported;\n~Sort\n+- ~Relation", "Sorting is not supported"),
        ("Detected it. Please refer the guide.", "Detected it"),
        ("two\n  lines", "two lines"),
        ("[A] No column `x`. SQLSTATE: 42703; line 1 pos 0;\n'Project ['x]\n+- Rate", "No column `x`"),
        ("[A] Syntax error at 'x'. SQLSTATE: 42601 (line 1, pos 5)\n\n== SQL ==\nx x\n--^^^", SYNTAX),
        ("It failed; line 1 pos 0", "It failed"),
        ("one; line by\nline", "one; line by line"),
    ],
)
def test_only_the_reason_is_reported(said: str, expected: str) -> None:
    assert first_sentences(said) == expected
