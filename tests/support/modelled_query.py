"""Streaming queries without Spark: they plan batches, call the stage's function and commit, in Spark's checkpoint
folders. Their hosts are those of the product. (`test_running` and `test_folder_kit` check that Spark behaves like it.)"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

from cutwater.spark.query import WAITING
from cutwater.store.contract import Store

SPARK = SimpleNamespace(
    conf={},
    version="0",
    sparkContext=SimpleNamespace(setLocalProperty=lambda *_: None, master="local[2]", uiWebUrl=None),
)


class Numbers:
    """A native source with the numbers 0, 1, 2, ..., as many as are `available`."""

    def __init__(self, available: int) -> None:
        self.available = available
        self.grows = False
        """Whether every look finds one more number."""
        self.step = 0
        """The maximum per batch, if there is one."""

    def look(self) -> int:
        self.available += self.grows
        return self.available


class Rows:
    """The rows of a micro-batch, which can be written."""

    sparkSession = SPARK

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    @property
    def write(self) -> Rows:
        return self

    def options(self, **_: str) -> Rows:
        return self

    def mode(self, _: str) -> Rows:
        return self

    def parquet(self, url: str) -> None:
        folder = Path(url.removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(self.table, folder / f"part-{uuid4().hex}.parquet")


class Frame:
    """The plan of a stage over one source: a native one, or a channel."""

    def __init__(self, store: Store, source: Numbers | None, channel: SimpleNamespace | None) -> None:
        self.store = store
        self.source = source
        self.channel = channel
        self.queries: list[Query] = []
        """The queries that were started, newest last."""
        self.before_start: Callable[[], None] = lambda: None
        self.before_trigger: Callable[[], None] = lambda: None
        self.before_batch: Callable[[], None] = lambda: None
        self.before_commit: Callable[[], None] = lambda: None

    @property
    def writeStream(self) -> Starter:
        return Starter(self)


class Starter:
    """Collects the options for the start of a query."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self.said: dict[str, Any] = {}

    def foreachBatch(self, function: Callable[[Rows, int], None]) -> Starter:
        self.said["function"] = function
        return self

    def outputMode(self, mode: str) -> Starter:
        self.said["mode"] = mode
        return self

    def queryName(self, name: str) -> Starter:
        self.said["name"] = name
        return self

    def option(self, key: str, value: str) -> Starter:
        self.said[key] = value
        return self

    def trigger(self, **how: Any) -> Starter:
        self.said["trigger"] = how
        return self

    def start(self) -> Query:
        self.frame.before_start()
        query = Query(self.frame, self.said)
        self.frame.queries.append(query)
        return query


