"""A Kafka connector that is missing, or cannot be resolved, is one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import cutwater as cw
from cutwater.protocol.base.errors import UserError
from cutwater.spark.packages import kafka_advice, unresolved, unresolved_message

PRINTED = """
\t\t::::::::::::::::::::::::::::::::::::::::::::::
\t\t::          UNRESOLVED DEPENDENCIES         ::
\t\t:: org.apache.spark#spark-sql-kafka-0-10_2.13;9.9.9: not found
Exception in thread "main" java.lang.RuntimeException: [unresolved dependency: \
org.apache.spark#spark-sql-kafka-0-10_2.13;9.9.9: not found, unresolved dependency: com.x#y;1: not found]
"""

ONLY_A_FOLDER = """<ivysettings><settings defaultResolver="here"/><resolvers>
<filesystem name="here"><artifact pattern="{folder}/[artifact]-[revision].[ext]"/></filesystem>
</resolvers></ivysettings>"""

PIPELINE = """
import cutwater as cw

pipeline = cw.Pipeline("p")


@pipeline.stage(sinks=[cw.parquet("out")])
def a(spark):
    return spark.readStream.format("rate").load()
"""


def test_every_package_that_cannot_be_resolved_is_named() -> None:
    assert unresolved(PRINTED.splitlines()) == [
        "com.x:y:1",
        "org.apache.spark:spark-sql-kafka-0-10_2.13:9.9.9",
    ]
    assert unresolved(["all is well"]) == []


def test_only_kafka_gets_the_advice_for_kafka() -> None:
    assert "spark-sql-kafka-0-10_2.13:4.2" in unresolved_message(
        ["org.apache.spark:spark-sql-kafka-0-10_2.13:9"]
    )
    assert "kafka" not in unresolved_message(["com.x:y:1"])


def test_the_advice_names_the_connector_of_the_version() -> None:
    assert "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:4.1.3" in kafka_advice("4.1.4")
    assert "spark.jars=" in kafka_advice("4.3.0")
    assert "spark.jars.packages" not in kafka_advice("4.3.0")


@pytest.mark.slow
def test_a_package_that_cannot_be_resolved_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "p.py").write_text(PIPELINE)
    (tmp_path / "ivy.xml").write_text(ONLY_A_FOLDER.format(folder=tmp_path))
    command = [
        sys.executable, "-m", "cutwater", "run", "p.py", "--master", "local[1]",
        "--conf", "spark.jars.packages=org.apache.spark:spark-sql-kafka-0-10_2.13:9.9.9",
        "--conf", f"spark.jars.ivySettings={tmp_path}/ivy.xml", "--conf", f"spark.jars.ivy={tmp_path}/ivy",
    ]  # fmt: skip
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    printed = [line for line in (ended.stdout + ended.stderr).splitlines() if line.strip()]
    assert ended.returncode == 1
    starting, *errors = printed
    assert "starting Spark" in starting
    assert len(errors) == 1, "\n".join(printed)
    assert errors[0].startswith(
        "error: Spark cannot find the package org.apache.spark:spark-sql-kafka-0-10_2.13:9.9.9 that"
    )


def test_a_missing_connector_is_named_with_its_coordinates(spark: SparkSession, tmp_path: Path) -> None:
    pipeline = cw.Pipeline("p")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
    def orders(spark: SparkSession) -> object:
        return spark.readStream.format("kafka").option("subscribe", "x").load()

    with pytest.raises(UserError) as raised:
        pipeline.start(str(tmp_path / "state"), spark=spark)
    assert str(raised.value).startswith(
        "stage 'orders' reads Kafka, and Spark has no Kafka connector. For Spark 4."
    )
