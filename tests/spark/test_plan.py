"""Schemas of channels, and what is read from a plan, on a model of Spark's tree."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as t

from cutwater.protocol.base.errors import UserError
from cutwater.spark.internals.borders import PREFIX
from cutwater.spark.internals.plans import PlanNode, is_of_session
from cutwater.spark.plan import Plan, Source, channel_schema, read_plan, row_schema
from tests.support.scala_model import ScalaSequence


@pytest.fixture(autouse=True)
def completed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's way to complete a path."""
    monkeypatch.setattr(PlanNode, "absolute", lambda node, spark, path: f"file:/cwd/{path}")


def test_readers_of_a_channel_declare_all_columns_nullable() -> None:
    at = {"spark.watermarkDelayMs": 1000, "note": "kept"}
    inner = t.StructType([t.StructField("b", t.IntegerType(), False)])
    schema = t.StructType(
        [
            t.StructField("a", inner, False),
            t.StructField("list", t.ArrayType(t.IntegerType(), False), False),
            t.StructField("map", t.MapType(t.StringType(), inner, False), False),
            t.StructField("at", t.TimestampType(), False, at),
        ]
    )
    may_be = t.StructType([t.StructField("b", t.IntegerType(), True)])
    assert t.StructType.fromJson(json.loads(channel_schema("s", schema))) == t.StructType(
        [
            t.StructField("a", may_be, True),
            t.StructField("list", t.ArrayType(t.IntegerType(), True), True),
            t.StructField("map", t.MapType(t.StringType(), may_be, True), True),
            t.StructField("at", t.TimestampType(), True, {"note": "kept"}),
        ]
    )
    assert row_schema(schema) == t.StructType.fromJson(json.loads(channel_schema("s", schema)))


class UnknownType(t.AtomicType):
    """A type of a later version of Spark."""


@pytest.mark.parametrize(
    ("kind", "fix"),
    [
        (t.CalendarIntervalType(), "carry it as two numbers"),
        (UnknownType(), "cast it to a string or a number"),
    ],
)
def test_an_unsupported_type_is_refused_at_any_depth(kind: t.DataType, fix: str) -> None:
    deep = t.StructType().add("m", t.MapType(t.StringType(), t.ArrayType(kind)))
    with pytest.raises(UserError, match=rf"its column 'm.value\[\]' has type .*; {fix}"):
        channel_schema("s", deep)
    with pytest.raises(UserError, match=rf"its column 'm.key' has type .*; {fix}"):
        channel_schema("s", t.StructType().add("m", t.MapType(kind, t.StringType())))


def test_two_stages_must_not_share_a_source_with_a_path() -> None:
    options = (("path", "/in"),)
    assert Source("rate", options).is_shareable
    assert Source("parquet", options, "a").is_shareable
    assert Source("parquet", ()).is_shareable
    assert not Source("parquet", options).is_shareable


class Node:
    """A node of an analysed plan. Keyword arguments become methods without parameters, as in Spark."""

    def __init__(self, kind: str, *below: Node, **says: Any) -> None:
        self.nodeName = lambda: kind
        self.children = lambda: ScalaSequence(*below)
        self.streams: bool = kind.startswith("Streaming") or any(node.streams for node in below)
        self.isStreaming = lambda: self.streams
        for name, value in says.items():
            setattr(self, name, lambda value=value: value)


def channel_node(name: str) -> Node:
    return Node("StreamingExecutionRelation", source=SimpleNamespace(toString=lambda: name))


def files_node(path: str, *tables: str, **options: str) -> Node:
    pairs = [SimpleNamespace(_1=lambda k=k: k, _2=lambda v=v: v) for k, v in options.items()]
    named = [
        SimpleNamespace(identifier=lambda t=t: SimpleNamespace(unquotedString=lambda: t)) for t in tables
    ]
    source = SimpleNamespace(
        className=lambda: "Parquet", options=lambda: ScalaSequence(*pairs), paths=lambda: ScalaSequence(path),
        catalogTable=lambda: ScalaSequence(*named),
    )  # fmt: skip
    return Node("StreamingRelation", dataSource=source)


def topic_node(*tables: str, **options: str) -> Node:
    named = [SimpleNamespace(toString=lambda t=t: t) for t in tables]
    found = SimpleNamespace(asCaseSensitiveMap=lambda: options)
    return Node(
        "StreamingRelationV2", sourceName="Kafka", extraOptions=found, identifier=ScalaSequence(*named)
    )


def plan_of(root: Node, *chained: str) -> Plan:
    query = SimpleNamespace(analyzed=lambda: root)
    frame: Any = SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: query), sparkSession=None)
    return read_plan(frame, chained)


def test_a_plan_lists_its_sources_in_order_and_numbers_the_logs_of_native_ones() -> None:
    files = files_node("/in", maxFilesPerTrigger="1")
    topic = topic_node(Subscribe="t")
    found = plan_of(Node("Union", files, Node("Join", channel_node("a"), topic), Node("Filter", files)))
    assert found.sources == (
        Source("parquet", (("maxfilespertrigger", "1"), ("path", "/in"))),
        Source("channel", (), "a"),
        Source("kafka", (("subscribe", "t"),)),
        Source("parquet", (("maxfilespertrigger", "1"), ("path", "/in"))),
    )
    assert [leaf.log for leaf in found.leaves] == [0, None, 1, 0], "a source that is read twice has one log"
    assert [leaf.channel for leaf in found.leaves] == [None, "a", None, None]
    assert (found.has_watermark, found.fan_in_watermark) == (False, ())


