"""A target that has rows of others: nothing is added to it unless that is wanted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import write_deltalake

from cutwater.protocol.base.errors import UserError
from cutwater.sinks.contract import Sink
from cutwater.sinks.delta.making import delta
from cutwater.sinks.foreach_epoch import foreach_epoch
from cutwater.sinks.parquet import parquet
from cutwater.sinks.records import description
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.sink_helpers import ROWS, publish, store

__all__ = ["store"]

THEIRS = pa.table({"id": pa.array([1], pa.int64()), "city": ["x"]})
KINDS: dict[str, Callable[..., Sink]] = {"delta": delta, "parquet": parquet}


def second_store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "second"), create=True)


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return lambda **options: KINDS[request.param](str(tmp_path / "out"), **options)


def bound(sink: Sink, store: Store, **options: Any) -> Sink:
    sink.bind(store, "out", ROWS, **options)
    return sink


def test_rows_that_something_else_has_written_are_not_added_to_by_accident(
    store: Store, tmp_path: Path
) -> None:
    write_deltalake(str(tmp_path / "table"), THEIRS)
    (tmp_path / "files/day=1").mkdir(parents=True)
    pq.write_table(THEIRS, tmp_path / "files/day=1/a.parquet")
    for make, path, what in (
        (delta, "table", r"a Delta table \(version 0\)"),
        (parquet, "files", "a Parquet file"),
    ):
        with pytest.raises(UserError, match=f"{path}, where there is {what}.*existing='append'"):
            bound(make(str(tmp_path / path)), store)
        assert description(store, "out") is None, "nothing was written"
        assert bound(make(str(tmp_path / path), existing="append"), store, register=False).url is not None


def test_a_table_of_another_store_is_not_ours(make: Any, store: Store, tmp_path: Path) -> None:
    """Somebody has removed the store to begin anew, and left the tables."""
    publish(bound(make(), store), 5, [1])
    with pytest.raises(UserError, match="remove the table too"):
        bound(make(), second_store(tmp_path))
    added = bound(make(existing="append"), second_store(tmp_path))
    assert publish(added, 3, [2]) == 1
    bound(make(), second_store(tmp_path))  # and from now on it is known


def test_a_table_that_this_store_has_written_is_not_refused(make: Any, store: Store, tmp_path: Path) -> None:
    publish(bound(make(), store), 5, [1])
    bound(make(), store)
    shutil.move(tmp_path / "out", tmp_path / "moved")
    moved = make()
    moved.path = str(tmp_path / "moved")
    assert bound(moved, store).head().transaction == 5


def test_a_sink_that_has_not_published_is_not_moved_to_a_table_of_others(
    make: Any, store: Store, tmp_path: Path
) -> None:
    bound(make(), store)
    publish(bound(make(), second_store(tmp_path)), 5, [1])
    first = make()
    first.path = str(tmp_path / "elsewhere")
    bound(first, store)
    with pytest.raises(UserError, match="where there is a"):
        bound(make(), store)


def test_a_sink_that_is_only_looked_at_makes_no_folder(make: Any, store: Store, tmp_path: Path) -> None:
    sink = bound(make(), store, register=False, create=False)
    assert sink.head().version == -1
    assert not (tmp_path / "out").exists()
    publish(bound(make(), store), 5, [1])
    assert bound(make(), store, register=False, create=False).head().transaction == 5


@pytest.mark.parametrize("path", ["main.sales.orders", "sales.orders", "`main`.`sales`.`orders`"])
def test_the_name_of_a_table_in_a_catalog_is_not_a_path(store: Store, here: Path, path: str) -> None:
    with pytest.raises(UserError, match=rf"looks like the name of a table in a catalog.*write './{path}'"):
        bound(delta(path, name="out"), store)
    bound(delta(f"./{path}", name="out"), store)


def test_the_name_of_a_folder_is_one(store: Store, here: Path) -> None:
    for path in ("orders.delta", "out.parquet", "a.b.c.d", "orders-v1.2", "out"):
        delta(path, name="x").bind(store, path, ROWS, register=False)


def test_what_to_do_with_an_existing_table_has_one_answer(make: Any) -> None:
    with pytest.raises(UserError, match="existing='overwrite'; give existing='append'"):
        make(existing="overwrite")


def rows_of(*fields: tuple[str, Any]) -> str:
    described = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in fields]
    return json.dumps({"type": "struct", "fields": described})


@pytest.mark.parametrize(
    ("kind", "partition_by", "fields", "why"),
    [
        ("delta", ["id"], [("id", "long")], "partitioned by all columns"),
        ("parquet", ["id", "id"], [("id", "long"), ("k", "long")], "partitioned by id twice"),
        ("parquet", None, [("id", "long"), ("i", "interval")], "column i is a calendar interval"),
        ("delta", None, [("id", "long"), ("v", {"type": "struct", "fields": []})], "column v is a struct without"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_written_are_refused_before_the_start(
    kind: str, partition_by: Any, fields: list[tuple[str, Any]], why: str, store: Store, tmp_path: Path
) -> None:
    sink = KINDS[kind](str(tmp_path / "out"), partition_by=partition_by)
    with pytest.raises(UserError, match=f"sink out cannot be written: .*{why}"):
        sink.bind(store, "out", rows_of(*fields), register=False, create=False)
    assert not (tmp_path / "out").exists()


def test_a_parquet_table_may_be_partitioned_by_all_its_columns(store: Store, tmp_path: Path) -> None:
    sink = parquet(str(tmp_path / "out"), partition_by=["id"])
    sink.bind(store, "out", rows_of(("id", "long")), register=False, create=False)


def test_a_function_gets_no_rows_that_cannot_be_staged(store: Store) -> None:
    sink = foreach_epoch(print, name="out")
    with pytest.raises(UserError, match="sink out cannot be written: column i is a calendar interval"):
        sink.bind(store, "out", rows_of(("i", "interval")), register=False, create=False)
    with pytest.raises(UserError, match=r"foreach_epoch\(3\): give a function"):
        foreach_epoch(3)  # type: ignore[arg-type]
