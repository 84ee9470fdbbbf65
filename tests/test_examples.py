"""Every example runs, and gives what a batch job over the same input gives."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

import cutwater as cw
from cutwater.commands.loading import load
from tests.spark_helpers import rows_of

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parent.parent / "examples"
ROWS, FILES = 2_000, 8


def rows_by(query: str) -> list[tuple[Any, ...]]:
    """What a batch query gives."""
    return duckdb.execute(query).fetchall()


def run(name: str, here: Path, spark: SparkSession) -> None:
    make = [sys.executable, str(EXAMPLES / "make_orders.py"), str(here / "in"), str(ROWS), str(FILES)]
    subprocess.run(make, check=True)
    load(str(EXAMPLES / f"{name}.py")).run(
        str(here / "state"), every="1s", once=True, spark=spark, tell=lambda line: None
    )


def test_orders(here: Path, spark: SparkSession) -> None:
    run("orders", here, spark)
    matched = rows_by(
        """
        SELECT o.id, o.amount FROM 'in/orders/*.parquet' o JOIN (SELECT DISTINCT * FROM 'in/payments/*.parquet') p
        ON o.id = p.order_id WHERE o.amount > 0 AND p.paid_at BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR ORDER BY ALL
        """
    )
    assert rows_of("out/matched", "id", "amount") == matched
    revenue = [(row[0],) for row in rows_of("out/revenue", "revenue")]
    minutes = rows_by(
        """
        SELECT sum(o.amount) FROM 'in/orders/*.parquet' o WHERE o.amount > 0 AND o.id % 10 != 3
        GROUP BY date_trunc('minute', o.ts) ORDER BY min(o.ts) LIMIT 8
        """
    )  # ten minutes of orders, and the watermark stands a minute before the end
    assert revenue == sorted(minutes)


def test_many_sinks(here: Path, spark: SparkSession) -> None:
    run("many_sinks", here, spark)
    everything = rows_by("SELECT id, amount FROM 'in/orders/*.parquet' ORDER BY ALL")
    assert rows_of("out/by_size", "id", "amount") == everything
    files = cw.parquet_files("out/all")
    assert rows_by(f"SELECT id, amount FROM read_parquet({files!r}) ORDER BY ALL") == everything
    alarms = [line for path in sorted(Path("out/alarms").iterdir()) for line in path.read_text().splitlines()]
    assert sorted(alarms) == sorted(f"{i} {a}" for i, a in everything if a < 0)
    assert set(cw.tables("state")) == {"by_size", "all", "alarms"}


def test_sessions(here: Path, spark: SparkSession) -> None:
    run("sessions", here, spark)
    totals = rows_by(
        """
        SELECT id % 50, id, count(*) OVER w, sum(amount) OVER w FROM 'in/orders/*.parquet' WHERE amount > 0
        WINDOW w AS (PARTITION BY id % 50 ORDER BY id) ORDER BY ALL
        """
    )
    assert rows_of("out/totals", "customer", "id", "orders", "spent") == totals
