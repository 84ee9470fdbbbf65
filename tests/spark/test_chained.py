"""Pipelines whose stages are chained, with real queries."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw
from cutwater.protocol.base.errors import UserError
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.support.spark_helpers import NUMBERS, deliver, numbers, rows_of


class Numbers:
    """A pipeline that reads numbers from files, and writes them to one table, with a choice of stages in between."""

    def __init__(self, folder: Path, *, chain: bool | None = None) -> None:
        self.folder = folder
        self.pipeline = cw.Pipeline("numbers") if chain is None else cw.Pipeline("numbers", chain=chain)

    def read(self, spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 2)
        return files.parquet(str(self.folder / "in"))

    def sink(self, name: str = "out") -> Any:
        return cw.delta(str(self.folder / name))

    def run(self, spark: SparkSession, **options: Any) -> None:
        self.pipeline.run(str(self.folder / "state"), once=True, spark=spark, **options)

    def rows(self, *columns: str, table: str = "out") -> list[tuple[Any, ...]]:
        return list(rows_of(self.folder / table, *columns))

    @property
    def chained(self) -> dict[str, str]:
        graph = read_journal(open_store(str(self.folder / "state"))).state.topology
        assert graph is not None
        return {name: stage.reader for name, stage in graph.chained.items()}


def windows(frame: DataFrame) -> DataFrame:
    """Sums per second of event time, in which there are ten numbers."""
    summed = frame.withWatermark("ts", "1 second").groupBy(F.window("ts", "1 second"), "part")
    return summed.agg(F.count("*").alias("n"), F.sum("id").alias("total"))


def sums(ids: Iterable[int]) -> list[tuple[int, int, int]]:
    """The rows of `windows`: the part, the count and the sum, per second."""
    found: dict[tuple[int, int], list[int]] = {}
    for i in ids:
        if i % 5:
            found.setdefault((i // 10, i % 3), []).append(i)
    return sorted((part, len(of), sum(of)) for (_, part), of in found.items())


def deliver_numbers(folder: Path, files: int = 4) -> None:
    for part in range(files):
        deliver(folder / "in", f"{part}", numbers(range(part * 50, part * 50 + 50)))
        aged = 1_700_000_000 + part  # Spark reads them in the order of their ages
        os.utime(folder / "in" / f"{part}.parquet", (aged, aged))


@pytest.mark.parametrize("chain", [True, False])
def test_chained_stages_produce_the_same_rows_as_separate_queries(
    spark: SparkSession, tmp_path: Path, chain: bool, log_lines: list[str]
) -> None:
    deliver_numbers(tmp_path)
    shop = Numbers(tmp_path, chain=chain)

    @shop.pipeline.stage
    def clean(spark: SparkSession) -> DataFrame:
        return shop.read(spark).where("id % 5 <> 0").withColumn("always", F.lit("x"))

    @shop.pipeline.stage
    def parts(clean: DataFrame) -> DataFrame:
        return clean.select("*", (F.col("id") % 3).alias("part"))

    @shop.pipeline.stage(sinks=[shop.sink()])
    def total(parts: DataFrame) -> DataFrame:
        return windows(parts)

    shop.run(spark)
    assert shop.chained == ({"clean": "parts", "parts": "total"} if chain else {})
    assert ("the query of stage 'total' also runs clean, parts" in "\n".join(log_lines)) == chain
    assert shop.rows("part", "n", "total") == sums(range(180)), "the watermark is at 18.9 s"


def test_a_stage_that_must_be_chained_and_cannot_be_is_refused_before_anything_is_written(
    spark: SparkSession, tmp_path: Path
) -> None:
    deliver_numbers(tmp_path, 1)
    shop = Numbers(tmp_path, chain=False)

    @shop.pipeline.stage(chain=True)
    def once(spark: SparkSession) -> DataFrame:
        return shop.read(spark).dropDuplicates(["id"])

    @shop.pipeline.stage(sinks=[shop.sink()])
    def out(once: DataFrame) -> DataFrame:
        return once

    with pytest.raises(UserError, match=r"'once' has chain=True .* it keeps state \(Deduplicate\)"):
        shop.run(spark)
    assert not list((tmp_path / "state").glob("journal/*"))


def test_stages_that_spark_takes_only_apart_are_not_chained_unless_they_must_be(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Both observe something under the same name, which one query cannot have twice."""
    deliver_numbers(tmp_path, 1)

    def make(chain: bool | None = None) -> Numbers:
        shop = Numbers(tmp_path)

        @shop.pipeline.stage(chain=chain)
        def clean(spark: SparkSession) -> DataFrame:
            return shop.read(spark).observe("quality", F.max("id").alias("most")).where("id % 5 <> 0")

        @shop.pipeline.stage(sinks=[shop.sink()])
        def out(clean: DataFrame) -> DataFrame:
            return clean.observe("quality", F.min("id").alias("least")).select("id")

        return shop

    with pytest.raises(
        UserError, match=r"'clean' has chain=True .* Spark refuses the query of 'out' with clean inside"
    ):
        make(True).run(spark)
    assert not list((tmp_path / "state").glob("journal/*"))
    shop = make()
    shop.run(spark)
    assert shop.chained == {}
    assert shop.rows("id") == [(i,) for i in range(50) if i % 5]


