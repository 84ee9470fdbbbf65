"""A real pipeline whose store is damaged, whose code raises, or whose channel has the wrong columns: each time there is
a clear error, and nothing is lost."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw
from cutwater.api.log_lines import lines_to
from cutwater.protocol.base.errors import CutwaterError
from cutwater.protocol.base.paths import JOURNAL_PREFIX, entry_name, manifest_name, stage_log_prefix
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.support.spark_helpers import NUMBERS, deliver, numbers, rows_of

Change = Callable[[DataFrame], DataFrame]


class Shop:
    """A pipeline of two stages in its own folder."""

    def __init__(self, base: Path, spark: SparkSession) -> None:
        self.base, self.spark, self.log_lines = base, spark, list[str]()
        self.count = 0

    def deliver(self) -> None:
        deliver(self.base / "in", f"part-{self.count}", numbers(range(self.count, self.count + 40)))
        self.count += 40

    def run(self, change: Change = lambda kept: kept, **options: Any) -> None:
        pipeline = cw.Pipeline("shop")

        @pipeline.stage(sinks=[cw.delta(str(self.base / "out/clean"))])
        def clean(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema(NUMBERS).parquet(str(self.base / "in"))

        @pipeline.stage(sinks=[cw.delta(str(self.base / "out/kept"))])
        def kept(clean: DataFrame) -> DataFrame:
            return change(clean.select("id", "amount"))

        options = {"every": "1h", "restarts": 0, "tolerated_failures": 0, **options}
        store = str(self.base / "state")
        with lines_to(self.log_lines.append):
            pipeline.run(store, spark=self.spark, once=True, **options)

    def fails(self, change: Change = lambda kept: kept, **options: Any) -> str:
        """Runs it, which must fail, and returns the message."""
        with pytest.raises(CutwaterError) as raised:
            self.run(change, **options)
        return str(raised.value)

    def is_whole(self) -> None:
        assert [row[0] for row in rows_of(self.base / "out/kept")] == list(range(self.count))
        assert [row[0] for row in rows_of(self.base / "out/clean", "id")] == list(range(self.count))

    @property
    def newest(self) -> Path:
        state = read_journal(open_store(str(self.base / "state"))).state
        assert state.head is not None
        checkpoint = state.committed[state.head]
        return self.base / "state" / manifest_name(checkpoint.epoch, checkpoint.checkpoint_id)


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Shop:
    made = Shop(tmp_path, spark)
    for _ in range(2):
        made.deliver()
        made.run()
    return made


def spoil(path: Path) -> Callable[[], None]:
    """Flips a bit of an object, and returns a function that repairs it."""
    whole = path.read_bytes()
    path.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    return lambda: (path.write_bytes(whole), None)[1]


def test_a_damaged_journal_is_named_and_nothing_is_lost(shop: Shop) -> None:
    store = open_store(str(shop.base / "state"))
    last = read_journal(store).index
    repair = spoil(shop.base / "state" / entry_name(JOURNAL_PREFIX, last))
    shop.deliver()
    assert entry_name(JOURNAL_PREFIX, last) in shop.fails()
    repair()
    shop.run()
    shop.is_whole()


def test_a_lost_journal_never_looks_like_a_fresh_start(shop: Shop) -> None:
    shutil.move(shop.base / "state/journal", shop.base / "aside")
    assert "the journal was lost" in shop.fails()
    shutil.rmtree(shop.base / "state/journal", ignore_errors=True)
    shutil.move(shop.base / "aside", shop.base / "state/journal")
    shop.deliver()
    shop.run()
    shop.is_whole()


def test_a_damaged_stage_log_is_named_and_nothing_is_lost(shop: Shop) -> None:
    prefix = stage_log_prefix("kept", 1)
    last = max(path.name for path in (shop.base / "state" / prefix).iterdir())
    repair = spoil(shop.base / "state" / prefix / last)
    shop.deliver()
    assert f"{prefix}{last}" in shop.fails()
    repair()
    shop.run()
    shop.is_whole()


def test_a_damaged_manifest_is_named_and_the_checkpoint_before_it_is_restored_with_a_report(
    shop: Shop,
) -> None:
    spoil(shop.newest)
    shop.deliver()
    said = shop.fails(restore=shop.newest.parent.name.split("-")[0])
    assert shop.newest.name in said
    assert "Nothing was changed" in said
    shop.log_lines.clear()
    shop.run(restore="latest")
    assert any(line.startswith("falling back to epoch ") for line in shop.log_lines), shop.log_lines
    shop.is_whole()


def test_user_code_that_raises_is_quoted_and_nothing_is_lost(shop: Shop) -> None:
    @F.udf("double")
    def broken(amount: float) -> float:
        raise ValueError(f"cannot price {amount}")

    shop.deliver()
    said = shop.fails(lambda kept: kept.withColumn("amount", broken("amount")))
    assert "stage 'kept' failed" in said
    assert "ValueError: cannot price" in said
    shop.run()
    shop.is_whole()


def test_a_channel_with_the_wrong_columns_is_named_and_nothing_is_lost(shop: Shop) -> None:
    @F.udf("double")
    def broken(amount: float) -> float:
        raise ValueError(f"cannot price {amount}")

    before = set((shop.base / "state/stages/clean").rglob("*.parquet"))
    shop.deliver()
    shop.fails(lambda kept: kept.withColumn("amount", broken("amount")))
    (path,) = set((shop.base / "state/stages/clean").rglob("*.parquet")) - before
    whole = path.read_bytes()
    pq.write_table(pq.read_table(path).drop_columns(["amount"]), path)
    said = shop.fails()
    assert path.name in said
    assert "amount" in said
    path.write_bytes(whole)
    shop.run()
    shop.is_whole()


def test_a_store_that_cannot_be_written_is_an_error_that_names_it(
    tmp_path: Path, spark: SparkSession
) -> None:
    (tmp_path / "state").write_text("a file, not a folder")
    shop = Shop(tmp_path, spark)
    shop.deliver()
    assert str(tmp_path / "state") in shop.fails()