@pytest.mark.parametrize(
    ("kind", "stateful"),
    [
        ("Project", ""),
        ("Generate", ""),
        ("Distinct", "Distinct"),
        ("GlobalLimit", "GlobalLimit"),
        ("New", "New"),
    ],
)
def test_an_operator_that_is_not_known_to_keep_no_state_counts_as_one_that_does(
    kind: str, stateful: str
) -> None:
    assert plan_of(Node("Filter", Node(kind, files_node("/in")))).stateful == stateful


def test_only_a_join_of_two_streams_keeps_state() -> None:
    table = Node("Aggregate", Node("LogicalRelation"))
    assert plan_of(Node("Join", files_node("/in"), table)).stateful == ""
    assert plan_of(Node("Join", files_node("/in"), channel_node("a"))).stateful == "Join"


def test_a_leaf_belongs_to_the_stage_whose_border_is_above_it() -> None:
    inner = Node("CollectMetrics", files_node("/in"), name=f"{PREFIX}raw")
    mine = Node("CollectMetrics", topic_node(Subscribe="t"), name="what the user observes")
    outer = Node("CollectMetrics", Node("Union", inner, files_node("/more")), name=f"{PREFIX}clean")
    found = plan_of(Node("Union", outer, mine, channel_node("a")), "raw", "clean")
    assert [leaf.stage for leaf in found.leaves] == ["raw", "clean", "", ""]
    assert all(leaf.by_border for leaf in found.leaves)
    assert str(found.leaves[0]) == "the source parquet (path=/in) of stage 'raw'"


def test_a_channel_that_two_chained_stages_read_has_a_leaf_of_each() -> None:
    sides = [Node("CollectMetrics", channel_node("a"), name=f"{PREFIX}{stage}") for stage in ("b", "c")]
    found = plan_of(Node("Join", *sides), "b", "c")
    assert [(leaf.channel, leaf.stage) for leaf in found.leaves] == [("a", "b"), ("a", "c")]
    assert str(found.leaves[0]) == "the channel 'a' in stage 'b'"


@pytest.mark.parametrize("name", ["rows of orders", f"{PREFIX}orders", "rows of raw", f"{PREFIX}the day"])
def test_an_observation_of_the_users_is_not_a_border(name: str) -> None:
    observed = Node("CollectMetrics", files_node("/in"), name=name)
    assert [leaf.stage for leaf in plan_of(observed).leaves] == [""]
    inside = Node("CollectMetrics", observed, name=f"{PREFIX}raw")
    assert [leaf.stage for leaf in plan_of(inside, "raw").leaves] == ["raw"]


def test_a_leaf_has_its_path_as_spark_completes_it() -> None:
    found = plan_of(Node("Union", files_node("in/orders"), topic_node(Subscribe="t"), channel_node("a")))
    assert [leaf.absolute for leaf in found.leaves] == ["file:/cwd/in/orders", "", ""]
    assert found.leaves[0].place == "path=in/orders"


@pytest.mark.parametrize("kind", ["EventTimeWatermark", "UpdateEventTimeWatermarkColumn"])
def test_a_watermark_above_several_channels_is_detected(kind: str) -> None:
    one, two = channel_node("a"), channel_node("b")
    both = plan_of(Node("Aggregate", Node(kind, Node("Union", one, two))))
    assert (both.has_watermark, both.fan_in_watermark) == (True, ("a", "b"))
    each = plan_of(Node("Join", Node(kind, one), Node(kind, two)))
    assert (each.has_watermark, each.fan_in_watermark) == (True, ())
    beside = plan_of(Node(kind, Node("Union", one, files_node("/in"))))
    assert (beside.has_watermark, beside.fan_in_watermark) == (True, ())


def test_a_source_that_is_a_table_is_identified_by_the_name_of_the_table() -> None:
    for with_name, without in (
        (files_node("/in", "db.t"), files_node("/in")),
        (topic_node("db.t"), topic_node()),
    ):
        named, unnamed = (plan_of(node).leaves[0] for node in (with_name, without))
        assert "table=db.t" in named.place
        assert "table" not in unnamed.place


def frame_in(session: str, root: Node) -> Any:
    """A DataFrame of a session; two are equal if they have the same name."""
    query = SimpleNamespace(analyzed=lambda: root)
    return SimpleNamespace(
        _jdf=SimpleNamespace(queryExecution=lambda: query, sparkSession=lambda: JavaSession(session)),
        sparkSession=SimpleNamespace(conf={}),
    )


class JavaSession:
    def __init__(self, name: str) -> None:
        self.name = name

    def equals(self, other: JavaSession) -> bool:
        return self.name == other.name


def test_a_frame_is_of_the_session_that_all_its_native_sources_are_of() -> None:
    spark: Any = SimpleNamespace(_jsparkSession=JavaSession("mine"))

    def read(session: str) -> Node:
        source = SimpleNamespace(sparkSession=lambda: JavaSession(session))
        return Node("StreamingRelation", dataSource=source)

    assert is_of_session(frame_in("mine", Node("Filter", read("mine"))), spark)
    assert not is_of_session(frame_in("mine", Node("Union", read("mine"), read("other"))), spark)
    assert not is_of_session(frame_in("other", read("mine")), spark)
    assert is_of_session(frame_in("mine", channel_node("a")), spark)
