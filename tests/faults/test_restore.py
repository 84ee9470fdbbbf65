"""Restores of savepoints and checkpoints, with unchanged and with changed code."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import pytest

from cutwater.protocol.base.errors import StoreError
from cutwater.runtime.restore import restore_before_start
from cutwater.store.at_rest import load_manifest, read_journal, resolve
from cutwater.store.opening import open_store
from tests.faults.inputs import MATCHED, ORDERS, PAID_REVENUE, PAYMENTS, closed_windows
from tests.faults.runner import Bench

pytestmark = pytest.mark.faults

HDFS = {"spark.sql.streaming.stateStore.providerClass": (
    "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
)}  # fmt: skip
JOIN = {"orders": ORDERS, "payments": PAYMENTS, "matched": MATCHED}
SHOP = {**JOIN, "revenue": PAID_REVENUE}


def save_and_spoil(bench: Bench, **options: Any) -> None:
    """Runs over some input, takes the savepoint `good`, and continues over unwanted input."""
    bench.input.add(4)
    bench.run(**options)
    bench.run("savepoint=good", **options)
    bench.input.amount = 7
    bench.input.add(3)
    bench.run(**options)
    bench.check(orders=ORDERS)
    bench.input.remove(3)
    bench.input.amount = 97
    bench.input.add(2)


@pytest.mark.parametrize("conf", [{}, HDFS], ids=["rocksdb", "hdfs"])
def test_a_savepoint_is_restored_twice_the_second_time_without_the_live_folders(
    make: Callable[[str], Bench], conf: dict[str, str]
) -> None:
    bench = make("shop")
    save_and_spoil(bench, conf=conf)
    bench.run(restore="good", conf=conf)
    bench.check(**SHOP)
    for folder in (bench.base / "store" / "stages").glob("*/*/spark"):
        shutil.rmtree(folder)
    bench.input.add(2)
    bench.run(restore="good", conf=conf)
    bench.check(**SHOP)


@pytest.mark.parametrize(
    "places",
    [
        ("before journal entry@RESTORED", "after journal entry@RESTORED"),
        ("before folder@matched", "during folder@revenue"),
        ("before rewind@matched", "after rewind@revenue"),
    ],
)
def test_killed_twice_while_restoring(make: Callable[[str], Bench], places: tuple[str, str]) -> None:
    bench = make("shop")
    save_and_spoil(bench)
    for place in places:
        bench.run_killed(place, restore="good")
    bench.run(restore="good")
    bench.check(**SHOP)


def test_a_checkpoint_with_missing_files_is_refused_and_nothing_is_partially_restored(
    make: Callable[[str], Bench],
) -> None:
    bench = make("join")
    bench.input.add(3)
    bench.run()
    store = open_store(str(bench.base / "store"))
    journal = read_journal(store).state
    manifest = load_manifest(store, resolve(journal, "latest"))
    lost = sorted(name for name in manifest.stages["matched"].state if "/state/" in name)[0]
    damaged = sorted(name for name in manifest.stages["payments"].state if "/state/" in name)[0]
    store.delete([lost])
    store.put(damaged, b"not what it was")
    before = sorted(store.list(""))
    with pytest.raises(StoreError) as refused:
        restore_before_start(store, None, str(journal.head), (), (), lambda line: None)
    assert f"{lost} is missing" in str(refused.value)
    assert f"{damaged} is damaged" in str(refused.value)
    assert sorted(store.list("")) == before


def test_stages_added_dropped_and_reset(make: Callable[[str], Bench]) -> None:
    bench = make("join")
    bench.input.add(4)
    bench.run()
    bench.run("savepoint=one")
    at_one = len(bench.rows("matched"))
    bench.input.add(3)
    bench.kind = "shop"
    bench.run(restore="one")
    bench.check(**JOIN)
    assert bench.rows("revenue") == windows_after(bench, at_one)

    bench.run("savepoint=two")
    shown, at_two = bench.rows("revenue"), len(bench.rows("matched"))
    bench.input.add(3)
    bench.run(restore="two", reset=["revenue"])
    bench.check(**JOIN)
    assert bench.rows("revenue") == sorted([*shown, *windows_after(bench, at_two)])

    bench.kind = "join"
    bench.input.add(1)
    bench.run(restore="two", drop=["revenue"])
    bench.check(**JOIN)


def windows_after(bench: Bench, rows: int) -> Any:
    """The closed windows over the matched orders after the first `rows`."""
    after = f"select * from ({MATCHED}) order by id offset {rows}"
    return bench.input.query(closed_windows(after))
