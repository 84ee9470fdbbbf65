"""Bounded input for the pipelines under test, and the expected results, computed by a batch job."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

START = datetime(2026, 1, 1, tzinfo=UTC)
STAMP = pa.timestamp("us", tz="UTC")
ROWS = 100
"""Orders per file."""

Rows = list[tuple[Any, ...]]


class Input:
    """Orders and payments as Parquet files, to which more can be added. Event time advances with the order
    number; its disorder stays below every watermark's delay, so no row is ever late."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.files = 0
        self.amount = 97
        """Amounts are below this."""

    def add(self, files: int) -> None:
        """Writes `files` more files of each kind."""
        for _ in range(files):
            first = self.files * ROWS
            ids = list(range(first, first + ROWS))
            stamps = [_stamp(i) for i in ids]
            self._write(
                "orders",
                {
                    "id": pa.array(ids, pa.int64()),
                    "amount": pa.array([i % self.amount for i in ids], pa.int64()),
                    "ts": pa.array(stamps, STAMP),
                    "file": pa.array([self.files] * ROWS, pa.int64()),
                },
            )
            again = [i for i in range(first - ROWS, first) if i > 0 and i % 13 == 1]
            paid = [i for i in (*ids, *again) if i % 5]
            self._write(
                "payments",
                {
                    "order_id": pa.array(paid, pa.int64()),
                    "paid_at": pa.array([_paid_at(i) for i in paid], STAMP),
                },
            )
            self.files += 1

    def remove(self, files: int) -> None:
        """Removes the last files, as input that should never have existed."""
        for _ in range(files):
            self.files -= 1
            for kind in ("orders", "payments"):
                (self.base / "in" / kind / f"{self.files:04d}.parquet").unlink()

    def _write(self, kind: str, columns: dict[str, Any]) -> None:
        folder = self.base / "in" / kind
        folder.mkdir(parents=True, exist_ok=True)
        unseen = folder / f".{self.files:04d}"
        pq.write_table(pa.table(columns), unseen)
        moment = START.timestamp() + self.files  # Spark reads files in order of age
        os.utime(unseen, (moment, moment))
        unseen.rename(folder / f"{self.files:04d}.parquet")

    # --- the batch job --------------------------------------------------------------------------------

    def query(self, sql: str, orders: int | None = None, payments: int | None = None) -> Rows:
        """Rows of a query over `orders` and `payments`, or over the given number of first files of each."""
        with duckdb.connect() as connection:
            connection.execute("set TimeZone = 'UTC'")
            for kind, files in (("orders", orders), ("payments", payments)):
                names = sorted(str(p) for p in (self.base / "in" / kind).glob("*.parquet"))
                connection.execute(
                    f"create view {kind} as from read_parquet({names}, filename = true) "
                    f"where list_position({names[:files]}, filename) is not null"
                )
            return sorted(connection.execute(sql).fetchall())


ORDERS = "select id, amount, epoch_us(ts), file from orders"
BIG = "select id, amount from orders where amount >= 50"
SMALL = "select id, amount from orders where amount < 50"
PAYMENTS = "select distinct order_id, epoch_us(paid_at) from payments"
MATCHED = """
    select id, amount, epoch_us(ts) as ts_us, epoch_us(paid_at)
    from orders join (select distinct order_id, paid_at from payments) on id = order_id
    where paid_at >= ts and paid_at <= ts + interval 1 hour
"""
LATENESS_US = 60_000_000


def windows(rows: str, watermark: str) -> str:
    """The ten-second windows over `amount` and `ts_us` that are closed at a watermark."""
    return f"""
        select ts_us // 10000000 * 10000000 as start, sum(amount)::bigint, count(*) from ({rows})
        group by start having start + 10000000 <= ({watermark})
    """


def closed_windows(rows: str) -> str:
    """The windows that are closed when all rows have been seen."""
    return windows(rows, f"select max(ts_us) - {LATENESS_US} from ({rows})")


TIMES = "select amount, epoch_us(ts) as ts_us from orders"
REVENUE = closed_windows(TIMES)
ALL_PAID_REVENUE = closed_windows(MATCHED)
FINAL_WATERMARK = "final_watermark_us"
PAID_REVENUE = windows(MATCHED, FINAL_WATERMARK)
"""Closed by the pipeline's last watermark. It can be lower than the rows would allow: after a start Spark advances a
join's watermark only when both inputs have had new rows."""


def _stamp(order: int) -> datetime:
    return START + timedelta(seconds=order * 0.5 + order * 7919 % 20)


def _paid_at(order: int) -> datetime:
    return _stamp(order) + timedelta(seconds=-5 if order % 11 == 0 else 5)
