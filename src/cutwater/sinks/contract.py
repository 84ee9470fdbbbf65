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

from cutwater.protocol.base.effects import TableHead, TableHistory
from cutwater.protocol.base.errors import StoreError, UserError, listed
from cutwater.protocol.base.paths import (
    SINK_PREFIX,
    mark_prefix,
    sink_description_name,
    sink_description_of,
    sink_id_name,
    sink_id_of,
    staged_prefix,
)
from cutwater.protocol.base.records import StagedFile, decode, seal
from cutwater.sinks.footers import Footers, check_pages
from cutwater.store.contract import Store
from cutwater.store.opening import open_place

FOLDER = "_cutwater/"
"""Where a sink keeps what is its own, below a table. VACUUM leaves folders alone that begin with `_`."""

RESERVED = "__cutwater_"
"""How the names of columns begin that sinks add while they stage rows."""

END = "__cutwater_end"
"""The folder level that says when the window of the rows below it ends, in ms since 1970."""

NULL = "__HIVE_DEFAULT_PARTITION__"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class SinkFailed(OSError):
    """Publishing failed for a reason that may pass; it is tried again."""


class Identity(msgspec.Struct, frozen=True):
    """Which store a sink belongs to. A transaction's version is a place in that store's journal and means
    nothing beside another's, so two stores that write to one table must not share a transaction. `sink` is empty in
    records from before they held it."""

    id: str
    sink: str = ""


class Description(msgspec.Struct, frozen=True):
    """What the store knows of a sink, so that a command can ask its target without the user's code. `since`: the
    target's version when the sink came to it; nothing up to there is the sink's own."""

    kind: str
    url: str | None = None
    partition_by: tuple[str, ...] = ()
    final_by: str | None = None
    since: int = -1
    sink: str = ""


