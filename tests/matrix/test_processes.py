"""A stream-stream join and final windows over it, in processes that are killed and restored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.inputs import MATCHED, ORDERS, PAID_REVENUE, PAYMENTS
from tests.faults.prefixes import check_prefixes
from tests.faults.runner import Bench

SHOP = {"orders": ORDERS, "payments": PAYMENTS, "matched": MATCHED, "revenue": PAID_REVENUE}
HDFS = {
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    )
}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, "shop")
    yield made
    made.end_all()


def test_killed_and_recovered_with_rocksdb(bench: Bench) -> None:
    for place in ("after prepared@matched", "before journal entry@COMMITTED:2", "during folder@matched"):
        bench.input.add(2)
        bench.run_killed(place, retained=1000)
    bench.input.add(1)
    bench.run(retained=1000)
    bench.check(**SHOP)
    assert check_prefixes(bench) >= 2


@pytest.mark.parametrize("conf", [{}, HDFS], ids=["rocksdb", "hdfs"])
def test_back_to_a_savepoint(bench: Bench, conf: dict[str, str]) -> None:
    bench.input.add(2)
    bench.run("logged=revenue:0", "savepoint=good", conf=conf)
    bench.input.amount = 7
    bench.input.add(2)
    bench.run_killed("after prepared@matched", conf=conf)
    bench.input.remove(2)
    bench.input.amount = 97
    bench.input.add(2)
    bench.run(restore="good", conf=conf)
    bench.check(**SHOP)
