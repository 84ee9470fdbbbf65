"""The source that reads a channel: offsets, files and columns, without and with Spark."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cutwater.protocol.base.errors import StoreError
from cutwater.spark.channel_source import ChannelSource
from cutwater.spark.checkpoint.leaves import SourcesChanged
from cutwater.spark.feed import Feed, FeedClosed
from cutwater.spark.files import SCHEMA_KEY, Files
from tests.support.scala_model import ScalaSequence


def fed(*batches: tuple[int, list[str], int], limit: int, max_rows: int = 0) -> Feed:
    feed = Feed("a", -1, max_rows)
    feed.add(batches, limit)
    return feed


COLUMNS = StructType().add("id", "long")


class FakeFiles:
    """The columns of files by URL; records which were checked."""

    def __init__(self, found: dict[str, StructType]) -> None:
        self.found = found
        self.checked: list[str] = []

    def columns(self, url: str) -> tuple[list[str], str | None]:
        self.checked.append(url)
        return self.found[url].fieldNames(), self.found[url].json()


def source_with(files: FakeFiles) -> ChannelSource:
    """A source without its Java side."""
    source = ChannelSource.__new__(ChannelSource)
    source.input, source.feed = "a", Feed("a", -1)
    source._stage, source._columns, source._writers = "reader", COLUMNS.json(), set()
    source._files = files  # type: ignore[assignment]
    source._offset = lambda text: SimpleNamespace(json=lambda: text)
    return source


@pytest.mark.parametrize("place", ["s3a://b", "file:///b"])
def test_columns_are_checked_once_per_incarnation(place: str) -> None:
    other = StructType().add("id", "string")
    urls = [f"{place}/a/1/data/{name}" for name in ("1-0-x/p", "1-0-x/q", "2-1-x/p")]
    files = FakeFiles(dict.fromkeys(urls, COLUMNS))
    source = source_with(files)
    for url in urls:
        source._refuse_other_columns(url)
    assert files.checked == [urls[0], urls[2]]
    changed = f"{place}/a/1/data/3-2-x/p"
    files.found[changed] = other
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"but .* has id string"):
            source._refuse_other_columns(changed)


def test_two_channels_may_have_incarnations_of_the_same_number() -> None:
    urls = [f"s3a://b/stages/{stage}/1/data/1-0-x/p" for stage in ("a", "b")]
    files = FakeFiles({urls[0]: COLUMNS, urls[1]: StructType().add("id", "string")})
    source = source_with(files)
    source._refuse_other_columns(urls[0])
    with pytest.raises(RuntimeError, match=r"but .* has "):
        source._refuse_other_columns(urls[1])


def test_a_source_has_a_new_offset_for_new_rows_and_for_a_new_incarnation() -> None:
    source = source_with(FakeFiles({}))
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


def test_a_batch_has_the_files_between_two_positions_and_their_columns_are_checked() -> None:
    urls = [f"file:///data/{batch + 1}-{batch}-x/p" for batch in (0, 1)]
    files: Any = FakeFiles(dict.fromkeys(urls, COLUMNS))
    files.rows = lambda found, schema: (found, schema)
    source = source_with(files)
    source._schema, source._everything = "schema", "everything"
    source.feed = fed((0, urls[:1], 1), (1, urls[1:], 1), limit=1)
    assert source.getBatch(ScalaSequence(), position(1)) == (urls, "schema")
    assert files.checked == urls
    assert source.getBatch(ScalaSequence(position(0)), position(1)) == (urls[1:], "schema")
    files.found[urls[1]] = StructType().add("other", "long")
    source._writers.clear()  # as in a new query
    with pytest.raises(RuntimeError, match=r"but file:///data/2-1-x/p has other bigint"):
        source.getBatch(ScalaSequence(position(0)), position(1))
    with pytest.raises(SourcesChanged, match=r"stage 'reader' reads channel 'a', but its position is .*b"):
        source.getBatch(ScalaSequence(position(0, "b")), position(1))
    assert (source.schema(), source.getDefaultReadLimit()) == ("schema", "everything")
    assert source.reportLatestOffset() is None
    assert source.toString() == "a"


def test_a_source_equals_only_itself_and_ends_with_its_query() -> None:
    source, other = source_with(FakeFiles({})), source_with(FakeFiles({}))
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


def test_a_file_with_missing_or_damaged_column_types_is_refused() -> None:
    for said in (None, "{", "{}", "[]", '{"type":"struct"}'):
        files: Any = SimpleNamespace(columns=lambda url, said=said: (["id"], said))
        with pytest.raises(RuntimeError, match="has id of an unknown type"):
            source_with(files)._refuse_other_columns("file:///data/1-0-x/p")


def test_the_columns_of_a_file_are_read_from_its_footer(tmp_path: Path) -> None:
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
        StoreError, match=r"bad.parquet is damaged .*run `cutwater verify` to see what else is damaged"
    ):
        files.columns(f"file://{tmp_path}/bad.parquet")


def channel(spark: SparkSession, folder: Path, batches: int, rows: int = 10) -> ChannelSource:
    """A channel with this many batches of one file each."""
    source = ChannelSource(spark, "reader", "a", COLUMNS.json())
    for batch in range(batches):
        name = folder / f"data/1-{batch}-x"
        spark.range(batch * rows, (batch + 1) * rows).coalesce(1).write.parquet(str(name))
        source.feed.add([(batch, [f"file://{path}" for path in name.glob("*.parquet")], rows)], batch)
    return source


def read_all(source: ChannelSource, folder: Path) -> list[tuple[int, list[int]]]:
    """The batches in which a query reads everything from this source."""
    found: list[tuple[int, list[int]]] = []

    def keep(frame: DataFrame, batch: int) -> None:
        found.append((frame.rdd.getNumPartitions(), sorted(row.id for row in frame.collect())))

    query = source.frame().writeStream.foreachBatch(keep).trigger(availableNow=True)
    query.option("checkpointLocation", str(folder / "checkpoint")).start().awaitTermination()
    return found


def test_many_small_batches_are_read_in_few_partitions(spark: SparkSession, tmp_path: Path) -> None:
    source = channel(spark, tmp_path, 40)
    assert read_all(source, tmp_path) == [(2, list(range(400)))]


def test_every_incarnation_begins_with_a_batch_so_that_closed_windows_are_emitted(
    spark: SparkSession, tmp_path: Path
) -> None:
    source = channel(spark, tmp_path, 2)
    assert [rows for _, rows in read_all(source, tmp_path)] == [list(range(20))]
    source.feed = Feed("a", 1, incarnation=2)
    assert [rows for _, rows in read_all(source, tmp_path)] == [[]]
    source.feed = Feed("a", 1, incarnation=3)
    source.feed.add([(2, [], 0)], 2)
    assert [rows for _, rows in read_all(source, tmp_path)] == [[]]


def test_a_store_may_have_special_characters_in_its_path(spark: SparkSession, tmp_path: Path) -> None:
    folder = tmp_path / "day=1" / "{a,b} *[c]? %20 é+"
    assert read_all(channel(spark, folder, 2), tmp_path) == [(2, list(range(20)))]


def test_a_missing_file_is_an_error_and_is_not_skipped(spark: SparkSession, tmp_path: Path) -> None:
    source = channel(spark, tmp_path, 3)
    (gone,) = (tmp_path / "data/1-1-x").glob("*.parquet")
    gone.unlink()
    with pytest.raises(Exception, match=f"1 of 3 files are missing, file://{gone} among them"):
        read_all(source, tmp_path)


def test_columns_of_another_type_are_an_error(spark: SparkSession, tmp_path: Path) -> None:
    source = ChannelSource(spark, "reader", "a", StructType().add("id", "string").json())
    source.feed = channel(spark, tmp_path, 1).feed
    with pytest.raises(
        Exception, match=r"channel 'a' with the columns id string, but file://.* has id bigint"
    ):
        read_all(source, tmp_path)
