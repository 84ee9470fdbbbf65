"""What becomes of stage functions that are called, with plans that no Spark has made."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame
from pyspark.sql import types as t

import cutwater as cw
from cutwater.plan import build as building
from cutwater.plan.build import Builder, PlannedPipeline, bind_sinks, register_sinks
from cutwater.plan.chaining import Chaining, decide, make_topology
from cutwater.plan.graph import in_order
from cutwater.protocol.base.errors import Mistakes, UserError
from cutwater.protocol.base.records import SinkSpec, StageSpec
from cutwater.sinks.records import description
from cutwater.spark.checkpoint.leaves import Leaf, native_leaf
from cutwater.spark.plan import Plan, Source, channel_schema
from cutwater.store.opening import open_store

ROWS = t.StructType().add("id", "long", nullable=False)
COLUMNS = channel_schema("any", ROWS)
FILES = Source("parquet", (("path", "/in"),))
SPARK: Any = SimpleNamespace(name="the pipeline's session")


class Frame(DataFrame):
    """A streaming DataFrame that says what it is."""

    def __new__(cls, *sources: Source, **_: Any) -> Frame:
        made: Frame = object.__new__(cls)
        return made

    def __init__(self, *sources: Source, **says: Any) -> None:
        leaves = tuple(
            Leaf(channel=s.input) if s.input is not None else native_leaf(s.format, s.options, [], number)
            for number, s in enumerate(sources)
        )
        self.plan = Plan(sources, says.pop("has_watermark", False), says.pop("above", ()), leaves)
        self.rows: t.StructType = says.pop("rows", ROWS)
        self.streams: bool = says.pop("streams", True)
        self.session = says.pop("session", SPARK)
        self.refused: str | None = says.pop("refused", None)
        assert not says

    @property
    def schema(self) -> t.StructType:
        return self.rows

    @property
    def isStreaming(self) -> bool:
        return self.streams


class Channel:
    """What a stage reads another with; its frame says which."""

    def __init__(self, spark: Any, stage: str, input: str, schema: str) -> None:
        assert spark is SPARK
        self.stage, self.input, self.columns = stage, input, schema

    def frame(self) -> Frame:
        return Frame(Source("channel", (), self.input))


reached: list[tuple[Any, str]] = []
"""The places whose file system was asked for."""


def check_final_by(frame: Frame, sink: str, final_by: str) -> None:
    if final_by not in frame.schema.names:
        raise UserError(f"sink '{sink}' has final_by={final_by!r}")


@pytest.fixture(autouse=True)
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "ChannelSource", Channel)
    monkeypatch.setattr(building, "read_plan", lambda frame, chained=(): frame.plan)
    monkeypatch.setattr(building, "is_of_session", lambda frame, spark: frame.session is spark)
    monkeypatch.setattr(
        building, "why_refused", lambda frame, mode: frame.refused if mode == "append" else None
    )
    monkeypatch.setattr(building, "check_final_by", check_final_by)
    monkeypatch.setattr(building, "check_reach", lambda spark, url: reached.append((spark, url)))
    monkeypatch.setattr(building, "missing_file_system", lambda spark, error: None)
    reached.clear()


class Shop:
    """A pipeline under construction."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pipeline = cw.Pipeline("shop")

    def sink(self, name: str = "out", path: str | None = None, **options: Any) -> Any:
        return cw.parquet(str(self.folder / (path or name)), name=name, **options)

    def stage(self, function: Callable[..., Any], name: str, **options: Any) -> None:
        self.pipeline.stage(name=name, **options)(function)

    def orders(self, **options: Any) -> None:
        self.stage(lambda spark: Frame(FILES), "orders", **options)

    def paid(self, **options: Any) -> None:
        self.stage(lambda orders: orders, "paid", **({"sinks": [self.sink()]} | options))

    def build(self) -> PlannedPipeline:
        builder = Builder("shop", in_order(self.pipeline.stages), SPARK)
        builder.advance({})
        return builder.finish(make_topology(builder.specs))

    def refuses(self, says: str) -> None:
        with pytest.raises(UserError, match=says):
            self.build()


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.mark.parametrize(
    ("trigger", "is_native", "has_timers", "awaits", "looks_s"),
    [
        (None, False, False, True, 0),
        (None, True, False, False, 0.1),
        (None, False, True, False, 0.1),
        ("2s", False, False, False, 2),
        ("0s", True, False, False, 0),
    ],
)
def test_a_stage_waits_for_news_if_it_can_and_nobody_has_given_it_a_trigger(
    shop: Shop, trigger: str | None, is_native: bool, has_timers: bool, awaits: bool, looks_s: float
) -> None:
    shop.paid(trigger=trigger)
    shop.orders()
    paid = shop.build().stages["paid"]
    sources = (*paid.plan.sources, *([Source("rate", ())] if is_native else []))
    plan = msgspec.structs.replace(paid.plan, sources=sources, has_timers=has_timers)
    paid = msgspec.structs.replace(paid, plan=plan)
    assert (paid.awaits_news, paid.trigger_s) == (awaits, looks_s)


