"""What the log of a Delta table says about a sink: where its transactions are, and what others did since."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import unquote

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, DeltaProtocolError, TableNotFoundError

from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.sinks.contract import SinkFailed
from cutwater.sinks.delta import log, reading
from cutwater.store.contract import Store

_PARALLEL_READS = 16


@dataclass(frozen=True)
class History:
    """The log of the table at `path`, whose files are in `files`. The transactions of the sink are those of `app`; no
    version up to `since` has one."""

    files: Store
    path: str
    sink: str
    app: str
    since: int

    def commit_at(self, version: int) -> log.TableCommit | None:
        """The commit of a version, `None` if there is none (any more)."""
        return next(log.read_commits(self.files, [version]))

    def find(self, transaction: int, head: int) -> int | None:
        """The version of a transaction, `None` if the log does not go back that far. `head` is the newest version."""
        oldest = oldest_own = head + 1
        for commit in log.read_commits(self.files, range(head, self.since, -1)):
            if commit is None:
                return self._find_in_checkpoint(transaction, oldest)
            oldest = commit.version
            own = commit.transactions.get(self.app)
            if own is not None and own <= transaction:
                return oldest
            if own is not None:
                oldest_own = oldest
        return oldest_own - 1

    def _find_in_checkpoint(self, transaction: int, oldest_commit: int) -> int | None:
        """The oldest version that can still be read, if it is not later than the transaction. A version without a
        transaction of ours may have forgotten it."""
        oldest = self.oldest_table(oldest_commit)
        own = oldest.transaction_version(self.app) if oldest is not None else None
        return oldest.version() if oldest is not None and own is not None and own <= transaction else None

    def oldest_table(self, oldest_commit: int) -> DeltaTable | None:
        """The table at the oldest version that can be read once earlier commits have been cleaned up."""
        versions = log.checkpoints(self.files, oldest_commit - 1)
        with table_errors(self.sink, self.path):
            return reading.load(self.files.url, version=versions[0]) if versions else None

    def foreign(self, after: int, upto: int) -> list[str]:
        """Changes by others in the versions after `after`."""
        done = []
        for commit in log.read_commits(self.files, range(after + 1, upto + 1)):
            if commit is None:
                raise StoreError(
                    f"sink {self.sink} cannot go back to version {after} of {self.path}: the table's log no "
                    "longer goes back that far. Restore a newer checkpoint if there is one"
                )
            if commit.matters and self.app not in commit.transactions:
                done.append(str(commit))
        return done

    def can_go_back(self, version: int, newest: int) -> bool:
        """Whether a version can be read, and its files that the `newest` version does not have all exist."""
        if version == newest:
            return True
        with table_errors(self.sink, self.path):
            if version < 0:
                return self._can_be_emptied()
            try:
                then = reading.load(self.files.url, version=version)
            except TableNotFoundError:
                return False
            old = files_of(then) - files_of(reading.load(self.files.url))
        with ThreadPoolExecutor(_PARALLEL_READS) as pool:
            return all(pool.map(self.files.exists, (name for name in old if not is_elsewhere(name))))

    def _can_be_emptied(self) -> bool:
        """Whether the newest version has no rows, or allows removing them."""
        try:
            table = reading.load(self.files.url)
        except TableNotFoundError:
            return True
        appends_only = table.metadata().configuration.get("delta.appendOnly", "false").lower() == "true"
        return not (appends_only and table.file_uris())


@contextmanager
def table_errors(sink: str, path: str | None) -> Iterator[None]:
    """Turns errors of the Delta library into ours."""
    try:
        yield
    except DeltaProtocolError as error:
        raise UserError(
            f"sink {sink}: the Delta table {path} needs features that Cutwater does not support: {error}. "
            "Give the sink another path"
        ) from error
    except DeltaError as error:
        raise SinkFailed(f"sink {sink}: the Delta table {path}: {error}") from error


def files_of(table: DeltaTable) -> set[str]:
    """The names of the files that a version of a table shows."""
    return {unquote(path) for path in table.get_add_actions().column("path").to_pylist()}


def is_elsewhere(name: str) -> bool:
    """Whether a file is outside the table's folder, as in a shallow clone."""
    return "://" in name or name.startswith("/")
