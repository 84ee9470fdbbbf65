"""Aligned and unaligned checkpoints, nondeterministic output, and processes that wake up."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from cutwater.store.at_rest import load_manifest, read_journal, resolve
from cutwater.store.opening import open_store
from tests.faults.inputs import ALL_PAID_REVENUE, BIG, MATCHED, ORDERS, PAID_REVENUE, PAYMENTS
from tests.faults.runner import Bench, agree, pause_and_meet, pause_and_overtake

pytestmark = pytest.mark.faults

SHOP = {"orders": ORDERS, "payments": PAYMENTS, "matched": MATCHED, "revenue": PAID_REVENUE}


@pytest.mark.parametrize(
    "places",
    [
        ("before prepared@drawn", "after prepared@drawn:2"),
        ("after commit@drawn", "before batch entry@drawn:2"),
        ("after prepared@again", "after publish@drawn"),
    ],
)
def test_everybody_sees_the_same_version_of_nondeterministic_output(
    make: Callable[[str], Bench], places: tuple[str, str]
) -> None:
    bench = make("chance")
    bench.input.add(3)
    for place in places:
        bench.run_killed(place)
        bench.input.add(2)
    bench.run()
    agree(bench)


@pytest.mark.parametrize(
    "place",
    [
        "before prepared@matched:2",
        "before batch entry@revenue",
        "before barrier entry@orders:3",
        "before manifest:3",
        "before journal entry@COMMITTED:3",
        "before publish@orders:2",
        "before mark@orders:2",
        "during delete@checkpoints",
        "before folder@matched",
    ],
)
def test_a_paused_process_changes_nothing_when_it_resumes(make: Callable[[str], Bench], place: str) -> None:
    bench = make("shop")
    bench.input.add(4)
    pause_and_overtake(bench, place)
    bench.check(**SHOP)
    left = bench.uncommitted_folders()
    bench.input.add(2)
    bench.run()
    bench.check(**{**SHOP, "revenue": ALL_PAID_REVENUE})
    assert not left & bench.uncommitted_folders()


@pytest.mark.parametrize(
    "place", ["before prepared@matched", "before barrier entry@orders:2", "after part:2"]
)
def test_a_paused_process_gives_way_to_its_running_successor(
    make: Callable[[str], Bench], place: str
) -> None:
    bench = make("shop")
    bench.input.add(3)
    pause_and_meet(bench, place)
    bench.check(**SHOP)


def test_an_aligned_checkpoint_waits_for_the_backlog_and_an_unaligned_one_does_not(
    make: Callable[[str], Bench],
) -> None:
    bench = make("slow")
    bench.input.add(8)
    child = bench.run("logged=orders:7", "unaligned", "checkpoint", every="1h", retained=10)
    store = open_store(str(bench.base / "store"))
    state = read_journal(store).state
    unaligned, aligned = re.findall(r"(?:unaligned|checkpoint) -> (\d+)", child.said())
    behind = load_manifest(store, resolve(state, unaligned))
    level = load_manifest(store, resolve(state, aligned))
    assert behind.stages["big"].unaligned
    assert behind.stages["big"].consumed["orders"] < behind.stages["orders"].batch
    flight = next(f for f in behind.in_flight if f.reader == "big")
    assert (flight.after, flight.upto) == (
        behind.stages["big"].consumed["orders"],
        behind.stages["orders"].batch,
    )
    assert sum(len(files) for files in flight.batches.values()) > 0
    assert level.stages["big"].consumed["orders"] == level.stages["orders"].batch
    assert not any(any(f.batches.values()) for f in level.in_flight)
    for epoch in (aligned, unaligned, aligned):
        bench.run(restore=epoch, retained=10)
        bench.check(orders=ORDERS, big=BIG)
