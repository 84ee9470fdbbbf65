"""The contract of a sink, a two-phase target.

During a batch, Spark writes its rows as Parquet to a folder of that attempt alone. When their epoch is committed, the
files are *published*: shown to readers in one step. After a restore the target is *rewound*. Each of these may be
repeated after a crash, by another process, or by a zombie at the same time.
"""

from __future__ import annotations

import re
import shutil
from abc import ABC, abstractmethod
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession

from cutwater.protocol.base.effects import TableHead, TableHistory
from cutwater.protocol.base.errors import StoreError, UserError, listed
from cutwater.protocol.base.paths import (
    sink_description_name,
    sink_id_name,
)
from cutwater.protocol.base.records import StagedFile, seal
from cutwater.sinks.footers import Footer, Footers, check_pages
from cutwater.sinks.records import (
    KINDS_BEFORE,
    Description,
    Identity,
    description,
    descriptions,
    has_marks,
    identity,
)
from cutwater.sinks.schemas import unwritable
from cutwater.sinks.staged_columns import RESERVED, Columns, columns_of, staged_columns
from cutwater.sinks.staged_files import END, end_ms, end_of, is_data, sync
from cutwater.store.contract import Store
from cutwater.store.opening import look_at, open_place

FOLDER = "_cutwater/"
"""The sink's own folder below a table. VACUUM ignores folders whose names begin with `_`."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class SinkFailed(OSError):
    """Publishing failed for a reason that may be temporary; it is retried."""


class Sink(ABC):
    """One target. Call `bind` before anything else, or `open` to only read."""

    kind: str
    """Its name in the store."""
    publishes_apart = False
    """Whether publishing may take any time, because it calls a function of the user's or runs jobs in Spark."""
    appends_only = True
    """Whether an updated row would be added as a second row."""
    output_mode = "append"
    """The output mode of the stage whose rows it gets; set before `bind`."""
    never_null: frozenset[str] = frozenset()
    """The columns that are never null according to the stage's plan; set before `bind`."""
    path: str | None = None
    """The target's path, if it has one. No two sinks share it."""

    def __init__(self, name: str, partition_by: Sequence[str] | str | None, final_by: str | None) -> None:
        if not _NAME.fullmatch(name):
            raise UserError(
                f"{name!r} cannot name a sink: use letters, digits, `_`, `-` and `.`. Give it another name with name=..."
            )
        self.name = name
        self.final_by = final_by
        self.partition_by = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by or ())
        self._schema: dict[str, Any] | None = None
        self._forget()

    def _forget(self) -> None:
        """Forget what is known about the store and the target: a pipeline may be started again, with another store, or
        after its tables were removed."""
        self._since = -1
        self._footers = Footers()
        self._new_id = uuid4().hex[:12]
        """The id to register if the store has none yet. Two stores that write to one table must not share it."""

    def open(self, store: Store, sink_name: str) -> None:
        """Open the target of a known sink for reading (`head`, `find`), not for writing. Raises `StoreError` if the
        target is gone."""
        self._forget()
        self.name = sink_name
        self._store = store
        known = description(store, sink_name)
        self._since = known.since if known is not None else -1
        self._files, self._prefix = self._place(create=False)

    def bind(
        self, store: Store, sink_name: str, schema_json: str, register: bool = True, create: bool = True
    ) -> None:
        """Bind the sink to a store, a name and the schema of its rows (Spark's JSON). Raises `UserError` if it cannot
        take such rows, or cannot write to this path. Without `register` the store is not changed; call `register` before
        the first write. Without `create` the target's folder is not made either."""
        self._forget()
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
                    "from Spark and other readers, and so are its rows. Rename the column"
                )
        for column in columns:
            if column.lower().startswith(RESERVED):
                raise UserError(
                    f"sink {self.name} gets a column {column!r}: names that begin with {RESERVED} are reserved. Rename "
                    "the column"
                )
        why = unwritable(self.schema, self.partition_by, self._folders())
        if why is not None:
            raise UserError(f"sink {self.name} cannot be written: {why}")
        self._refuse_another_kind()
        self._description = self._describe(create)
        self._since = self._description.since
        self._files, self._prefix = self._place(create) if create else self._look()
        self._refuse_another_place()
        if self._is_new():
            self._refuse_existing()
        if register:
            self.register()

    def register(self) -> None:
        """Record this sink in the store, and then give it an id. Without an id it cannot write, so nothing that was in
        the target when it was bound is its own."""
        if description(self._store, self.name) != self._description:
            self._store.put(sink_description_name(self.name), seal(self._description))
        if self.path is not None:
            if identity(self._store, self.name) is None:
                self._store.create(sink_id_name(self.name), seal(Identity(self._new_id, self.name)))
            self._files, self._prefix = self._place(
                create=True
            )  # another process may have created the id first

    @property
    def schema(self) -> dict[str, Any]:
        """The schema of its rows. Only a bound sink has one."""
        assert self._schema is not None
        return self._schema

    @property
    def url(self) -> str | None:
        """The URL of a bound sink's target, the same for every spelling of its path."""
        return self._description.url

    def _describe(self, create: bool) -> Description:
        if self.path is None:
            return Description(self.kind, None, self.partition_by, self.final_by, -1, self.name)
        url = open_place(self.path, create=True).url if create else look_at(self.path).url
        self._refuse_other_names(url)
        since = self._first_version(url)
        return Description(self.kind, url, self.partition_by, self.final_by, since, self.name)

    def _first_version(self, url: str) -> int:
        """The target's version before the first one that may be this sink's own."""
        known = description(self._store, self.name)
        if known is not None and known.url == url:
            return known.since
        return -1 if self._store.exists(sink_id_name(self.name)) else self._version_at(url)

    def _version_at(self, url: str) -> int:
        """The version of a target that this sink has never used; -1 if that does not matter."""
        return -1

    def _refuse_other_names(self, url: str) -> None:
        """A restore rewinds the rows of a sink by its name, and a sink publishes the rows that it holds back. Under
        another name on the same target, neither would happen."""
        for name, known in descriptions(self._store).items():
            if name != self.name and known.url == url:
                raise UserError(
                    f"sink {self.name} writes to {self.path}, which belongs to sink {name} of the same pipeline; a sink "
                    f"keeps its name: write name={name!r}, or give it a path of its own"
                )

    def _refuse_another_kind(self) -> None:
        """A sink that has published keeps its kind: what it has published could not be rewound."""
        known = description(self._store, self.name)
        if known is None or not has_marks(self._store, self.name):
            return
        before = KINDS_BEFORE.get(known.kind, known.kind)
        if before != self.kind:
            raise UserError(
                f"sink {self.name} is now of the kind {self.kind}, but has published as {before}: a sink keeps its kind. "
                "Bring the old sink back; or give the new one a new name (name=...) and path, and start with "
                f"`--restore latest --drop {self.name}`: it begins at that checkpoint"
            )

    def _refuse_another_place(self) -> None:
        """A sink that has published cannot continue at another path: its rows could not be rewound, and rows that it
        holds back would be missing. A target that was moved is accepted: its files and transactions are there."""
        known = description(self._store, self.name)
        url = self._description.url
        if known is None or known.url in (None, url) or not has_marks(self._store, self.name):
            return
        if not self._has_own_rows():
            raise UserError(
                f"sink {self.name} now writes to {url}, but its rows are at {known.url}: a sink keeps its path. Give it "
                "the old path; or give it a new name too (name=...) and start with "
                f"`--restore latest --drop {self.name}`: the new target begins at that checkpoint. If you have moved the "
                f"target, move all of it, including {FOLDER}"
            )

    def _has_own_rows(self) -> bool:
        """Whether its target has files or transactions of this sink."""
        return bool(self._files.list(self._prefix)) or self.head().transaction > 0

    def _is_new(self) -> bool:
        """Whether no run on this store has used this target before."""
        known = description(self._store, self.name)
        if known is None:
            return not self._store.exists(sink_id_name(self.name))
        return known.url != self._description.url and not self._has_own_rows()

    def _refuse_existing(self) -> None:  # noqa: B027 - not every target can have rows of others
        """Raise `UserError` if a target that is new to this sink has rows, unless they are wanted."""

    def _own_id(self) -> str:
        """Its id in the store, or the one that it will get."""
        return identity(self._store, self.name) or self._new_id

    def attach(self, spark: SparkSession) -> None:  # noqa: B027 - most sinks need no session
        """Pass the session to sinks that publish with Spark."""

    # --- staging --------------------------------------------------------------------------------------

    @abstractmethod
    def _place(self, create: bool) -> tuple[Store, str]:
        """Where attempts are staged: a store, and a prefix in it that ends in a slash."""

    def _look(self) -> tuple[Store, str]:
        """The same location, without creating it."""
        return self._place(create=False)

    def writer(self, rows: DataFrame) -> DataFrameWriter:
        """A writer for a batch's rows, to `staging(attempt)`, in the layout that `staged` expects."""
        folders = self._folders()
        if self.final_by is not None:
            rows = rows.withColumn(END, end_ms(rows, self.final_by))
            folders = [END, *folders]
        staged = self._as_staged(rows)
        return staged.write.partitionBy(*folders) if folders else staged.write

    def _as_staged(self, rows: DataFrame) -> DataFrame:
        """The rows as they are written to a batch's files."""
        return rows

    @property
    def stages_unchanged(self) -> bool:
        """Whether a batch's files are the same as those of a channel."""
        return not self.partition_by and self.final_by is None

    def check_rows(self, rows: DataFrame) -> None:  # noqa: B027 - most sinks take all rows
        """Raises `UserError` if an option with an expression does not fit the rows."""

    def _folders(self) -> list[str]:
        """The columns that partition a batch's files."""
        return list(self.partition_by)

    @property
    def takes_empty(self) -> bool:
        """Whether a batch without rows has a meaning: in complete mode, that the result is empty."""
        return self.output_mode == "complete"

    def staging(self, attempt: str) -> str:
        """Where Spark writes the rows of an attempt."""
        return self._files.spark_url(f"{self._prefix}{attempt}")

    @property
    def spark_root(self) -> str:
        """The URL below which Spark writes all of that."""
        return self._files.spark_url("any").removesuffix("/any")

    def staged(self, attempt: str, known: Mapping[str, Footer] | None = None) -> list[StagedFile]:
        """The files with rows that Spark has written for an attempt, or one without rows if that has a meaning. They are
        durable when this returns. `known`: footers that the caller has read, by the file's name in the attempt."""
        prefix = f"{self._prefix}{attempt}/"
        self._footers.add({f"{prefix}{name}": footer for name, footer in (known or {}).items()})
        names = [n for n in self._files.list(prefix) if is_data(n.removeprefix(prefix))]
        footers = self._footers.get(self._files, names)
        full = [n for n, footer in zip(names, footers, strict=True) if footer.rows > 0]
        if not full and self.takes_empty:
            full = names[:1]
        sync(self._files, full)
        return [StagedFile(n, end_of(n) if self.final_by is not None else None) for n in full]

    def measure(self, files: Sequence[StagedFile]) -> tuple[int, int]:
        """The number of rows and of bytes in staged files."""
        footers = self._footers.get(self._files, [file.name for file in files])
        return sum(footer.rows for footer in footers), sum(footer.size for footer in footers)

    @property
    def columns(self) -> Columns:
        """The columns of the files that it stages."""
        return columns_of(self.schema, frozenset(self._folders()))

    def unfit(self, names: Iterable[str]) -> Columns | None:
        """The columns of a staged file that this sink cannot publish as it is now, because the code was changed since;
        `None` if there is none among these. All files of an attempt have the same ones. Raises `StoreError` if a file is
        gone or damaged."""
        one_each = {name.removeprefix(self._prefix).partition("/")[0]: name for name in names}
        chosen = list(one_each.values())
        footers = self._footers.get(self._files, chosen)
        found = (staged_columns(name, footer) for name, footer in zip(chosen, footers, strict=True))
        return next((columns for columns in found if not self._takes(columns)), None)

    def _takes(self, columns: Columns) -> bool:
        """Whether it can publish a file with these columns."""
        return columns.is_like(self.columns)

    def _checked(self, names: Sequence[str]) -> list[Footer]:
        """The footers of files that are about to be published. Raises `StoreError` if one is gone or damaged, `UserError`
        if it does not have the columns that this sink publishes."""
        footers = self._footers.check(self._files, names)
        found = self.unfit(names)
        if found is not None:
            raise UserError(f"sink {self.name} cannot publish its rows: {other_columns(found, self)}")
        return footers

    def discard(self, keep: Container[str]) -> None:
        """Remove staged attempts that are neither in `keep` nor in any version of the target that can still be read.
        Attempts that are not in `keep` must be over: `keep` must also contain those that the process does not know."""
        found: dict[str, list[str]] = {}
        for name in self._files.list(self._prefix):
            attempt, slash, _ = name.removeprefix(self._prefix).partition("/")
            if slash:
                found.setdefault(attempt, []).append(name)
        for attempt in self._obsolete(found.keys(), keep):
            self._files.delete(found[attempt])
            folder = self._files.path(f"{self._prefix}{attempt}")
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    def _obsolete(self, attempts: Iterable[str], keep: Container[str]) -> set[str]:
        """Those of the attempts in the target's folder that can be removed."""
        over = {attempt for attempt in attempts if attempt not in keep}
        return over - self._shown(over)

    def problems(self, staged: Sequence[str]) -> list[str]:
        """Descriptions of what is wrong with these staged files and with the files that the target shows now."""
        found = []
        for name in staged:
            try:
                check_pages(self._files, name)
            except StoreError as error:
                found.append(str(error))
        sizes = self._shown_now()
        for name, size in sizes.items():
            actual = self._files.size(name)
            if actual is None:
                found.append(f"{name}, which the target shows, is missing")
            elif size is not None and actual != size:
                found.append(f"{name} has {actual} bytes, but according to the target {size}")
            else:
                try:
                    check_pages(self._files, name)
                except StoreError as error:
                    found.append(str(error))
        return found

    def _shown_now(self) -> dict[str, int | None]:
        """The files that the target shows now, with their sizes if it records them."""
        return {}

    @abstractmethod
    def _shown(self, attempts: Iterable[str]) -> set[str]:
        """The attempts with files in a version that can still be read."""

    # --- the target -----------------------------------------------------------------------------------

    @abstractmethod
    def head(self) -> TableHead:
        """The target's version and this sink's transaction in it; -1 and 0 if there is none yet."""

    @abstractmethod
    def find(self, transaction: int) -> int | None:
        """The version with the highest transaction up to this one; if all are later, the version before the sink's
        first (-1: there was none). `None` exactly if `rewind` cannot go back to it: the target's history does not go
        back that far, files of that version are gone, or the target must not lose rows."""

    def history(self, transaction: int) -> TableHistory | None:
        """What the target's log says about the version that `find` finds; `None` if it does not go back that far, or if
        the target has no log."""
        return None

    def trim(self, transaction: int) -> None:  # noqa: B027 - most targets keep no history that has to be trimmed
        """Remove history of the target that is older than what `find` needs for this transaction."""

    @abstractmethod
    def publish(
        self, expected_version: int, transaction: int, files: tuple[str, ...], epoch: int | None = None
    ) -> int | None:
        """Show files to readers, in one commit on top of `expected_version`, and return the new version. Does nothing
        and returns `None` if the target has moved on or already has that transaction."""

    @abstractmethod
    def rewind(
        self, expected_version: int, transaction: int, to_version: int, force: bool = False
    ) -> int | None:
        """Make the target's rows those of `to_version` again. Returns what `publish` returns. Raises `UserError` if that
        would undo changes by others, unless `force` is set."""

    def cannot_undo(self, version: int) -> bool:
        """Whether it has done something since `version` that `rewind` leaves as it is."""
        return False

    # --- reading --------------------------------------------------------------------------------------

    def dataset(self, version: int) -> Any:
        """The target's rows at a version, as an Arrow dataset. Raises `UserError` if they cannot be read, or if its
        history does not go back that far."""
        raise self._unreadable()

    def frame(self, spark: SparkSession, version: int) -> DataFrame:
        """The target's rows at a version, as a DataFrame. Raises like `dataset`."""
        raise self._unreadable()

    def _unreadable(self) -> UserError:
        return UserError(f"sink {self.name} is a {self.kind}, which has no rows to read")

    def _is_next(self, expected_version: int, transaction: int) -> bool:
        """Whether the target is at the expected version and does not have the transaction yet."""
        head = self.head()
        return head.version == expected_version and head.transaction < transaction


