"""Footers of staged files: each is read once, and a file that is gone or was replaced is still detected."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import StructType

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import Attempt
from cutwater.sinks import Sink, footers
from cutwater.sinks.delta.making import delta
from cutwater.sinks.footers import Footers
from cutwater.sinks.parquet import parquet
from cutwater.spark.channel_source import ChannelSource
from cutwater.spark.files import SCHEMA_KEY, Files
from cutwater.spark.micro_batch import BatchWriter
from cutwater.store.contract import Store
from cutwater.store.opening import open_place
from tests.support.modelled_query import Rows
from tests.support.sink_helpers import ROWS, stage, store

__all__ = ["store"]

Make = Callable[[], Sink]


@pytest.fixture(params=[delta, parquet], ids=["delta", "parquet"])
def make(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Make:
    def bound() -> Sink:
        sink: Sink = request.param(str(tmp_path / "out"))
        sink.bind(store, "out", ROWS)
        return sink

    return bound


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the footer of each file was read, by the file's folder."""
    counted: Counter[str] = Counter()
    read = pq.read_metadata

    def count(source: Any) -> Any:
        counted[Path(source).parent.name] += 1
        return read(source)

    monkeypatch.setattr(pq, "read_metadata", count)
    return counted


def test_a_process_reads_the_footer_of_a_file_once_from_staging_to_publishing(
    make: Make, reads: Counter[str]
) -> None:
    sink = make()
    for transaction, ids in enumerate(([1, 2], [3]), 1):
        stage(sink, f"attempt-{transaction}", ids)
        staged = sink.staged(f"attempt-{transaction}")
        assert sink.measure(staged)[0] == len(ids)
        sink.publish(sink.head().version, transaction, tuple(file.name for file in staged), epoch=transaction)
    assert reads == {"attempt-1": 1, "attempt-2": 1}


def test_the_footers_of_channel_files_are_read_once_although_a_sink_has_links_and_a_stage_reads_them(
    make: Make, store: Store, tmp_path: Path, reads: Counter[str]
) -> None:
    """A reader looks at one file of each incarnation: the columns can only change with it."""
    sink, types = make(), StructType.fromJson(json.loads(ROWS))
    writer = BatchWriter(store, "s", 1, 1, -1, types, (), [sink], True, False, lambda _: None)
    folders, urls = [], []
    for transaction in (1, 2):
        table = pa.table({"id": [transaction, 7], "city": ["a", "b"]})
        rows: Any = Rows(table.replace_schema_metadata({SCHEMA_KEY: ROWS}))
        output = writer._write(rows, Attempt(1, transaction, "x"))
        (file,), (linked,) = output.files, output.staged["out"]
        assert (tmp_path / "out" / linked.name).samefile(tmp_path / "store" / file)
        assert (output.rows, output.size) == (2, store.size(file))
        sink.publish(sink.head().version, transaction, (linked.name,), epoch=transaction)
        folders.append(file.split("/")[-2])
        urls.append(store.spark_url(file))
    assert reads == {folders[0]: 1, folders[1]: 1}
    source = ChannelSource.__new__(ChannelSource)
    source.input, source._stage, source._columns, source._writers = "s", "reader", ROWS, set()
    source._files = Files.__new__(Files)
    for url in urls:
        source._refuse_other_columns(url)
    assert reads == {folders[0]: 2, folders[1]: 1}


def test_another_process_reads_the_footer_itself(make: Make, reads: Counter[str]) -> None:
    files = stage(make(), "a", [1])
    make().publish(-1, 1, files, epoch=1)
    assert reads == {"a": 2}


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_bytes(b"PAR1")], ids=["gone", "cut"])
def test_a_file_that_was_changed_since_it_was_staged_is_not_published(
    make: Make, tmp_path: Path, change: Callable[[Path], object]
) -> None:
    sink = make()
    (file,) = stage(sink, "a", [1])
    change(tmp_path / "out" / file)
    with pytest.raises(StoreError, match="cannot be published"):
        sink.publish(-1, 1, (file,), epoch=1)
    assert sink.head().version == -1


