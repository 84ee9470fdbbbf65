"""Rows that were staged with other columns, types or partitions than the code has now are never shown as if they had
them: a reader would give nulls for what a file does not have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake

from cutwater.protocol.base.errors import UserError
from cutwater.sinks import Sink, delta, foreach_epoch, parquet
from cutwater.sinks.footers import read_footers
from cutwater.sinks.staged_columns import columns_of, staged_columns
from cutwater.spark.files import SCHEMA_KEY
from cutwater.store.contract import Store
from tests.support.sink_helpers import schema, store

__all__ = ["store"]

NOW = schema(id="long", total="long")
KINDS: dict[str, Callable[..., Sink]] = {
    "delta": lambda base, **more: delta(str(base / "t"), name="t", **more),
    "parquet": lambda base, **more: parquet(str(base / "t"), name="t", **more),
    "function": lambda base, **more: foreach_epoch(lambda rows, epoch: None, name="t"),
}


def bound(kind: str, base: Path, store: Store, rows: str, **more: Any) -> Sink:
    sink = KINDS[kind](base, **more)
    sink.bind(store, "t", rows)
    sink.attach(object())  # type: ignore[arg-type]
    return sink


def stage(sink: Sink, attempt: str, rows: str, folder: str = "") -> tuple[str, ...]:
    """Stages one row with these columns, as Spark would."""
    kinds = {"long": pa.int64(), "string": pa.string(), "integer": pa.int32()}
    fields = [(f["name"], kinds[f["type"]]) for f in json.loads(rows)["fields"]]
    table = pa.table({name: pa.array(["1" if kind == pa.string() else 1], kind) for name, kind in fields})
    place = Path(sink.staging(attempt).removeprefix("file://")) / folder
    place.mkdir(parents=True)
    pq.write_table(table.replace_schema_metadata({SCHEMA_KEY: rows}), place / "part-0.parquet")
    return tuple(file.name for file in sink.staged(attempt))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "before",
    [schema(id="long", old="long"), schema(id="long"), schema(id="long", total="string")],
    ids=["renamed", "added", "another type"],
)
def test_rows_that_were_staged_with_other_columns_are_not_published(
    kind: str, before: str, tmp_path: Path, store: Store
) -> None:
    files = stage(bound(kind, tmp_path, store, before), "1-1-0-a", before)
    sink = bound(kind, tmp_path, store, NOW)
    assert sink.unfit(files) is not None
    with pytest.raises(UserError, match=r"columns id long.*the code now has id long, total long.*--drop t"):
        sink.publish(-1, 5, files, epoch=1)
    assert sink.head().transaction == 0


@pytest.mark.parametrize("kind", ["delta", "parquet"])
@pytest.mark.parametrize(("before", "now"), [("total", None), (None, "total")], ids=["removed", "added"])
def test_a_partition_column_is_not_lost_when_partition_by_changes(
    kind: str, before: str | None, now: str | None, tmp_path: Path, store: Store
) -> None:
    """A Parquet sink's files have all columns, so they are published; a Delta table's do not."""
    sink = bound(kind, tmp_path, store, NOW, partition_by=before)
    inside = schema(id="long") if kind == "delta" and before else NOW
    folder = {"delta": "total=1", "parquet": "__cutwater_by_total=1"}[kind] if before else ""
    files = stage(sink, "1-1-0-a", inside, folder)
    assert sink.unfit(files) is None
    changed = bound(kind, tmp_path, store, NOW, partition_by=now)
    if kind == "parquet":
        assert changed.publish(-1, 5, files, epoch=1) == 0
        assert changed.dataset(0).to_table().to_pylist() == [{"id": 1, "total": 1}]
        return
    with pytest.raises(UserError, match=r"total \(in the path: partition_by\)"):
        changed.publish(-1, 5, files, epoch=1)
    assert sink.publish(-1, 5, files, epoch=1) == 0  # the advice works
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist() == [{"id": 1, "total": 1}]


def test_rows_that_fit_a_delta_table_are_published_after_the_code_got_a_column_that_the_table_has(
    tmp_path: Path, store: Store
) -> None:
    before = schema(id="long")
    files = stage(bound("delta", tmp_path, store, before), "1-1-0-a", before)
    empty = pa.table({"id": pa.array([], pa.int64()), "total": pa.array([], pa.int64())})
    write_deltalake(str(tmp_path / "t"), empty)
    sink = bound("delta", tmp_path, store, NOW)
    assert sink.publish(0, 5, files, epoch=1) == 1
    assert DeltaTable(str(tmp_path / "t")).to_pyarrow_table().to_pylist() == [{"id": 1, "total": None}]


def test_a_snapshot_has_the_columns_of_the_parquet_sink_whatever_its_first_file_has(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older versions have published such files."""
    sink = bound("parquet", tmp_path, store, NOW)
    monkeypatch.setattr(type(sink), "unfit", lambda self, names: None)
    files = stage(sink, "1-1-0-a", schema(id="long", old="long")) + stage(sink, "1-1-1-a", NOW)
    sink.publish(-1, 5, files, epoch=1)
    assert sink.dataset(0).to_table().to_pylist() == [{"id": 1, "total": None}, {"id": 1, "total": 1}]
    other = files[:1]
    sink.publish(0, 6, (), epoch=2)
    monkeypatch.setattr(type(sink), "_readable_files", lambda self, version: list(other))
    assert sink.dataset(0).schema.names == ["id", "total"]


def test_all_kinds_of_strings_and_nested_nulls_are_alike(tmp_path: Path, store: Store) -> None:
    def rows(text: str, nulls: bool) -> str:
        inner = {"type": "array", "elementType": text, "containsNull": nulls}
        fields = [{"name": "id", "type": text, "nullable": nulls, "metadata": {"a": 1}},
                  {"name": "list", "type": inner, "nullable": nulls, "metadata": {}}]  # fmt: skip
        return json.dumps({"type": "struct", "fields": fields})

    one = columns_of(json.loads(rows("varchar(3)", False)))
    other = columns_of(json.loads(rows("string", True)))
    assert one.is_like(other)
    assert not one.is_like(columns_of(json.loads(rows("long", True))))


def test_a_file_that_does_not_tell_its_types_is_judged_by_its_names(tmp_path: Path, store: Store) -> None:
    pq.write_table(pa.table({"id": [1], "total": [2]}), tmp_path / "store" / "x.parquet")
    found = staged_columns("x.parquet", read_footers(store, ["x.parquet"])[0])
    assert found.is_like(columns_of(json.loads(NOW)))
    assert not found.is_like(columns_of(json.loads(schema(id="long"))))
