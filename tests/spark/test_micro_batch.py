"""A micro-batch and its targets: all of them get the same rows, each in its own layout."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.paths import Attempt
from cutwater.protocol.base.records import Prepared, StageReport, decode
from cutwater.protocol.base.watermark import NONE, UNKNOWN, Watermark, known
from cutwater.sinks import Sink, delta, parquet
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.new_folder import make_folder
from cutwater.spark.micro_batch import BatchFailed, BatchWriter, StopAsked, in_short
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.modelled_query import Rows

NEVER_THE_SAME = """
    select id, reflect('java.util.UUID', 'randomUUID') drawn, id % 3 kind,
    window(timestamp_seconds(60 * (id % 4)), '1 minute') window from range(100)"""
"""Each time that this is computed other values come of it."""


@pytest.fixture
def rows(spark: SparkSession) -> DataFrame:
    return spark.sql(NEVER_THE_SAME)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


def writer(store: Store, rows: DataFrame, sinks: Sequence[Sink], has_readers: bool) -> BatchWriter:
    for sink in sinks:
        sink.bind(store, sink.name, rows.schema.json())
    return BatchWriter(store, "s", 1, 1, -1, rows.schema, (), sinks, has_readers, False, lambda batch: None)


def drawn(folder: Path, names: Sequence[str]) -> list[str]:
    found = [value for name in names for value in pq.ParquetFile(folder / name).read()["drawn"].to_pylist()]
    return sorted(found)


@pytest.mark.parametrize("has_readers", [True, False], ids=["with readers", "only sinks"])
def test_every_target_of_a_batch_shows_the_same_version_of_its_rows(
    tmp_path: Path, store: Store, rows: DataFrame, has_readers: bool
) -> None:
    sinks = [
        delta(str(tmp_path / "plain")),
        delta(str(tmp_path / "parts"), partition_by="kind"),
        parquet(str(tmp_path / "files"), partition_by="kind"),
        delta(str(tmp_path / "final"), final_by="window.end"),
    ]
    output = writer(store, rows, sinks, has_readers)._write(rows, Attempt(1, 0, "a"))
    seen = {name: drawn(tmp_path / name, [f.name for f in found]) for name, found in output.staged.items()}
    if has_readers:
        seen["channel"] = drawn(tmp_path / "store", output.files)
    assert output.rows == 100
    assert seen.keys() == {"plain", "parts", "files", "final", *(["channel"] if has_readers else [])}
    assert len(set(seen["plain"])) == 100
    assert all(values == seen["plain"] for values in seen.values())


def test_a_final_sink_beside_a_channel_has_a_file_per_window(
    tmp_path: Path, store: Store, rows: DataFrame
) -> None:
    """A link to the channel's file would combine all windows in one file and publish them together."""
    sinks = [delta(str(tmp_path / "final"), final_by="window.end")]
    staged = writer(store, rows, sinks, has_readers=True)._write(rows, Attempt(1, 0, "a")).staged
    assert {file.end for file in staged["final"]} == {60_000, 120_000, 180_000, 240_000}
    for file in staged["final"]:
        ids = pq.ParquetFile(tmp_path / "final" / file.name).read()["id"].to_pylist()
        assert file.end is not None
        assert {i % 4 for i in ids} == {file.end // 60_000 - 1}


# --- without Spark ----------------------------------------------------------------------------------------------

ID = StructType([StructField("id", LongType())])
PLAN = b'v1\n{"batchWatermarkMs":%d,"batchTimestampMs":0,"conf":{}}\n%s'


class Batch:
    """A writer of batches, with its inputs and outputs."""

    def __init__(
        self,
        store: Store,
        *sinks: Sink,
        has_readers: bool,
        has_watermark: bool = False,
        leaves: Sequence[Leaf] = (),
    ) -> None:
        self.store = store
        for sink in sinks:
            sink.bind(store, sink.name, ID.json())
        self.done: list[int] = []
        make_folder(
            store,
            "s",
            2,
            3,
            None,
            StageReport("s", 2, 9, False, consumed={}, offsets={}, watermark=NONE, state={}),
        )
        self.writer = BatchWriter(
            store, "s", 2, 3, 9, ID, leaves, sinks, has_readers, has_watermark, self.done.append
        )

    def run(self, *ids: int, plan: bytes = PLAN % (0, b"5"), number: int = 4) -> Prepared:
        self.store.put(f"{self.writer.folder}offsets/{number}", plan)
        table = pa.table({"id": pa.array(ids, pa.int64())})
        self.writer(Rows(table), number)  # type: ignore[arg-type]
        data = self.prepared(number)
        assert data is not None
        return decode("prepared", data, Prepared)

    def prepared(self, number: int = 4) -> bytes | None:
        return self.store.read(f"{self.writer.folder}prepared/{number}.json")


def test_a_batch_is_prepared_with_its_files_rows_and_positions(store: Store) -> None:
    batch = Batch(store, has_readers=True)
    plan = PLAN % (70, b'{"channel":"c","batch":6,"incarnation":1}\n7\n-')
    found = batch.run(1, 2, 3, plan=plan)
    assert (found.batch, found.rows, batch.done) == (14, 3, [14])
    (file,) = found.files
    assert file.startswith("stages/s/2/data/3-14-")
    assert found.size == store.size(file)
    assert (found.consumed, found.offsets, found.sinks) == ({"c": 6}, {"1": "7"}, {})
    assert found.watermark == NONE
    assert found.checksums.keys() == {"offsets/4"}
    assert found.checksums["offsets/4"] == digest(plan)


@pytest.mark.parametrize(("ms", "mark"), [(0, UNKNOWN), (1, known(1)), (70, known(70))])
def test_the_watermark_is_the_one_that_the_batch_uses(store: Store, ms: int, mark: Watermark) -> None:
    batch = Batch(store, has_readers=True, has_watermark=True)
    assert batch.run(1, plan=PLAN % (ms, b"5")).watermark == mark


def test_the_log_of_a_file_source_is_part_of_the_batch(store: Store) -> None:
    batch = Batch(store, has_readers=True, leaves=[Leaf(None, "parquet", "/in", log=0)])
    store.put(f"{batch.writer.folder}sources/0/8.compact", b"log")
    found = batch.run(1, plan=PLAN % (0, b'{"logOffset":8}'))
    assert found.checksums.keys() == {"offsets/4", "sources/0/8.compact"}
    assert found.checksums["sources/0/8.compact"] == digest(b"log")


def test_a_batch_without_rows_has_no_files(tmp_path: Path, store: Store) -> None:
    sink = parquet(str(tmp_path / "out"))
    assert (found := Batch(store, has_readers=True).run()).files == ()
    assert (found.rows, found.size) == (0, 0)
    assert Batch(store, sink, has_readers=False).run(number=5).sinks == {}
    assert Batch(store, parquet(str(tmp_path / "more")), has_readers=True).run(number=6).sinks == {}


def test_the_only_sink_of_a_stage_without_readers_is_written_directly(tmp_path: Path, store: Store) -> None:
    found = Batch(store, parquet(str(tmp_path / "out")), has_readers=False).run(1, 2)
    assert (found.files, found.rows) == ((), 2)
    (file,) = found.sinks["out"]
    assert found.size == (tmp_path / "out" / file.name).stat().st_size
    assert store.list("stages/s/2/data/") == []


@pytest.mark.parametrize("has_readers", [True, False])
def test_plain_sinks_beside_others_get_links_to_the_same_files(
    tmp_path: Path, store: Store, has_readers: bool
) -> None:
    sinks = [parquet(str(tmp_path / "one")), parquet(str(tmp_path / "two"))]
    found = Batch(store, *sinks, has_readers=has_readers).run(1, 2)
    assert bool(found.files) is has_readers
    places = [tmp_path / name / found.sinks[name][0].name for name in ("one", "two")]
    assert places[0].samefile(places[1])
    assert pq.ParquetFile(places[0]).read()["id"].to_pylist() == [1, 2]


def test_a_file_that_cannot_be_linked_is_copied(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def refuse(source: Any, target: Any) -> None:
        if str(target).endswith(".parquet"):
            raise OSError("another file system")
        real(source, target)

    monkeypatch.setattr(os, "link", refuse)
    found = Batch(store, parquet(str(tmp_path / "out")), has_readers=True).run(1, 2)
    place = tmp_path / "out" / found.sinks["out"][0].name
    assert pq.ParquetFile(place).read()["id"].to_pylist() == [1, 2]
    assert not place.samefile(tmp_path / "store" / found.files[0])


def test_a_query_that_was_asked_to_stop_prepares_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(store, has_readers=True)
    batch.writer.stopping = True
    with pytest.raises(StopAsked):
        batch.run(1)
    assert store.list("stages/s/2/data/") == []
    batch.writer.stopping = False
    real = batch.writer._write

    def write(*what: Any) -> Any:
        batch.writer.stopping = True
        return real(*what)

    monkeypatch.setattr(batch.writer, "_write", write)
    with pytest.raises(StopAsked):
        batch.run(1)

    def fail(*what: Any) -> Any:
        batch.writer.stopping = True
        raise ValueError("Spark was stopped under it")

    batch.writer.stopping = False
    monkeypatch.setattr(batch.writer, "_write", fail)
    with pytest.raises(StopAsked):
        batch.run(1)
    assert batch.done == []
    assert batch.prepared() is None


def test_an_error_is_reported_without_long_stack_traces(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*what: Any) -> Any:
        raise ValueError("first\n\n   at org.Frame\nsecond")

    batch = Batch(store, has_readers=True)
    monkeypatch.setattr(batch.writer, "_write", fail)
    with pytest.raises(BatchFailed) as failed:
        batch.run(1)
    assert str(failed.value) == "ValueError: first\nsecond"
    assert in_short(ValueError("\n".join("abcdef")), 4) == "ValueError: a\nb\n...\ne\nf"
    assert in_short(ValueError("\n".join("abcd")), 4) == "ValueError: a\nb\nc\nd"
    assert in_short(ValueError("")) == "ValueError: "


def test_channel_files_on_a_local_disk_are_not_compressed(store: Store) -> None:
    types = StructType([*ID, StructField("at", TimestampType()), StructField("city", StringType())])
    writer = BatchWriter(store, "s", 1, 1, -1, types, (), [], True, False, lambda _: None)
    frame: Any = Rows(pa.table({}))
    assert writer._passing(frame) == {
        "compression": "none",
        "parquet.enable.dictionary#id": "false",
        "parquet.enable.dictionary#at": "false",
    }
    writer.store = open_store("memory://", create=True)
    assert writer._passing(frame) == {}
    cluster = SimpleNamespace(sparkSession=SimpleNamespace(sparkContext=SimpleNamespace(master="spark://x")))
    writer.store = store
    assert writer._passing(cluster) == {}  # type: ignore[arg-type]