def test_a_stage_is_called_with_what_it_reads_and_is_ready_to_be_hosted(shop: Shop) -> None:
    shop.paid(trigger="3s", max_rows=7)
    shop.orders()
    planned = shop.build()
    assert planned.name == "shop"
    assert planned.spark is SPARK
    orders, paid = planned.stages["orders"], planned.stages["paid"]
    assert (orders.has_readers, orders.inputs, dict(orders.channels), orders.sinks) == (True, (), {}, ())
    assert (orders.has_native_source, paid.has_native_source) == (True, False)
    assert (paid.has_readers, paid.inputs, paid.trigger_s, paid.max_rows) == (False, ("orders",), 3, 7)
    read: Any = paid.channels["orders"]
    assert (read.stage, read.input, read.columns) == ("paid", "orders", COLUMNS)
    assert paid.schema == t.StructType().add("id", "long"), "everything may be null in files and tables"
    assert list(planned.sinks) == ["out"]
    assert planned.topology.stages == {
        "orders": StageSpec("orders", (), "main", (), COLUMNS),
        "paid": StageSpec("paid", ("orders",), "main", (SinkSpec("out", False),), None),
    }


def test_what_others_have_is_waited_for_and_each_function_is_called_once(shop: Shop) -> None:
    calls: list[str] = []

    def report(paid: Any, refunds: Any) -> Any:
        calls.append("report")
        return Frame(Source("channel", (), "paid"), Source("channel", (), "refunds"))

    def orders(spark: Any) -> Any:
        calls.append("orders")
        return Frame(FILES)

    shop.stage(report, "report", sinks=[shop.sink(final_by="id")], member="a")
    shop.stage(orders, "orders", member="a")
    builder = Builder("shop", in_order(shop.pipeline.stages, elsewhere=True), SPARK)
    builder.advance({})
    assert calls == ["orders"]
    assert builder.waits_for == {"paid": "report", "refunds": "report"}
    assert not builder.is_done
    paid = StageSpec("paid", ("orders",), "b", (), COLUMNS)
    builder.advance({"paid": paid})
    assert not builder.is_done
    builder.advance({"paid": paid, "refunds": StageSpec("refunds", (), "b", (), COLUMNS)})
    builder.advance({})
    assert calls == ["orders", "report"]
    assert (builder.is_done, builder.waits_for) == (True, {})
    assert builder.specs["report"].sinks == (SinkSpec("out", True),)
    assert {spec.member for spec in builder.specs.values()} == {"a"}


def test_only_columns_that_somebody_reads_are_in_the_graph() -> None:
    specs = {n: StageSpec(n, i, "main", (), "x long") for n, i in (("b", ("a",)), ("a", ()))}
    found = make_topology(specs).stages
    assert [(n, s.schema) for n, s in found.items()] == [("a", "x long"), ("b", None)]


@pytest.mark.parametrize(
    ("returned", "says"),
    [
        (
            lambda: None,
            r"'orders' must return a streaming DataFrame, but returned nothing \(is a return missing\?\)",
        ),
        (lambda: 3, "'orders' must return a streaming DataFrame, but returned a int"),
        (
            lambda: Frame(streams=False),
            "'orders' returned a batch DataFrame: read its source with spark.readStream",
        ),
        (lambda: Frame(session="another"), "'orders' uses a Spark session other than the pipeline's"),
    ],
)
def test_what_cannot_be_a_stages_rows_is_refused(shop: Shop, returned: Callable[[], Any], says: str) -> None:
    shop.stage(lambda spark: returned(), "orders", sinks=[shop.sink()])
    shop.refuses(says)


