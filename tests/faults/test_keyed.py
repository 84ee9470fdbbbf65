"""Tables with keys, killed at every place of the publication. `make test-faults`.

After each kill another process goes on; at the end every published epoch must show, by time travel, the fold of the
changes that its other table has at the same epoch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cutwater.protocol.base.records import Published
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.faults.runner import Bench, difference, pause_and_overtake

pytestmark = pytest.mark.faults

PLACES = [
    "before publish@newest",
    "before merge@newest:2",
    "after merge@newest:2",
    "after tombstones@newest:2",
    "before table commit@newest:2",
    "after table commit@newest:2",
    "after publish@newest",
    "before mark@newest:2",
    "after mark@newest",
    "after table commit@totals:2",
]
TOTALS = "SELECT id % 7 AS key, CAST(sum(amount) AS BIGINT) AS total FROM orders GROUP BY ALL ORDER BY ALL"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, "keyed")
    yield made
    made.end_all()


def check(bench: Bench) -> int:
    """Compares every epoch that is published everywhere with a fold. Returns how many there are."""
    epochs: dict[int, dict[str, int]] = defaultdict(dict)
    for path in (bench.base / "store" / "published").glob("*/*.json"):
        mark = msgspec.json.decode(path.read_bytes(), type=Published)
        epochs[mark.epoch][mark.sink] = mark.version
    committed = read_journal(open_store(bench.store)).state.committed
    checked = 0
    for epoch, versions in sorted(epochs.items()):
        if epoch in committed and len(versions) == 3 and min(versions.values()) >= 0:
            _check_epoch(bench, epoch, versions)
            checked += 1
    return checked


def _check_epoch(bench: Bench, epoch: int, versions: dict[str, int]) -> None:
    arrived = bench.rows("orders", versions["orders"])  # key, at, amount, part, op
    wanted = fold(bench, len(arrived))
    found = bench.rows("newest", versions["newest"])
    assert found == wanted, f"epoch {epoch}: {difference('newest', found, wanted)}"


def fold(bench: Bench, count: int) -> list[tuple[Any, ...]]:
    """The fold of the first changes, in the order of the orders' ids, which is that in which they arrive."""
    sql = (
        "SELECT id, (id * 7919) % 61, (id + (id * 31) % 150) * 10000 + id, amount, amount % 3, (id * 17) % 5 = 0 "
        f"FROM orders ORDER BY id LIMIT {count}"
    )
    rows: dict[int, tuple[Any, ...]] = {}
    highest: dict[int, int] = {}
    for _, key, at, amount, part, deletes in bench.input.query(sql):
        if at < highest.get(key, at):
            continue
        highest[key] = at
        rows.pop(key, None)
        if not deletes:
            rows[key] = (key, at, amount, part)
    return sorted(rows.values())


def test_killed_at_every_place_of_the_publication(bench: Bench) -> None:
    for place in PLACES:
        bench.input.add(2)
        bench.run_killed(place, retained=1000)
    bench.input.add(2)
    bench.run(retained=1000)
    assert check(bench) > 5
    assert bench.rows("totals") == bench.input.query(TOTALS)
    assert bench.rows("newest") == fold(bench, bench.input.files * 100)


def test_a_process_that_sleeps_between_join_and_commit_changes_nothing_when_it_wakes_up(bench: Bench) -> None:
    bench.input.add(4)
    pause_and_overtake(bench, "before table commit@newest:2")
    assert bench.rows("newest") == fold(bench, bench.input.files * 100)


def test_a_restore_takes_rows_and_deleted_keys_back(bench: Bench) -> None:
    bench.input.add(3)
    bench.run("logged=changes:2", "checkpoint", "savepoint=one", "drain", retained=1000)
    before = bench.rows("newest")
    bench.input.add(3)
    bench.run(retained=1000)
    assert bench.rows("newest") != before
    bench.run("restore=one", "drain", retained=1000)
    bench.run(retained=1000)
    assert bench.rows("newest") == fold(bench, bench.input.files * 100)
    assert bench.rows("totals") == bench.input.query(TOTALS)
    assert check(bench) >= 2
