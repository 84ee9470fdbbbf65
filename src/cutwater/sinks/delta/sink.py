"""Delta tables as sinks.

Files stay where Spark staged them, below `_cutwater/` in the table's folder, and are invisible until a commit adds
them. That commit carries a transaction of this sink, whose version is the journal index.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from threading import RLock
from typing import Any
from urllib.parse import unquote

from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from pyspark.sql import DataFrame, SparkSession

from cutwater.protocol.base.effects import TableHead, TableHistory
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.sinks.contract import SinkFailed, history_gone, new_target, nothing_yet, refuse_foreign
from cutwater.sinks.delta import log, reading
from cutwater.sinks.delta.fitness import misfit_of, schema_of
from cutwater.sinks.delta.history import History, files_of, is_elsewhere, table_errors
from cutwater.sinks.footers import Footer, has_nulls, statistics
from cutwater.sinks.records import description, has_marks
from cutwater.sinks.schemas import allow_nulls, plain, unfit_for_delta, unfit_to_partition, without_nulls
from cutwater.sinks.staged_columns import Columns
from cutwater.sinks.staged_files import partition_values, sync
from cutwater.sinks.table import TableSink
from cutwater.store.contract import Store

CHECKPOINT_EVERY = 100
HISTORY_MS = 30 * 24 * 3_600_000
MANY = 1 << 62
"""The number of added files to report for a commit that is no longer in the log."""
_NO_HOOKS = PostCommitHookProperties(create_checkpoint=False, cleanup_expired_logs=False)
"""A rewind must not clean up the log, whatever the table's properties say."""

_MISREAD = re.compile(r"%[0-9A-Fa-f]{2}|\\")
"""What the deltalake package decodes in a table's path, so that it uses another path."""

_LOG = logging.getLogger(__name__)