def test_an_error_in_a_stage_function_is_reported_in_a_few_lines(shop: Shop) -> None:
    def broken(spark: Any) -> Any:
        raise ValueError("no such luck SQLSTATE: 42K03\n\n  at all \nor ever\nand pages of it")

    shop.stage(broken, "broken", sinks=[shop.sink()])
    shop.refuses("'broken': its function raised ValueError: no such luck at all or ever$")


def test_an_error_that_already_has_a_message_is_not_wrapped_again(shop: Shop) -> None:
    def broken(spark: Any) -> Any:
        raise UserError("give the other path")

    shop.stage(broken, "broken", sinks=[shop.sink()])
    shop.refuses("^give the other path$")


def test_a_parameter_that_is_not_used_is_refused(shop: Shop) -> None:
    shop.orders()
    shop.stage(lambda spark, orders: Frame(FILES), "paid", sinks=[shop.sink()])
    shop.refuses("'paid' has the parameter orders but does not use it")


def test_a_misspelled_option_of_a_source_is_refused_with_the_one_that_was_meant(shop: Shop) -> None:
    source = Source("parquet", (("maxfilepertrigger", "10"), ("path", "/in")))
    shop.stage(lambda spark: Frame(source), "orders", sinks=[shop.sink()])
    shop.refuses("'orders' reads parquet with the option maxfilepertrigger.*did you mean maxFilesPerTrigger?")


def test_an_option_with_a_value_that_spark_refuses_is_reported(shop: Shop) -> None:
    source = Source("parquet", (("maxfilespertrigger", "0"), ("path", "/in")))
    shop.stage(lambda spark: Frame(source), "orders", sinks=[shop.sink()])
    shop.refuses("stage 'orders' reads parquet with maxFilesPerTrigger='0', which must be a whole number")


def test_the_table_of_a_sink_is_not_read_by_the_same_pipeline(shop: Shop) -> None:
    own = Source("parquet", (("path", f"{shop.folder}/x/../out/"),))
    shop.orders(sinks=[shop.sink()])
    shop.stage(lambda spark: Frame(own), "report", sinks=[shop.sink("more")])
    shop.refuses(
        r"'report' reads .*/out, the table that sink 'out' of .* as a parameter, def report\(orders\)$"
    )


def test_a_stage_does_not_read_its_own_table(shop: Shop) -> None:
    own = Source("delta", (("path", f"{shop.folder}/out"),))
    shop.stage(lambda spark: Frame(own), "report", sinks=[shop.sink()])
    shop.refuses("A stage cannot read its own output$")


@pytest.mark.parametrize(("how", "is_refused"), [("Delete", True), ("archive", True), ("OFF", False)])
def test_files_that_spark_would_remove_are_not_read(shop: Shop, how: str, is_refused: bool) -> None:
    source = Source("parquet", (("cleansource", how), ("path", "/in")))
    shop.stage(lambda spark: Frame(source), "orders", sinks=[shop.sink()])
    if is_refused:
        shop.refuses(f"'orders' reads files with cleanSource={how}")
    else:
        assert shop.build().topology.stages.keys() == {"orders"}


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_watermark_above_a_fan_in_must_be_wanted(shop: Shop, is_allowed: bool) -> None:
    inputs = Source("channel", (), "orders"), Source("channel", (), "paid")
    shop.orders()
    shop.paid(sinks=[])
    shop.stage(
        lambda orders, paid: Frame(*inputs, has_watermark=True, above=("orders", "paid")),
        "report", sinks=[shop.sink()], allow_watermark_above_fan_in=is_allowed,
    )  # fmt: skip
    if is_allowed:
        assert len(shop.build().stages) == 3
    else:
        shop.refuses(r"'report' has withWatermark\(\) above a fan-in of orders, paid.*orders.withWatermark")


@pytest.mark.parametrize("is_allowed", [False, True])
def test_a_source_that_two_stages_read_must_be_wanted(shop: Shop, is_allowed: bool) -> None:
    shop.orders(sinks=[shop.sink()])
    shop.stage(
        lambda spark: Frame(Source("rate", (("rowsPerSecond", "1"),)), FILES, FILES),
        "again", sinks=[shop.sink("more")], allow_shared_source=is_allowed,
    )  # fmt: skip
    if is_allowed:
        assert len(shop.build().stages) == 2
    else:
        shop.refuses("stages 'orders' and 'again' both read the source parquet")


