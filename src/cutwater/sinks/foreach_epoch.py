"""A function as a sink: it is called with the rows of every committed epoch, at least once.

It always gets the same rows for an epoch, so a function that remembers (or can look up) its last epoch achieves exactly
once. A restore cannot undo a call.

An epoch may have several batches. In append mode their rows are united. In complete mode every batch writes the whole
result, so the function gets the last batch's. In update mode a row may replace one of an earlier batch, so the function
also gets the number of each row's batch. The core decides which files make up an epoch, for all sinks alike; how the rows
of one batch relate to those of another depends on the output mode, which only the sink knows. It reads the batch from the
names of the files, so it always chooses the same ones for an epoch.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession

from cutwater.protocol.base.effects import TableHead
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.options import named_options
from cutwater.protocol.base.paths import (
    DONE_FOLDER,
    done_name,
    done_of,
    done_prefix,
    staged_file_of,
    staged_prefix,
)
from cutwater.sinks.contract import Sink, SinkFailed
from cutwater.spark.files import Files
from cutwater.store.contract import Store

REMEMBERED = 100
MOST_SAID = 1_000
"""How many characters of a function's error are reported."""
_CALLING = re.compile(r"^An error occurred while calling \S+\s*:?\s*")
BATCH = "_batch"
"""The column that rows have besides their own in update mode."""

Function = Callable[[DataFrame, int], object]


class EpochDone(msgspec.Struct, frozen=True):
    """The function was called for this epoch; `None` for a restore, for which it is not called."""

    epoch: int | None


@named_options
def foreach_epoch(
    function: Function, name: str | None = None, final_by: str | None = None
) -> ForeachEpochSink:
    """Call `function(rows, epoch)` with a batch DataFrame for every committed epoch that has rows: at least once, and
    always with the same rows for an epoch. `final_by` is as for `delta`.

    If the stage has output_mode "complete", `rows` is the whole result at the end of the epoch, and may be empty. If it
    has "update", `rows` also has a column `_batch` (bigint): of several rows with one key, the one with the highest
    number is the newest."""
    return ForeachEpochSink(function, name, final_by)


class ForeachEpochSink(Sink):
    """Its versions are the transactions themselves."""

    kind = "foreach_epoch"
    appends_only = False
    publishes_apart = True

    def __init__(self, function: Function, name: str | None, final_by: str | None) -> None:
        if not callable(function):
            raise UserError(
                f"foreach_epoch({function!r}): give a function that takes the rows and the number of an epoch"
            )
        super().__init__(name or str(getattr(function, "__name__", function)), None, final_by)
        self._function = function
        self._spark: SparkSession | None = None

    def bind(
        self, store: Store, sink_name: str, schema_json: str, register: bool = True, create: bool = True
    ) -> None:
        taken = [f["name"] for f in json.loads(schema_json)["fields"] if f["name"].lower() == BATCH]
        if self.output_mode == "update" and taken:
            raise UserError(
                f"sink {self.name} gets a column {taken[0]!r}, and in update mode it adds {BATCH!r}, the number of the "
                "batch that a row comes from. Give the column another name"
            )
        super().bind(store, sink_name, schema_json, register, create)

    def attach(self, spark: SparkSession) -> None:
        self._spark = spark

    def _place(self, create: bool) -> tuple[Store, str]:
        return self._store, staged_prefix(self.name)

    def head(self) -> TableHead:
        done = self._transactions()
        return TableHead(done[-1], done[-1]) if done else TableHead(-1, 0)

    def _transactions(self) -> list[int]:
        found = (done_of(self.name, name) for name in self._files.list(done_prefix(self.name)))
        return [transaction for transaction in found if transaction is not None]

    def find(self, transaction: int) -> int | None:
        return max((done for done in self._transactions() if done <= transaction), default=-1)

    def publish(
        self, expected_version: int, transaction: int, files: tuple[str, ...], epoch: int | None = None
    ) -> int | None:
        if not self._is_next(expected_version, transaction):
            return None
        if self._spark is None or epoch is None:
            raise UserError(f"sink {self.name} calls a function, which needs a Spark session and an epoch")
        shown = self._newest(files) if self.output_mode == "complete" else files
        try:
            self._checked(shown)
        except StoreError:
            if self._is_next(expected_version, transaction):
                raise
            return None  # another process was faster, and has removed the files
        rows = self._rows(self._spark, shown)
        try:
            self._function(rows, epoch)
        except Exception as error:
            raise SinkFailed(
                f"sink {self.name}: its function failed on epoch {epoch}: {_without_stack(error)}"
            ) from error
        self._footers.forget(files)
        return self._mark(transaction, epoch)

    def _newest(self, files: Sequence[str]) -> tuple[str, ...]:
        """The files of the last batch among those of these files."""
        last = max((self._batch_of(name) for name in files), default=None)
        return tuple(name for name in files if self._batch_of(name) == last)

    def _rows(self, spark: SparkSession, files: Sequence[str]) -> DataFrame:
        paths = [self._files.spark_url(name) for name in files]
        if self.output_mode != "update":
            return Files(spark).frame(paths, json.dumps(self.schema))
        added = {"name": BATCH, "type": "long", "nullable": True, "metadata": {}}
        schema = {**self.schema, "fields": [*self.schema["fields"], added]}
        batches = pa.table({BATCH: pa.array([self._batch_of(name) for name in files], pa.int64())})
        return Files(spark).partitioned_frame(paths, schema, batches)

    def _batch_of(self, name: str) -> int:
        """The number of the batch that has written a staged file."""
        found = staged_file_of(self.name, name)
        if found is None:
            raise StoreError(f"sink {self.name} is to publish {name}, which is not a file of a batch")
        return found.attempt.batch

    def rewind(
        self, expected_version: int, transaction: int, to_version: int, force: bool = False
    ) -> int | None:
        return self._mark(transaction, None) if self._is_next(expected_version, transaction) else None

    def cannot_undo(self, version: int) -> bool:
        later = [done_name(self.name, done) for done in self._transactions() if done > version]
        marks = [msgspec.json.decode(data, type=EpochDone) for data in self._files.read_many(later) if data]
        return any(mark.epoch is not None for mark in marks)

    def _mark(self, transaction: int, epoch: int | None) -> int:
        self._files.create(done_name(self.name, transaction), msgspec.json.encode(EpochDone(epoch)))
        self._files.delete([done_name(self.name, done) for done in self._transactions()[:-REMEMBERED]])
        return transaction

    def _shown(self, attempts: Iterable[str]) -> set[str]:
        """No attempts: rows that were passed to the function are not needed again. The folder of marks must stay."""
        return {DONE_FOLDER}


def _without_stack(error: Exception) -> str:
    """An error of the function in a few lines. Errors of Py4J have the JVM's stack trace in their message; only its first
    line and the root cause are kept."""
    said, _, stack = str(error).partition("\n\tat ")
    said = _CALLING.sub("", said).strip()
    causes = [
        line.removeprefix("Caused by: ") for line in stack.splitlines() if line.startswith("Caused by: ")
    ]
    if causes:
        said = f"{said}; caused by {causes[-1]}"
    return f"{type(error).__name__}: {said}"[:MOST_SAID]
