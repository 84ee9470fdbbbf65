"""Real processes that are killed, paused and restored: a sample of `make test-faults`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cutwater.protocol.base import paths
from cutwater.protocol.base.effects import Stored
from cutwater.spark.checkpoint import new_folder, stage_files
from cutwater.spark.checkpoint.folder import Cache
from cutwater.store.local import LocalStore
from tests.faults.inputs import MATCHED, ORDERS, PAID_REVENUE, PAYMENTS
from tests.faults.prefixes import check_prefixes
from tests.faults.runner import Bench, pause_and_overtake

pytestmark = pytest.mark.slow

SHOP = {"orders": ORDERS, "payments": PAYMENTS, "matched": MATCHED, "revenue": PAID_REVENUE}


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, "shop")
    yield made
    made.end_all()


def test_killed_at_five_places_one_after_the_other(bench: Bench) -> None:
    for place in (
        "after prepared@matched",
        "after barrier entry@orders:2",
        "before journal entry@COMMITTED:2",
        "after publish@orders",
        "during folder@matched",
    ):
        bench.input.add(2)
        bench.run_killed(place, retained=1000)
    bench.input.add(1)
    bench.run(retained=1000)
    bench.check(**SHOP)
    assert check_prefixes(bench) >= 3


def test_a_partially_deleted_folder_is_deleted_the_next_time(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for incarnation in (1, 2):
        new_folder.make_folder(store, "clean", 1, incarnation, None, None)
    store.delete([f"{paths.spark_prefix('clean', 1, 1)}cutwater/base.json"])
    _, states = stage_files.find_stored(store, "clean", 1, 2, Cache())
    left = f"{paths.spark_prefix('clean', 1, 1)}cutwater/complete"
    assert Stored(left, 1, -1, -1, unknown=True) in states


def test_a_paused_process_changes_nothing_when_it_resumes(bench: Bench) -> None:
    bench.input.add(3)
    pause_and_overtake(bench, "before journal entry@COMMITTED:2")
    bench.check(**SHOP)


def test_a_savepoint_is_restored(bench: Bench) -> None:
    bench.input.add(2)
    bench.run("logged=revenue:0", "savepoint=good")
    bench.input.amount = 7
    bench.input.add(2)
    bench.run()
    bench.check(orders=ORDERS)
    bench.input.remove(2)
    bench.input.amount = 97
    bench.input.add(2)
    bench.run(restore="good")
    bench.check(**SHOP)
