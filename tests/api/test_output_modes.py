"""Results in update and complete mode, given to a function: an epoch of several batches shows one version of each row."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw
from tests.support.spark_helpers import NUMBERS, deliver, numbers, rows_of

Counts = list[tuple[int, int]]


def counts(rows: DataFrame) -> Counts:
    return sorted((row.key, row["count"]) for row in rows.collect())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Four files, which a stage reads one by one: the first two have keys 0 and 1, the others only 0."""
    for number, ids in enumerate([(0, 1, 2), (3, 4, 5), (6,), (8,)]):
        deliver(tmp_path / "in", str(number), numbers(ids))
        aged = 1_700_000_000 + number  # Spark reads them in the order of their ages
        os.utime(tmp_path / "in" / f"{number}.parquet", (aged, aged))
    return tmp_path / "in"


def by_key(spark: SparkSession, source: Path) -> DataFrame:
    rows = spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1).parquet(str(source))
    return rows.groupBy((F.col("id") % 2).alias("key")).count()


def batches(tmp_path: Path) -> int:
    return len(list((tmp_path / "state/stages/counted").glob("*/spark/*/prepared/*.json")))


def test_in_complete_mode_an_epoch_shows_the_result_of_its_last_batch(
    tmp_path: Path, spark: SparkSession, source: Path
) -> None:
    calls: dict[str, list[Counts]] = {"all": [], "few": [], "copy": []}
    pipeline = cw.Pipeline("complete")

    def into(name: str) -> cw.Sink:
        return cw.foreach_epoch(lambda rows, epoch: calls[name].append(counts(rows)), name=name)

    @pipeline.stage(output_mode="complete", sinks=[into("all")], allow_shared_source=True)
    def counted(spark: SparkSession) -> DataFrame:
        return by_key(spark, source)

    @pipeline.stage(output_mode="complete", sinks=[into("few"), into("copy")], allow_shared_source=True)
    def seldom(spark: SparkSession) -> DataFrame:
        return by_key(spark, source).where("count < 3")  # in the end there is none

    pipeline.run(str(tmp_path / "state"), every="1h", once=True, spark=spark)
    assert batches(tmp_path) >= 4
    assert len(calls["all"]) <= 2, "several batches share an epoch"
    assert calls["all"][-1] == [(0, 5), (1, 3)]
    assert calls["few"][-1] == calls["copy"][-1] == []


def test_in_update_mode_the_newest_row_of_a_key_can_be_found(
    tmp_path: Path, spark: SparkSession, source: Path
) -> None:
    known: dict[int, int] = {}
    given: list[int] = []
    pipeline = cw.Pipeline("update")

    def upsert(rows: DataFrame, epoch: int) -> None:
        given.append(rows.count())
        known.update(counts(rows.groupBy("key").agg(F.max_by("count", "_batch").alias("count"))))

    @pipeline.stage(output_mode="update", sinks=[cw.foreach_epoch(upsert)])
    def counted(spark: SparkSession) -> DataFrame:
        return by_key(spark, source)

    pipeline.run(str(tmp_path / "state"), every="1h", once=True, spark=spark)
    assert known == {0: 5, 1: 3}
    assert sum(given) == 6, "each batch gives the keys that it has changed"
    assert max(given) > 2, "several batches share an epoch"


def test_operators_without_keys_keep_their_state_in_one_partition(
    tmp_path: Path, spark: SparkSession, source: Path
) -> None:
    """Nor does a `limit` lose its state in an empty first batch, which a channel's reader begins with."""
    totals: list[int] = []
    first: list[int] = []
    pipeline = cw.Pipeline("keyless")

    @pipeline.stage
    def read(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1).parquet(str(source))

    @pipeline.stage(
        output_mode="complete",
        sinks=[cw.foreach_epoch(lambda rows, _: totals.append(rows.collect()[0][0]), name="totals")],
    )
    def total(read: DataFrame) -> DataFrame:
        return read.groupBy().agg(F.sum("id"))

    @pipeline.stage(
        sinks=[cw.foreach_epoch(lambda rows, _: first.extend(r.id for r in rows.collect()), name="first")]
    )
    def few(read: DataFrame) -> DataFrame:
        return read.limit(7)

    for _ in range(2):
        pipeline.run(str(tmp_path / "state"), every="1h", once=True, spark=spark)
        deliver(source, "more", numbers((100, 101)))
    assert totals[0] == 29
    assert totals[-1] == 29 + 201
    assert len(first) == len(set(first)) == 7, "a limit gives as many rows as it says, in one run or two"
    assert set(first) < {0, 1, 2, 3, 4, 5, 6, 8}, "which files come first is Spark's choice"


def test_a_running_total_is_a_table_with_keys(tmp_path: Path, spark: SparkSession, source: Path) -> None:
    pipeline = cw.Pipeline("running")

    @pipeline.stage(output_mode="update", sinks=[cw.delta(str(tmp_path / "totals"), keys="key")])
    def counted(spark: SparkSession) -> DataFrame:
        return by_key(spark, source)

    pipeline.run(str(tmp_path / "state"), every="1h", once=True, spark=spark)
    assert rows_of(tmp_path / "totals") == [(0, 5), (1, 3)]
    deliver(tmp_path / "in", "4", numbers((9, 11, 12)))
    pipeline.run(str(tmp_path / "state"), every="1h", once=True, spark=spark)
    assert rows_of(tmp_path / "totals") == [(0, 6), (1, 5)]


def test_changes_that_a_channel_carries_too_reach_a_table_with_keys(
    tmp_path: Path, spark: SparkSession, source: Path
) -> None:
    """A sink whose files differ from those of the channel does not get them as links."""
    pipeline = cw.Pipeline("changes")

    @pipeline.stage(
        sinks=[
            cw.delta(
                str(tmp_path / "newest"),
                keys="key",
                sequence_by="id",
                delete_when="id = 8",
                except_columns="ts",
            ),
            cw.delta(str(tmp_path / "all")),
        ]
    )
    def changes(spark: SparkSession) -> DataFrame:
        rows = spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1).parquet(str(source))
        return rows.withColumn("key", F.col("id") % 2)

    pipeline.run(str(tmp_path / "state"), every="1h", once=True, spark=spark)
    assert rows_of(tmp_path / "newest", "key", "id") == [(1, 5)], "the row of key 0 was deleted last"
    assert len(rows_of(tmp_path / "all")) == 8
    assert cw.read(spark, str(tmp_path / "state"), "newest").columns == ["id", "amount", "key"]
