"""Makes input for the examples: `python make_orders.py FOLDER [ROWS] [FILES]`."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

START_US = 1_767_225_600_000_000
MINUTE_US = 60_000_000
MINUTES = 120
SLOW_US = 40 * MINUTE_US


def make(folder: Path, rows: int, files: int) -> None:
    """Write two hours of orders and their payments, each ordered by time. One order in ten is never paid, one in ten is
    paid after forty minutes, one in twenty is a correction, and every payment occurs twice."""
    ids = range(rows)
    amounts = [-1.0 if i % 20 == 7 else float(i % 500) + 0.5 for i in ids]
    orders = pa.table({"id": list(ids), "amount": amounts, "ts": _times([_at(i, rows) for i in ids])})
    paid = sorted(
        (_at(i, rows) + (SLOW_US if i % 10 == 1 else 5_000_000), i) for i in [*ids, *ids] if i % 10 != 3
    )
    numbers = [i for _, i in paid]
    payments = pa.table({"id": numbers, "order_id": numbers, "paid_at": _times([at for at, _ in paid])})
    for name, table in (("orders", orders), ("payments", payments)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        ends = [number * table.num_rows // files for number in range(files + 1)]
        for number, (start, end) in enumerate(pairwise(ends)):
            pq.write_table(table.slice(start, end - start), folder / f"{name}/{number:04d}.parquet")


def _at(order: int, rows: int) -> int:
    return START_US + order * MINUTES * MINUTE_US // rows


def _times(values: list[int]) -> Any:
    return pa.array(values, pa.timestamp("us", tz="UTC"))


if __name__ == "__main__":
    make(Path(sys.argv[1]), *(int(value) for value in [*sys.argv[2:], "10000", "10"][:2]))
