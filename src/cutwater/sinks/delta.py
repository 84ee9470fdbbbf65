"""Delta tables as sinks.

Files stay where Spark staged them, below `_cutwater/` in the table's folder, and are invisible until one
commit adds them. That commit carries a transaction of this sink, whose version is the journal index.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError, DeltaProtocolError, TableNotFoundError

from cutwater.protocol.effects import TableHead
from cutwater.protocol.errors import StoreError, UserError
from cutwater.sinks import delta_log as log
from cutwater.sinks.base import (
    FOLDER,
    Sink,
    SinkFailed,
    identity,
    last_part,
    partition_values,
    refuse_foreign,
    sync,
)
from cutwater.sinks.footers import read_footers, statistics
from cutwater.sinks.schemas import misfit, plain, unfit_for_delta, unfit_to_partition
from cutwater.stores import Store, open_store

CHECKPOINT_EVERY = 100

_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "generatedColumns",
    "identityColumns",
    "invariants",
    "timestampNtz",
}
"""Table features with which plain files may be added, as long as no column or property makes use of them."""

_LOG = logging.getLogger(__name__)


def delta(
    path: str,
    partition_by: Sequence[str] | str | None = None,
    final_by: str | None = None,
    name: str | None = None,
) -> DeltaSink:
    """A Delta table at `path` (a folder or a bucket's URL), made with the first rows. With `final_by`, the
    end of a window like "window.end", rows are shown when that is over for the whole pipeline."""
    return DeltaSink(path, partition_by, final_by, name)


class DeltaSink(Sink):
    path: str

    def __init__(
        self, path: str, partition_by: Sequence[str] | str | None, final_by: str | None, name: str | None
    ) -> None:
        super().__init__(name or last_part(path), partition_by, final_by)
        self.path = path
        self._version = -1
        self._transaction = 0
        self._problem: str | None = None
        self._published: set[str] = set()
        self._looked_up_to = -1

    def bind(self, store: Store, sink_name: str, schema_json: str, force: bool = False) -> None:
        super().bind(store, sink_name, schema_json, force)
        unfit = unfit_for_delta(self._schema) or unfit_to_partition(self._schema, self.partition_by)
        if unfit is not None:
            raise UserError(f"sink {self.name}: {unfit}")
        self._load()
        self._check_fit()

    def _place(self) -> tuple[Store, str]:
        own = identity(self._store, self.name)
        self._app = f"cutwater/{self.name}/{own}"
        return open_store(self.path, create=True), f"{FOLDER}{own}/"

    # --- what the table is ----------------------------------------------------------------------------

    def head(self) -> TableHead:
        # A version that is gone was cleaned up while we were away, and those after it may be gone as well.
        if self._version < 0 or not self._files.exists(log.commit_name(self._version)):
            self._load()
        while (commit := self._commit_at(self._version + 1)) is not None:
            if commit.defines:
                self._load()
            else:
                self._version = commit.version
                self._transaction = commit.transactions.get(self._app, self._transaction)
        return TableHead(self._version, self._transaction)

    def _load(self) -> None:
        """Takes the table's state from its log as a whole."""
        with self._table_errors():
            try:
                table = DeltaTable(self._files.url)
            except TableNotFoundError:
                self._version, self._transaction, self._problem = -1, 0, None
                return
            self._version = table.version()
            self._transaction = table.transaction_version(self._app) or 0
            self._problem = self._find_problem(table)

    def _find_problem(self, table: DeltaTable) -> str | None:
        """Why rows cannot be added to the table, `None` if they can."""
        schema = msgspec.json.decode(table.schema().to_json())
        metadata = table.metadata()
        used = {k for field in schema["fields"] for k in field["metadata"] if k.startswith("delta.")}
        used.update(set(table.protocol().writer_features or ()) - _FEATURES)
        used.update(k for k in metadata.configuration if k.startswith("delta.constraints."))
        if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
            used.add("delta.columnMapping.mode")
        if used:
            return f"the table uses {', '.join(sorted(used))}, which Cutwater cannot write"
        if tuple(metadata.partition_columns) != self.partition_by:
            return (
                f"it is partitioned by {metadata.partition_columns}, and the sink by {[*self.partition_by]}"
            )
        return misfit(schema, self._schema)

    def _check_fit(self) -> None:
        if self._problem is not None:
            raise UserError(
                f"sink {self.name} cannot add to the Delta table {self.path}: {self._problem}. "
                "Change the rows or the table, or give the sink another path"
            )

    def _commit_at(self, version: int) -> log.Commit | None:
        return next(log.read_commits(self._files, [version]))

    # --- what becomes of it ---------------------------------------------------------------------------

    def publish(
        self, expected_version: int, transaction: int, files: tuple[str, ...], epoch: int | None = None
    ) -> int | None:
        if not self._is_next(expected_version, transaction):
            return None
        self._check_fit()
        footers = read_footers(self._files, files)
        added = [self._add(name, footer) for name, footer in zip(files, footers, strict=True)]
        info = log.commit_info("STREAMING UPDATE", epoch, outputMode="Append", queryId=self._app)
        version = self._commit(expected_version, transaction, info, added)
        if version is not None and (version + 1) % CHECKPOINT_EVERY == 0:
            self._checkpoint()
        return version

    def rewind(self, expected_version: int, transaction: int, to_version: int) -> int | None:
        if not self._is_next(expected_version, transaction):
            return None
        refuse_foreign(self.name, self._foreign(to_version, expected_version), self._force)
        with self._table_errors():
            table = DeltaTable(self._files.url, version=expected_version) if expected_version >= 0 else None
            if table is None or to_version == expected_version or (to_version < 0 and not table.file_uris()):
                info = log.commit_info("RESTORE", None, version=str(to_version))
                return self._commit(expected_version, transaction, info, [])
            return self._restore(table, transaction, to_version)

    def _commit(
        self, expected_version: int, transaction: int, info: log.Actions, added: log.Actions
    ) -> int | None:
        made = log.definition(plain(self._schema), self.partition_by) if expected_version < 0 else []
        actions = [*info, *made, *log.transaction_action(self._app, transaction), *added]
        name = log.commit_name(expected_version + 1)
        return expected_version + 1 if self._files.create(name, log.encode_commit(actions)) else None

    def _add(self, name: str, footer: Any) -> dict[str, Any]:
        size = self._files.size(name)
        if size is None:
            raise SinkFailed(f"the staged file {name} vanished while it was being published")
        return log.add_action(name, size, partition_values(name, self.partition_by), statistics(footer))

    def _restore(self, table: DeltaTable, transaction: int, to_version: int) -> int | None:
        """Takes rows back, in one commit right behind the version that `table` shows."""
        expected = table.version()
        properties = CommitProperties(
            max_commit_retries=0, app_transactions=[Transaction(self._app, transaction)]
        )
        try:
            if to_version < 0:
                table.delete(commit_properties=properties)
            else:
                table.restore(to_version, commit_properties=properties)
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
                f"sink {self.name} cannot go back to version {to_version} of {self.path}: files of "
                f"it were removed, by VACUUM or by hand ({error}). Restore a newer checkpoint, or bring "
                "them back"
            ) from error
        sync(self._files, [log.commit_name(expected + 1)])
        return expected + 1

    def _foreign(self, after: int, upto: int) -> list[str]:
        """What others did to the table in the versions after `after`."""
        done = []
        for commit in log.read_commits(self._files, range(after + 1, upto + 1)):
            if commit is None:
                raise StoreError(
                    f"sink {self.name} cannot go back to version {after} of {self.path}: the table's log no "
                    "longer goes back that far. Restore a newer checkpoint"
                )
            if commit.matters and self._app not in commit.transactions:
                done.append(str(commit))
        return done

    def _checkpoint(self) -> None:
        """Keeps the log quick to read. The commit is done: should this fail, the next one will do."""
        try:
            table = DeltaTable(self._files.url)
            table.create_checkpoint()
            if table.metadata().configuration.get("delta.enableExpiredLogCleanup") != "false":
                table.cleanup_metadata()
        except (DeltaError, OSError) as error:
            _LOG.warning("the log of the Delta table %s could not be tidied up: %s", self.path, error)

    # --- history --------------------------------------------------------------------------------------

    def find(self, transaction: int) -> int | None:
        head = self.head().version
        oldest = oldest_own = head + 1
        for commit in log.read_commits(self._files, range(head, -1, -1)):
            if commit is None:
                return self._find_in_checkpoint(transaction, oldest)
            oldest = commit.version
            own = commit.transactions.get(self._app)
            if own is not None and own <= transaction:
                return oldest
            if own is not None:
                oldest_own = oldest
        return oldest_own - 1

    def _find_in_checkpoint(self, transaction: int, oldest_commit: int) -> int | None:
        """The oldest version that can still be read, if the table was then as it was at the transaction."""
        oldest = self._oldest_table(oldest_commit)
        if oldest is None or (oldest.transaction_version(self._app) or 0) > transaction:
            return None
        return oldest.version()

    def _oldest_table(self, oldest_commit: int) -> DeltaTable | None:
        """The table at the oldest version that can be read once earlier commits have been cleaned up."""
        versions = log.checkpoints(self._files, oldest_commit - 1)
        with self._table_errors():
            return DeltaTable(self._files.url, version=versions[0]) if versions else None

    def _shown_now(self) -> dict[str, int | None]:
        with self._table_errors():
            try:
                adds = DeltaTable(self._files.url).get_add_actions(flatten=True)
            except TableNotFoundError:
                return {}
            return dict(
                zip(adds.column("path").to_pylist(), adds.column("size_bytes").to_pylist(), strict=True)
            )

    def _shown(self, attempts: Iterable[str]) -> set[str]:
        head = self.head().version
        oldest = head + 1
        for commit in log.read_commits(self._files, range(head, self._looked_up_to, -1)):
            if commit is None:
                table = self._oldest_table(oldest)
                self._note(table.get_add_actions().column("path").to_pylist() if table is not None else [])
                break
            oldest = commit.version
            self._note(commit.added)
        self._looked_up_to = head
        return self._published & set(attempts)

    def _note(self, names: Iterable[str]) -> None:
        own = (name.removeprefix(self._prefix) for name in names if name.startswith(self._prefix))
        self._published.update(name.partition("/")[0] for name in own)

    @contextmanager
    def _table_errors(self) -> Iterator[None]:
        try:
            yield
        except DeltaProtocolError as error:
            raise UserError(
                f"sink {self.name}: the Delta table {self.path} needs more than Cutwater can do: {error}. "
                "Give the sink another path"
            ) from error
        except DeltaError as error:
            raise SinkFailed(f"sink {self.name}: the Delta table {self.path}: {error}") from error