@pytest.mark.parametrize(
    "again",
    [
        (("path", "/in/"),),
        (("path", "/x/../in"),),
        (("path", "/in/*"),),
        (("maxfilespertrigger", "2"), ("path", "/in")),
    ],
    ids=["slash", "dots", "pattern", "pace"],
)
def test_another_spelling_or_pace_does_not_hide_that_two_stages_read_a_source(
    shop: Shop, again: tuple[tuple[str, str], ...]
) -> None:
    shop.orders(sinks=[shop.sink()])
    shop.stage(lambda spark: Frame(Source("parquet", again)), "again", sinks=[shop.sink("more")])
    shop.refuses("stages 'orders' and 'again' both read the source parquet")


def test_two_stages_with_a_kafka_topic_in_common_read_the_same_source(shop: Shop) -> None:
    def topics(names: str) -> Source:
        return Source("kafka", (("kafka.bootstrap.servers", "b:9092"), ("subscribe", names)))

    shop.stage(lambda spark: Frame(topics("t1")), "one", sinks=[shop.sink()])
    shop.stage(lambda spark: Frame(topics("t3")), "other", sinks=[shop.sink("others")])
    shop.stage(lambda spark: Frame(topics("t2,t1")), "two", sinks=[shop.sink("more")])
    shop.refuses(
        r"stages 'one' and 'two' both read the source kafka \(.*subscribe=t2,t1\), or a part of it \('one' reads "
        r"subscribe=t1\)"
    )


def test_two_stages_may_read_different_sources_of_an_unknown_format(shop: Shop) -> None:
    for name in ("one", "two"):
        source = Source("pubsub", (("project", "p"), ("subscription", name)))
        shop.stage(lambda spark, source=source: Frame(source), name, sinks=[shop.sink(name)])
    shop.stage(
        lambda spark: Frame(Source("pubsub", (("project", "p"),))), "three", sinks=[shop.sink("three")]
    )
    assert len(shop.build().stages) == 3


def test_sources_that_give_every_reader_its_own_rows_may_be_read_by_many(shop: Shop) -> None:
    for name in ("one", "two"):
        shop.stage(
            lambda spark: Frame(Source("rate", (("rowsPerSecond", "1"),))), name, sinks=[shop.sink(name)]
        )
    assert len(shop.build().stages) == 2


def test_a_column_that_no_channel_can_carry_is_refused_where_it_is_read(shop: Shop) -> None:
    span = t.StructType().add("v", t.CalendarIntervalType())
    shop.stage(lambda spark: Frame(FILES, rows=span), "orders", sinks=[shop.sink("spans")])
    assert shop.build().topology.stages["orders"].schema is None
    shop.paid()
    shop.refuses("column 'v' has type interval, which a channel cannot carry")


def test_the_error_for_a_column_that_no_channel_carries_names_the_member_that_has_it(shop: Shop) -> None:
    shop.paid()
    builder = Builder("shop", in_order(shop.pipeline.stages, elsewhere=True), SPARK)
    with pytest.raises(
        UserError, match="'paid' reads 'orders' of member 'b', which has a column that a channel"
    ):
        builder.advance({"orders": StageSpec("orders", (), "b", (), None)})


def test_a_plan_that_spark_would_refuse_is_refused_before_its_query_starts(shop: Shop) -> None:
    shop.stage(lambda spark: Frame(FILES, refused="No sorting: leave it out"), "orders", sinks=[shop.sink()])
    shop.refuses("^stage 'orders': Spark would refuse its query. No sorting: leave it out$")


def test_all_mistakes_of_all_stages_that_can_be_called_are_reported_at_once(shop: Shop) -> None:
    shop.stage(lambda spark: Frame(FILES, refused="No sorting"), "orders")
    shop.stage(lambda orders: Frame(FILES), "paid", sinks=[shop.sink("paid")])
    shop.stage(lambda spark: None, "lost")
    shop.stage(lambda lost: lost, "found", sinks=[shop.sink("found")])
    with pytest.raises(Mistakes) as refused:
        shop.build()
    said = refused.value.found
    assert [text.split("'")[1] for text in said] == ["orders", "paid", "lost", "orders"]
    assert "both read the source" in said[3]


