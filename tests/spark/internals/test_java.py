"""The check that this build of Spark has what Cutwater uses of it."""

from __future__ import annotations

import re
from typing import Any

import pyspark
import pytest
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import UserError
from cutwater.spark.internals.java import DATASET, NEEDS, NEW, OFFSET, SUPPORTED, Java, Need

END = f", which Cutwater needs; supported: {SUPPORTED}"


@pytest.mark.parametrize(
    ("need", "lack"),
    [
        (Need("org.apache.spark.sql.Nowhere"), "the class org.apache.spark.sql.Nowhere"),
        (
            Need("org.apache.spark.sql.now.Nowhere", {NEW: (4,)}, "org.apache.spark.sql.before"),
            "the class org.apache.spark.sql.now.Nowhere or org.apache.spark.sql.before.Nowhere",
        ),
        (
            Need(OFFSET.name, {NEW: (7, 4)}, OFFSET.before),
            r"a constructor of org.apache.spark.sql.execution.streaming[.a-z]*.SerializedOffset with 4 or 7 arguments",
        ),
        (
            Need(DATASET.name, {"ofRows": (2,), "ofColumns": (1,)}),
            r"ofColumns of org.apache.spark.sql.classic.Dataset\$ with 1 arguments",
        ),
    ],
)
def test_what_a_build_lacks_is_reported_in_one_line(spark: SparkSession, need: Need, lack: str) -> None:
    with pytest.raises(UserError) as raised:
        Java(spark, [need])
    assert re.fullmatch(
        f"this build of Spark {re.escape(pyspark.__version__)} lacks {lack}{re.escape(END)}",
        str(raised.value),
    )


def test_this_build_is_checked_once_per_jvm_with_few_calls(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Java(spark)._client
    send, sent = client.send_command, list[str]()

    def count(command: str, *more: Any, **options: Any) -> Any:
        sent.append(command)
        return send(command, *more, **options)

    monkeypatch.setattr(client, "send_command", count)
    checked = Java(spark)
    assert {need.name for need in NEEDS} == checked._found.keys()
    calls = [command for command in sent if not command.startswith("m\n")]  # without those that free objects
    assert len(calls) < 6 * len(NEEDS), "a call costs some tenths of a millisecond"
    other = spark.newSession()
    known = Java.of(spark)
    sent.clear()
    assert Java.of(other) is known
    assert sent == []


def test_a_class_is_found_where_it_was_before_it_moved(spark: SparkSession) -> None:
    moved = Need("org.apache.spark.sql.later.Path", {NEW: (1,)}, "org.apache.hadoop.fs")
    java = Java(spark, [moved])
    assert java.name(moved) == "org.apache.hadoop.fs.Path"
    assert java.type(moved)("/a/b").getName() == "b"
    assert java.takes(moved, 2)
    assert not java.takes(moved, 9)
