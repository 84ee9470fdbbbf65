"""Channels on Spark: what they carry, who reads them, and what is left of them."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw
from cutwater.spark.feed import FeedWriter
from cutwater.spark.source import ChannelReader, Feed, channel_source
from tests.spark_helpers import NUMBERS, deliver, numbers, rows_of

ALL_TYPES = """
    id long,
    tiny byte, small short, whole int, huge long, single float, twice double, yes boolean, text string, raw binary,
    price decimal(12,2), wide decimal(38,10), day date, at timestamp, local timestamp_ntz,
    span interval day to second,
    list array<int>, words array<string>, by_name map<string,double>,
    pair struct<a: int, b: struct<c: string, at: timestamp>>, nested array<struct<k: string, v: map<string,array<int>>>>
"""


def one_of_each(number: int) -> tuple[Any, ...]:
    if number % 5 == 4:
        return (number, *[None] * 20)
    at = dt.datetime(2026, 1, 1, 12, 30, 15, 123456) + dt.timedelta(seconds=number)
    return (
        number, number % 100, number, number, 2**62 - number, 0.5 + number, 1e300 / (number + 1), number % 2 == 0,
        f"ünï {number} \u0000 🦆", bytes([number % 256, 0, 255]), Decimal(number) / 4,
        Decimal("12345678901234567890.0123456789"),
        dt.date(1969, 7, 20) + dt.timedelta(days=number), at, at, dt.timedelta(days=number, microseconds=7),
        [number, None, 3], [], {"a": 1.5, "b": None}, (number, ("c", at)),
        [("k", {"x": [1, None]}), (None, None)],
    )  # fmt: skip


def test_every_type_that_can_pass_passes_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "in")
    rows = spark.createDataFrame([one_of_each(i) for i in range(50)], ALL_TYPES)
    rows.repartition(3).write.parquet(source)
    pipeline = cw.Pipeline("types")

    @pipeline.stage
    def first(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(rows.schema).parquet(source)

    @pipeline.stage
    def second(first: DataFrame) -> DataFrame:
        return first

    @pipeline.stage(sinks=[cw.parquet(str(tmp_path / "out"))])
    def third(second: DataFrame) -> DataFrame:
        return second

    pipeline.run(str(tmp_path / "state"), once=True, spark=spark, tell=lambda line: None)
    out = spark.read.schema(rows.schema).parquet(*cw.parquet_files(str(tmp_path / "out")))
    before = spark.read.schema(rows.schema).parquet(source)
    assert sorted(out.collect(), key=lambda r: r.id) == sorted(before.collect(), key=lambda r: r.id)
    assert out.count() == 50


def test_fan_out_self_join_and_a_native_source_beside_a_channel(spark: SparkSession, tmp_path: Path) -> None:
    for part in range(6):
        deliver(tmp_path / "in", f"{part}", numbers(range(part * 100, part * 100 + 100)))
        deliver(tmp_path / "more", f"{part}", numbers(range(1000 + part * 10, 1010 + part * 10)))
    pipeline = cw.Pipeline("shapes")

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "even"))])
    def even(source: DataFrame) -> DataFrame:
        return source.where("id % 2 = 0")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "pairs"))])
    def pairs(source: DataFrame) -> DataFrame:
        left = source.withWatermark("ts", "10 minutes").alias("l")
        right = source.withWatermark("ts", "10 minutes").alias("r")
        return left.join(
            right, F.expr("l.id = r.id + 1 AND l.ts >= r.ts AND l.ts <= r.ts + INTERVAL 1 MINUTE")
        ).select(F.col("l.id").alias("id"), F.col("r.id").alias("before"))

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "both"))], max_rows=150)
    def both(spark: SparkSession, even: DataFrame) -> DataFrame:
        other = (
            spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "more"))
        )
        return even.select("id").union(other.select("id"))

    pipeline.run(str(tmp_path / "state"), every="500ms", once=True, spark=spark, tell=lambda line: None)
    assert rows_of(tmp_path / "even", "id") == [(i,) for i in range(0, 600, 2)]
    assert rows_of(tmp_path / "pairs", "id", "before") == [(i, i - 1) for i in range(1, 600)]
    assert rows_of(tmp_path / "both", "id") == sorted(
        [(i,) for i in range(0, 600, 2)] + [(i,) for i in range(1000, 1060)]
    )


# --- the planner, without Spark -----------------------------------------------------------------------


def reader(path: Path, **options: str) -> ChannelReader:
    from pyspark.sql.types import StructType

    return ChannelReader({"input": "a", "feed": str(path), **options}, StructType().add("id", "long"))


def test_no_two_readers_of_channels_share_what_spark_keeps_of_a_source(spark: SparkSession) -> None:
    sources = [
        channel_source("totals", "orders"),
        channel_source("totals", "payments"),
        channel_source("x", "orders"),
    ]
    for source in sources:
        spark.dataSource.register(source)
    kept = spark._jsparkSession.sessionState().dataSourceManager()
    maps = [kept.lookupDataSource(source.name()).dataSourceCls().envVars() for source in sources]
    maps[0].put("ONLY_HERE", "1")
    assert [m.containsKey("ONLY_HERE") for m in maps] == [True, False, False]


def test_the_planner_reads_up_to_the_limit_and_passes_over_empty_batches(tmp_path: Path) -> None:
    writer = FeedWriter(tmp_path / "f", -1, lambda name: f"/x/{name}")
    planner = reader(tmp_path / "f")
    assert planner.initialOffset() == {"channel": "a", "batch": -1}
    writer.add([(0, ["p"], 10), (1, [], 0), (2, ["q", "r"], 5), (3, ["s"], 1)], 2)
    everything = planner.getDefaultReadLimit()
    assert planner.latestOffset({"channel": "a", "batch": -1}, everything)["batch"] == 2
    files = [path for part in planner.partitions({"batch": -1}, {"batch": 2}) for path in part.paths]  # type: ignore[attr-defined]
    assert sorted(files) == ["/x/p", "/x/q", "/x/r"]
    writer.add([], 3)
    assert planner.latestOffset({"channel": "a", "batch": 2}, everything)["batch"] == 3
    writer.add([(4, [], 0)], 4)
    assert planner.latestOffset({"channel": "a", "batch": 3}, everything)["batch"] == 3, (
        "nothing to read there"
    )


def test_many_small_batches_are_read_in_few_partitions(tmp_path: Path) -> None:
    writer = FeedWriter(tmp_path / "f", -1, str)
    writer.add([(b, [f"/p{b}"], 1) for b in range(1000)], 999)
    assert len(reader(tmp_path / "f", tasks="2").partitions({"batch": -1}, {"batch": 999})) == 2


def test_max_rows_takes_whole_batches_and_at_least_one(tmp_path: Path) -> None:
    writer = FeedWriter(tmp_path / "f", -1, str)
    writer.add([(b, [f"/p{b}"], 100) for b in range(10)], 9)
    planner = reader(tmp_path / "f", max_rows="250")
    limit = planner.getDefaultReadLimit()
    assert planner.latestOffset({"batch": -1}, limit)["batch"] == 1
    assert reader(tmp_path / "f", max_rows="50").latestOffset({"batch": -1}, limit)["batch"] == 0


def test_a_feed_that_is_written_anew_is_read_anew(tmp_path: Path) -> None:
    writer = FeedWriter(tmp_path / "f", 4, str)
    feed = Feed(str(tmp_path / "f"))
    feed.read_on()
    assert (feed.start, feed.limit) == (4, 4)
    writer.add([(5, ["a"], 1), (6, ["b"], 1)], 6)
    feed.read_on()
    feed.forget(5)
    writer.forget(5)
    writer._write_anew()
    writer.add([(7, ["c"], 1)], 7)
    feed.read_on()
    assert sorted(feed.batches) == [6, 7]
    assert feed.limit == 7


def test_half_a_line_is_left_for_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b'{"to": 3}\n{"b": 4, "f"')
    feed = Feed(str(path))
    feed.read_on()
    assert (feed.limit, feed.batches) == (3, {})
    with path.open("ab") as file:
        file.write(b': ["x"], "n": 2}\n')
    feed.read_on()
    assert feed.batches == {4: (["x"], 2)}


def test_a_planned_batch_that_is_not_known_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutwater.spark.source.KNOWN_WITHIN_S", 0.2)
    FeedWriter(tmp_path / "f", -1, str)
    with pytest.raises(RuntimeError, match="batch 0 of channel 'a' is planned"):
        reader(tmp_path / "f").partitions({"batch": -1}, {"batch": 0})
