"""Reading the tables of a published epoch, all at one cut, with Arrow and with Spark."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, TableFeatures, write_deltalake
from pyspark.sql import DataFrame, SparkSession

import cutwater as cw
from cutwater.protocol.base.paths import mark_name
from cutwater.sinks.delta.reading import refuse_unreadable
from cutwater.spark.files import Files
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.support.spark_helpers import NUMBERS, deliver, numbers

SIZES = ["big = 1/2", "small", None]
DELTA_COLUMNS = ["id", "size", "day", "amount"]
Rows = list[tuple[Any, ...]]


class Shop:
    """A pipeline with a partitioned Delta table, a partitioned Parquet sink, a function, and a table that gets no rows,
    in a folder whose name has a space."""

    def __init__(self, base: Path, spark: SparkSession) -> None:
        self.base, self.spark = base / "a b", spark
        self.store = str(self.base / "state")
        self.pipeline = cw.Pipeline("kept")
        size = " ".join(f"WHEN id % 3 = {i} THEN '{s}'" for i, s in enumerate(SIZES) if s is not None)
        out = str(self.base / "out")
        sinks = [
            cw.delta(f"{out}/by_size", partition_by=["size", "day"]),
            cw.parquet(f"{out}/all", partition_by="size"),
            cw.foreach_epoch(lambda rows, epoch: None, name="mail"),
        ]

        @self.pipeline.stage(sinks=sinks)
        def sized(spark: SparkSession) -> DataFrame:
            rows = spark.readStream.schema(NUMBERS).parquet(str(self.base / "in"))
            return rows.selectExpr("id", f"CASE {size} END AS size", "to_date(ts) AS day", "amount")

        @self.pipeline.stage(sinks=[cw.delta(f"{out}/none")])
        def none(sized: DataFrame) -> DataFrame:
            return sized.where("id < 0")

    def run(self, **options: Any) -> int:
        """Process all input. Returns the last epoch."""
        self.pipeline.run(self.store, every="1h", once=True, retained=20, spark=self.spark, **options)
        head = read_journal(open_store(self.store)).state.head
        assert head is not None
        return head

    def deliver(self, name: str, ids: range) -> None:
        deliver(self.base / "in", name, numbers(ids))


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Shop:
    return Shop(tmp_path, spark)


def expected(count: int) -> Rows:
    day = datetime.date(2026, 1, 1)
    return [(i, SIZES[i % 3], day, float(i % 97)) for i in range(count)]


def by_arrow(snapshot: cw.Snapshot, table: str) -> Rows:
    found = snapshot[table].to_table()
    assert found.column_names == DELTA_COLUMNS
    return sorted(zip(*(column.to_pylist() for column in found.columns), strict=True))


def by_spark(frame: DataFrame) -> Rows:
    assert frame.columns == DELTA_COLUMNS
    assert not frame.isStreaming
    return sorted(tuple(row) for row in frame.collect())


def shows(shop: Shop, epoch: int, count: int) -> None:
    """Both tables at an epoch, by Arrow and by Spark."""
    snapshot = cw.snapshot(shop.store, epoch)
    assert snapshot.epoch == epoch
    assert set(snapshot) == {"by_size", "all", "none"}
    for table in ("by_size", "all"):
        assert by_arrow(snapshot, table) == expected(count)
        assert by_spark(snapshot.read(shop.spark, table)) == expected(count)
        assert by_spark(cw.read(shop.spark, shop.store, table, epoch)) == expected(count)


def test_tables_can_be_read_at_an_epoch_when_later_ones_exist_and_after_a_restore(shop: Shop) -> None:
    shop.deliver("0", range(10))
    first = shop.run()
    shows(shop, first, 10)
    shop.deliver("1", range(10, 25))
    second = shop.run()
    shows(shop, first, 10)
    shows(shop, second, 25)
    newest = cw.read(shop.spark, shop.store, "by_size")
    assert by_spark(newest) == expected(25)
    assert by_spark(newest.where("size = 'small'")) == [r for r in expected(25) if r[1] == "small"]
    assert newest.where("size IS NULL").count() == len([r for r in expected(25) if r[1] is None])
    assert dict(newest.dtypes)["day"] == "date"

    shop.deliver("2", range(25, 30))
    third = shop.run(restore=first)
    shows(shop, first, 10)
    shows(shop, third, 30)
    assert cw.snapshot(shop.store).epoch == third


def test_tables_that_cannot_be_read_are_refused_with_the_reason(shop: Shop) -> None:
    count = 10
    shop.deliver("0", range(count))
    epoch = shop.run()
    with pytest.raises(
        cw.UserError, match=r"no table 'nope' at epoch \d+; its tables are: all, by_size, none"
    ):
        cw.read(shop.spark, shop.store, "nope")
    with pytest.raises(cw.UserError, match="has no table 'mail'"):
        cw.snapshot(shop.store)["mail"]
    with pytest.raises(cw.UserError, match="999"):
        cw.snapshot(shop.store, 999)
    with pytest.raises(cw.UserError, match=r"table 'none' .* does not exist yet"):
        cw.read(shop.spark, shop.store, "none")
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(cw.UserError, match="Connect"):
        cw.read(connect(), shop.store, "all")

    snapshot = cw.snapshot(shop.store, epoch)
    table = shop.base / "out/by_size"
    DeltaTable(str(table)).delete()
    assert DeltaTable(str(table)).to_pyarrow_dataset().count_rows() == 0
    assert by_arrow(snapshot, "by_size") == expected(count), "later versions do not matter"
    assert by_spark(snapshot.read(shop.spark, "by_size")) == expected(count)
    data = next((table / "_cutwater").rglob("*.parquet"))
    kept_bytes = data.read_bytes()
    data.unlink()
    for read in (lambda: snapshot["by_size"], lambda: snapshot.read(shop.spark, "by_size")):
        with pytest.raises(cw.UserError, match=r"version \d+ of table 'by_size' .* can no longer be read"):
            read()
    data.write_bytes(kept_bytes)
    logs = sorted((table / "_delta_log").glob("*.json"))
    moved = logs[0].rename(table / "first.json")
    with pytest.raises(cw.UserError, match="can no longer be read"):
        snapshot["by_size"]
    moved.rename(logs[0])

    store = open_store(shop.store)
    state = read_journal(store).state
    assert state.head is not None
    store.delete([mark_name(checkpoint.index, "all") for checkpoint in state.committed.values()])
    with pytest.raises(cw.UserError, match="sink 'all' has not published epoch"):
        cw.read(shop.spark, shop.store, "by_size", epoch)
    with pytest.raises(cw.UserError, match=r"no epoch of .* is published in every table yet"):
        cw.snapshot(shop.store)


def test_a_table_that_is_empty_at_an_epoch_has_its_columns(shop: Shop) -> None:
    (shop.base / "in").mkdir(parents=True)
    before = shop.run()
    assert cw.snapshot(shop.store).versions == {"by_size": -1, "all": -1, "none": -1}
    shop.deliver("0", range(10))
    shop.run()
    snapshot = cw.snapshot(shop.store, before)
    for table in ("by_size", "all"):
        assert by_arrow(snapshot, table) == []
        assert by_spark(snapshot.read(shop.spark, table)) == []
        now = cw.snapshot(shop.store)
        assert snapshot[table].schema.equals(now[table].schema)
        assert snapshot.read(shop.spark, table).schema == now.read(shop.spark, table).schema


def test_files_of_one_folder_may_have_different_partition_values(spark: SparkSession, tmp_path: Path) -> None:
    """Some writers spread files over folders with random names."""
    deliver(tmp_path, "0", numbers(range(3)))
    deliver(tmp_path, "1", numbers(range(3, 5)))
    schema = {
        "type": "struct",
        "fields": [
            {"name": name, "type": kind, "nullable": True, "metadata": {}}
            for name, kind in (("half", "integer"), ("id", "long"), ("amount", "double"))
        ],
    }
    values = pa.table({"half": pa.array([1, None], pa.int32())})
    paths = [f"file://{tmp_path}/{number}.parquet" for number in (0, 1)]
    frame = Files(spark).partitioned_frame(paths, schema, values)
    assert frame.columns == ["half", "id", "amount"]
    assert sorted((r.id, r.half) for r in frame.collect()) == [(0, 1), (1, 1), (2, 1), (3, None), (4, None)]
    with pytest.raises(FileNotFoundError):
        Files(spark).partitioned_frame([*paths, f"{paths[0]}.gone"], schema, pa.table({"half": [1, 2, 3]}))


def test_a_table_whose_files_do_not_hold_exactly_its_rows_is_refused(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path), pa.table({"id": [1]}))
    refuse_unreadable(DeltaTable(str(tmp_path)), "t")
    DeltaTable(str(tmp_path)).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    with pytest.raises(
        cw.UserError, match="uses deletionVectors, which Cutwater cannot read; read version 1"
    ):
        refuse_unreadable(DeltaTable(str(tmp_path)), "t")
