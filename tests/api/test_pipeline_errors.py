"""Invalid pipelines are refused with advice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import cutwater as cw
from cutwater.plan.build import Builder, bind_sinks
from cutwater.plan.chaining import make_topology
from cutwater.plan.graph import in_order
from cutwater.protocol.base.durations import readable, seconds
from cutwater.protocol.base.errors import UserError
from cutwater.spark.session import copy_session
from cutwater.store.opening import open_store
from tests.support.spark_helpers import NUMBERS, deliver, numbers

Stage = Callable[..., Any]


def ordered(pipeline: cw.Pipeline) -> list[str]:
    return [stage.name for stage in in_order(pipeline.stages)]


def returns(value: Any = None) -> Stage:
    def stage(spark: Any) -> Any:
        return value

    return stage


def test_stages_are_ordered_by_their_inputs() -> None:
    pipeline = cw.Pipeline("p")

    @pipeline.stage(sinks=[cw.delta("out")])
    def last(second: Any, first: Any) -> Any: ...

    @pipeline.stage
    def second(first: Any) -> Any: ...

    @pipeline.stage
    def first(spark: Any) -> Any: ...

    assert ordered(pipeline) == ["first", "second", "last"]


def test_an_unknown_stage_is_named() -> None:
    pipeline = cw.Pipeline("p")

    @pipeline.stage(sinks=[cw.delta("out")])
    def last(frist: Any) -> Any: ...

    with pytest.raises(UserError, match="'last' reads 'frist', but there is no such stage"):
        ordered(pipeline)


def test_a_duplicate_stage_is_refused() -> None:
    pipeline = cw.Pipeline("p")
    pipeline.stage(name="one")(returns())
    with pytest.raises(
        UserError, match=r"two stages named 'one'; rename.* a notebook again, make the Pipeline in"
    ):
        pipeline.stage(name="one")(returns())


def test_a_cycle_is_shown() -> None:
    pipeline = cw.Pipeline("p")

    @pipeline.stage
    def a(b: Any) -> Any: ...

    @pipeline.stage
    def b(a: Any) -> Any: ...

    with pytest.raises(UserError, match="a → b → a"):
        ordered(pipeline)


def test_a_stage_without_a_reader_or_sink_is_refused() -> None:
    pipeline = cw.Pipeline("p")
    pipeline.stage(name="lonely")(returns())
    with pytest.raises(UserError, match="'lonely' has no sink, and no other stage reads it"):
        ordered(pipeline)


def test_an_empty_pipeline_is_refused() -> None:
    with pytest.raises(UserError, match="no stages"):
        ordered(cw.Pipeline("p"))


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_update_and_complete_modes_are_refused_for_channels_and_tables(mode: str) -> None:
    pipeline = cw.Pipeline("p")
    pipeline.stage(name="one", output_mode=mode)(returns())

    @pipeline.stage(sinks=[cw.delta("out")])
    def two(one: Any) -> Any: ...

    with pytest.raises(UserError, match=f"'one' has output_mode '{mode}' and is read"):
        ordered(pipeline)
    with pytest.raises(UserError, match="can only be appended to"):
        pipeline.stage(name="three", output_mode=mode, sinks=[cw.delta("x")])(returns())
    pipeline.stage(
        name="four", output_mode=mode, sinks=[cw.foreach_epoch(lambda rows, epoch: None, name="f")]
    )(returns())


def test_a_complete_result_cannot_wait_for_its_windows() -> None:
    windows = cw.foreach_epoch(lambda rows, epoch: None, name="f", final_by="window.end")
    with pytest.raises(UserError, match=r"'complete'.*final_by='window.end'.*leave out final_by"):
        cw.Pipeline("p").stage(name="one", output_mode="complete", sinks=[windows])(returns())
    cw.Pipeline("p").stage(name="one", output_mode="update", sinks=[windows])(returns())


def test_two_sinks_need_different_names_and_paths() -> None:
    pipeline = cw.Pipeline("p")
    pipeline.stage(name="one", sinks=[cw.delta("a/out")])(returns())
    pipeline.stage(name="two", sinks=[cw.delta("b/out")])(returns())
    with pytest.raises(UserError, match="two sinks are named 'out'"):
        ordered(pipeline)
    same = cw.Pipeline("p")
    same.stage(name="one", sinks=[cw.delta("a/out")])(returns())
    same.stage(name="two", sinks=[cw.delta("a/out/", name="other")])(returns())
    with pytest.raises(UserError, match="both write to a/out"):
        ordered(same)


def test_two_sinks_need_different_paths_however_they_are_spelled(tmp_path: Path, spark: SparkSession) -> None:
    pipeline = cw.Pipeline("p")
    for name, path in (("one", "out"), ("two", "in/../out")):
        sink = cw.delta(str(tmp_path / path), name=name)
        pipeline.stage(name=name, sinks=[sink], allow_shared_source=True)(
            lambda spark: spark.readStream.format("rate").load()
        )
    with pytest.raises(UserError, match="sinks 'one' and 'two' both write to"):
        pipeline.start(str(tmp_path / "store"), spark=spark)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": "a b"}, "cannot name a stage"),
        ({"name": "spark"}, "cannot be named 'spark'"),
        ({"output_mode": "replace"}, "give one of append, update, complete"),
        ({"trigger": "soon"}, "trigger 'soon'"),
        ({"max_rows": 0}, "max_rows is 0; give 1 or more, or None for no limit"),
        ({"sinks": ["out"]}, "is not a sink"),
        ({"sinks": cw.delta("x")}, r"sinks is the sink x; give a list: sinks=\["),
        ({"sinks": "x"}, "sinks is 'x'; give a list"),
        ({"sinks": None}, "sinks is None; give a list"),
        ({"max_rows": 1.5}, "max_rows is 1.5; give 1 or more, as a whole number, or None"),
        ({"trigger": float("nan")}, "trigger is nan, which is not a duration"),
        ({"chain": "yes"}, "chain is 'yes'; give True or False"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        cw.Pipeline("p").stage(**options)(returns())  # type: ignore[no-untyped-call]


def test_a_stage_with_variable_parameters_is_refused() -> None:
    pipeline = cw.Pipeline("p")

    with pytest.raises(UserError, match=r"takes \*inputs"):

        @pipeline.stage
        def any_of(*inputs: Any) -> Any: ...

    with pytest.raises(UserError, match=r"takes \*\*options"):

        @pipeline.stage
        def any_named(**options: Any) -> Any: ...


def test_an_invalid_pipeline_name_and_a_savepoint_before_the_start_are_refused() -> None:
    with pytest.raises(UserError, match="cannot name a pipeline"):
        cw.Pipeline("a/b")
    with pytest.raises(UserError, match="chain is 'no'; give True or False"):
        cw.Pipeline("p", chain="no")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="start\\(\\) it first"):
        cw.Pipeline("p").savepoint("x")


@pytest.mark.parametrize(
    ("text", "value"), [("5s", 5), ("100ms", 0.1), ("2 minutes", 120), ("1.5h", 5400), (3, 3)]
)
def test_durations_are_parsed(text: str | float, value: float) -> None:
    assert seconds(text) == pytest.approx(value)


@pytest.mark.parametrize(
    ("span", "text"),
    [(0.034, "0.03 s"), (4.26, "4.3 s"), (42, "42 s"), (250, "4 min 10 s"), (11_100, "3 h 5 min")],
)
def test_durations_are_formatted(span: float, text: str) -> None:
    assert readable(span) == text


def test_spark_connect_is_refused() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(UserError, match="Spark Connect"):
        copy_session(connect())
    with pytest.raises(UserError, match="not a SparkSession"):
        copy_session("spark")


# --- errors that only the plan shows ------------------------------------------------------------------


def refused(spark: SparkSession, tmp_path: Path, pipeline: cw.Pipeline) -> str:
    def bind() -> None:
        builder = Builder("p", in_order(pipeline.stages), spark)
        builder.advance({})
        planned = builder.finish(make_topology(builder.specs))
        bind_sinks(planned, open_store(str(tmp_path / "s"), create=True))

    with pytest.raises(UserError) as caught:
        bind()
    return str(caught.value)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    deliver(tmp_path / "in", "0", numbers(range(3)))
    return str(tmp_path / "in")


def test_invalid_plans_are_refused(spark: SparkSession, tmp_path: Path, folder: str) -> None:
    def source(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(folder)

    def check(says: str, *stages: tuple[dict[str, Any], Stage]) -> None:
        pipeline = cw.Pipeline("p")
        for options, function in stages:
            pipeline.stage(**options)(function)  # type: ignore[no-untyped-call]
        assert says in refused(spark, tmp_path, pipeline)

    out = {"sinks": [cw.delta(str(tmp_path / "out"))]}
    check("must return a streaming DataFrame, but returned nothing", (out, returns()))
    check("returned a int", (out, returns(3)))
    check("returned a batch DataFrame", (out, returns(spark.range(3))))

    def broken(spark: SparkSession) -> DataFrame:
        raise ValueError("no such luck")

    check("its function raised ValueError: no such luck", (out, broken))

    def unused(spark: SparkSession, source: DataFrame) -> DataFrame:
        return spark.readStream.format("rate").load()

    check("has the parameter source but does not use it", ({}, source), (out, unused))

    def other(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(folder).where("id > 1")

    def above(source: DataFrame, other: DataFrame) -> DataFrame:
        return source.union(other).withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark(["id"])

    same = {"allow_shared_source": True}
    check("withWatermark() above a fan-in of source, other", ({}, source), (same, other), (out, above))

    def united(source: DataFrame, other: DataFrame) -> DataFrame:
        return source.union(other)

    check("both read the source", ({}, source), ({}, other), (out, united))

    def span(spark: SparkSession) -> DataFrame:
        return source(spark).selectExpr("make_interval(1, 2) AS v")

    def reads(span: DataFrame) -> DataFrame:
        return span.selectExpr("1 AS one")

    check("column 'v' has type interval, which a channel cannot carry", ({}, span), (out, reads))

    def clash(spark: SparkSession) -> DataFrame:
        return source(spark).selectExpr("id", "amount AS ID")

    def reads_clash(clash: DataFrame) -> DataFrame:
        return clash

    check("two columns named 'id' and 'ID'", ({}, clash), (out, reads_clash))
    check("two columns named 'id' and 'ID'", (out, clash))

    def clash_within(spark: SparkSession) -> DataFrame:
        return source(spark).selectExpr("named_struct('a', array(named_struct('b', 1, 'B', 2))) AS s")

    check("two columns named 's.a.b' and 's.a.B'", (out, clash_within))
    final = {"sinks": [cw.delta(str(tmp_path / "final"), final_by="ts")]}
    check("has no watermark, so no window ever closes", (final, source))

    def cleaned(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).option("cleanSource", "Delete").parquet(folder)

    check("stage 'cleaned' reads files with cleanSource=Delete", (out, cleaned))
    partitioned = {"sinks": [cw.delta(str(tmp_path / "parts"), partition_by="nope")]}
    check("partitioned by 'nope', which its rows do not have", (partitioned, source))