def test_all_mistakes_of_a_graph_are_reported_at_once(shop: Shop) -> None:
    shop.paid(sinks=[])
    shop.stage(lambda spark: Frame(FILES), "other")
    with pytest.raises(Mistakes, match="no such stage") as refused:
        in_order(shop.pipeline.stages)
    assert len(refused.value.found) == 3


# --- sinks ----------------------------------------------------------------------------------------------


def test_sinks_are_known_to_the_store_when_they_are_registered_and_not_before(shop: Shop) -> None:
    given: list[Any] = []
    sinks = [shop.sink(), cw.foreach_epoch(lambda rows, epoch: None, name="calls")]
    for sink in sinks:
        sink.attach = given.append
    shop.orders(sinks=sinks)
    store = open_store("memory://")
    planned = shop.build()
    bind_sinks(planned, store)
    assert given == [SPARK, SPARK]
    assert reached == [(SPARK, sinks[0].staging("any"))], "a function has no place of its own"
    assert store.list("sinks/") == []
    register_sinks(planned)
    found = description(store, "out")
    assert found is not None
    assert found.url == sinks[0].url
    assert description(store, "calls") is not None


def test_two_sinks_at_one_place_are_refused_however_it_is_spelled(shop: Shop) -> None:
    shop.orders(sinks=[shop.sink("one", "out"), shop.sink("two", "in/../out")])
    with pytest.raises(UserError, match="sinks 'one' and 'two' both write to"):
        bind_sinks(shop.build(), open_store("memory://"))


def test_all_sinks_that_cannot_be_bound_are_reported_at_once_and_nothing_is_created(shop: Shop) -> None:
    shop.orders(sinks=[cw.delta("main.sales.orders"), shop.sink("one", partition_by="no"), shop.sink("fine")])
    with pytest.raises(Mistakes, match="looks like the name of a table in a catalog") as refused:
        bind_sinks(shop.build(), open_store("memory://"), create=False)
    assert "partitioned by 'no'" in refused.value.found[1]
    assert not list(shop.folder.iterdir())


@pytest.mark.parametrize("has_watermark", [False, True])
def test_rows_that_are_shown_when_their_window_is_closed_need_a_watermark(
    shop: Shop, has_watermark: bool
) -> None:
    shop.stage(
        lambda spark: Frame(FILES, has_watermark=has_watermark), "orders", sinks=[shop.sink(final_by="id")]
    )
    if has_watermark:
        bind_sinks(shop.build(), open_store("memory://"))
    else:
        with pytest.raises(UserError, match="'orders' has no watermark, so no window ever closes"):
            bind_sinks(shop.build(), open_store("memory://"))


def test_final_by_is_checked_before_anything_is_bound(shop: Shop) -> None:
    shop.stage(lambda spark: Frame(FILES, has_watermark=True), "orders", sinks=[shop.sink(final_by="idd")])
    with pytest.raises(UserError, match="sink 'out' has final_by='idd'"):
        bind_sinks(shop.build(), open_store("memory://"))
    assert not list(shop.folder.iterdir())


def test_a_builder_says_which_stages_of_others_it_waits_for() -> None:
    pipeline = cw.Pipeline("p")

    @pipeline.stage
    def first(spark: Any) -> Any:
        return Frame(FILES)

    @pipeline.stage
    def second(first: Any, theirs: Any) -> Any:
        return Frame(Source("channel", (), "first"), Source("channel", (), "theirs"))

    @pipeline.stage(sinks=[cw.delta("out")])
    def third(second: Any) -> Any:
        return second

    builder = Builder("p", in_order(pipeline.stages, elsewhere=True), SPARK)
    builder.advance({})
    assert (builder.unchecked, builder.is_done) == (["second", "third"], False)
    assert builder.waits_for == {"theirs": "second"}, "not for its own"
    assert builder.plan_of("first") is not None
    assert builder.plan_of("second") is None
    builder.advance({"theirs": StageSpec("theirs", (), "other", (), COLUMNS)})
    assert (builder.unchecked, builder.is_done, builder.waits_for) == ([], True, {})


