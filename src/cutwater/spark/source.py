"""The Python streaming source through which a stage reads a channel.

Spark runs it outside the driver's Python: the planning methods in a process of their own on the driver's
host, `read` on the executors. So this module stands alone: it is shipped by value, and imports nothing of
Cutwater. The planner looks only at a local file, the *feed*, which the member keeps (see `feed.py`), in lines
of JSON: `{"start": batch}` for where a reader begins that has no position yet, `{"b": batch, "f": files, "n":
rows}` for a batch that is known, `{"to": batch}` for how far this reader may read now. It never looks at the
store, because Spark asks many times a second.

A position is the number of the last batch read. A batch that is not in the feed is not an empty batch: the
planner waits until it is known.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

FORMAT = "cutwater"
KNOWN_WITHIN_S = 120.0
ROWS_AT_ONCE = 65_536


class ChannelSource(DataSource):
    """A channel, as one stage reads it. Options: `input`, `feed`, `schema`, `tasks`, `max_rows`."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return StructType.fromJson(json.loads(self.options["schema"]))

    def streamReader(self, schema: StructType) -> ChannelReader:
        return ChannelReader(self.options, schema)


def channel_source(stage: str, input: str) -> type[ChannelSource]:
    """The source that one stage reads one channel with. Each has a name and a registration of its own: Spark
    keeps one map of environment variables per registered source and adds to it from every thread that starts a
    query with it, and two that do so at once spoil the map for as long as the process lives."""

    class StageSource(ChannelSource):
        @classmethod
        def name(cls) -> str:
            return f"{FORMAT}-{stage}-{input}"

    return StageSource


class Files(InputPartition):
    """Some files of a channel, and how far apart from each other they are does not matter."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = list(paths)


class ChannelReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans batches from the feed, and reads their files."""

    def __init__(self, options: Any, schema: StructType) -> None:
        self._input = options["input"]
        self._feed_path = options["feed"]
        self._tasks = max(1, int(options.get("tasks", "1")))
        self._max_rows = int(options.get("max_rows", "0"))
        self._schema = schema
        self._feed: Feed | None = None
        self._frozen: int | None = None

    # --- planning, on the driver's host ---------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        return self._offset(self._read_feed().start)

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        position = int(start["batch"])
        feed = self._read_feed()
        upto = feed.limit if self._frozen is None else min(feed.limit, self._frozen)
        rows, reached = 0, position
        for batch in range(position + 1, upto + 1):
            known = feed.batches.get(batch)
            if known is None:
                break
            if known[0]:
                rows += known[1]
                if self._max_rows and rows > self._max_rows and reached > position:
                    break
                reached = batch
        return self._offset(reached)

    def prepareForTriggerAvailableNow(self) -> None:
        self._frozen = self._read_feed().limit

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        files: list[str] = []
        for batch in range(int(start["batch"]) + 1, int(end["batch"]) + 1):
            files += self._files_of(batch)
        if not files:
            return [Files([])]
        return [Files(files[i :: self._tasks]) for i in range(min(self._tasks, len(files)))]

    def commit(self, end: dict[str, Any]) -> None:
        self._read_feed().forget(int(end["batch"]))

    def _files_of(self, batch: int) -> list[str]:
        """The files of a batch. A plan that another process made may be ahead of the feed: wait for it."""
        deadline = time.monotonic() + KNOWN_WITHIN_S
        while True:
            known = self._read_feed().batches.get(batch)
            if known is not None:
                return known[0]
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"batch {batch} of channel '{self._input}' is planned, but it did not become known "
                    f"within {KNOWN_WITHIN_S:.0f} s"
                )
            time.sleep(0.02)

    def _read_feed(self) -> Feed:
        if self._feed is None:
            self._feed = Feed(self._feed_path)
        self._feed.read_on()
        return self._feed

    def _offset(self, batch: int) -> dict[str, Any]:
        return {"channel": self._input, "batch": batch}

    # --- reading, on the executors --------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark.sql.pandas.types import to_arrow_schema

        wanted = to_arrow_schema(self._schema, timezone="UTC")
        assert isinstance(partition, Files)
        for path in partition.paths:
            with open_parquet(path) as file:
                for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=wanted.names):
                    yield as_declared(batch, wanted, path)


class Feed:
    """What the planner knows: batches with their files and rows, and how far it may read."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.batches: dict[int, tuple[list[str], int]] = {}
        self.start = -1
        self.limit = -1
        self._forgotten = -1
        self._inode = -1
        self._read = 0

    def read_on(self) -> None:
        """Reads what was appended since; all of it again if the member has written the file anew."""
        status = os.stat(self.path)
        if status.st_ino != self._inode:
            self._inode, self._read = status.st_ino, 0
        if status.st_size == self._read:
            return
        with open(self.path, "rb") as file:
            if os.fstat(file.fileno()).st_ino != self._inode:
                self._inode, self._read = os.fstat(file.fileno()).st_ino, 0
            file.seek(self._read)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._read += whole
        for line in data[:whole].splitlines():
            entry = json.loads(line)
            if "to" in entry:
                self.limit = max(self.limit, entry["to"])
            elif "start" in entry:
                self.start = entry["start"]
            elif entry["b"] > self._forgotten:
                self.batches[entry["b"]] = (entry["f"], entry["n"])

    def forget(self, batch: int) -> None:
        """Drops what nobody here will ask for again."""
        self._forgotten = max(self._forgotten, batch)
        for known in [b for b in self.batches if b <= batch]:
            del self.batches[known]


def open_parquet(path: str) -> pq.ParquetFile:
    """A Parquet file on a local disk, or wherever pyarrow has a file system for its URL."""
    if path.startswith("/"):
        return pq.ParquetFile(path, memory_map=True)
    from pyarrow import fs

    filesystem, inner = fs.FileSystem.from_uri(path)
    return pq.ParquetFile(filesystem.open_input_file(inner))


def as_declared(batch: pa.RecordBatch, wanted: pa.Schema, path: str) -> pa.RecordBatch:
    """The rows with exactly the declared types, which is what Spark's decoder takes for granted."""
    if batch.schema.equals(wanted, check_metadata=True):
        return batch
    try:
        columns = [retyped(batch.column(field.name), field.type) for field in wanted]
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise RuntimeError(
            f"{path} does not have the rows that this channel was declared with: {error}. Restore a "
            "checkpoint that was taken with the current code, or reset the stage that wrote it"
        ) from error
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


def retyped(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """A column in the wanted type; what differs is how Parquet spells it, never a value."""
    if column.type.equals(wanted):
        return column
    if pa.types.is_duration(wanted) and pa.types.is_integer(column.type):
        return column.view(wanted) if column.type.bit_width == 64 else column.cast(pa.int64()).view(wanted)
    return column.cast(wanted)
