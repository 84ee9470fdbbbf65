"""Two members of one pipeline in this process, on one Spark: requests to a member that does not lead, and how a member
reacts when another one changes the graph."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

import cutwater as cw
from tests.faults.cluster.proxy import free_port
from tests.support.cluster_helpers import SECRET
from tests.support.spark_helpers import NUMBERS, await_that, deliver, numbers, rows_of


class Two:
    """Member `a` has the source, member `b` the table."""

    def __init__(self, base: Path, spark: SparkSession, lines: list[str]) -> None:
        self.base = base
        self.spark = spark
        self.ends = {m: f"tcp/127.0.0.1:{free_port()}" for m in ("a", "b")}
        self.up: dict[str, cw.Pipeline] = {}
        self.lines = lines

    def of_a(self, *, doubled: bool = False) -> cw.Pipeline:
        pipeline = cw.Pipeline("two")

        @pipeline.stage
        def source(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema(NUMBERS).parquet(str(self.base / "in"))

        if doubled:

            @pipeline.stage(sinks=[cw.delta(str(self.base / "doubled"))])
            def twice(source: DataFrame) -> DataFrame:
                return source.selectExpr("id", "2 * amount AS amount")

        return pipeline

    def of_b(self) -> cw.Pipeline:
        pipeline = cw.Pipeline("two")

        @pipeline.stage(sinks=[cw.delta(str(self.base / "out"))])
        def copy(source: DataFrame) -> DataFrame:
            return source.select("id", "amount")

        return pipeline

    def start_alone(self, name: str, pipeline: cw.Pipeline, options: dict[str, Any]) -> None:
        other = self.ends["b" if name == "a" else "a"]
        given: dict[str, Any] = {
            "every": "1h", "leader_timeout": "1s", "wait_for": ("a", "b"), "takeover": True, "member": name,
            "cluster": cw.ClusterConfig(listen=(self.ends[name],), peers=(other,), secret=SECRET),
            **options,
        }  # fmt: skip
        pipeline.start(str(self.base / "store"), spark=self.spark, **given)
        self.up[name] = pipeline

    def start(self, **pipelines: tuple[cw.Pipeline, dict[str, Any]]) -> None:
        """Starts members in parallel, because each waits for the other."""
        threads = [Thread(target=self.start_alone, args=(name, *how)) for name, how in pipelines.items()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for name in pipelines:
            assert self.up[name].is_running, self.lines

    def await_rows(self, count: int, through: cw.Pipeline, after: int = 0, table: str = "out") -> None:
        """Takes checkpoints until the table has `count` rows and the newest checkpoint is later than `after`."""
        out = self.base / table

        def holds() -> bool:
            newer = through.checkpoint() > after
            return newer and DeltaTable.is_deltatable(str(out)) and len(rows_of(out)) == count

        await_that(f"{count} rows are in the table", holds)

    def leader(self) -> str:
        """Waits until a member leads, and returns it."""
        found: str = await_that(
            "somebody leads",
            lambda: next((m for m, p in self.up.items() if p.is_running and p.status().leads), None),
        )
        return found


@pytest.fixture
def two(tmp_path: Path, spark: SparkSession, log_lines: list[str]) -> Iterator[Two]:
    made = Two(tmp_path, spark, log_lines)
    yield made
    for pipeline in made.up.values():
        pipeline.stop()


def test_a_request_to_a_follower_is_carried_out_by_the_leader(two: Two) -> None:
    deliver(two.base / "in", "one", numbers(range(10)))
    two.start(a=(two.of_a(), {}), b=(two.of_b(), {}))
    follower = two.up["b" if two.leader() == "a" else "a"]
    assert follower.checkpoint() >= 1
    two.await_rows(10, follower)
    epoch = follower.savepoint("here")
    deliver(two.base / "in", "two", numbers(range(10, 20)))
    two.await_rows(20, follower)
    with pytest.raises(cw.UserError, match="here"):
        follower.savepoint("here")
    follower.restore("here")
    two.await_rows(20, follower, after=epoch)
    follower.drain()
    assert [row[0] for row in rows_of(two.base / "out")] == list(range(20))
    assert not list((two.base / "store" / "requests").glob("*")), "a request was left behind"


def test_a_member_continues_in_a_graph_that_another_member_has_changed(two: Two) -> None:
    deliver(two.base / "in", "one", numbers(range(10)))
    two.start(a=(two.of_a(), {}), b=(two.of_b(), {}))
    two.leader()
    a, b = two.up["a"], two.up["b"]
    two.await_rows(10, a)
    staying = Thread(target=b.stay, daemon=True)
    staying.start()
    a.stop()
    deliver(two.base / "in", "two", numbers(range(10, 20)))
    two.start(a=(two.of_a(doubled=True), {"restore": "latest"}))
    a = two.up["a"]
    await_that("b has started again", lambda: any("restarting in the new one" in line for line in two.lines))
    await_that("it runs again", lambda: b.is_running)
    a.drain()
    staying.join(60)
    assert not staying.is_alive()
    assert [row[0] for row in rows_of(two.base / "out")] == list(range(20))
    assert rows_of(two.base / "doubled") == [(i, 2.0 * (i % 97)) for i in range(10, 20)], (
        "it starts at the cut"
    )


def test_a_new_member_joins_with_a_restore(two: Two) -> None:
    deliver(two.base / "in", "one", numbers(range(10)))
    two.start(a=(two.of_a(doubled=True), {"wait_for": ()}))
    a = two.up["a"]
    two.await_rows(10, a, table="doubled")
    with pytest.raises(cw.UserError, match=r"started without member 'b', with a\. .*--restore latest"):
        two.start_alone("b", two.of_b(), {})
    staying = Thread(target=a.stay, daemon=True)
    staying.start()
    two.start(b=(two.of_b(), {"restore": "latest"}))
    await_that("a has started again", lambda: any("restarting in the new one" in line for line in two.lines))
    await_that("it runs again", lambda: a.is_running)
    deliver(two.base / "in", "two", numbers(range(10, 20)))
    two.await_rows(10, two.up["b"])
    two.up["b"].drain()
    staying.join(60)
    assert not staying.is_alive()
    assert [row[0] for row in rows_of(two.base / "out")] == list(range(10, 20)), "it starts at the cut"
    assert [row[0] for row in rows_of(two.base / "doubled")] == list(range(20))