def test_a_plain_start_keeps_the_queries_of_a_store_that_was_not_chained(
    spark: SparkSession, tmp_path: Path
) -> None:
    deliver(tmp_path / "in", "0", numbers(range(55)))
    summing(tmp_path, False).run(spark)
    deliver(tmp_path / "in", "1", numbers(range(55, 105)))
    shop = summing(tmp_path)
    shop.run(spark)
    assert shop.chained == {}
    assert shop.rows("part", "n", "total") == sums(range(90)), "the watermark is at 9.4 s"


def summing(folder: Path, chain: bool | None = None, second_table: bool = False) -> Numbers:
    """Numbers, cleaned and then summed per second, in two stages."""
    shop = Numbers(folder, chain=chain)

    @shop.pipeline.stage(sinks=[shop.sink("cleaned")] if second_table else [])
    def clean(spark: SparkSession) -> DataFrame:
        return shop.read(spark).where("id % 5 <> 0")

    @shop.pipeline.stage(sinks=[shop.sink()])
    def total(clean: DataFrame) -> DataFrame:
        return windows(clean.select("*", (F.col("id") % 3).alias("part")))

    return shop


def test_a_chain_is_split_and_merged_without_losing_or_repeating_a_row(
    spark: SparkSession, tmp_path: Path, log_lines: list[str]
) -> None:
    """Each step reads new files, and closes windows that an earlier step has opened."""
    deliver(tmp_path / "in", "0", numbers(range(55)))
    summing(tmp_path, True).run(spark)
    assert summing(tmp_path, True).chained == {"clean": "total"}

    deliver(tmp_path / "in", "1", numbers(range(55, 105)))
    with pytest.raises(
        UserError, match=r"stage 'clean' is no longer chained into 'total'.* --restore latest"
    ):
        summing(tmp_path, True, second_table=True).run(spark)
    summing(tmp_path, True, second_table=True).run(spark, restore="latest")
    apart = summing(tmp_path, True)
    assert apart.chained == {}
    assert apart.rows("id", table="cleaned") == [(i,) for i in range(55, 105) if i % 5]

    deliver(tmp_path / "in", "2", numbers(range(105, 155)))
    apart.run(spark, restore="latest", drop=["cleaned"])
    assert apart.chained == {}, "a chain comes back only when it is asked for"

    deliver(tmp_path / "in", "3", numbers(range(155, 205)))
    apart.run(spark, restore="latest", rechain=True)
    assert apart.chained == {"clean": "total"}
    assert "the query of stage 'total' runs other stages than at epoch" in "\n".join(log_lines)

    deliver(tmp_path / "in", "4", numbers(range(205, 255)))
    apart.run(spark)
    assert apart.rows("part", "n", "total") == sums(range(240)), "the watermark is at 24.4 s"


def test_two_chained_sources_keep_their_own_positions_when_they_are_split_and_merged(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The reader keeps no state. Both sides read files, and more of them on one side, so that positions that are mixed up
    would skip files or read them twice."""

    def both(chain: bool) -> Numbers:
        shop = Numbers(tmp_path, chain=chain)

        def read(spark: SparkSession, side: str) -> DataFrame:
            return (
                spark.readStream.schema(NUMBERS).parquet(str(tmp_path / side)).withColumn("side", F.lit(side))
            )

        @shop.pipeline.stage
        def left(spark: SparkSession) -> DataFrame:
            return read(spark, "left")

        @shop.pipeline.stage
        def right(spark: SparkSession) -> DataFrame:
            return read(spark, "right")

        @shop.pipeline.stage(sinks=[shop.sink()])
        def out(left: DataFrame, right: DataFrame) -> DataFrame:
            return right.union(left)

        return shop

    def more(*ids: int) -> None:
        for i in ids:
            deliver(tmp_path / "left", f"{i}", numbers([i]))
        deliver(tmp_path / "right", f"{ids[0]}", numbers([ids[0]]))

    more(1, 2, 3)
    both(True).run(spark)
    assert both(True).chained == {"left": "out", "right": "out"}
    more(4, 5)
    both(False).run(spark, restore="latest")
    assert both(False).chained == {}
    more(6, 7)
    both(True).run(spark, restore="latest", rechain=True)
    assert both(True).chained == {"left": "out", "right": "out"}
    more(8, 9)
    both(True).run(spark)
    assert both(True).rows("side", "id") == [
        *(("left", i) for i in range(1, 10)), *(("right", i) for i in (1, 4, 6, 8))
    ]  # fmt: skip
