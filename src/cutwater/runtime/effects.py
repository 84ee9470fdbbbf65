"""Performs the operations of a running member: on the store, on tables, in Spark's folders.

Everything here runs in threads of the pool, outside the turns of the shell. So nothing here reads the state of the
protocol: an operation carries what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.events import Observe, SinkNotRewound
from cutwater.protocol.base.performer import Incarnations, StoredFiles
from cutwater.protocol.base.records import Prepared
from cutwater.sinks.contract import Sink
from cutwater.sinks.registry import find_version, read_history
from cutwater.spark.checkpoint import incarnations, new_folder, prepared, stage_files
from cutwater.spark.checkpoint.folder import Cache, MovedPositions, Positions
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.source_logs import DEFAULT_INTERVAL, SETTING
from cutwater.store import failpoints
from cutwater.store.contract import Store
from cutwater.store.perform import StorePerformer


class QueryHost(Protocol):
    """Hosts the query of a stage."""

    def start(self, operation: fx.StartQuery) -> None:
        """Starts the query of an incarnation, after its predecessor has ended."""

    def move(self, recorded: tuple[Leaf, ...] | None, positions: Positions) -> MovedPositions:
        """The record of the sources and the positions with which the stage starts when it is reset."""
        ...


class MemberPerformer(StorePerformer):
    """Performs a member's operations. `hosts` are the hosts of its stages, `spark_setting` reads a setting of the Spark
    session, `emit` is called with events, and `caches` hold what is known about the files of each stage."""

    def __init__(
        self,
        store: Store,
        sinks: Mapping[str, Sink],
        hosts: Mapping[str, QueryHost],
        spark_setting: Callable[[str], str | None],
        emit: Observe,
        caches: Mapping[str, Cache],
    ) -> None:
        super().__init__(store)
        self._store = store
        self._sinks = sinks
        self._hosts = hosts
        self._spark_setting = spark_setting
        self._emit = emit
        self._caches = caches
        self.table_errors: dict[str, str] = {}
        """Per sink, why the last failed operation on its table failed."""

    def apart(self, operation: fx.AnyOperation) -> str | None:
        """The name of the thread for an operation that may take any time, because it calls a user function or runs Spark
        jobs: one per sink."""
        if isinstance(operation, fx.PublishTable) and self._sinks[operation.sink].publishes_apart:
            return f"call-{operation.sink}"
        return None

    # --- tables ---------------------------------------------------------------------------------------

    def read_table(self, operation: fx.ReadTable) -> fx.TableHead:
        with self._noting_errors(operation.sink):
            return self._sinks[operation.sink].head()

    @contextmanager
    def _noting_errors(self, sink: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.table_errors[sink] = str(error)
            raise

    def find_table_version(self, operation: fx.FindTableVersion) -> int | None:
        """Before a restore, a leader also asks the tables of sinks that other members host."""
        if operation.sink in self._sinks:
            return self._sinks[operation.sink].find(operation.transaction)
        return find_version(self._store, operation.sink, operation.transaction)

    def read_table_history(self, operation: fx.ReadTableHistory) -> fx.TableHistory | None:
        if operation.sink in self._sinks:
            return self._sinks[operation.sink].history(operation.transaction)
        return read_history(self._store, operation.sink, operation.transaction)

    def publish_table(self, operation: fx.PublishTable) -> int | None:
        failpoints.reach("before publish", operation.sink)
        with self._noting_errors(operation.sink):
            version = self._sinks[operation.sink].publish(
                operation.expected_version, operation.transaction, operation.files, epoch=operation.epoch
            )
        failpoints.reach("after publish", operation.sink)
        return version

    def rewind_table(self, operation: fx.RewindTable) -> int | None:
        sink = self._sinks[operation.sink]
        failpoints.reach("before rewind", operation.sink)
        with self._noting_errors(operation.sink):
            stays = sink.cannot_undo(operation.to_version)
            version = sink.rewind(
                operation.expected_version, operation.transaction, operation.to_version, operation.force
            )
        if version is not None and stays:
            self._emit(SinkNotRewound(sink.name))
        failpoints.reach("after rewind", operation.sink)
        return version

    # --- Spark ----------------------------------------------------------------------------------------

    def list_folders(self, operation: fx.ListFolders) -> Incarnations:
        return incarnations.list_folders(self._store, operation.stage, operation.generation)

    def make_folder(self, operation: fx.MakeFolder) -> fx.Done:
        failpoints.reach("before folder", operation.stage)
        new_folder.make_folder(
            self._store, operation.stage, operation.generation, operation.incarnation, operation.source,
            operation.report, operation.last, max(1, int(self._spark_setting(SETTING) or DEFAULT_INTERVAL)),
            operation.commit, operation.reset, self._caches[operation.stage], self._hosts[operation.stage].move,
        )  # fmt: skip
        failpoints.reach("after folder", operation.stage)
        return fx.DONE

    def start_query(self, operation: fx.StartQuery) -> None:
        self._hosts[operation.stage].start(operation)

    def read_prepared(self, operation: fx.ReadPrepared) -> Prepared | None:
        found = prepared.committed(
            self._store, operation.stage, operation.generation, operation.incarnation, operation.batch,
            self._caches[operation.stage],
        )  # fmt: skip
        if found is not None:
            failpoints.reach("after commit", operation.stage)
        return found

    def find_state(self, operation: fx.FindState) -> dict[str, str] | None:
        if operation.copy_to is not None:
            failpoints.reach("before copy", operation.stage)
        found = stage_files.find_state(
            self._store, operation.stage, operation.generation, operation.incarnation, operation.batch,
            operation.copy_to, self._caches[operation.stage],
        )  # fmt: skip
        if operation.copy_to is not None:
            failpoints.reach("after copy", operation.stage)
        return found

    def find_stored(self, operation: fx.FindStored) -> StoredFiles:
        return stage_files.find_stored(
            self._store, operation.stage, operation.generation, operation.incarnation,
            self._caches[operation.stage],
        )  # fmt: skip
