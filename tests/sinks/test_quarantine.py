"""The table for bad rows: a Delta table with one more column."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StringType, StructField, StructType

from cutwater.protocol.base.errors import UserError
from cutwater.sinks.quarantine import Quarantine, quarantine
from cutwater.sinks.registry import open_sink
from cutwater.store.contract import Store
from cutwater.store.opening import open_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


def rows(*columns: str) -> StructType:
    return StructType([StructField(name, LongType()) for name in columns])


def bound(store: Store, folder: Path, *columns: str) -> Quarantine:
    sink = quarantine(str(folder / "bad"))
    sink.bind(store, sink.name, sink.columns_for(rows(*columns)).json())
    return sink


def test_it_has_the_columns_of_the_stage_and_the_violated_rules(tmp_path: Path, store: Store) -> None:
    sink = bound(store, tmp_path, "id")
    folder = Path(sink.staging("1-1-0-a").removeprefix("file://"))
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [7], "violated": [["positive", "known"]]}), folder / "part-0.parquet")
    assert sink.publish(-1, 3, tuple(file.name for file in sink.staged("1-1-0-a")), epoch=1) == 0
    assert DeltaTable(str(tmp_path / "bad")).to_pyarrow_table().to_pylist() == [
        {"id": 7, "violated": ["positive", "known"]}
    ]
    assert open_sink(store, "bad").kind == "delta", "commands need not know that it is a quarantine"
    with pytest.raises(
        UserError, match=r"sink bad cannot add to the Delta table .* Change the rows or the table"
    ):
        bound(store, tmp_path, "id", "new")


def test_its_column_is_not_one_to_partition_by(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is partitioned by 'violated', which is an array"):
        quarantine("bad", partition_by="violated")
    assert quarantine("bad", column="why").columns_for(StructType()).names == ["why"]
    fields = quarantine("bad").columns_for(StructType([StructField("a", StringType())]))
    assert fields.names == ["a", "violated"]
