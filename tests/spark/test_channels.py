"""Channels on Spark: the types that they carry, their readers, and files that do not belong to a batch."""

from __future__ import annotations

import datetime as dt
import re
import shutil
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw
from cutwater.spark.internals.types import VOID_TYPES
from cutwater.store.local import LocalStore
from tests.support.spark_helpers import NUMBERS, deliver, numbers, rows_of

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


def test_channels_carry_every_supported_type_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "in")
    rows = spark.createDataFrame([one_of_each(i) for i in range(50)], ALL_TYPES)
    rows.repartition(3).write.parquet(source)
    pipeline = cw.Pipeline("types", chain=False)

    @pipeline.stage
    def first(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(rows.schema).parquet(source)

    @pipeline.stage
    def second(first: DataFrame) -> DataFrame:
        return first

    @pipeline.stage(sinks=[cw.parquet(str(tmp_path / "out"))])
    def third(second: DataFrame) -> DataFrame:
        return second

    pipeline.run(str(tmp_path / "state"), once=True, spark=spark)
    out = spark.read.schema(rows.schema).parquet(*cw.parquet_files(str(tmp_path / "out")))
    before = spark.read.schema(rows.schema).parquet(source)
    assert sorted(out.collect(), key=lambda r: r.id) == sorted(before.collect(), key=lambda r: r.id)
    assert out.count() == 50


def test_channels_carry_types_that_python_cannot_represent(spark: SparkSession, tmp_path: Path) -> None:
    deliver(tmp_path / "in", "0", numbers(range(5)))
    pipeline = cw.Pipeline("types", chain=False)
    made = [
        "id", "parse_json(to_json(struct(id, ts))) v", "make_ym_interval(1, cast(id as int)) ym",
        "case id % 2 when 0 then 'A' else 'b' end collate UNICODE_CI c", "array('x' collate UNICODE_CI) cs",
    ]  # fmt: skip
    columns = [
        "id", "to_json(v) v", "cast(ym as int) ym", "collation(c) cn", "c = 'a' same", "collation(cs[0]) csn",
    ]  # fmt: skip
    if VOID_TYPES:
        made.append("null n")
        columns.append("typeof(n) n")
    if spark.conf.get("spark.sql.geospatial.enabled", "false") == "true":  # in Spark 4.1 it is not
        made.append("st_geogfromwkb(X'0101000000000000000000F03F0000000000000040') g")
        columns.append("hex(st_asbinary(g)) g")

    @pipeline.stage
    def first(spark: SparkSession) -> DataFrame:
        source = spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))
        return source.selectExpr(*made)

    @pipeline.stage
    def second(first: DataFrame) -> DataFrame:
        return first

    @pipeline.stage(sinks=[cw.parquet(str(tmp_path / "out"))])
    def third(second: DataFrame) -> DataFrame:
        return second.selectExpr(*columns)

    pipeline.run(str(tmp_path / "state"), once=True, spark=spark)
    out = spark.read.parquet(*cw.parquet_files(str(tmp_path / "out")))
    batch = spark.read.schema(NUMBERS).parquet(str(tmp_path / "in")).selectExpr(*made)
    wanted = batch.selectExpr(*columns).collect()
    assert sorted(out.collect(), key=lambda r: r.id) == sorted(wanted, key=lambda r: r.id)
    assert any(row.same for row in wanted)


def test_a_fan_out_a_self_join_and_a_native_source_beside_a_channel(
    spark: SparkSession, tmp_path: Path
) -> None:
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

    pipeline.run(str(tmp_path / "state"), every="500ms", once=True, spark=spark)
    assert rows_of(tmp_path / "even", "id") == [(i,) for i in range(0, 600, 2)]
    assert rows_of(tmp_path / "pairs", "id", "before") == [(i, i - 1) for i in range(1, 600)]
    assert rows_of(tmp_path / "both", "id") == sorted(
        [(i,) for i in range(0, 600, 2)] + [(i,) for i in range(1000, 1060)]
    )


def test_the_file_of_an_abandoned_task_is_in_no_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a task creates `_temporary/` again after the job's commit has removed it, and leaves a complete file there."""
    deliver(tmp_path / "in", "0", numbers(range(40)))
    left: list[Path] = []

    def leave_behind(folder: Path) -> None:
        late = folder / "_temporary/0/_temporary/attempt_202601011200000000000000000_0007_m_000000_1"
        for path in folder.glob("*.parquet"):
            late.mkdir(parents=True, exist_ok=True)
            left.append(Path(shutil.copy(path, late)))

    list_files = LocalStore.list

    def listed(store: LocalStore, prefix: str, after: str = "") -> list[str]:
        name = prefix.rstrip("/").rpartition("/")[2]
        if re.fullmatch(r"(\d+-)?\d+-\d+-[0-9a-f]{8}", name) and (store.root / prefix).is_dir():
            leave_behind(store.root / prefix)
        return list_files(store, prefix, after)

    monkeypatch.setattr(LocalStore, "list", listed)
    pipeline = cw.Pipeline("late", chain=False)

    @pipeline.stage
    def first(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "one")), cw.delta(str(tmp_path / "two"))])
    def second(first: DataFrame) -> DataFrame:
        return first.select("id")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "three"))])
    def third(first: DataFrame) -> DataFrame:
        return first.select("id")

    pipeline.run(str(tmp_path / "state"), once=True, spark=spark)
    folders = {str(path).partition("/_temporary/")[0].rpartition("/")[0] for path in left}
    assert len(folders) == 5  # the channels of two stages, and three sinks
    for table in ("one", "two", "three"):
        assert rows_of(tmp_path / table, "id") == [(i,) for i in range(40)]
