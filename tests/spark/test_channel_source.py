"""Channels on Spark: what they carry, who reads them, and what is left of them."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as t
from pyspark.sql.types import StructType

import cutwater as cw
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.spark.channel_source import ChannelSource
from cutwater.spark.checkpoint.leaves import SourcesChanged
from cutwater.spark.feed import Feed, FeedClosed
from cutwater.spark.files import SCHEMA_KEY, Files
from cutwater.spark.internals.types import VOID_TYPES
from cutwater.spark.plan import Plan, Source, channel_schema, read_plan, row_schema
from cutwater.store.local import LocalStore
from tests.support.spark_helpers import NUMBERS, deliver, numbers, rows_of

ALL_TYPES = """
    id long,
    tiny byte, small short, whole int, huge long, single float, twice double, yes boolean, text string, raw binary,
    price decimal(12,2), wide decimal(38,10), day date, at timestamp, local timestamp_ntz,
    span interval day to second,
    list array<int>, words array<string>, by_name map<string,double>,
    pair struct<a: int, b: struct<c: string, at: timestamp>>, nested array<struct<k: string, v: map<string,array<int>>>>
"""


def one_of_each(number: int) -> tuple[Any, ...]:
    if number % 5 == 4:
        return (number, *[None] * 20)
    at = dt.datetime(2026, 1, 1, 12, 30, 15, 123456) + dt.timedelta(seconds=number)
    return (
        number, number % 100, number, number, 2**62 - number, 0.5 + number, 1e300 / (number + 1), number % 2 == 0,
        f"ünï {number} \u0000 🦆", bytes([number % 256, 0, 255]), Decimal(number) / 4,
        Decimal("12345678901234567890.0123456789"),
        dt.date(1969, 7, 20) + dt.timedelta(days=number), at, at, dt.timedelta(days=number, microseconds=7),
        [number, None, 3], [], {"a": 1.5, "b": None}, (number, ("c", at)),
        [("k", {"x": [1, None]}), (None, None)],
    )  # fmt: skip


def test_every_type_that_can_pass_passes_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    source = str(tmp_path / "in")
    rows = spark.createDataFrame([one_of_each(i) for i in range(50)], ALL_TYPES)
    rows.repartition(3).write.parquet(source)
    pipeline = cw.Pipeline("types")

    @pipeline.stage
    def first(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(rows.schema).parquet(source)

    @pipeline.stage
    def second(first: DataFrame) -> DataFrame:
        return first

    @pipeline.stage(sinks=[cw.parquet(str(tmp_path / "out"))])
    def third(second: DataFrame) -> DataFrame:
        return second

    pipeline.run(str(tmp_path / "state"), once=True, spark=spark)
    out = spark.read.schema(rows.schema).parquet(*cw.parquet_files(str(tmp_path / "out")))
    before = spark.read.schema(rows.schema).parquet(source)
    assert sorted(out.collect(), key=lambda r: r.id) == sorted(before.collect(), key=lambda r: r.id)
    assert out.count() == 50


def test_types_that_python_has_no_rows_for_pass_as_well(spark: SparkSession, tmp_path: Path) -> None:
    deliver(tmp_path / "in", "0", numbers(range(5)))
    pipeline = cw.Pipeline("types")
    made = [
        "id", "parse_json(to_json(struct(id, ts))) v", "make_ym_interval(1, cast(id as int)) ym",
        "case id % 2 when 0 then 'A' else 'b' end collate UNICODE_CI c", "array('x' collate UNICODE_CI) cs",
    ]  # fmt: skip
    told = [
        "id", "to_json(v) v", "cast(ym as int) ym", "collation(c) cn", "c = 'a' same",
        "collation(cs[0]) csn",
    ]  # fmt: skip
    if VOID_TYPES:
        made.append("null n")
        told.append("typeof(n) n")
    if spark.conf.get("spark.sql.geospatial.enabled", "false") == "true":  # in Spark 4.1 it is not
        made.append("st_geogfromwkb(X'0101000000000000000000F03F0000000000000040') g")
        told.append("hex(st_asbinary(g)) g")

    @pipeline.stage
    def first(spark: SparkSession) -> DataFrame:
        source = spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))
        return source.selectExpr(*made)

    @pipeline.stage
    def second(first: DataFrame) -> DataFrame:
        return first

    @pipeline.stage(sinks=[cw.parquet(str(tmp_path / "out"))])
    def third(second: DataFrame) -> DataFrame:
        return second.selectExpr(*told)

    pipeline.run(str(tmp_path / "state"), once=True, spark=spark)
    out = spark.read.parquet(*cw.parquet_files(str(tmp_path / "out")))
    batch = spark.read.schema(NUMBERS).parquet(str(tmp_path / "in")).selectExpr(*made)
    wanted = batch.selectExpr(*told).collect()
    assert sorted(out.collect(), key=lambda r: r.id) == sorted(wanted, key=lambda r: r.id)
    assert any(row.same for row in wanted)


def test_fan_out_self_join_and_a_native_source_beside_a_channel(spark: SparkSession, tmp_path: Path) -> None:
    for part in range(6):
        deliver(tmp_path / "in", f"{part}", numbers(range(part * 100, part * 100 + 100)))
        deliver(tmp_path / "more", f"{part}", numbers(range(1000 + part * 10, 1010 + part * 10)))
    pipeline = cw.Pipeline("shapes")

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "even"))])
    def even(source: DataFrame) -> DataFrame:
        return source.where("id % 2 = 0")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "pairs"))])
    def pairs(source: DataFrame) -> DataFrame:
        left = source.withWatermark("ts", "10 minutes").alias("l")
        right = source.withWatermark("ts", "10 minutes").alias("r")
        return left.join(
            right, F.expr("l.id = r.id + 1 AND l.ts >= r.ts AND l.ts <= r.ts + INTERVAL 1 MINUTE")
        ).select(F.col("l.id").alias("id"), F.col("r.id").alias("before"))

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "both"))], max_rows=150)
    def both(spark: SparkSession, even: DataFrame) -> DataFrame:
        other = (
            spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 2).parquet(str(tmp_path / "more"))
        )
        return even.select("id").union(other.select("id"))

    pipeline.run(str(tmp_path / "state"), every="500ms", once=True, spark=spark)
    assert rows_of(tmp_path / "even", "id") == [(i,) for i in range(0, 600, 2)]
    assert rows_of(tmp_path / "pairs", "id", "before") == [(i, i - 1) for i in range(1, 600)]
    assert rows_of(tmp_path / "both", "id") == sorted(
        [(i,) for i in range(0, 600, 2)] + [(i,) for i in range(1000, 1060)]
    )


# --- the feed, without Spark --------------------------------------------------------------------------


def fed(*batches: tuple[int, list[str], int], limit: int, max_rows: int = 0) -> Feed:
    feed = Feed("a", -1, max_rows)
    feed.add(batches, limit)
    return feed


def test_a_reader_goes_up_to_the_limit_and_passes_over_empty_batches() -> None:
    feed = fed((0, ["p"], 10), (1, [], 0), (2, ["q", "r"], 5), (3, ["s"], 1), limit=2)
    assert feed.next_position(None) == 2
    assert feed.files(None, 2) == ["p", "q", "r"]
    assert feed.next_position(2) == 2
    feed.add([], 3)
    assert feed.next_position(2) == 3
    feed.add([(4, [], 0)], 4)
    assert feed.next_position(3) == 3, "nothing to read there"
    feed.add([], 1)
    assert feed.limit == 4, "what was allowed stays allowed"


def test_max_rows_takes_whole_batches_and_at_least_one() -> None:
    batches = [(b, [f"p{b}"], 100) for b in range(10)]
    assert fed(*batches, limit=9, max_rows=250).next_position(None) == 1
    assert fed(*batches, limit=9, max_rows=50).next_position(3) == 4
    assert fed(*batches, limit=9, max_rows=200).next_position(None) == 1


def test_what_is_available_now_does_not_grow() -> None:
    feed = fed((0, ["p"], 1), (1, ["q"], 1), limit=0)
    feed.freeze()
    feed.add([], 1)
    assert feed.next_position(None) == 0


def test_a_planned_batch_that_is_not_known_yet_is_waited_for() -> None:
    feed = fed((0, ["p"], 1), limit=0)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(feed.files, None, 2)
        feed.add([(1, ["q"], 1)], 1)
        feed.add([(2, ["r"], 1)], 1)
        assert asked.result(10) == ["p", "q", "r"]


def test_who_waits_for_a_batch_is_let_go_when_the_incarnation_ends() -> None:
    feed = fed(limit=-1)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(feed.files, None, 0)
        feed.close()
        with pytest.raises(FeedClosed, match="channel 'a'"):
            asked.result(10)


def test_a_batch_that_never_becomes_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutwater.spark.feed.KNOWN_WITHIN_S", 0.05)
    with pytest.raises(RuntimeError, match="batch 0 of channel 'a' is planned"):
        fed(limit=-1).files(None, 0)


def test_the_last_batch_that_spark_asks_for_when_it_starts_is_not_looked_for() -> None:
    feed = Feed("a", 7)
    assert feed.files(5, 7) == []
    assert feed.next_position(7) == 7


def test_what_the_log_has_behind_it_is_forgotten() -> None:
    feed = fed(*[(b, [f"p{b}"], 1) for b in range(5)], limit=4)
    feed.forget(2)
    assert feed.next_position(2) == 4
    assert feed.files(2, 4) == ["p3", "p4"]
    assert feed.next_position(1) == 1, "it is not known any more"


# --- the source and its columns, without Spark ------------------------------------------------------------

COLUMNS = StructType().add("id", "long")


class Looks:
    """The columns of files by their address, and which were looked at."""

    def __init__(self, found: dict[str, StructType]) -> None:
        self.found = found
        self.looked: list[str] = []

    def columns(self, url: str) -> tuple[list[str], str | None]:
        self.looked.append(url)
        return self.found[url].fieldNames(), self.found[url].json()


def apart(files: Looks) -> ChannelSource:
    """A source whose Java side is not there."""
    source = ChannelSource.__new__(ChannelSource)
    source.input, source.feed = "a", Feed("a", -1)
    source._stage, source._columns, source._writers = "reader", COLUMNS.json(), set()
    source._files = files  # type: ignore[assignment]
    source._offset = lambda text: SimpleNamespace(json=lambda: text)
    return source


def test_in_a_bucket_one_file_of_each_incarnation_is_looked_at_and_on_a_disk_every_file() -> None:
    other = StructType().add("id", "string")
    for place, expected in (
        ("s3a://b", ["1-0-x/p", "2-1-x/p"]),
        ("file:///b", ["1-0-x/p", "1-0-x/q", "2-1-x/p"]),
    ):
        urls = [f"{place}/a/1/data/{name}" for name in ("1-0-x/p", "1-0-x/q", "2-1-x/p")]
        files = Looks(dict.fromkeys(urls, COLUMNS))
        source = apart(files)
        for url in urls:
            source._refuse_other_columns(url)
        assert files.looked == [f"{place}/a/1/data/{name}" for name in expected]
        changed = f"{place}/a/1/data/3-2-x/p"
        files.found[changed] = other
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"but .* has id string"):
                source._refuse_other_columns(changed)


def test_two_channels_may_have_incarnations_of_the_same_number() -> None:
    urls = [f"s3a://b/stages/{stage}/1/data/1-0-x/p" for stage in ("a", "b")]
    files = Looks({urls[0]: COLUMNS, urls[1]: StructType().add("id", "string")})
    source = apart(files)
    source._refuse_other_columns(urls[0])
    with pytest.raises(RuntimeError, match=r"but .* has "):
        source._refuse_other_columns(urls[1])


def test_a_source_has_a_new_offset_for_new_rows_and_for_a_new_incarnation() -> None:
    source = apart(Looks({}))
    source.feed = Feed("a", -1, 0, 1)
    first = source.latestOffset(None, None)
    assert source.latestOffset(first, None) is first
    source.feed.add([(0, ["p"], 1)], 0)
    second = source.latestOffset(first, None)
    assert json.loads(second.json()) == {"channel": "a", "batch": 0, "incarnation": 1}
    source.feed = Feed("a", 0, 0, 2)
    third = source.latestOffset(second, None)
    assert json.loads(third.json()) == {"channel": "a", "batch": 0, "incarnation": 2}
    assert source.latestOffset(third, None) is third


def position(batch: int, name: str = "a") -> Any:
    said = json.dumps({"channel": name, "batch": batch, "incarnation": 1})
    return SimpleNamespace(json=lambda: said)


def test_a_batch_has_the_files_between_two_positions_and_each_is_looked_at() -> None:
    urls = [f"file:///data/1-{batch}-x/p" for batch in (0, 1)]
    files: Any = Looks(dict.fromkeys(urls, COLUMNS))
    files.rows = lambda found, schema: (found, schema)
    source = apart(files)
    source._schema, source._everything = "schema", "everything"
    source.feed = fed((0, urls[:1], 1), (1, urls[1:], 1), limit=1)
    assert source.getBatch(Listed(), position(1)) == (urls, "schema")
    assert files.looked == urls
    assert source.getBatch(Listed(position(0)), position(1)) == (urls[1:], "schema")
    files.found[urls[1]] = StructType().add("other", "long")
    with pytest.raises(RuntimeError, match=r"but file:///data/1-1-x/p has other bigint"):
        source.getBatch(Listed(position(0)), position(1))
    with pytest.raises(SourcesChanged, match=r"stage 'reader' reads channel 'a', but its position is .*b"):
        source.getBatch(Listed(position(0, "b")), position(1))
    assert (source.schema(), source.getDefaultReadLimit()) == ("schema", "everything")
    assert source.reportLatestOffset() is None
    assert source.toString() == "a"


def test_a_source_is_itself_and_no_other_and_ends_with_its_query() -> None:
    source, other = apart(Looks({})), apart(Looks({}))
    assert source.equals(source)
    assert not source.equals(other)
    assert not source.equals(None)
    assert 0 <= source.hashCode() < 2**31
    source.feed = fed((0, ["p"], 1), (1, ["q"], 1), limit=0)
    source.prepareForTriggerAvailableNow()
    source.feed.add([], 1)
    assert source.feed.next_position(None) == 0
    source.stop()
    with pytest.raises(FeedClosed):
        source.feed.files(None, 5)


def test_a_file_whose_columns_are_not_told_or_damaged_has_other_columns() -> None:
    for said in (None, "{", "{}", "[]", '{"type":"struct"}'):
        files: Any = SimpleNamespace(columns=lambda url, said=said: (["id"], said))
        with pytest.raises(RuntimeError, match="has id of an unknown type"):
            apart(files)._refuse_other_columns("file:///data/1-0-x/p")


def test_the_columns_of_a_file_are_read_where_it_lies(tmp_path: Path) -> None:
    files = Files.__new__(Files)
    table = pa.table({"id": [1], "b": ["x"]})
    pq.write_table(table, tmp_path / "plain.parquet")
    assert files.columns(f"file://{tmp_path}/plain.parquet") == (["id", "b"], None)
    pq.write_table(table.replace_schema_metadata({SCHEMA_KEY: COLUMNS.json()}), tmp_path / "spark.parquet")
    assert files.columns(f"file://{tmp_path}/spark.parquet") == (["id", "b"], COLUMNS.json())
    with pytest.raises(FileNotFoundError):
        files.columns(f"file://{tmp_path}/gone.parquet")
    (tmp_path / "bad.parquet").write_bytes(b"no rows in here")
    with pytest.raises(
        StoreError, match=r"bad.parquet is damaged .*run `cutwater verify` to see what else is"
    ):
        files.columns(f"file://{tmp_path}/bad.parquet")


def test_readers_of_a_channel_declare_that_everything_may_be_null() -> None:
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


class Unheard(t.AtomicType):
    """A type of a later Spark."""


@pytest.mark.parametrize(
    ("kind", "fix"),
    [(t.CalendarIntervalType(), "carry it as two numbers"), (Unheard(), "cast it to a string or a number")],
)
def test_a_type_that_no_file_can_hold_is_refused_wherever_it_is(kind: t.DataType, fix: str) -> None:
    deep = t.StructType().add("m", t.MapType(t.StringType(), t.ArrayType(kind)))
    with pytest.raises(UserError, match=rf"its column 'm.value\[\]' has type .*; {fix}"):
        channel_schema("s", deep)
    with pytest.raises(UserError, match=rf"its column 'm.key' has type .*; {fix}"):
        channel_schema("s", t.StructType().add("m", t.MapType(kind, t.StringType())))


def test_only_a_source_of_one_place_is_the_same_for_two_readers() -> None:
    options = (("path", "/in"),)
    assert Source("rate", options).is_shareable
    assert Source("parquet", options, "a").is_shareable
    assert Source("parquet", ()).is_shareable
    assert not Source("parquet", options).is_shareable


# --- what a plan says, on a model of Spark's tree --------------------------------------------------------------


class Listed:
    """A sequence or an option of Scala's."""

    def __init__(self, *items: Any) -> None:
        self.items = items

    def size(self) -> int:
        return len(self.items)

    def apply(self, at: int) -> Any:
        return self.items[at]

    def isDefined(self) -> bool:
        return bool(self.items)

    def get(self) -> Any:
        return self.items[0]

    def iterator(self) -> Any:
        left = list(self.items)
        return SimpleNamespace(hasNext=lambda: bool(left), next=lambda: left.pop(0))


