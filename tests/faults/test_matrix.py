"""Every failpoint, for four kinds of pipelines. `make test-faults`.

Each pipeline has one store, on which it is killed at one failpoint after the other; every process finds new input. Then
it runs to the end, and its tables must equal the results of a batch job over all the input.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.inputs import BIG, MATCHED, ORDERS, PAYMENTS, REVENUE, SMALL
from tests.faults.prefixes import check_prefixes
from tests.faults.runner import Bench

pytestmark = pytest.mark.faults

TRUTH = {
    "stateless": {"orders": ORDERS, "big": BIG, "small": SMALL},
    "join": {"orders": ORDERS, "payments": PAYMENTS, "matched": MATCHED},
    "windowed": {"orders": ORDERS, "revenue": REVENUE},
    "chained": {"revenue": REVENUE},
}
READER = {"stateless": "big", "join": "matched", "windowed": "revenue", "chained": "revenue"}
"""The stage that reads a channel, and its sink; where all stages are chained, their query."""

PLACES = [
    "before prepared@READER",
    "after prepared@READER",
    "after prepared@orders:2",
    "after commit@READER",
    "before batch entry@READER",
    "after batch entry@orders:2",
    "after batch entry@READER",
    "before barrier entry@READER",
    "after barrier entry@orders:2",
    "after barrier entry@READER:2",
    "before part:2",
    "after part:2",
    "before manifest:2",
    "after manifest:2",
    "before journal entry@LEADER",
    "after journal entry@LEADER",
    "after journal entry@BEGUN:2",
    "before journal entry@COMMITTED:2",
    "after journal entry@COMMITTED:2",
    "announcement@prepare:2",
    "announcement@commit:2",
    "before publish@READER",
    "after publish@READER",
    "after publish@orders:2",
    "before mark@orders:2",
    "after mark@READER",
    "before open entry@READER",
    "after open entry@READER",
    "before folder@READER",
    "during folder@READER",
    "after folder@READER",
]
COLLECTING = [
    "after journal entry@EXPIRED",
    "before delete@checkpoints",
    "during delete@checkpoints",
    "during delete@stages",
]
SAVING = ["before copy@READER", "after copy@orders", "after journal entry@COMMITTED"]


@pytest.fixture(params=list(TRUTH))
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, request.param)
    yield made
    made.end_all()


def place_in(bench: Bench, place: str) -> str:
    root = "orders" if "orders" in TRUTH[bench.kind] else READER[bench.kind]
    return place.replace("READER", READER[bench.kind]).replace("@orders", f"@{root}")


@pytest.mark.timeout(3_600)  # forty runs of Spark
def test_killed_everywhere(bench: Bench) -> None:
    for place in PLACES:
        bench.input.add(2)
        bench.run_killed(place_in(bench, place), retained=1000)
    bench.input.add(2)
    bench.run(retained=1000)
    bench.check(**TRUTH[bench.kind])
    assert check_prefixes(bench) > 10
    for place in COLLECTING:
        bench.input.add(2)
        bench.run_killed(place, retained=1)
    for place in SAVING:
        bench.input.add(2)
        bench.run_killed(place_in(bench, place), "savepoint=one", "drain")
    bench.input.add(2)
    bench.run(retained=1)
    bench.check(**TRUTH[bench.kind])


@pytest.mark.parametrize("bench", ["stateless"], indirect=True)
def test_killed_while_compacting(bench: Bench) -> None:
    for place in (
        "before journal entry@SNAPSHOT",
        "after journal entry@SNAPSHOT",
        "during delete@journal",
        "after stage snapshot@orders",
    ):
        bench.input.add(1)
        bench.run_killed(place, "await=never", every="20ms")
    bench.run()
    bench.check(**TRUTH[bench.kind])
