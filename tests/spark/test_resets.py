"""A stage that a restore resets or brings back never adds rows to a table that already has them. With Spark."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import cutwater as cw
from cutwater.protocol.base.errors import UserError
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.support.spark_helpers import NUMBERS, deliver, numbers, rows_of

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
STATE = "org.apache.spark.sql.execution.streaming.state"


def read(spark: SparkSession, folder: Path) -> DataFrame:
    files: Any = spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1)
    found: DataFrame = files.parquet(str(folder)).select("id")
    return found


def run(pipeline: cw.Pipeline, tmp_path: Path, spark: SparkSession, **more: Any) -> None:
    pipeline.run(str(tmp_path / "state"), every="300ms", once=True, spark=spark, **more)


@pytest.mark.parametrize("provider", ["RocksDBStateStoreProvider", "HDFSBackedStateStoreProvider"])
def test_a_reset_stage_loses_its_state_and_keeps_its_positions(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    """Twelve files, so that the source's log is compacted; then repeated ids, which only state would drop."""
    before = spark.conf.get(PROVIDER)
    spark.conf.set(PROVIDER, f"{STATE}.{provider}")

    def make() -> cw.Pipeline:
        pipeline = cw.Pipeline("resets")

        @pipeline.stage(sinks=[cw.delta(str(tmp_path / "middle"))])
        def once_each(spark: SparkSession) -> DataFrame:
            return read(spark, tmp_path / "in").dropDuplicates(["id"])

        @pipeline.stage(sinks=[cw.delta(str(tmp_path / "out"))])
        def mixed(spark: SparkSession, once_each: DataFrame) -> DataFrame:
            own = read(spark, tmp_path / "own").selectExpr("id + 100 id")
            return once_each.union(own).dropDuplicates(["id"])

        return pipeline

    try:
        for part in range(12):
            deliver(tmp_path / "in", f"{part:02}", numbers([part]))
            deliver(tmp_path / "own", f"{part:02}", numbers([part]))
        run(make(), tmp_path, spark)
        for folder in ("in", "own"):
            deliver(tmp_path / folder, "12", numbers([12, 3]))
        both = ["once_each", "mixed"]
        run(make(), tmp_path, spark, restore="latest", reset=both)
        middle = [*range(13), 3]
        assert rows_of(tmp_path / "middle") == [(n,) for n in sorted(middle)]
        out = [*middle, *(n + 100 for n in middle)]
        assert rows_of(tmp_path / "out") == [(n,) for n in sorted(out)]
        run(make(), tmp_path, spark, restore="latest", reset=both)
        run(make(), tmp_path, spark, restore="latest")  # to a checkpoint without a batch since the reset
        run(make(), tmp_path, spark)
        assert rows_of(tmp_path / "out") == [(n,) for n in sorted(out)]
        for folder in ("in", "own"):
            deliver(tmp_path / folder, "13", numbers([13, 4]))
        run(make(), tmp_path, spark)
        more = [13, 4, 113, 104]
        assert rows_of(tmp_path / "out") == [(n,) for n in sorted([*out, *more])]
        changes = [path.name for path in (tmp_path / "state").glob("stages/*/*/spark/*/state/**/*.changelog")]
        assert bool(changes) == provider.startswith("RocksDB")
        assert all("_" in name for name in changes), "state files keep unique names after a reset"
    finally:
        spark.conf.set(PROVIDER, before or "")


def test_a_dropped_stage_with_a_source_of_its_own_cannot_return_to_its_old_table(
    spark: SparkSession, tmp_path: Path
) -> None:
    def make(*tables: str) -> cw.Pipeline:
        pipeline = cw.Pipeline("back")
        pipeline.stage(name="a", sinks=[cw.delta(str(tmp_path / "a"))])(
            lambda spark: read(spark, tmp_path / "in")
        )
        for table in tables:
            pipeline.stage(name="b", sinks=[cw.delta(str(tmp_path / table))])(
                lambda spark: read(spark, tmp_path / "other")
            )
        return pipeline

    for part in range(3):
        deliver(tmp_path / "in", str(part), numbers([part]))
        deliver(tmp_path / "other", str(part), numbers([part]))
    run(make("b"), tmp_path, spark)
    run(make(), tmp_path, spark, restore="latest", drop=["b"])
    with pytest.raises(
        UserError, match=r"sink 'b' already has rows of it.*give the sinks that get its rows new names"
    ):
        run(make("b"), tmp_path, spark, restore="latest")
    run(make("fresh"), tmp_path, spark, restore="latest")
    assert [rows_of(tmp_path / table) for table in ("a", "b", "fresh")] == [[(0,), (1,), (2,)]] * 3


def as_it_was(pipeline: cw.Pipeline, tmp_path: Path) -> None:
    pipeline.stage(name="a", sinks=[cw.delta(str(tmp_path / "out"))])(
        lambda spark: read(spark, tmp_path / "in")
    )


def elsewhere(pipeline: cw.Pipeline, tmp_path: Path) -> None:
    pipeline.stage(name="a", sinks=[cw.delta(str(tmp_path / "out"))])(
        lambda spark: read(spark, tmp_path / "other")
    )


def moved_out(pipeline: cw.Pipeline, tmp_path: Path) -> None:
    pipeline.stage(name="files")(lambda spark: read(spark, tmp_path / "in"))
    pipeline.stage(name="a", sinks=[cw.delta(str(tmp_path / "out"))])(lambda files: files)


def moved_out_under_new_names(pipeline: cw.Pipeline, tmp_path: Path) -> None:
    pipeline.stage(name="files")(lambda spark: read(spark, tmp_path / "in"))
    pipeline.stage(name="b", sinks=[cw.delta(str(tmp_path / "new"))])(lambda files: files)


def test_a_restore_with_other_sources_than_the_checkpoint_has_positions_of_writes_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    def make(define: Callable[[cw.Pipeline, Path], None]) -> cw.Pipeline:
        pipeline = cw.Pipeline("sources")
        define(pipeline, tmp_path)
        return pipeline

    for part in range(2):
        deliver(tmp_path / "in", str(part), numbers([part]))
        deliver(tmp_path / "other", str(part), numbers([100 + part]))
    run(make(as_it_was), tmp_path, spark)
    store = open_store(str(tmp_path / "state"))
    before = read_journal(store).index
    for define, now in ((elsewhere, "the source parquet .*/other"), (moved_out, "the channel 'files'")):
        refused = (
            rf"stage 'a' cannot start from epoch \d+: it now reads {now}.* its position is that of the source parquet "
            r".*/in\).*Nothing was changed.*--restore latest --drop a"
        )
        for reset in ([], ["a"]):
            with pytest.raises(UserError, match=refused) as raised:
                run(make(define), tmp_path, spark, restore="latest", reset=reset)
            assert "--reset" not in str(raised.value)
            assert read_journal(store).index == before
    deliver(tmp_path / "in", "2", numbers([2]))
    run(make(as_it_was), tmp_path, spark)
    assert rows_of(tmp_path / "out") == [(0,), (1,), (2,)]
    run(make(moved_out_under_new_names), tmp_path, spark, restore="latest", drop=["a"])  # the advice works
    assert rows_of(tmp_path / "out") == rows_of(tmp_path / "new") == [(0,), (1,), (2,)]
