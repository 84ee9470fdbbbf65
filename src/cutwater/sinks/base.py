"""What a sink is: a two-phase target.

Inside a batch its rows are written by Spark, as Parquet, to a folder of that attempt alone. When their
epoch is committed, the files are *published*: shown to readers in one step. After a restore the target is
*rewound*. Each may be done again after a crash, by another process, or by a zombie at the same time.
"""

from __future__ import annotations

import os
import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import msgspec
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F

from cutwater.protocol.effects import TableHead
from cutwater.protocol.errors import StoreError, UserError
from cutwater.protocol.records import StagedFile
from cutwater.sinks.footers import read_footers
from cutwater.stores import Store

FOLDER = "_cutwater/"
"""Where a sink keeps what is its own, below a table. VACUUM leaves folders alone that begin with `_`."""

END = "__cutwater_end"
"""The folder level that says when the window of the rows below it ends, in ms since 1970."""

NULL = "__HIVE_DEFAULT_PARTITION__"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class SinkFailed(OSError):
    """Publishing failed for a reason that may pass; it is tried again."""


class Identity(msgspec.Struct, frozen=True):
    """Which store a sink belongs to. A transaction's version is a place in that store's journal and means
    nothing beside another's, so two stores that write to one table must not share a transaction."""

    id: str


class Sink(ABC):
    """One target. `bind` comes before everything else."""

    rewinds = True
    appends_only = True
    """Whether rows that come again, changed, would be there twice."""
    path: str | None = None
    """Where the target lies, for those that lie somewhere; no two sinks share it."""

    def __init__(self, name: str, partition_by: Sequence[str] | str | None, final_by: str | None) -> None:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{name!r} cannot be the name of a sink: letters, digits, `_`, `-` and `.` can be in it. "
                "Give it one with name=..."
            )
        self.name = name
        self.final_by = final_by
        self.partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
        self._force = False

    def bind(self, store: Store, sink_name: str, schema_json: str, force: bool = False) -> None:
        """Says for which store and name this sink works, and what its rows look like (a Spark schema). With
        `force` a rewind also undoes what others did to the target since."""
        self.name = sink_name
        self._store = store
        self._schema: dict[str, Any] = msgspec.json.decode(schema_json)
        self._force = force
        columns = {field["name"] for field in self._schema["fields"]}
        for column in self.partition_by:
            if column not in columns:
                raise UserError(
                    f"sink {self.name} is partitioned by {column!r}, which its rows do not have; "
                    f"they have {', '.join(sorted(columns))}"
                )
        self._files, self._prefix = self._place()

    def attach(self, spark: SparkSession) -> None:  # noqa: B027 - most sinks need no session
        """Gives the session to sinks that publish with Spark."""

    # --- staging --------------------------------------------------------------------------------------

    @abstractmethod
    def _place(self) -> tuple[Store, str]:
        """Where attempts are staged: a store and a prefix in it, which ends in a slash."""

    def writer(self, rows: DataFrame) -> DataFrameWriter:
        """Writes a batch's rows, to `staging(attempt)`, in the layout that `staged` expects."""
        folders = self._folders()
        if self.final_by is not None:
            rows = rows.withColumn(END, _end_ms(rows, self.final_by))
            folders = [END, *folders]
        return rows.write.partitionBy(*folders) if folders else rows.write

    def _folders(self) -> list[str]:
        """The columns by whose values a batch's files are kept apart."""
        return list(self.partition_by)

    def staging(self, attempt: str) -> str:
        """Where Spark writes the rows of an attempt."""
        return self._files.spark_url(f"{self._prefix}{attempt}")

    def staged(self, attempt: str) -> list[StagedFile]:
        """The files with rows that Spark has written for an attempt; durable when this returns."""
        prefix = f"{self._prefix}{attempt}/"
        names = [n for n in self._files.list(prefix) if is_data(n.removeprefix(prefix))]
        footers = read_footers(self._files, names)
        full = [n for n, footer in zip(names, footers, strict=True) if footer.num_rows > 0]
        sync(self._files, full)
        return [StagedFile(n, _end_of(n) if self.final_by is not None else None) for n in full]

    def measure(self, files: Sequence[StagedFile]) -> tuple[int, int]:
        """How many rows staged files have, and how many bytes."""
        names = [file.name for file in files]
        rows = sum(footer.num_rows for footer in read_footers(self._files, names))
        return rows, sum(self._files.size(name) or 0 for name in names)

    def discard(self, keep: Container[str]) -> None:
        """Removes staged attempts that are neither in `keep` nor in any version of the target that can
        still be read. What is not in `keep` must be over: a process that does not know all attempts
        must give a container that also says yes to those it has never heard of."""
        found: dict[str, list[str]] = {}
        for name in self._files.list(self._prefix):
            attempt, slash, _ = name.removeprefix(self._prefix).partition("/")
            if slash and attempt not in keep:
                found.setdefault(attempt, []).append(name)
        for attempt in found.keys() - self._shown(found.keys()):
            self._files.delete(found[attempt])
            folder = self._files.path(f"{self._prefix}{attempt}")
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    @abstractmethod
    def _shown(self, attempts: Iterable[str]) -> set[str]:
        """Those of the attempts of which some version that can still be read has files."""

    # --- the target -----------------------------------------------------------------------------------

    @abstractmethod
    def head(self) -> TableHead:
        """The target's version and this sink's transaction in it; -1 and 0 if there is none yet."""

    @abstractmethod
    def find(self, transaction: int) -> int | None:
        """The version that carries the highest transaction up to this one, the one before the sink's first if
        all are later (-1: there was none), `None` if the target's history does not go back that far."""

    @abstractmethod
    def publish(
        self, expected_version: int, transaction: int, files: tuple[str, ...], epoch: int | None = None
    ) -> int | None:
        """Shows files to readers, in one commit on top of `expected_version`; the new version. `None`, and
        nothing happens, if the target has moved on from there or already carries that transaction."""

    @abstractmethod
    def rewind(self, expected_version: int, transaction: int, to_version: int) -> int | None:
        """Makes the target's rows those of `to_version` again; answers as `publish`."""

    def _is_next(self, expected_version: int, transaction: int) -> bool:
        """Whether the target is where the caller believes it to be, and has not seen the transaction."""
        head = self.head()
        return head.version == expected_version and head.transaction < transaction