class Sink(ABC):
    """One target. `bind` comes before everything else, or `open` where nothing is to be written."""

    kind: str
    """What it is called in the store."""
    rewinds = True
    calls_user = False
    """Whether publishing runs a function of the user's, which may take any time."""
    appends_only = True
    """Whether rows that come again, changed, would be there twice."""
    output_mode = "append"
    """That of the stage whose rows it gets; said before `bind`."""
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
        self._schema: dict[str, Any] | None = None
        self._since = -1
        self._footers = Footers()
        self._new_id = uuid4().hex[:12]
        """Its id, if the store knows none yet."""

    def open(self, store: Store, sink_name: str) -> None:
        """Opens the target of a sink that the store knows, to ask it (`head`, `find`) and not to write to it. Raises
        `StoreError` if its place is gone."""
        self.name = sink_name
        self._store = store
        known = description(store, sink_name)
        self._since = known.since if known is not None else -1
        self._files, self._prefix = self._place(create=False)

    def bind(self, store: Store, sink_name: str, schema_json: str, register: bool = True) -> None:
        """Says for which store and name this sink works, and what its rows look like (a Spark schema). Raises `UserError`
        if it cannot take them, or not to this place. Without `register`, which is then to be called before anything
        is written, the store is left as it is."""
        self.name = sink_name
        self._store = store
        self._schema = msgspec.json.decode(schema_json)
        columns = {field["name"] for field in self.schema["fields"]}
        for column in self.partition_by:
            if column not in columns:
                raise UserError(
                    f"sink {self.name} is partitioned by {column!r}, which its rows do not have; "
                    f"they have {', '.join(sorted(columns))}"
                )
            if column.startswith("."):
                raise UserError(
                    f"sink {self.name} is partitioned by {column!r}: a folder whose name begins with a dot is hidden "
                    "from Spark and other readers, and its rows with it. Give the column another name"
                )
        for column in columns:
            if column.lower().startswith(RESERVED):
                raise UserError(
                    f"sink {self.name} gets a column {column!r}: names that begin with {RESERVED} are Cutwater's own. "
                    "Give the column another name"
                )
        self._description = self._describe()
        self._since = self._description.since
        self._files, self._prefix = self._place(create=True)
        self._refuse_another_place()
        if register:
            self.register()

    def register(self) -> None:
        """Tells the store what this sink is, and then gives it an id there, without which it can write nothing: so
        whatever was in the target when it was bound is not its own."""
        if description(self._store, self.name) != self._description:
            self._store.put(sink_description_name(self.name), seal(self._description))
        if self.path is not None:
            if identity(self._store, self.name) is None:
                self._store.create(sink_id_name(self.name), seal(Identity(self._new_id, self.name)))
            self._files, self._prefix = self._place(create=True)  # another process may have been faster

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of its rows, which only a sink has that was bound."""
        assert self._schema is not None
        return self._schema

    @property
    def url(self) -> str | None:
        """Where the target of a bound sink lies, however its path was spelled."""
        return self._description.url

    def _describe(self) -> Description:
        """What this sink is."""
        if self.path is None:
            return Description(self.kind, None, self.partition_by, self.final_by, -1, self.name)
        url = open_place(self.path, create=True).url
        self._refuse_other_names(url)
        since = self._first_version(url)
        return Description(self.kind, url, self.partition_by, self.final_by, since, self.name)

    def _first_version(self, url: str) -> int:
        """The version from which on what is in the target may be this sink's own."""
        known = description(self._store, self.name)
        if known is not None and known.url == url:
            return known.since
        return -1 if self._store.exists(sink_id_name(self.name)) else self._version_at(url)

    def _version_at(self, url: str) -> int:
        """The version that the target has before this sink is known to it; -1 if that does not matter."""
        return -1

    def _refuse_other_names(self, url: str) -> None:
        """The rows of a sink go back with it, and what it holds is shown by it: another name on the same target
        would leave both behind."""
        for name, known in descriptions(self._store).items():
            if name != self.name and known.url == url:
                raise UserError(
                    f"sink {self.name} writes to {self.path}, where the rows of sink {name} of the same pipeline are; "
                    f"a sink keeps its name: write name={name!r}, or give it a path of its own"
                )

    def _refuse_another_place(self) -> None:
        """What a sink has published goes back, and what it holds is shown, where it lies: it cannot go on elsewhere.
        A target that was moved has its files and its transactions in the new place."""
        known = description(self._store, self.name)
        url = self._description.url
        if known is None or known.url in (None, url) or not has_marks(self._store, self.name):
            return
        if not self._files.list(self._prefix) and self.head().transaction == 0:
            raise UserError(
                f"sink {self.name} is to write to {url}, and its rows are at {known.url}: a sink keeps its place. Give "
                "it that path again; or give it another name as well (name=...) and start with "
                f"`--restore latest --drop {self.name}`: the new target begins at that checkpoint. If the target was "
                f"moved, move all of it, {FOLDER} too"
            )

    def _own_id(self) -> str:
        """Its id in the store; one that it will get, if the store knows none."""
        return identity(self._store, self.name) or self._new_id

    def attach(self, spark: SparkSession) -> None:  # noqa: B027 - most sinks need no session
        """Gives the session to sinks that publish with Spark."""

    # --- staging --------------------------------------------------------------------------------------

    @abstractmethod
    def _place(self, create: bool) -> tuple[Store, str]:
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

    @property
    def takes_empty(self) -> bool:
        """Whether a batch without rows says something: in complete mode, that the result is empty."""
        return self.output_mode == "complete"

    def staging(self, attempt: str) -> str:
        """Where Spark writes the rows of an attempt."""
        return self._files.spark_url(f"{self._prefix}{attempt}")

    def staged(self, attempt: str) -> list[StagedFile]:
        """The files with rows that Spark has written for an attempt, or one without rows if that says something; durable
        when this returns."""
        prefix = f"{self._prefix}{attempt}/"
        names = [n for n in self._files.list(prefix) if is_data(n.removeprefix(prefix))]
        footers = self._footers.get(self._files, names)
        full = [n for n, footer in zip(names, footers, strict=True) if footer.rows > 0]
        if not full and self.takes_empty:
            full = names[:1]
        sync(self._files, full)
        return [StagedFile(n, _end_of(n) if self.final_by is not None else None) for n in full]

    def measure(self, files: Sequence[StagedFile]) -> tuple[int, int]:
        """How many rows staged files have, and how many bytes."""
        footers = self._footers.get(self._files, [file.name for file in files])
        return sum(footer.rows for footer in footers), sum(footer.size for footer in footers)

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

    def problems(self, staged: Sequence[str]) -> list[str]:
        """What is wrong with these staged files, and with the files that the target shows now, in words."""
        found = []
        for name in staged:
            try:
                check_pages(self._files, name)
            except StoreError as error:
                found.append(str(error))
        sizes = self._shown_now()
        for name, size in sizes.items():
            there = self._files.size(name)
            if there is None:
                found.append(f"{name} is missing, which the target shows")
            elif size is not None and there != size:
                found.append(f"{name} has {there} bytes, and the target says {size}")
            else:
                try:
                    check_pages(self._files, name)
                except StoreError as error:
                    found.append(str(error))
        return found

    def _shown_now(self) -> dict[str, int | None]:
        """The files that the target shows now, with their sizes where it says so."""
        return {}

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
        all are later (-1: there was none); `None` exactly if `rewind` cannot go back to it: the target's history
        does not go back that far, files of that version are gone, or the target must not lose rows."""

    def history(self, transaction: int) -> TableHistory | None:
        """What the target's log says of the version that `find` finds; `None` if it does not go back that far, or if the
        target keeps none."""
        return None

    def trim(self, transaction: int) -> None:  # noqa: B027 - most targets keep no history that has to be trimmed
        """Forgets history of the target that is older than what `find` needs for this transaction."""

    @abstractmethod
    def publish(
        self, expected_version: int, transaction: int, files: tuple[str, ...], epoch: int | None = None
    ) -> int | None:
        """Shows files to readers, in one commit on top of `expected_version`; the new version. `None`, and
        nothing happens, if the target has moved on from there or already carries that transaction."""

    @abstractmethod
    def rewind(
        self, expected_version: int, transaction: int, to_version: int, force: bool = False
    ) -> int | None:
        """Makes the target's rows those of `to_version` again; answers as `publish`. Raises `UserError` if that
        would undo what others did to the target since, unless it is to be forced."""

    # --- reading --------------------------------------------------------------------------------------

    def dataset(self, version: int) -> Any:
        """The target's rows at a version, as an Arrow dataset. Raises `UserError` if it has none that can be read, or
        if its history does not go back that far."""
        raise self._unreadable()

    def frame(self, spark: SparkSession, version: int) -> DataFrame:
        """The same as a DataFrame."""
        raise self._unreadable()

    def _unreadable(self) -> UserError:
        return UserError(f"sink {self.name} is a {self.kind}, which keeps no rows that could be read")

    def _is_next(self, expected_version: int, transaction: int) -> bool:
        """Whether the target is where the caller believes it to be, and has not seen the transaction."""
        head = self.head()
        return head.version == expected_version and head.transaction < transaction


def nothing_yet(sink: str, path: str | None) -> UserError:
    return UserError(
        f"table '{sink}' ({path}) does not exist yet: it is made with its first rows, and has been given none"
    )


def history_gone(sink: str, path: str | None, version: int) -> UserError:
    return UserError(
        f"version {version} of table '{sink}' ({path}) can no longer be read: its history, or files of that version, "
        "were removed, by VACUUM, by a cleanup of its log or by hand. Choose a newer epoch"
    )


def last_part(path: str) -> str:
    """The name of a sink that was given none."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def description(store: Store, sink: str) -> Description | None:
    """What the store knows of a sink; `None` if no run has bound it yet."""
    name = sink_description_name(sink)
    data = store.read(name)
    return None if data is None else _described(name, data)


