"""`cutwater check`: what it finds, and that it changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import write_deltalake
from pyspark.sql import DataFrame, SparkSession

import cutwater as cw
from cutwater.api import checking
from cutwater.api.checking import Report, check_pipeline
from tests.support.spark_helpers import NUMBERS, deliver, numbers


@pytest.fixture(autouse=True)
def shared_session(spark_here: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts a session of its own, which a test has no time for."""
    monkeypatch.setattr(checking, "make_session", lambda *_: spark_here)
    monkeypatch.setattr(checking, "end_session", lambda _: None)


def shop(*, extra: bool = False, table: str = "out/all", name: str = "shop") -> cw.Pipeline:
    pipeline = cw.Pipeline(name, chain=False)

    @pipeline.stage
    def orders(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet("in")

    @pipeline.stage(sinks=[cw.delta(table)])
    def everything(orders: DataFrame) -> DataFrame:
        return orders

    if extra:

        @pipeline.stage(sinks=[cw.delta("out/big")])
        def big(orders: DataFrame) -> DataFrame:
            return orders.where("amount > 3")

    return pipeline


def checked(pipeline: cw.Pipeline, store: str | None = None, **options: str) -> Report:
    return check_pipeline(pipeline, store, cw.RunConfig(**options), lambda line: None)  # type: ignore[arg-type]


def files(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() if p.is_file() else b"" for p in sorted(folder.rglob("*"))}


@pytest.fixture
def source(here: Path) -> Path:
    deliver(here / "in", "a", numbers(range(5)))
    return here


def test_every_mistake_is_found_and_nothing_is_made(source: Path) -> None:
    pipeline = shop(table="main.sales.orders")

    @pipeline.stage(sinks=[cw.delta("out/sorted")])
    def sorted_orders(orders: DataFrame) -> DataFrame:
        return orders.orderBy("id")

    @pipeline.stage
    def lost(ordres: DataFrame) -> DataFrame:
        return ordres

    before = files(source)
    report = checked(pipeline)
    assert files(source) == before
    found = ["no such stage", "its output would go nowhere", "Sorting", "a table in a catalog"]
    assert len(report.mistakes) == len(found)
    for mistake, says in zip(report.mistakes, found, strict=True):
        assert says in mistake
    assert [(s.name, s.is_checked) for s in report.stages] == [
        ("orders", True), ("everything", True), ("sorted_orders", True), ("lost", False)
    ]  # fmt: skip
    assert report.stages[0].sources[0].startswith("parquet ")


def test_what_a_start_on_a_store_would_say(source: Path, spark: SparkSession) -> None:
    state = str(source / "state")
    assert "has no pipeline yet" in checked(shop(), state).notes[0]
    shop(extra=True).run(state, once=True, spark=spark)
    before = files(source)
    same = checked(shop(extra=True), state)
    assert (same.mistakes, same.start) == ([], [])
    assert "a start continues after epoch" in same.notes[-1]
    less = checked(shop(), state)
    assert (less.mistakes, less.start) == ([], ["--restore", "latest", "--drop", "big"])
    assert "stage 'big' is gone" in less.notes[-1]
    assert "belongs to pipeline 'shop'" in checked(shop(name="other"), state).mistakes[0]
    moved = checked(shop(extra=True, table="elsewhere/all"), state)
    assert "its rows are at" in moved.mistakes[0]
    assert files(source) == before
    shop().run(state, once=True, restore="latest", drop=["big"], spark=spark)  # the advice works


def test_a_table_of_others_is_reported_only_with_a_store(source: Path) -> None:
    write_deltalake("out/all", numbers(range(3)))
    assert checked(shop()).mistakes == []
    assert "existing='append'" in checked(shop(), str(source / "state")).mistakes[0]
    assert not (source / "state").exists()


def test_one_member_is_checked_as_far_as_its_inputs_are_known(source: Path) -> None:
    pipeline = cw.Pipeline("shop")

    @pipeline.stage(member="a", sinks=[cw.delta("out/all")])
    def orders(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet("in")

    @pipeline.stage(member="b", sinks=[cw.delta("out/big")])
    def big(orders: DataFrame) -> DataFrame:
        return orders.orderBy("id")

    assert "Sorting" in checked(pipeline).mistakes[0], "all members of a file"
    alone = checked(pipeline, member="b")
    assert alone.mistakes == []
    assert "stage 'big' is not checked: it reads 'orders' of another member" in alone.notes[0]


def test_mistakes_of_the_graph_do_not_hide_those_of_the_plans(source: Path) -> None:
    pipeline = shop(extra=True)

    @pipeline.stage(
        sinks=[cw.delta("elsewhere/all"), cw.delta("out/once"), cw.delta("out/once", name="twice")]
    )
    def sorted_orders(orders: DataFrame) -> DataFrame:
        return orders.orderBy("id")

    write_deltalake("out/all", numbers(range(3)))
    said: list[str] = []
    report = check_pipeline(pipeline, None, cw.RunConfig(), said.append)
    found = ["two sinks are named 'all'", "both write to out/once", "Sorting"]
    assert len(report.mistakes) == len(found), report.mistakes
    for mistake, says in zip(report.mistakes, found, strict=True):
        assert says in mistake
    assert all(stage.is_checked for stage in report.stages)
    assert [line.partition(" ")[0] for line in said] == ["starting", "looking", "looking"]