class Node:
    """A node of an analysed plan; what Spark has as methods without arguments is given by name."""

    def __init__(self, kind: str, *below: Node, **says: Any) -> None:
        self.nodeName = lambda: kind
        self.children = lambda: Listed(*below)
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
        className=lambda: "Parquet", options=lambda: Listed(*pairs), paths=lambda: Listed(path),
        catalogTable=lambda: Listed(*named),
    )  # fmt: skip
    return Node("StreamingRelation", dataSource=source)


def topic_node(*tables: str, **options: str) -> Node:
    named = [SimpleNamespace(toString=lambda t=t: t) for t in tables]
    found = SimpleNamespace(asCaseSensitiveMap=lambda: options)
    return Node("StreamingRelationV2", sourceName="Kafka", extraOptions=found, identifier=Listed(*named))


def plan_of(root: Node) -> Plan:
    query = SimpleNamespace(analyzed=lambda: root)
    frame: Any = SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: query))
    return read_plan(frame)


def test_a_plan_names_its_sources_in_their_order_and_numbers_the_logs_of_native_ones() -> None:
    files = files_node("/in", maxFilesPerTrigger="1")
    topic = topic_node(Subscribe="t")
    found = plan_of(Node("Union", files, Node("Join", channel_node("a"), topic), Node("Filter", files)))
    assert found.sources == (
        Source("parquet", (("maxfilespertrigger", "1"), ("path", "/in"))),
        Source("channel", (), "a"),
        Source("kafka", (("subscribe", "t"),)),
        Source("parquet", (("maxfilespertrigger", "1"), ("path", "/in"))),
    )
    assert [leaf.log for leaf in found.leaves] == [0, None, 1, 0], "what is read twice has one log"
    assert [leaf.channel for leaf in found.leaves] == [None, "a", None, None]
    assert (found.has_watermark, found.fan_in_watermark) == (False, ())