@pytest.fixture
def borders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "at_border", lambda frame, stage, schema: frame)


def decided(builder: Builder) -> Chaining:
    """What is chained of stages of one member, as `assemble` decides it."""
    while True:
        found = decide(builder.specs, builder.facts)
        if not builder.refuse_chains(make_topology(builder.specs, found.readers)):
            return found


@pytest.mark.usefixtures("borders")
def test_the_functions_of_chained_stages_are_called_twice(shop: Shop) -> None:
    calls: list[str] = []

    def orders(spark: Any) -> Any:
        calls.append("orders")
        return Frame(FILES)

    def paid(orders: Any) -> Any:
        calls.append("paid")
        return orders

    shop.stage(orders, "orders")
    shop.stage(paid, "paid", sinks=[shop.sink()])
    builder = Builder("shop", in_order(shop.pipeline.stages), SPARK)
    builder.advance({})
    for _ in range(2):
        chaining = decided(builder)
    planned = builder.finish(make_topology(builder.specs, chaining.readers))
    assert list(planned.stages) == ["paid"]
    assert planned.stages["paid"].plan.sources == (FILES,)
    assert sorted(calls) == ["orders", "orders", "paid", "paid"]


@pytest.mark.usefixtures("borders")
@pytest.mark.parametrize("what", ["the plan", "a function", "the columns"])
def test_stages_that_work_only_apart_are_not_chained(shop: Shop, what: str) -> None:
    read: list[Frame] = []

    def orders(spark: Any) -> Any:
        wider = t.StructType().add("more", "long") if what == "the columns" and read else ROWS
        read.append(Frame(FILES, rows=wider))
        return read[-1]

    def paid(orders: Any) -> Any:
        inside = orders in read
        if inside and what == "a function":
            raise AnalysisException("no")
        return Frame(*orders.plan.sources, refused="no" if inside and what == "the plan" else None)

    shop.stage(orders, "orders")
    shop.stage(paid, "paid", sinks=[shop.sink()])
    builder = Builder("shop", in_order(shop.pipeline.stages), SPARK)
    builder.advance({})
    chaining = decided(builder)
    assert chaining.readers == {}
    assert ("columns differ" if what == "the columns" else "Spark refuses") in chaining.why_not["orders"]
    assert list(builder.finish(make_topology(builder.specs)).stages) == ["orders", "paid"]


@pytest.mark.usefixtures("borders")
def test_an_error_of_a_function_that_is_called_again_is_not_taken_for_a_refusal(shop: Shop) -> None:
    """It may be gone the next time, and what is chained is recorded."""
    calls: list[int] = []

    def orders(spark: Any) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise ConnectionError("gone")
        return Frame(FILES)

    shop.stage(orders, "orders")
    shop.paid()
    builder = Builder("shop", in_order(shop.pipeline.stages), SPARK)
    builder.advance({})
    with pytest.raises(UserError, match="stage 'orders': its function raised ConnectionError: gone"):
        decided(builder)
    assert builder.facts["orders"].refused == ""


def test_a_commit_group_needs_one_source_that_is_kafka(shop: Shop) -> None:
    topic = Source("kafka", (("subscribe", "t"),))
    shop.stage(lambda spark: Frame(topic, FILES), "mixed", sinks=[shop.sink()], commit_group="g")
    assert shop.build().stages["mixed"].commit_group == "g"


@pytest.mark.parametrize("nullable", [False, True])
def test_a_table_with_a_column_that_must_not_be_null_takes_rows_whose_plan_says_so(
    shop: Shop, nullable: bool
) -> None:
    place = str(shop.folder / "strict")
    DeltaTable.create(place, pa.schema([pa.field("id", pa.int64(), nullable=False)]))
    rows = t.StructType().add("id", "long", nullable)
    shop.stage(
        lambda spark: Frame(FILES, rows=rows),
        "orders",
        sinks=[cw.delta(place, existing="append", name="out")],
    )
    planned = shop.build()
    if nullable:
        with pytest.raises(UserError, match="id may be null, but the table does not allow nulls there"):
            bind_sinks(planned, open_store("memory://"))
    else:
        bind_sinks(planned, open_store("memory://"))
        assert planned.sinks["out"].schema["fields"][0]["nullable"], "files are read as if it could be"
