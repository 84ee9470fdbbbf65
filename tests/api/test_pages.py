"""The examples of docs/moving-a-pipeline.md are one file, which runs; and so is the example of the README."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

import cutwater as cw
from tests.support.spark_helpers import START_US, deliver, rows_of

README = Path(__file__).parents[2] / "README.md"
PAGE = README.parent / "docs" / "moving-a-pipeline.md"
ORDERS = 400


def examples() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    kept = [block for block in blocks if 'format("delta")' not in block]  # that connector comes with nothing
    assert len(kept) == len(blocks) - 1
    return "\n\n".join(kept)


@pytest.fixture
def inputs(here: Path) -> None:
    """Orders of almost seven hours, one a minute, of ten customers; nine of them have a name."""
    ids = list(range(ORDERS))
    at = pa.array([START_US + i * 60_000_000 for i in ids], pa.timestamp("us", tz="UTC"))
    amounts = [float(i % 200 - 10) for i in ids]
    orders = pa.table({"id": ids, "customer": [i % 10 for i in ids], "amount": amounts, "ts": at})
    deliver(here / "in/orders", "a", orders)
    names = [f"n{i}" for i in range(9)]
    deliver(here / "in/customers", "a", pa.table({"customer": list(range(9)), "name": names}))


@pytest.mark.usefixtures("inputs")
def test_the_examples_run_and_their_tables_have_what_the_page_says(
    here: Path, spark_here: SparkSession
) -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(examples(), str(PAGE), "exec"), names)
    names["pipeline"].run(str(here / "state"), once=True, every="1h", spark=spark_here)

    def expected(query: str) -> list[tuple[Any, ...]]:
        return duckdb.execute(query.replace("ORDERS", "'in/orders/*.parquet'")).fetchall()

    big = expected("SELECT id FROM ORDERS WHERE amount > 100 ORDER BY id")
    small = expected("SELECT id FROM ORDERS WHERE amount <= 100 ORDER BY id")
    assert (rows_of("out/big", "id"), rows_of("out/small", "id")) == (big, small)
    assert (
        duckdb.execute(
            f"SELECT id FROM read_parquet({cw.parquet_files('out/small_files')}) ORDER BY id"
        ).fetchall()
        == small
    )
    refunds = expected("SELECT id FROM ORDERS WHERE amount < 0 ORDER BY id")
    assert expected("SELECT id FROM 'out/refunds/*/*.json' ORDER BY id") == refunds
    assert rows_of("out/named", "id", "name") == expected(
        "SELECT id, name FROM ORDERS LEFT JOIN 'in/customers/a.parquet' USING (customer) ORDER BY ALL"
    )
    assert (
        len(rows_of("out/newest_names")) == expected("SELECT count(*) FROM ORDERS WHERE customer < 9")[0][0]
    )
    minutes = rows_of("out/per_minute", "total")
    assert len(minutes) == ORDERS - 3, "the pipeline's watermark is two minutes behind the last order"
    assert len(rows_of("out/busy_hours")) == 6


@pytest.mark.usefixtures("inputs")
def test_the_example_of_the_readme_runs(here: Path, spark_here: SparkSession) -> None:
    (example,) = re.findall(r"^```python\n(.*?)^```", README.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    names: dict[str, Any] = {"__name__": "orders"}
    exec(compile(example, str(README), "exec"), names)
    names["pipeline"].run(str(here / "state"), once=True, every="1h", spark=spark_here)
    big = duckdb.execute("SELECT id FROM 'in/orders/*.parquet' WHERE amount > 100 ORDER BY id").fetchall()
    assert rows_of("out/big", "id") == big
    assert len(rows_of("out/revenue", "total")) > 300