class Query:
    """One incarnation of a query, in its own thread."""

    def __init__(self, frame: Frame, said: dict[str, Any]) -> None:
        self.said = said
        self.status = {"message": "Initializing", "isTriggerActive": True}
        self.fails_with: BaseException | None = None
        """How the query ends at its next trigger."""
        self._frame = frame
        self._takes_all = said["trigger"].get("availableNow", False)
        root = frame.store.spark_url("x").removesuffix("x")
        self._folder = f"{said['checkpointLocation'].removeprefix(root)}/"
        self._exception: BaseException | None = None
        self._stopped = threading.Event()
        self._ended = threading.Event()
        self._triggered = threading.Condition()
        self._found_nothing = False
        """Whether the last look found nothing to do."""
        self._idle = 0
        """The number of triggers that found nothing to do."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def _jsq(self) -> Any:
        """Spark's internal state: its last look for new data, and its trigger."""
        executor = SimpleNamespace(
            getClass=lambda: SimpleNamespace(getSimpleName=lambda: "MultiBatchExecutor")
        )
        return SimpleNamespace(
            streamingQuery=lambda: SimpleNamespace(
                noNewData=lambda: self._found_nothing, triggerExecutor=lambda: executor
            )
        )

    # --- what a host calls ------------------------------------------------------------------------------

    def awaitTermination(self) -> None:
        self._ended.wait()
        if self._exception is not None:
            if type(self._exception).__module__.startswith("py4j"):
                raise self._exception
            name, why = type(self._exception).__name__, self._exception
            raise RuntimeError(f"[STREAM_FAILED] Query terminated with exception: {name}: {why}")

    def processAllAvailable(self) -> None:
        self._found_nothing = False  # as Spark does
        with self._triggered:
            until = self._idle + 2  # one may be running that began before
            self._triggered.wait_for(lambda: self._idle >= until or self._ended.is_set())
        if self._exception is not None:
            raise RuntimeError(str(self._exception))

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    @property
    def is_active(self) -> bool:
        return not self._ended.is_set()

    # --- its thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            if self._takes_all and self._frame.channel is not None:
                self._frame.channel.feed.freeze()
            limit = self._frame.source.look() if self._takes_all and self._frame.source is not None else None
            while not self._stopped.is_set():
                if self.fails_with is not None:
                    raise self.fails_with
                self._frame.before_trigger()
                self._found_nothing = False
                if self._trigger(limit):
                    continue
                self._found_nothing = True
                if self._takes_all:
                    return
                self.status = {"message": WAITING, "isTriggerActive": False}
                with self._triggered:
                    self._idle += 1
                    self._triggered.notify_all()
                self._stopped.wait(0.02)
        except Exception as error:
            if not self._stopped.is_set():
                self._exception = error
        finally:
            self._ended.set()
            with self._triggered:
                self._triggered.notify_all()

    def _trigger(self, limit: int | None) -> bool:
        """Runs a batch, if there is one."""
        store = self._frame.store
        planned, done = self._last("offsets"), self._last("commits")
        before = self._offset(done)
        if planned == done:
            offset = self._next(before, limit)
            if offset == before:
                return False
            planned += 1
            meta = '{"batchWatermarkMs":0,"batchTimestampMs":0,"conf":{}}'
            store.put(f"{self._folder}offsets/{planned}", f"v1\n{meta}\n{offset}".encode())
        self.status = {"message": "Processing new data", "isTriggerActive": True}
        after = self._offset(planned)
        assert after is not None
        self._frame.before_batch()
        self.said["function"](Rows(self._rows(before, after)), planned)
        self._frame.before_commit()
        store.put(f"{self._folder}commits/{planned}", b'v1\n{"nextBatchWatermarkMs":0}')
        return True

    def _last(self, kind: str) -> int:
        prefix = f"{self._folder}{kind}/"
        return max((int(n.removeprefix(prefix)) for n in self._frame.store.list(prefix)), default=-1)

    def _offset(self, batch: int) -> str | None:
        data = self._frame.store.read(f"{self._folder}offsets/{batch}") if batch >= 0 else None
        return data.decode().split("\n")[2] if data is not None else None

    def _next(self, before: str | None, limit: int | None) -> str | None:
        channel = self._frame.channel
        if channel is not None:
            reached = channel.feed.next_position(_batch(before))
            return json.dumps(
                {"channel": channel.name, "batch": reached, "incarnation": channel.feed.incarnation}
            )
        assert self._frame.source is not None
        found = self._frame.source.look() if limit is None else limit
        if self._frame.source.step:
            found = min(found, (json.loads(before) if before is not None else 0) + self._frame.source.step)
        return json.dumps(found) if found else before

    def _rows(self, before: str | None, after: str) -> pa.Table:
        channel = self._frame.channel
        if channel is None:
            ids = range(json.loads(before) if before is not None else 0, json.loads(after))
            return pa.table({"id": pa.array(ids, pa.int64())})
        files = channel.feed.files(_batch(before), _batch(after))
        tables = [pq.ParquetFile(url.removeprefix("file://")).read() for url in files]
        return pa.concat_tables([pa.table({"id": pa.array([], pa.int64())}), *tables])


def _batch(offset: str | None) -> Any:
    return None if offset is None else json.loads(offset)["batch"]
