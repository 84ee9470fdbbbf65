"""Small helpers for tests with Spark."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import DeltaTable

START_US = 1_767_225_600_000_000
NUMBERS = "id long, amount double, ts timestamp"


def numbers(ids: Iterable[int], step_us: int = 100_000) -> pa.Table:
    """Rows of the schema `NUMBERS`, one every `step_us` of event time."""
    ids = list(ids)
    at = pa.array([START_US + i * step_us for i in ids], pa.timestamp("us", tz="UTC"))
    return pa.table({"id": pa.array(ids, pa.int64()), "amount": [float(i % 97) for i in ids], "ts": at})


def deliver(folder: Path, name: str, table: pa.Table) -> None:
    """Puts a file where a file source looks; it appears atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{name}"
    pq.write_table(table, hidden)
    hidden.rename(folder / f"{name}.parquet")


def rows_of(path: Path | str, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of a Delta table, sorted."""
    table = DeltaTable(str(path)).to_pyarrow_table()
    names = columns or tuple(table.column_names)
    return sorted(zip(*(table[name].to_pylist() for name in names), strict=True))


def await_that(what: str, holds: Callable[[], Any], seconds: float = 90.0) -> Any:
    """Waits until a condition holds, and returns its value. Fails after a timeout, with `what` in the message."""
    deadline = monotonic() + seconds
    while monotonic() < deadline:
        found = holds()
        if found:
            return found
        sleep(0.02)
    raise AssertionError(f"not within {seconds:g} s: {what}")
