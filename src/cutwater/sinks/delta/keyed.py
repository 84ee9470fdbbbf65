"""Delta tables with keys: each row of a stage is a change of the row with its key.

A batch's files hold changes, and the table never shows them. An epoch is published by a join of its changes with the
table (`merge.py`), whose output lies in a folder of that attempt below ours, and one commit that removes the files in
which a row has changed and adds those that replace them. What a key was deleted with is kept in files as well, the
tombstones; the commit names those that are valid from then on, so that going back takes them back too.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import DeltaTable
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.records import StagedFile
from cutwater.protocol.member.upsert import (
    Output,
    Range,
    may_share_keys,
    obsolete_outputs,
    output_name,
    output_of,
)
from cutwater.sinks.contract import Sink, SinkFailed
from cutwater.sinks.delta import log, reading
from cutwater.sinks.delta.fitness import unfit_for_changes
from cutwater.sinks.delta.history import is_elsewhere, table_errors
from cutwater.sinks.delta.merge import DELETES, Merge, Old, Target, merge
from cutwater.sinks.delta.sink import DeltaSink
from cutwater.sinks.footers import Footer, bounds, has_nulls
from cutwater.sinks.records import Description
from cutwater.sinks.schemas import plain, unfit_as_key
from cutwater.sinks.staged_columns import Columns, columns_of
from cutwater.sinks.staged_files import NULL, partition_values
from cutwater.spark.files import Files, quoted
from cutwater.store import failpoints

UPSERT = "upsert"
METADATA = "_metadata"
"""The name under which Spark hides the place of each row."""
_COMPARED = (int, str)
"""The types by whose statistics files are skipped. Those of others are rounded by some writers."""


class KeyedDeltaSink(DeltaSink):
    """One row per key."""

    appends_only = False
    publishes_apart = True
    existing_word = UPSERT

    def __init__(
        self,
        path: str,
        partition_by: Sequence[str] | str | None,
        final_by: str | None,
        name: str | None,
        existing: str | None,
        keys: Sequence[str] | str,
        sequence_by: str | None,
        delete_when: str | None,
        except_columns: Sequence[str] | str | None,
    ) -> None:
        super().__init__(path, partition_by, final_by, name, existing)
        self.keys = (keys,) if isinstance(keys, str) else tuple(keys)
        self.sequence_by = sequence_by
        self.delete_when = delete_when
        self.except_columns = (
            (except_columns,) if isinstance(except_columns, str) else tuple(except_columns or ())
        )
        self._spark: SparkSession | None = None
        self._refuse_options()

    def _refuse_options(self) -> None:
        used = {"keys": self.keys, "partition_by": self.partition_by, "sequence_by": (self.sequence_by,)}
        for option, columns in used.items():
            for column in columns:
                if column in self.except_columns:
                    raise UserError(
                        f"sink {self.name}: the table needs {column!r}, which is in {option}: take it out of "
                        "except_columns"
                    )
        if len(set(self.keys)) < len(self.keys):
            raise UserError(f"sink {self.name}: keys={[*self.keys]} names a column twice")
        if self.final_by is not None and self.sequence_by is None:
            raise UserError(
                f"sink {self.name} has final_by, so changes are not published in the order in which they were made: "
                "name the column that orders them with sequence_by=..."
            )

    @property
    def _what_it_does(self) -> str:
        return "change the rows of"

    @property
    def _keyed_by(self) -> tuple[tuple[str, ...], str | None]:
        return self.keys, self.sequence_by

    def _describe(self, create: bool) -> Description:
        return msgspec.structs.replace(
            super()._describe(create), keys=self.keys, sequence_by=self.sequence_by
        )

    def attach(self, spark: SparkSession) -> None:
        self._spark = spark

    # --- columns ----------------------------------------------------------------------------------------

    def _look_at_rows(self) -> None:
        if self.output_mode == "complete":
            raise UserError(
                f"sink {self.name} has keys, and its stage has output_mode 'complete', whose rows come again with every "
                "batch: use output_mode='update', which gives the changed ones"
            )
        kinds = {field["name"]: field["type"] for field in self.schema["fields"]}
        used = {"keys": self.keys, "sequence_by": (self.sequence_by,) if self.sequence_by is not None else ()}
        for option, columns in {**used, "except_columns": self.except_columns}.items():
            for column in columns:
                if column not in kinds:
                    raise UserError(
                        f"sink {self.name} has {option} with {column!r}, which its rows do not have; they have "
                        f"{', '.join(kinds)}"
                    )
                unfit = unfit_as_key(kinds[column]) if option in used else None
                if unfit is not None:
                    raise UserError(f"sink {self.name} has {option} with {column!r}, {unfit}")
        if METADATA in kinds:
            raise UserError(
                f"sink {self.name} gets a column {METADATA!r}, under which Spark hides the place of a row. Rename it"
            )

    @property
    def _shown_schema(self) -> dict[str, Any]:
        fields = [field for field in self.schema["fields"] if field["name"] not in self.except_columns]
        return {**self.schema, "fields": fields}

    def _refuse_another_place(self) -> None:
        self._look_at_rows()
        super()._refuse_another_place()

    def check_rows(self, rows: DataFrame) -> None:
        if self.delete_when is None:
            return
        try:
            kind = rows.select(F.expr(self.delete_when)).schema[0].dataType.typeName()
        except PySparkException as error:
            raise UserError(
                f"sink {self.name} has delete_when={self.delete_when!r}, which Spark refuses: "
                f"{str(error).splitlines()[0]}"
            ) from error
        if kind != "boolean":
            raise UserError(
                f"sink {self.name} has delete_when={self.delete_when!r}, which is of type {kind}: give a condition, such "
                "as \"op = 'd'\""
            )

    # --- staging ----------------------------------------------------------------------------------------

    def _folders(self) -> list[str]:
        return []

    @property
    def stages_unchanged(self) -> bool:
        return self.final_by is None and self.delete_when is None and not self.except_columns

    def _as_staged(self, rows: DataFrame) -> DataFrame:
        if self.delete_when is not None:
            rows = rows.withColumn(DELETES, F.coalesce(F.expr(self.delete_when), F.lit(False)))
        return rows.drop(*(F.col(quoted(name)) for name in self.except_columns))

    @property
    def columns(self) -> Columns:
        return columns_of(_with_deletes(self._shown_schema) if self.delete_when else self._shown_schema)

    def _takes(self, columns: Columns) -> bool:
        if self._columns is None:
            return Sink._takes(self, columns)
        inside = {name: kind for name, kind in columns.inside.items() if name != DELETES}
        needed = {*self.keys, *([self.sequence_by] if self.sequence_by else [])}
        return needed <= inside.keys() and Columns(inside).fit(self._columns, ())

    def staged(self, attempt: str, known: Mapping[str, Footer] | None = None) -> list[StagedFile]:
        found = super().staged(attempt, known)
        names = [file.name for file in found]
        self._refuse_null_keys(names, self._footers.get(self._files, names))
        if self.sequence_by is None and names:
            self._refuse_two_of_a_key(names)
        return found

    def _refuse_null_keys(self, names: Sequence[str], footers: Sequence[Footer]) -> None:
        for column in [*self.keys, *([self.sequence_by] if self.sequence_by else [])]:
            for name, footer in zip(names, footers, strict=True):
                if has_nulls(footer.metadata, column):
                    option = "keys" if column in self.keys else "sequence_by"
                    raise UserError(
                        f"sink {self.name}: {column}, which is in {option}, is null in a row ({name}), so it is unknown "
                        f"which row it changes. Leave such rows out in the stage: where({column} is not null)"
                    )

        for column in self._keys_in_paths:
            for name, footer in zip(names, footers, strict=True):
                known = bounds(footer.metadata, column)
                if known is not None and known[0] == "":
                    raise self._no_key(column, name)

    @property
    def _keys_in_paths(self) -> list[str]:
        """The keys that are partition columns, where an empty string is null."""
        return [key for key in self.keys if key in self.partition_by]

    def _no_key(self, column: str, name: str) -> UserError:
        return UserError(
            f"sink {self.name}: {column}, which is in keys and in partition_by, is an empty string in a row ({name}), or "
            f"{NULL}: in a partition column both are null. Leave such rows out in the stage, or replace the text"
        )

    def _refuse_two_of_a_key(self, names: Sequence[str]) -> None:
        keys = [F.col(quoted(key)) for key in self.keys]
        counted = self._changes(names, self._shown_schema).groupBy(*keys).count()
        if counted.where("count > 1").limit(1).count():
            raise UserError(
                f"sink {self.name}: a batch has two changes with the same {', '.join(self.keys)}, and nothing says which "
                "is the newer. Name the column that orders them with sequence_by=..., or keep one of them in the stage"
            )

    def _changes(self, names: Sequence[str], schema: dict[str, Any], with_places: bool = False) -> DataFrame:
        paths = [self._files.spark_url(name) for name in names]
        return self._reader().partitioned_frame(paths, plain(schema), pa.table({}), with_places)

    def _reader(self) -> Files:
        if self._spark is None:
            raise UserError(f"sink {self.name} joins rows, which needs a Spark session")
        return Files(self._spark)

    # --- publishing -------------------------------------------------------------------------------------

    def _misfit(self, table: DeltaTable) -> str | None:
        return unfit_for_changes(table) or super()._misfit(table)

    def publish(
        self, expected_version: int, transaction: int, files: tuple[str, ...], epoch: int | None = None
    ) -> int | None:
        if not self._is_next(expected_version, transaction):
            return None
        try:
            return self._publish(expected_version, transaction, files, epoch)
        except Exception as error:
            # Another process may have been faster, and have removed the files that this one was reading.
            if not self._is_next(expected_version, transaction):
                return None
            if isinstance(error, UserError | StoreError | OSError):
                raise
            said = str(error).split("\n\tat ", maxsplit=1)[0].strip()
            raise SinkFailed(
                f"sink {self.name}: Spark could not join the changes of epoch {epoch} with the table {self.path}: "
                f"{type(error).__name__}: {said[:1000]}"
            ) from error

    def _publish(
        self, expected: int, transaction: int, files: tuple[str, ...], epoch: int | None
    ) -> int | None:
        self._check_fit()
        footers = self._checked(files)
        self._refuse_null_keys(files, footers)
        old = self._old(expected, footers)
        runs = self._tombstones(expected)
        output = Output(transaction, expected, uuid4().hex[:8])
        schema = plain(self._columns or self._shown_schema)
        changes = self._changes(files, _with_deletes(schema), with_places=True)
        done = merge(
            Merge(
                sink=self.name, reader=self._reader(), keys=self.keys, sequence_by=self.sequence_by, schema=schema,
                changes=changes, files=files, rows=sum(footer.rows for footer in footers),
                size=sum(footer.size for footer in footers), old=old, runs=runs, partition_by=self.partition_by,
                target=Target(self._files, f"{self._prefix}{output_name(output)}/"),
            )
        )  # fmt: skip
        self._refuse_nulls(done.names, done.footers)
        for name in done.names:
            values = partition_values(name, self.partition_by)
            for column in self._keys_in_paths:
                if values[column] is None:
                    raise self._no_key(column, name)
        added = [self._add(name, footer) for name, footer in zip(done.names, done.footers, strict=True)]
        removed = [log.remove_action(path) for path in done.removed]
        info = log.commit_info("MERGE", epoch, queryId=self._app)
        info[0]["commitInfo"] |= log.notes(done.runs, len(files))
        failpoints.reach("before table commit", self.name)
        version = self._commit(expected, transaction, info, [*removed, *added])
        failpoints.reach("after table commit", self.name)
        if version is not None:
            self._footers.forget(files)
            self._committed(version)
        return version

    def _old(self, version: int, changes: Sequence[Footer]) -> Old | None:
        """The files of the table that may have rows with the keys of these changes; `None` if there are none."""
        if version < 0:
            return None
        with table_errors(self.name, self.path):
            table = reading.load(self._files.url, version=version)
            actions = pa.table(table.get_add_actions(flatten=True))
            partitions = table.metadata().partition_columns
        paths = actions.column("path").to_pylist()
        outside = next((path for path in paths if is_elsewhere(path)), None)
        if outside is not None:
            raise UserError(
                f"sink {self.name} cannot change the rows of the Delta table {self.path}: it is a shallow clone, which "
                f"has files in another folder ({outside}). Make a table of its own of it"
            )
        mine = [_range_of_changes(changes, key) for key in self.keys]
        theirs = [_ranges_of_table(actions, key, key in partitions) for key in self.keys]
        chosen = [row for row in range(len(paths)) if may_share_keys(mine, [key[row] for key in theirs])]
        if not chosen:
            return None
        kept = actions.take(pa.array(chosen, pa.int64()))
        values = pa.table({column: kept.column(f"partition.{column}") for column in partitions})
        urls = [self._files.spark_url(unquote(path)) for path in kept.column("path").to_pylist()]
        return Old(kept.column("path").to_pylist(), urls, values, kept.column("num_records").to_pylist())

    # --- tombstones -------------------------------------------------------------------------------------

    def _tombstones(self, version: int) -> log.Tombstones:
        """The runs of tombstones that are valid at a version of the table."""
        if self.sequence_by is None:
            return ()
        found = self._known_tombstones(version)
        if found is None:
            raise StoreError(
                f"sink {self.name}: the log of the Delta table {self.path} was cleaned up by somebody else, and its "
                "commits said which keys were deleted when, which keeps older changes from bringing them back. Put the "
                f"files of {log.LOG} back. Or {self._another_place()}"
            )
        return found

    def _known_tombstones(self, version: int) -> log.Tombstones | None:
        """The same, `None` if the table's log no longer says it."""
        if 0 <= self._own_version <= version == self._version:
            commit = self._history.commit_at(self._own_version)
            if commit is not None and commit.transactions.get(self._app) == self._transaction:
                return commit.tombstones or ()
        for commit in log.read_commits(self._files, range(version, self._since, -1)):
            if commit is None:
                return None
            if self._app in commit.transactions:
                return commit.tombstones or ()
        return ()

    def find(self, transaction: int) -> int | None:
        version = super().find(transaction)
        if version is None or self.sequence_by is None:
            return version
        runs = self._known_tombstones(version)
        if runs is None or not all(self._files.exists(name) for run in runs for name in run):
            return None
        return version

    def _notes_of(self, version: int) -> dict[str, str]:
        return log.notes(self._tombstones(version))

    def _shown_now(self) -> dict[str, int | None]:
        runs = self._known_tombstones(self.head().version) or ()
        return super()._shown_now() | {name: None for run in runs for name in run}

    # --- cleaning up ------------------------------------------------------------------------------------

    def _obsolete(self, attempts: Iterable[str], keep: Container[str]) -> set[str]:
        found = set(attempts)
        outputs = {name for name in found if output_of(name) is not None}
        newest = self.head().version
        return super()._obsolete(found - outputs, keep) | obsolete_outputs(
            outputs, newest, self._shown(outputs)
        )


def _with_deletes(schema: dict[str, Any]) -> dict[str, Any]:
    """The columns of changes."""
    flag = {"name": DELETES, "type": "boolean", "nullable": True, "metadata": {}}
    return {**schema, "fields": [*schema["fields"], flag]}


def _range_of_changes(footers: Sequence[Footer], key: str) -> Range:
    found = [bounds(footer.metadata, key) for footer in footers]
    known = [pair for pair in found if pair is not None and all(type(value) in _COMPARED for value in pair)]
    if len(known) < len(found) or not known:
        return Range()
    return Range(min(low for low, _ in known), max(high for _, high in known))


def _ranges_of_table(actions: pa.Table, key: str, is_partition: bool) -> list[Range]:
    names = (f"partition.{key}",) * 2 if is_partition else (f"min.{key}", f"max.{key}")
    if "." in key or any(name not in actions.column_names for name in names):
        return [Range()] * actions.num_rows
    lowest, highest = (actions.column(name).to_pylist() for name in names)
    return [
        Range(*(value if type(value) in _COMPARED else None for value in pair))
        for pair in zip(lowest, highest, strict=True)
    ]