def test_footers_do_not_pile_up(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(footers, "MOST_KEPT", 2)
    known = Footers()
    names = [f"{number}.parquet" for number in range(5)]
    for name in names:
        pq.write_table(pa.table({"id": [1]}), tmp_path / "store" / name)
    assert [footer.rows for footer in known.get(store, names)] == [1] * 5
    assert list(known._known) == names[-2:]
    known.forget(names)
    assert known._known == {}


def test_a_batch_is_written_while_an_epoch_is_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are published may be forgotten for those of newer batches, and are read again then."""
    monkeypatch.setattr(footers, "MOST_KEPT", 50)
    place = open_place(str(tmp_path), create=True)
    pq.write_table(pa.table({"a": [1]}), tmp_path / "f0")
    names = [f"f{n}" for n in range(200)]
    for name in names[1:]:
        os.link(tmp_path / "f0", tmp_path / name)
    kept, is_over = Footers(), Event()

    def write() -> None:
        while not is_over.is_set():
            for start in range(50, 200, 25):
                kept.get(place, names[start : start + 25])

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(100):
                assert len(kept.check(place, names[:45])) == 45
        finally:
            is_over.set()
        writing.result(timeout=60)


def test_a_footer_is_read_from_the_end_of_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bucket in memory; the tests with an S3 server cover real ones."""
    bucket, data = open_place("memory://", create=True), BytesIO()
    pq.write_table(pa.table({f"column {n}": [n, n] for n in range(20)}), data)
    bucket.put("x/part-0.parquet", data.getvalue())
    wanted = pq.read_metadata(BytesIO(data.getvalue()))
    assert footers._read_object(bucket, "x/part-0.parquet").metadata.equals(wanted)
    monkeypatch.setattr(footers, "_TAIL", 100)  # much smaller than the footer
    assert footers._read_object(bucket, "x/part-0.parquet").metadata.equals(wanted)
    bucket.put("x/cut.parquet", data.getvalue()[:-4])
    for name in ("x/cut.parquet", "x/gone.parquet"):
        with pytest.raises(StoreError, match=name):
            footers._read_object(bucket, name)


def wrong(rows: dict[str, Any], *, nulls: int | None = 0, low: Any = None, high: Any = None) -> str | None:
    """The column of a file with these rows whose statistics are wrong, if the footer says this of its last column."""
    group = pa.table(rows)
    last = sum(1 for _ in footers._columns(group.schema)) - 1
    said = SimpleNamespace(
        has_null_count=nulls is not None, null_count=nulls, has_min_max=low is not None, min=low, max=high
    )
    footer = SimpleNamespace(column=lambda at: SimpleNamespace(statistics=said if at == last else None))
    return footers._wrong_statistics(group, footer)


def test_statistics_that_would_skip_rows_are_wrong() -> None:
    some = {"x": [1], "id": [3]}
    assert wrong(some, low=3, high=3) is None
    assert wrong(some, low=1, high=9) is None, "wider bounds skip less"
    assert wrong(some) is None
    assert wrong(some, nulls=None, low=4, high=9) == "id"
    assert wrong(some, low=1, high=2) == "id"
    assert wrong(some, nulls=1) == "id"
    assert wrong({"id": pa.array([None], pa.int64())}, nulls=1, low=4, high=9) is None, (
        "of nulls there are no bounds"
    )


def test_a_nan_is_not_damage() -> None:
    """Spark writes it as the maximum if there is one beside numbers. As a bound it says nothing."""
    nan = float("nan")
    for kind in (pa.float64(), pa.float32()):
        some = {"id": pa.array([1.5, nan, 2.0], kind)}
        assert wrong(some, low=1.5, high=nan) is None
        assert wrong(some, low=nan, high=nan) is None
        assert wrong(some, low=1.0, high=float("inf")) is None
        assert wrong(some, low=1.75, high=nan) == "id", "the other bound still counts"
        assert wrong(some, low=1.5, high=1.75) == "id"
        assert wrong({"id": pa.array([nan], kind)}, low=nan, high=nan) is None
        assert wrong({"id": pa.array([nan], kind)}, low=1.0, high=2.0) is None
        assert wrong({"id": pa.array([0.0, -0.0], kind)}, low=0.0, high=-0.0) is None
    assert wrong({"s": [{"n": 1.5}, {"n": nan}]}, low=1.5, high=nan) is None


def test_wrong_statistics_inside_a_struct_are_reported_with_the_path() -> None:
    assert wrong({"s": [{"n": 3}]}, low=3, high=3) is None
    assert wrong({"s": [{"n": 3}]}, nulls=1) == "s.n"
    assert wrong({"s": [{"n": 3}]}, low=4, high=9) == "s.n"