def last_part(path: str) -> str:
    """The name of a sink that was given none."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def identity(store: Store, sink: str) -> str:
    """The id of a sink in this store, made when it is first asked for."""
    name = f"sinks/{sink}.json"
    store_has = store.read(name)
    if store_has is None:
        store.create(name, msgspec.json.encode(Identity(uuid4().hex[:12])))
        store_has = store.read(name)
    if store_has is None:
        raise SinkFailed(f"{name} was created and cannot be read; is the store being removed?")
    try:
        return msgspec.json.decode(store_has, type=Identity).id
    except ValueError as error:
        raise StoreError(
            f"{name} is damaged ({error}), so it is not known which transactions in the target of sink "
            f"{sink} are its own; bring the object back from a copy of the store"
        ) from error


def refuse_foreign(sink: str, done: Sequence[str], force: bool) -> None:
    """Raises `UserError` if a rewind would undo what others have done, unless it is to be forced."""
    if done and not force:
        shown = "; ".join(done[:5]) + (f"; and {len(done) - 5} more" if len(done) > 5 else "")
        raise UserError(
            f"sink {sink} cannot go back without undoing what others did to it since: {shown}. "
            "Restore with `--force` to undo that too, or keep it somewhere else first"
        )


def _end_ms(rows: DataFrame, final_by: str) -> Column:
    """When a row's window ends, in ms, rounded up: it must not seem closed too early."""
    end = F.expr(final_by)
    kind = rows.select(end).schema[0].dataType.typeName()
    if kind != "timestamp":
        raise UserError(
            f"final_by={final_by!r} is a {kind}, and must be the timestamp at which a row's window ends, "
            'for example "window.end"'
        )
    is_between = F.pmod(F.unix_micros(end), F.lit(1000)) > 0
    return F.unix_millis(end) + is_between.cast("int")


def partition_values(name: str, columns: Sequence[str]) -> dict[str, str | None]:
    """The values of partition columns that Spark has written into the path of a file."""
    values: dict[str, str | None] = {}
    for part in name.split("/")[:-1]:
        key, equals, value = part.partition("=")
        if equals and unquote(key) in columns:
            values[unquote(key)] = None if value == NULL else unquote(value)
    return values


def _end_of(name: str) -> int | None:
    """The window end in a file's path; a row without one has nothing to wait for."""
    end = partition_values(name, [END]).get(END)
    return None if end is None else int(end)


def is_data(name: str) -> bool:
    """Whether a file, by its name in an attempt's folder, is output of the job. What lies below a hidden folder is
    not: a task that Spark has given up may leave its file there after the job's commit."""
    hidden = (part.startswith(".") or (part.startswith("_") and "=" not in part) for part in name.split("/"))
    return name.endswith(".parquet") and not any(hidden)


def sync(store: Store, names: Sequence[str]) -> None:
    """Makes files durable that others have written to a local folder: themselves and every folder above."""
    folders: set[Path] = set()
    for name in names:
        path = store.path(name)
        if path is None:
            return
        _fsync(path)
        folders.update(list(path.parents)[: name.count("/") + 1])
    for folder in folders:
        _fsync(folder)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
