"""A real pipeline whose store is on a real S3 server, which Spark reaches through Hadoop's S3A. `make test-s3`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import obstore
import pytest

from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.faults.inputs import MATCHED, ORDERS, PAID_REVENUE, PAYMENTS
from tests.faults.runner import Bench
from tests.support.s3_server import TOOLS, S3Server, find_server, s3_server

JARS = sorted((TOOLS.parent / "jars").glob("*.jar"))

pytestmark = [
    pytest.mark.s3,
    pytest.mark.slow,
    pytest.mark.skipif(
        find_server() is None or len(JARS) < 3,
        reason="no S3 server, or no S3A for Spark; `make tools` fetches them",
    ),
]

SHOP = {"orders": ORDERS, "payments": PAYMENTS, "matched": MATCHED, "revenue": PAID_REVENUE}
CONF = {"spark.jars": ",".join(map(str, JARS))}


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as running:
        for key, value in running.environment.items():
            monkeypatch.setenv(key, value)
        yield running


@pytest.fixture
def bench(tmp_path: Path, server: S3Server) -> Iterator[Bench]:
    made = Bench(tmp_path, "shop", store=server.url)
    yield made
    made.end_all()


def test_a_pipeline_on_s3_is_killed_restarted_and_restored(bench: Bench) -> None:
    for place in (
        "after prepared@matched",
        "after barrier entry@orders:2",
        "before journal entry@COMMITTED:2",
        "after publish@orders",
        "during folder@matched",
    ):
        bench.input.add(2)
        bench.run_killed(place, conf=CONF)
    bench.input.add(2)
    bench.run(conf=CONF)
    bench.check(**SHOP)
    store = open_store(bench.store)
    listed = {entry["path"] for entry in obstore.list(store._bucket).collect()}  # type: ignore[attr-defined]
    assert listed - set(store.list("")), "S3A has left no folder markers, so nothing is proved about them"

    bench.run("savepoint=good", conf=CONF)
    bench.input.amount = 7
    bench.input.add(2)
    bench.run(conf=CONF)
    bench.check(orders=ORDERS)
    bench.input.remove(2)
    bench.input.amount = 97
    bench.input.add(2)
    bench.run_killed("before folder@matched", restore="good", conf=CONF)
    bench.run(restore="good", conf=CONF)
    bench.check(**SHOP)
    assert read_journal(store).state.generation == 3


def test_without_s3a_the_error_says_what_to_add(bench: Bench) -> None:
    bench.input.add(1)
    child = bench.start()
    assert child.end() == 1
    assert "Spark cannot read or write s3a:// yet; start with --conf spark.jars.packages=" in child.said()
