"""Helpers for tests of Delta tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake

from cutwater.sinks.delta import reading
from cutwater.sinks.delta.making import delta
from cutwater.sinks.delta.sink import DeltaSink
from cutwater.store.contract import Store
from tests.support.sink_helpers import (
    ROWS,
)

Make = Callable[..., DeltaSink]


@pytest.fixture
def table(tmp_path: Path) -> str:
    return str(tmp_path / "table")


@pytest.fixture
def make(table: str, store: Store) -> Make:
    """Makes the sink as each process that hosts it does. It may add to a table that others have made."""

    def bound(rows: str = ROWS, store: Store = store, **options: Any) -> DeltaSink:
        sink = delta(table, **{"existing": "append", **options})
        sink.bind(store, "table", rows)
        return sink

    return bound


def ids(table: str, version: int | None = None) -> list[int]:
    rows = reading.load(table, version=version).to_pyarrow_table()
    return sorted(rows.column("id").to_pylist())


def append(table: str, *numbers: int) -> None:
    """Somebody else appends rows."""
    write_deltalake(
        table, pa.table({"id": pa.array(numbers, pa.int64()), "city": ["else"] * len(numbers)}), mode="append"
    )


def clean_up_log(table: str, before: int) -> None:
    """Makes a checkpoint and removes the commits before it, as Delta readers and writers do eventually."""
    DeltaTable(table, version=before).create_checkpoint()
    for version in range(before):
        Path(table, "_delta_log", f"{version:020d}.json").unlink()