class DeltaSink(TableSink):
    kind = "delta"

    def __init__(
        self,
        path: str,
        partition_by: Sequence[str] | str | None,
        final_by: str | None,
        name: str | None,
        existing: str | None = None,
    ) -> None:
        super().__init__(path, partition_by, final_by, name, existing)
        self._lock = RLock()

    def _forget(self) -> None:
        super()._forget()
        self._version = -1
        self._transaction = 0
        self._forgetful = False
        self._own_version = -1
        """The newest version that this process knows to be the sink's own."""
        self._problem: str | None = None
        self._columns: dict[str, Any] | None = None
        """The columns of the table, `None` if there is no table yet."""
        self._is_ours = False

    def bind(
        self, store: Store, sink_name: str, schema_json: str, register: bool = True, create: bool = True
    ) -> None:
        if not self.path.startswith("file:") and _MISREAD.search(self.path):
            raise UserError(
                f"sink {sink_name} writes to {self.path}: the Delta library misreads a '%' with two digits and a "
                "backslash in a path. Choose a path without them"
            )
        super().bind(store, sink_name, schema_json, register, create)
        unfit = unfit_for_delta(self._shown_schema) or unfit_to_partition(
            self._shown_schema, self.partition_by
        )
        if unfit is not None:
            raise UserError(f"sink {self.name}: {unfit}")
        self._load()
        self._check_fit()

    @property
    def _shown_schema(self) -> dict[str, Any]:
        """The schema of the rows as the table shows them."""
        return self.schema

    def _refuse_another_kind(self) -> None:
        super()._refuse_another_kind()
        known = description(self._store, self.name)
        if known is None or not has_marks(self._store, self.name):
            return
        before, now = (known.keys, known.sequence_by), self._keyed_by
        if before != now:
            raise UserError(
                f"sink {self.name} has {_keyed(*now)}, but has published with {_keyed(*before)}: a table keeps its keys "
                "and its sequence, which its rows were chosen by. Bring them back, or give the sink "
                f"{new_target(self.name)}"
            )

    @property
    def _keyed_by(self) -> tuple[tuple[str, ...], str | None]:
        """Its keys and its sequence, if it has any."""
        return (), None

    def _version_at(self, url: str) -> int:
        with table_errors(self.name, self.path):
            try:
                return reading.load(url).version()
            except TableNotFoundError:
                return -1

    @property
    def _history(self) -> History:
        return History(self._files, self.path, self.name, self._app, self._since)

    def _rows_of_others(self) -> str | None:
        version = self._version_at(self._files.url)
        return f"a Delta table (version {version})" if version >= 0 else None

    # --- the table's state ----------------------------------------------------------------------------

    def head(self) -> TableHead:
        with self._lock:  # publishing and discarding may run at the same time
            return self._follow()

    def _follow(self) -> TableHead:
        # If the commit is gone, the log was cleaned up in the meantime, and later commits may be gone too.
        if self._version < 0 or not self._files.exists(log.commit_name(self._version)):
            self._load()
        self._check_own()
        while (commit := self._history.commit_at(self._version + 1)) is not None:
            if self._app in commit.transactions:
                self._own_version = commit.version
            if commit.defines:
                self._load()
            else:
                self._version = commit.version
                self._remember(commit.transactions.get(self._app))
        return TableHead(self._version, self._transaction, self._forgetful)

    def _check_own(self) -> None:
        """A writer that does not create commits with put-if-absent can overwrite ours, which loses published rows. This
        cannot be prevented, but it is detected and reported."""
        commit = self._history.commit_at(self._own_version) if self._own_version >= 0 else None
        if commit is not None and self._app not in commit.transactions:
            raise StoreError(
                f"sink {self.name}: version {commit.version} of the Delta table {self.path}, which had rows of an epoch, "
                f"was overwritten by another writer ({commit.operation}), which does not create commits with a "
                "conditional put. Stop it; then restore a checkpoint from before that, which publishes the rows again. "
                "Add `--force` if what it wrote may be undone"
            )

    def _remember(self, transaction: int | None) -> None:
        """Keep a transaction that the table has had, even if the table forgets it."""
        if transaction is not None:
            self._transaction = transaction
            self._forgetful = False

    def _load(self) -> None:
        """Load the table's state from its whole log."""
        with table_errors(self.name, self.path):
            try:
                table = reading.load(self._files.url)
            except TableNotFoundError:
                self._version, self._transaction, self._problem, self._columns = -1, 0, None, None
                self._forgetful, self._is_ours, self._own_version = False, False, -1
                return
            self._version = table.version()
            self._remember(table.transaction_version(self._app))
            configuration = table.metadata().configuration
            self._is_ours = configuration.get(log.MADE_BY) == log.CUTWATER
            self._columns = schema_of(table)
            self._problem = None
            if self._schema is not None:
                self._problem = self._misfit(table)
        newest = self._history.commit_at(self._version)
        # For example the commit with which we created the table.
        if newest is not None and self._app in newest.transactions:
            self._own_version = newest.version
        if self._transaction == 0:
            self._look_back()
        if log.FORGETS_AFTER in configuration:
            _LOG.warning(
                "the Delta table %s forgets Cutwater's transactions after some time because of its property %s; the "
                "marks in the store and the table's log compensate as long as they are kept. Unset the property",
                self.path,
                log.FORGETS_AFTER,
            )

    def _misfit(self, table: DeltaTable) -> str | None:
        """Why its rows cannot be added to the table, `None` if they can."""
        return misfit_of(table, without_nulls(self._shown_schema, self.never_null), self.partition_by)

    def _look_back(self) -> None:
        """The table has no transaction of ours: it never had one, or has forgotten it. Search its log, as far as it goes
        back."""
        for commit in log.read_commits(self._files, range(self._version, self._since, -1)):
            if commit is None:
                self._forgetful = True
                return
            if self._app in commit.transactions:
                self._remember(commit.transactions[self._app])
                return

    def _check_fit(self) -> None:
        if self._problem is not None:
            raise UserError(
                f"sink {self.name} cannot add to the Delta table {self.path}: {self._problem}. "
                f"Change the rows or the table, or {self._another_place()}"
            )

    def _takes(self, columns: Columns) -> bool:
        """A file that fits the table is shown as it was meant to be, even if the rows have other columns by now."""
        if self._columns is None:
            return super()._takes(columns)
        return columns.fit(self._columns, self.partition_by)

    # --- publishing and rewinding ---------------------------------------------------------------------

    def publish(
        self, expected_version: int, transaction: int, files: tuple[str, ...], epoch: int | None = None
    ) -> int | None:
        if not self._is_next(expected_version, transaction):
            return None
        self._check_fit()
        footers = self._checked(files)
        self._refuse_nulls(files, footers)
        added = [self._add(name, footer) for name, footer in zip(files, footers, strict=True)]
        info = log.commit_info("STREAMING UPDATE", epoch, outputMode="Append", queryId=self._app)
        version = self._commit(expected_version, transaction, info, added)
        if version is not None:
            self._footers.forget(files)
            self._committed(version)
        return version

    def _committed(self, version: int) -> None:
        if (version + 1) % CHECKPOINT_EVERY == 0:
            self._checkpoint()

    def _refuse_nulls(self, files: Sequence[str], footers: Sequence[Footer]) -> None:
        """A plan may be wrong about its columns, and rows may have been staged with another plan."""
        columns = self._columns["fields"] if self._columns is not None else []
        for column in [field["name"] for field in columns if not field["nullable"]]:
            for name, footer in zip(files, footers, strict=True):
                values = partition_values(name, self.partition_by)
                if column in values and values[column] is None:
                    which = "is null or an empty string, which is the same in a partition column,"
                elif has_nulls(footer.metadata, column):
                    which = "is null"
                else:
                    continue
                raise UserError(
                    f"sink {self.name} cannot publish its rows to the Delta table {self.path}: {column} {which} in "
                    f"{name}, and the table does not allow nulls there. Allow them: {allow_nulls(column)}; then the rows "
                    "are published. Or restore a checkpoint from before these rows, with code that replaces nulls"
                )

    def rewind(
        self, expected_version: int, transaction: int, to_version: int, force: bool = False
    ) -> int | None:
        if not self._is_next(expected_version, transaction):
            return None
        refuse_foreign(self.name, self._history.foreign(to_version, expected_version), force)
        notes = self._notes_of(to_version)
        with table_errors(self.name, self.path):
            table = reading.load(self._files.url, version=expected_version) if expected_version >= 0 else None
            if table is None or to_version == expected_version or (to_version < 0 and not table.file_uris()):
                info = log.commit_info("RESTORE", None, version=str(to_version))
                info[0]["commitInfo"] |= notes
                return self._commit(expected_version, transaction, info, [])
            return self._restore(table, transaction, to_version, notes)

    def _notes_of(self, version: int) -> dict[str, str]:
        """What the commit that goes back to a version has to note."""
        return {}

    def _commit(
        self, expected_version: int, transaction: int, info: log.Actions, changed: log.Actions
    ) -> int | None:
        made = log.definition(plain(self._shown_schema), self.partition_by) if expected_version < 0 else []
        actions = [*info, *made, *log.transaction_action(self._app, transaction), *changed]
        name = log.commit_name(expected_version + 1)
        return expected_version + 1 if self._files.create(name, log.encode_commit(actions)) else None

    def _add(self, name: str, footer: Footer) -> dict[str, Any]:
        values = partition_values(name, self.partition_by)
        return log.add_action(name, footer.size, values, statistics(footer.metadata))

    def _restore(
        self, table: DeltaTable, transaction: int, to_version: int, notes: dict[str, str]
    ) -> int | None:
        """Restore an earlier version, in one commit right after the version of `table`."""
        expected = table.version()
        properties = CommitProperties(
            notes or None, max_commit_retries=0, app_transactions=[Transaction(self._app, transaction)]
        )
        try:
            if to_version < 0:
                table.delete(commit_properties=properties, post_commithook_properties=_NO_HOOKS)
            else:
                table.restore(to_version, commit_properties=properties, post_commithook_properties=_NO_HOOKS)
        except CommitFailedError as error:
            if self.head().version > expected:
                return None
            raise SinkFailed(
                f"sink {self.name} could not go back to version {to_version}: {error}"
            ) from error
        except DeltaError as error:
            if "missing file" not in str(error):
                raise
            raise StoreError(
                f"sink {self.name} cannot go back to version {to_version} of {self.path}: some of its files were "
                f"removed, by VACUUM or by hand ({error}). Put them back, or restore a newer checkpoint if there is one"
            ) from error
        sync(self._files, [log.commit_name(expected + 1)])
        return expected + 1

    def _checkpoint(self) -> None:
        """Write a checkpoint, which keeps the log fast to read. If this fails, the next one will do. Removes nothing of
        the log: `trim` does that."""
        try:
            reading.load(self._files.url).create_checkpoint()
        except (DeltaError, OSError) as error:
            _LOG.warning("could not write a checkpoint of the Delta table %s: %s", self.path, error)

    # --- history --------------------------------------------------------------------------------------

    def find(self, transaction: int) -> int | None:
        version = self._history.find(transaction, self.head().version)
        return version if version is not None and self._history.can_go_back(version, self._version) else None

    def history(self, transaction: int) -> TableHistory | None:
        version = self._history.find(transaction, self.head().version)
        if version is None:
            return None
        commit = self._history.commit_at(version) if version >= 0 else None
        if version < 0:
            own = files = 0
        elif commit is not None and self._app in commit.transactions:
            own = commit.transactions[self._app]
            files = len(commit.added) if commit.changes is None else commit.changes
        else:  # a checkpoint of the log may still have the transaction of a commit that was cleaned up
            with table_errors(self.name, self.path):
                own = reading.load(self._files.url, version=version).transaction_version(self._app) or 0
            files = MANY if own else 0
        return TableHistory(own, files, tuple(self._history.foreign(version, self._version)))

    def trim(self, transaction: int) -> None:
        """Only for tables that we created: the history of other tables belongs to others. What is younger than Delta's
        default retention also stays, for time travel."""
        needed = self._history.find(transaction, self.head().version) if self._is_ours else None
        if needed is None:
            return
        for version in reversed([v for v in log.checkpoints(self._files, 0) if v <= needed]):
            commit = self._history.commit_at(version)
            if commit is None or commit.timestamp is None:
                return
            if commit.timestamp < log.now_ms() - HISTORY_MS:
                self._files.delete(log.names_before(self._files, version))
                return

    def dataset(self, version: int) -> Any:
        table = self._readable_table(version)
        with table_errors(self.name, self.path):
            return reading.dataset(table) if version >= 0 else reading.empty_dataset(table)

    def frame(self, spark: SparkSession, version: int) -> DataFrame:
        table = self._readable_table(version)
        with table_errors(self.name, self.path):
            return reading.frame(spark, table, self._files, is_empty=version < 0)

    def _readable_table(self, version: int) -> DeltaTable:
        """The table at a version; for -1, the newest version, whose columns are all that is used."""
        if version >= 0 and not log.goes_back_to(self._files, version):
            raise history_gone(self.name, self.path, version, log.newest(self._files))
        if self.head().version < 0:
            raise nothing_yet(self.name, self.path)
        if version >= 0 and not self._history.can_go_back(version, self._version):
            raise history_gone(self.name, self.path, version, self._version)
        with table_errors(self.name, self.path):
            table = reading.load(self._files.url, version=version if version >= 0 else None)
        reading.refuse_unreadable(table, self.path)
        return table

    def _shown_now(self) -> dict[str, int | None]:
        with table_errors(self.name, self.path):
            try:
                adds = reading.load(self._files.url).get_add_actions(flatten=True)
            except TableNotFoundError:
                return {}
            sizes = zip(adds.column("path").to_pylist(), adds.column("size_bytes").to_pylist(), strict=True)
            return {unquote(path): size for path, size in sizes if not is_elsewhere(path)}

    def _shown(self, attempts: Iterable[str]) -> set[str]:
        head = self.head().version
        oldest = head + 1
        for commit in log.read_commits(self._files, range(head, self._looked_up_to, -1)):
            if commit is None:
                table = self._history.oldest_table(oldest)
                if table is None:
                    raise StoreError(
                        f"sink {self.name} cannot tell which of its files are in the table {self.path}: the table's log "
                        f"begins at version {oldest}, and there is no checkpoint before that. No staged file is removed"
                    )
                self._note(files_of(table))
                break
            oldest = commit.version
            self._note(commit.added)
            self._note(name for run in commit.tombstones or () for name in run)
        self._looked_up_to = head
        return self._published & set(attempts)

    def _note(self, names: Iterable[str]) -> None:
        own = (name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix))
        self._published.update(name.partition("/")[0] for name in own)


def _keyed(keys: Sequence[str], sequence_by: str | None) -> str:
    if not keys:
        return "no keys"
    by = f" and sequence_by={sequence_by!r}" if sequence_by is not None else " and without sequence_by"
    return f"keys={[*keys]}{by}"
