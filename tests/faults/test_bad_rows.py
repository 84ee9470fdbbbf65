"""Stages with rules, killed at the places where bad rows could get lost, be doubled, or be counted wrongly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from cutwater.protocol.base.records import Published
from cutwater.store.opening import open_store
from cutwater.store.status import read_status
from tests.faults.inputs import ROWS
from tests.faults.runner import Bench, difference

pytestmark = pytest.mark.faults

GOOD = "amount >= 50 and id % 2 = 1"
TRUTH = {
    "orders": f"select id, amount, epoch_us(ts), file from orders where {GOOD}",
    "small": f"select id, amount from orders where {GOOD} and amount < 70",
    "bad": f"""select id, amount, epoch_us(ts), file, list_filter(
        [if(amount < 50, 'big', null), if(id % 2 = 0, 'odd', null)], lambda name: name is not null
    ) from orders where not ({GOOD})""",
}
COUNTS = f"""select count(*) filter (amount < 50), count(*) filter (id % 2 = 0),
    count(*) filter ({GOOD} and amount >= 70) from orders"""


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path, "judged")
    yield made
    made.end_all()


def totals(bench: Bench) -> tuple[int, ...]:
    (status,) = read_status(open_store(bench.store))
    found = {rule.name: rule.total for stage in status.stages for rule in stage.rules}
    return found["big"], found["odd"], found["small"]


def prefixes(bench: Bench) -> int:
    """Checks that good and bad rows of every published epoch are those of the same files. Returns the number of different
    prefixes."""
    epochs: dict[int, dict[str, int]] = defaultdict(dict)
    for path in Path(bench.store, "published").glob("*/*.json"):
        mark = msgspec.json.decode(path.read_bytes(), type=Published)
        epochs[mark.epoch][mark.sink] = mark.version
    shown = {}
    for versions in epochs.values():
        if versions.keys() == TRUTH.keys() and min(versions.values()) >= 0:
            shown[tuple(sorted(versions.items()))] = versions
    for versions in shown.values():
        tables = {sink: bench.rows(sink, version) for sink, version in versions.items()}
        files = (len(tables["orders"]) + len(tables["bad"])) // ROWS
        for sink, rows in tables.items():
            wanted = bench.input.query(TRUTH[sink], files)
            assert rows == wanted, f"{versions}: {difference(sink, rows, wanted)}"
    return len(shown)


def test_bad_rows_are_published_and_counted_once_wherever_the_process_dies(bench: Bench) -> None:
    for place in (
        "after prepared@orders",
        "after batch entry@orders:2",
        "before journal entry@COMMITTED:2",
        "after journal entry@COMMITTED:2",
        "after publish@bad",
    ):
        bench.input.add(2)
        bench.run_killed(place, retained=1000)
    bench.input.add(1)
    bench.run(retained=1000)
    bench.check(**TRUTH)
    assert [totals(bench)] == bench.wanted(COUNTS)
    assert prefixes(bench) >= 2