@pytest.mark.parametrize("kind", ["EventTimeWatermark", "UpdateEventTimeWatermarkColumn"])
def test_a_watermark_above_several_channels_is_seen(kind: str) -> None:
    one, two = channel_node("a"), channel_node("b")
    both = plan_of(Node("Aggregate", Node(kind, Node("Union", one, two))))
    assert (both.has_watermark, both.fan_in_watermark) == (True, ("a", "b"))
    each = plan_of(Node("Join", Node(kind, one), Node(kind, two)))
    assert (each.has_watermark, each.fan_in_watermark) == (True, ())
    beside = plan_of(Node(kind, Node("Union", one, files_node("/in"))))
    assert (beside.has_watermark, beside.fan_in_watermark) == (True, ())


def test_a_source_that_is_a_table_is_known_by_the_tables_name() -> None:
    for with_name, without in (
        (files_node("/in", "db.t"), files_node("/in")),
        (topic_node("db.t"), topic_node()),
    ):
        named, unnamed = (plan_of(node).leaves[0] for node in (with_name, without))
        assert "table=db.t" in named.place
        assert "table" not in unnamed.place


# --- the source, on Spark -------------------------------------------------------------------------------


def channel(spark: SparkSession, folder: Path, batches: int, rows: int = 10) -> ChannelSource:
    """A channel of so many batches, a file each."""
    source = ChannelSource(spark, "reader", "a", COLUMNS.json())
    for batch in range(batches):
        name = folder / f"data/1-{batch}-x"
        spark.range(batch * rows, (batch + 1) * rows).coalesce(1).write.parquet(str(name))
        source.feed.add([(batch, [f"file://{path}" for path in name.glob("*.parquet")], rows)], batch)
    return source


