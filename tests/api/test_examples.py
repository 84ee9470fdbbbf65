"""Every example runs, and gives the same result as a batch job over the same input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

import cutwater as cw
from tests.support.spark_helpers import rows_of

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[2] / "examples"
ROWS, FILES = 2_000, 8


def rows_by(query: str) -> list[tuple[Any, ...]]:
    return duckdb.execute(query).fetchall()


def make_input(here: Path) -> None:
    make = [sys.executable, str(EXAMPLES / "make_orders.py"), str(here / "in"), str(ROWS), str(FILES)]
    subprocess.run(make, check=True)
    for path in here.glob("in/*/*.parquet"):  # Spark reads files in the order of their age
        os.utime(path, (1_700_000_000 + int(path.stem),) * 2)


def run(name: str, here: Path) -> None:
    """Run an example as a user does, in the folder that has the input."""
    command = [
        sys.executable,
        "-m",
        "cutwater",
        "run",
        str(EXAMPLES / f"{name}.py"),
        "--once",
        "--every",
        "1s",
    ]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_orders(here: Path) -> None:
    """The input arrives in two halves, so payments of the second half belong to orders of the first one."""
    make_input(here)
    later = [path for path in here.glob("in/*/*.parquet") if int(path.stem) >= FILES // 2]
    for path in later:
        path.rename(path.with_name(f".{path.name}"))
    run("orders", here)
    for path in later:
        path.with_name(f".{path.name}").rename(path)
    run("orders", here)
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
        GROUP BY date_trunc('minute', o.ts) ORDER BY min(o.ts) LIMIT 58
        """
    )  # two hours of orders, and the watermark is 61 minutes behind the end
    assert revenue == sorted(minutes)


def test_many_sinks(here: Path) -> None:
    make_input(here)
    run("many_sinks", here)
    everything = rows_by("SELECT id, amount FROM 'in/orders/*.parquet' ORDER BY ALL")
    assert rows_of("out/by_size", "id", "amount") == everything
    files = cw.parquet_files("out/all")
    assert rows_by(f"SELECT id, amount FROM read_parquet({files!r}) ORDER BY ALL") == everything
    alarms = [line for path in sorted(Path("out/alarms").iterdir()) for line in path.read_text().splitlines()]
    assert sorted(alarms) == sorted(f"{i} {a}" for i, a in everything if a < 0)
    assert set(cw.tables("state")) == {"by_size", "all", "alarms"}


def test_sessions(here: Path) -> None:
    make_input(here)
    run("sessions", here)
    totals = rows_by(
        """
        SELECT id % 50, id, count(*) OVER w, sum(amount) OVER w FROM 'in/orders/*.parquet' WHERE amount > 0
        WINDOW w AS (PARTITION BY id % 50 ORDER BY id) ORDER BY ALL
        """
    )
    assert rows_of("out/totals", "customer", "id", "orders", "spent") == totals
