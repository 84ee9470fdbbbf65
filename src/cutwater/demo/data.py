"""The demos' data: input files of orders and payments, the result of a batch job over them, and the tables."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

FILES = 24
PER_FILE = 1_000
MINUTES = 24
START_MS = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)
STEP_MS = MINUTES * 60_000 // (FILES * PER_FILE)
BAD = 900_001.0
"""The amount in every bad order."""


def deliver(folder: Path, numbers: range, bad: bool = False) -> None:
    """Put files of orders and payments where the pipeline looks for them. Each appears complete, by a rename."""
    for number in numbers:
        ids = range(number * PER_FILE, (number + 1) * PER_FILE)
        if bad:
            ids = range(10_000_000 + number * PER_FILE, 10_000_000 + (number + 1) * PER_FILE)
        at = [START_MS + (i % 10_000_000) * STEP_MS for i in ids]
        amounts = [BAD if bad else float(i * 7919 % 9_900) / 100 + 1 for i in ids]
        orders = {"id": list(ids), "amount": amounts, "ts": _times(at)}
        paid = [i for i in ids if i % 10 != 3]
        payments = {
            "order_id": paid,
            "paid_at": _times([START_MS + (i % 10_000_000) * STEP_MS + 20_000 for i in paid]),
        }
        name = f"{'bad' if bad else 'part'}-{number:03d}.parquet"
        _write(folder / "in/orders", name, orders)
        _write(folder / "in/payments", name, payments)


def _times(ms: list[int]) -> Any:
    return pa.array(ms, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC"))


def _write(folder: Path, name: str, columns: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    hidden = folder / f".{name}"
    pq.write_table(pa.table(columns), hidden)
    hidden.rename(folder / name)


def batch_result(folder: Path, limit: float, closed_ms: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both tables as computed by a batch job over all input; only windows that end by `closed_ms`."""
    orders = pd.read_parquet(folder / "in/orders")
    payments = pd.read_parquet(folder / "in/payments").drop_duplicates("order_id")
    orders = orders[orders["amount"] < limit]
    both = orders.merge(payments, left_on="id", right_on="order_id")
    wait = both["paid_at"] - both["ts"]
    both = both[(wait >= pd.Timedelta(0)) & (wait <= pd.Timedelta(minutes=1))]
    matched = both[["id", "amount", "ts", "paid_at"]].sort_values("id").reset_index(drop=True)
    start = matched["ts"].dt.floor("1min")
    groups = matched.groupby(start)["amount"].agg(["sum", "count"]).reset_index()
    groups.columns = pd.Index(["start", "revenue", "orders"])
    ends = groups["start"] + pd.Timedelta(minutes=1)
    revenue = groups[ends <= pd.Timestamp(closed_ms, unit="ms", tz="UTC")]
    return matched, revenue.reset_index(drop=True)


def read_tables(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both published tables."""
    from deltalake import DeltaTable

    matched = DeltaTable(str(folder / "out/matched")).to_pandas().sort_values("id").reset_index(drop=True)
    rows = DeltaTable(str(folder / "out/revenue")).to_pandas()
    rows["start"] = [window["start"] for window in rows["window"]]
    rows = rows[["start", "revenue", "orders"]].sort_values("start").reset_index(drop=True)
    return matched[["id", "amount", "ts", "paid_at"]], rows