def other_columns(found: Columns, sink: Sink) -> str:
    """What is wrong with staged files that have the columns `found`, and what to do about it."""
    renamed = "another name" if sink.path is None else "another name and path"
    return (
        f"they were written with the columns {found}, and the code now has {sink.columns}. "
        "Start with the columns and partition_by that they were written with, until they are published "
        "(`cutwater show latest` lists what is held back; without final_by and with `--restore latest` all of it is "
        f"published at once). Or restore a checkpoint from before these rows. Or give the sink {renamed} and start with "
        f"`--restore latest --drop {sink.name}`, which discards them"
    )


def nothing_yet(sink: str, path: str | None) -> UserError:
    return UserError(f"table '{sink}' ({path}) does not exist yet: it is created with its first rows")


def history_gone(sink: str, path: str | None, version: int, newest: int) -> UserError:
    """A version of a table can no longer be read, where `newest` is the newest version that the table has now."""
    if version > newest:
        return UserError(
            f"table '{sink}' ({path}) was removed or replaced: the epoch has version {version} of it, and its newest is "
            f"now {newest}. Bring it back; or give the sink {new_target(sink)}"
        )
    return UserError(
        f"version {version} of table '{sink}' ({path}) can no longer be read: its history or files of that version were "
        "removed, by VACUUM, by log cleanup or by hand. Bring them back, or choose a newer epoch if there is one"
    )


def new_target(sink: str) -> str:
    """How to continue with another target than the one that has the rows of this sink."""
    how = f"start with `--restore latest --drop {sink}`"
    return f"another name and path and {how}: the new table begins at that checkpoint"


def last_part(path: str) -> str:
    """The default name of a sink: the last part of its path."""
    return path.rstrip("/").rsplit("/", 1)[-1]


def refuse_foreign(sink: str, done: Sequence[str], force: bool) -> None:
    """Raises `UserError` if a rewind would undo changes by others, unless `force` is set."""
    if done and not force:
        raise UserError(
            f"sink {sink} cannot go back without undoing changes by others since then: {listed(done)}. Save what you "
            "need, and restore with `--force` to undo them; or give the sink a new name and path and restore with "
            f"`--drop {sink}`: the new table begins at the checkpoint"
        )
