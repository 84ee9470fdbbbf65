"""Makes input for the examples: `python make_orders.py FOLDER [ROWS] [FILES]`."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

START_US = 1_767_225_600_000_000
MINUTE_US = 60_000_000


def make(folder: Path, rows: int, files: int) -> None:
    """Write ten minutes of orders and payments, ordered by time. One order in ten is never paid, one in twenty is a
    correction, and every payment occurs twice."""
    (folder / "orders").mkdir(parents=True, exist_ok=True)
    (folder / "payments").mkdir(parents=True, exist_ok=True)
    for number in range(files):
        ids = range(number * rows // files, (number + 1) * rows // files)
        at = [START_US + i * 10 * MINUTE_US // rows for i in ids]
        amounts = [-1.0 if i % 20 == 7 else float(i % 500) + 0.5 for i in ids]
        orders = pa.table(
            {"id": list(ids), "amount": amounts, "ts": pa.array(at, pa.timestamp("us", tz="UTC"))}
        )
        paid = [i for i in ids if i % 10 != 3] * 2
        paid_at = [START_US + i * 10 * MINUTE_US // rows + 5_000_000 for i in paid]
        payments = pa.table(
            {"id": paid, "order_id": paid, "paid_at": pa.array(paid_at, pa.timestamp("us", tz="UTC"))}
        )
        pq.write_table(orders, folder / f"orders/{number:04d}.parquet")
        pq.write_table(payments, folder / f"payments/{number:04d}.parquet")


if __name__ == "__main__":
    make(Path(sys.argv[1]), *(int(value) for value in [*sys.argv[2:], "10000", "10"][:2]))
