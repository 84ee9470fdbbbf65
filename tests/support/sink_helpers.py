"""Helpers for tests of the sinks: rows, stores, and a Spark session that is created once."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.performer import perform
from cutwater.sinks import Sink
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.store.perform import MemberlessPerformer
from tests.support.s3_server import BUCKET, INSTALL, find_server, s3_server

T = TypeVar("T")


def schema(**columns: str) -> str:
    """A Spark schema of simple columns, as JSON."""
    fields = [{"name": n, "type": t, "nullable": True, "metadata": {}} for n, t in columns.items()]
    return json.dumps({"type": "struct", "fields": fields})


ROWS = schema(id="long", city="string")


needs_server = pytest.mark.skipif(find_server() is None, reason=f"no S3 server; install it with: {INSTALL}")


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a place in a real bucket."""
    with s3_server(tmp_path / "s3") as running:
        for key, value in running.environment.items():
            monkeypatch.setenv(key, value)
        yield f"s3://{BUCKET}/out"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


def stage(sink: Sink, attempt: str, ids: Sequence[int]) -> tuple[str, ...]:
    """Stages rows as one file, without Spark: most tests are about what happens to the files afterwards."""
    folder = Path(sink.staging(attempt).removeprefix("file://"))
    rows = pa.table({"id": pa.array(ids, pa.int64()), "city": [f"city {i}" for i in ids]})
    if "city" in sink.columns.outside:
        pq.write_to_dataset(rows, folder, partition_cols=["city"], basename_template="part-{i}.parquet")
    else:
        folder.mkdir(parents=True)
        pq.write_table(rows, folder / "part-0.parquet")
    return tuple(file.name for file in sink.staged(attempt))


def stage_object(sink: Sink, attempt: str, ids: Sequence[int], folder: str = "") -> tuple[str, ...]:
    """Stages rows in a bucket."""
    data = BytesIO()
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), data)
    open_store(sink.staging(attempt)).put(f"{folder}part-0.parquet", data.getvalue())
    return tuple(file.name for file in sink.staged(attempt))


def publish(sink: Sink, transaction: int, ids: Sequence[int]) -> int | None:
    """Publishes new rows as the member in charge would."""
    files = stage(sink, f"attempt-{transaction}", ids)
    return sink.publish(sink.head().version, transaction, files, epoch=transaction)


def drive(store: Store, sink: Sink, procedure: fx.Procedure[T]) -> T:
    """Runs a procedure of the protocol with a real store and a real sink."""
    performer = SinkPerformer(store, sink)
    answer: Any = None
    while True:
        try:
            effect = procedure.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result
        match effect:
            case fx.Sleep() | fx.Wait():
                time.sleep(effect.ms / 1000)
                answer = None
            case fx.Send():
                raise AssertionError(f"unexpected effect: {effect}")
            case _:
                answer = perform(performer, effect)


class SinkPerformer(MemberlessPerformer):
    """Performs the operations on a real store and a real sink."""

    def __init__(self, store: Store, sink: Sink) -> None:
        super().__init__(store, lambda _, t: sink.find(t), lambda _, t: sink.history(t), sink.head)
        self._sink = sink

    def publish_table(self, operation: fx.PublishTable) -> int | None:
        return self._sink.publish(
            operation.expected_version, operation.transaction, operation.files, epoch=operation.epoch
        )

    def rewind_table(self, operation: fx.RewindTable) -> int | None:
        return self._sink.rewind(
            operation.expected_version, operation.transaction, operation.to_version, operation.force
        )


def at_once(*actions: Callable[[], T]) -> list[T]:
    """Runs the actions in parallel threads, and returns their results."""
    with ThreadPoolExecutor(len(actions)) as pool:
        return [future.result() for future in [pool.submit(action) for action in actions]]


def write_with_spark(sink: Sink, attempt: str, rows: Any) -> list[Any]:
    sink.writer(rows).parquet(sink.staging(attempt))
    return list(sink.staged(attempt))