def descriptions(store: Store) -> dict[str, Description]:
    """What the store knows of all its sinks, those among them that are no longer in use."""
    names = {n: sink for n in store.list(SINK_PREFIX) if (sink := sink_description_of(n)) is not None}
    found = zip(names.items(), store.read_many(list(names)), strict=True)
    return {sink: _described(name, data) for (name, sink), data in found if data is not None}


def _described(name: str, data: bytes) -> Description:
    again = "Remove it: the next run of the pipeline writes it again"
    try:
        found = decode(name, data, Description)
    except StoreError as error:
        raise StoreError(f"{error}. {again}") from error
    if found.sink and sink_description_name(found.sink) != name:
        raise StoreError(f"{name} says that it is of sink {found.sink}. {again}")
    return found


def kind_of(name: str) -> type[Identity] | type[Description] | None:
    """What an object below `sinks/` is; `None` if it is not one of ours."""
    if sink_description_of(name) is not None:
        return Description
    return Identity if sink_id_of(name) is not None else None


def has_marks(store: Store, sink: str) -> bool:
    """Whether a sink has published anything."""
    return bool(store.list(mark_prefix(sink)))


def identity(store: Store, sink: str) -> str | None:
    """The id of a sink in this store, `None` if it has none yet. Raises `StoreError` if it was lost or is not its own."""
    name = sink_id_name(sink)
    data = store.read(name)
    if data is None:
        if not has_marks(store, sink):
            return None
        problem = "is gone"
    else:
        try:
            found = decode(name, data, Identity)
        except StoreError as error:
            problem = f"is damaged ({error.__cause__})"
        else:
            if found.sink in ("", sink):
                return found.id
            problem = f"says that it is of sink {found.sink}"
    raise StoreError(
        f"{name} {problem}, so it is not known which transactions in the target of sink {sink} are its own; bring the "
        "object back from a copy of the store. Or give the sink another name and path and start with "
        f"`--restore latest --drop {sink}`: the new target begins at that checkpoint"
    )


def record_problems(store: Store, sinks: Iterable[str]) -> dict[str, str]:
    """What is wrong with what the store knows of its sinks, by object."""
    wrong = {}
    for sink in sinks:
        calls = bool(store.list(staged_prefix(sink)))
        try:
            known = description(store, sink)
            calls = known.url is None if known is not None else calls
        except StoreError as error:
            wrong[sink_description_name(sink)] = str(error)
        try:
            if not calls:
                identity(store, sink)
        except StoreError as error:
            wrong[sink_id_name(sink)] = str(error)
    return wrong


def refuse_foreign(sink: str, done: Sequence[str], force: bool) -> None:
    """Raises `UserError` if a rewind would undo what others have done, unless it is to be forced."""
    if done and not force:
        raise UserError(
            f"sink {sink} cannot go back without undoing what others did to it since: {listed(done)}. Save what has to "
            "stay, and restore with `--force` to undo it; or give the sink another name and path and restore with "
            f"`--drop {sink}`: the new table begins at the checkpoint"
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
