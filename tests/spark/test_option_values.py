"""Values of options that Spark would refuse when a query starts."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from cutwater.spark.option_values import wrong_values
from cutwater.spark.plan import Source


def wrong(format: str, **options: str) -> list[str]:
    given = {name.replace("__", ".").lower(): value for name, value in options.items()}
    return list(wrong_values(Source(format, tuple(sorted(given.items())))))


@pytest.mark.parametrize(
    ("format", "options", "said"),
    [
        ("kafka", {"startingOffsets": "earlyest"}, "startingOffsets='earlyest', which must be earliest, latest, or JSON"),
        ("kafka", {"startingOffsets": '{"t": 5}'}, "which must be earliest, latest, or JSON"),
        ("kafka", {"startingOffsets": '{"t": {"first": 5}}'}, "which must be earliest, latest, or JSON"),
        ("kafka", {"startingOffsetsByTimestamp": "2026"}, "startingOffsetsByTimestamp='2026', which must be JSON"),
        ("kafka", {"startingTimestamp": "2026-01-01"}, "which must be a time in ms since 1970"),
        ("kafka", {"startingOffsetsByTimestampStrategy": "first"}, "which must be error or latest"),
        ("kafka", {"maxOffsetsPerTrigger": "ten"}, "maxOffsetsPerTrigger='ten', which must be a whole number, without"),
        ("kafka", {"maxOffsetsPerTrigger": "9223372036854775808"}, "must be a whole number"),
        ("kafka", {"failOnDataLoss": "nein"}, "failOnDataLoss='nein', which must be true or false"),
        ("kafka", {"maxTriggerDelay": "5 minutes"}, "which must be a duration, such as 30s"),
        ("kafka", {"fetchOffset__numRetries": "3.0"}, "fetchOffset.numRetries='3.0'"),
        ("json", {"maxFilesPerTrigger": "0"}, "maxFilesPerTrigger='0', which must be a whole number that is at least 1"),
        ("json", {"maxFilesPerTrigger": "1", "maxBytesPerTrigger": "10"}, "of which Spark takes only one"),
        ("rate", {"rowsPerSecond": "0"}, "at least 1"),
    ],
)  # fmt: skip
def test_a_value_that_spark_would_refuse_is_named(format: str, options: dict[str, str], said: str) -> None:
    (found,) = wrong(format, **options)
    assert said in found


@pytest.mark.parametrize(
    ("format", "options"),
    [
        ("kafka", {"startingOffsets": " Earliest "}),
        ("kafka", {"startingOffsets": '{"t": {"0": -1, "1": 7}} '}),
        ("kafka", {"startingOffsets": "whatever", "startingTimestamp": " 17 "}),
        ("kafka", {"maxOffsetsPerTrigger": "+10", "failOnDataLoss": "FALSE", "maxTriggerDelay": " 5MIN"}),
        ("kafka", {"kafka__max__poll__records": "many"}),
        ("delta", {"maxBytesPerTrigger": "1g", "maxFilesPerTrigger": "0"}),
        ("delta", {"maxBytesPerTrigger": "1g", "maxFilesPerTrigger": "1"}),
        ("rate", {"rowsPerSecond": "7", "rampUpTime": "5s"}),
    ],
)
def test_a_value_that_spark_takes_is_accepted(format: str, options: dict[str, str]) -> None:
    assert wrong(format, **options) == []


FILES = [
    {name: value}
    for name in ("maxFilesPerTrigger", "maxBytesPerTrigger", "maxCachedFiles")
    for value in ("1", "0", "-1", "+5", "007", " 5", "5 ", "ten", "", "1g", "1.0", "1_0", "3000000000", "٣")
]
FILES += [
    {name: value}
    for name in ("latestFirst", "fileNameOnly")
    for value in ("TRUE", "false", "1", "yes", "", " true")
]
FILES += [
    {"maxFileAge": value}
    for value in ("7d", " 7D ", "5", "-1", "5 d", "1.5h", "week", "", "10min", "3w", "7us")
]
FILES += [{"maxFilesPerTrigger": "1", "maxBytesPerTrigger": "10"}]


def test_for_files_the_answer_is_that_of_spark(spark: SparkSession) -> None:
    context: Any = spark.sparkContext
    streaming = context._jvm.org.apache.spark.sql.execution.streaming
    places = (streaming.runtime, streaming)  # newest first
    options = next(p.FileStreamOptions for p in places if isinstance(p.FileStreamOptions, JavaClass))
    convert = context._jvm.org.apache.spark.api.python.PythonUtils.toScalaMap
    for given in FILES:
        try:
            options(convert(given))
            is_refused = False
        except (PySparkException, Py4JJavaError):
            is_refused = True
        assert bool(wrong("json", **given)) == is_refused, given