def taken(source: ChannelSource, folder: Path) -> list[tuple[int, list[int]]]:
    """The batches that a query with this source makes of what is there."""
    found: list[tuple[int, list[int]]] = []

    def keep(frame: DataFrame, batch: int) -> None:
        found.append((frame.rdd.getNumPartitions(), sorted(row.id for row in frame.collect())))

    query = source.frame().writeStream.foreachBatch(keep).trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    return found


def test_many_small_batches_are_read_in_few_partitions(spark: SparkSession, tmp_path: Path) -> None:
    source = channel(spark, tmp_path, 40)
    assert taken(source, tmp_path) == [(2, list(range(400)))]


def test_every_incarnation_begins_with_a_batch_so_that_closed_windows_are_emitted(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = channel(spark, tmp_path, 2)
    assert [rows for _, rows in taken(source, tmp_path)] == [list(range(20))]
    source.feed = Feed("a", 1, incarnation=2)
    assert [rows for _, rows in taken(source, tmp_path)] == [[]]
    source.feed = Feed("a", 1, incarnation=3)
    source.feed.add([(2, [], 0)], 2)
    assert [rows for _, rows in taken(source, tmp_path)] == [[]]


def test_a_store_may_have_any_name(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "day=1" / "{a,b} *[c]? %20 é+"
    assert taken(channel(spark, folder, 2), tmp_path) == [(2, list(range(20)))]


def test_a_file_that_is_gone_is_an_error_and_not_passed_over(spark: SparkSession, tmp_path: Path) -> None:
    source = channel(spark, tmp_path, 3)
    (gone,) = (tmp_path / "data/1-1-x").glob("*.parquet")
    gone.unlink()
    with pytest.raises(Exception, match=f"1 of 3 files are missing, file://{gone} among them"):
        taken(source, tmp_path)


def test_columns_of_another_type_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    source = ChannelSource(spark, "reader", "a", StructType().add("id", "string").json())
    source.feed = channel(spark, tmp_path, 1).feed
    with pytest.raises(
        Exception, match=r"channel 'a' with the columns id string, but file://.* has id bigint"
    ):
        taken(source, tmp_path)


def test_the_file_of_a_task_that_was_given_up_is_in_no_batch(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a task makes `_temporary/` again when the job's commit has removed it, and leaves its whole file there."""
    deliver(tmp_path / "in", "0", numbers(range(40)))
    left: list[Path] = []

    def leave_behind(folder: Path) -> None:
        late = folder / "_temporary/0/_temporary/attempt_202601011200000000000000000_0007_m_000000_1"
        for path in folder.glob("*.parquet"):
            late.mkdir(parents=True, exist_ok=True)
            left.append(Path(shutil.copy(path, late)))

    list_files = LocalStore.list

    def listed(store: LocalStore, prefix: str, after: str = "") -> list[str]:
        name = prefix.rstrip("/").rpartition("/")[2]
        if re.fullmatch(r"(\d+-)?\d+-\d+-[0-9a-f]{8}", name) and (store.root / prefix).is_dir():
            leave_behind(store.root / prefix)
        return list_files(store, prefix, after)

    monkeypatch.setattr(LocalStore, "list", listed)
    pipeline = cw.Pipeline("late")

    @pipeline.stage
    def first(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "one")), cw.delta(str(tmp_path / "two"))])
    def second(first: DataFrame) -> DataFrame:
        return first.select("id")

    @pipeline.stage(sinks=[cw.delta(str(tmp_path / "three"))])
    def third(first: DataFrame) -> DataFrame:
        return first.select("id")

    pipeline.run(str(tmp_path / "state"), once=True, spark=spark)
    folders = {str(path).partition("/_temporary/")[0].rpartition("/")[0] for path in left}
    assert len(folders) == 5  # the channels of two stages, and three sinks
    for table in ("one", "two", "three"):
        assert rows_of(tmp_path / table, "id") == [(i,) for i in range(40)]
