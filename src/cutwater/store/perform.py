"""Performs the operations that need only a store. Used by members, commands, the simulator and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn, Protocol

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.paths import top_folder
from cutwater.protocol.base.performer import (
    Checksums,
    Contents,
    Incarnations,
    NameLists,
    Names,
    StoredFiles,
)
from cutwater.protocol.base.records import Prepared
from cutwater.store import failpoints

Find = Callable[[str, int], int | None]
"""Finds the version of a sink's table with the highest transaction up to a given one (`Sink.find`)."""

History = Callable[[str, int], fx.TableHistory | None]
"""Reads what the history of a sink's table says about a version (`Sink.history`)."""

Head = Callable[[], fx.TableHead]
"""Reads the current version of the sink's table (`Sink.head`)."""


class Objects(Protocol):
    """The part of `Store` that the operations need."""

    def create(self, name: str, data: bytes) -> bool: ...

    def read(self, name: str) -> bytes | None: ...

    def read_many(self, names: Sequence[str]) -> Contents: ...

    def list(self, prefix: str, after: str = "") -> Names: ...

    def list_many(self, places: Sequence[tuple[str, str]]) -> NameLists: ...

    def delete(self, names: Iterable[str]) -> None: ...

    def copy(self, source: str, target: str) -> None: ...

    def checksum_many(self, names: Sequence[str]) -> Checksums: ...


class StorePerformer:
    """Performs the operations on a store."""

    def __init__(self, store: Objects) -> None:
        self._objects = store

    def create(self, operation: fx.Create) -> fx.Created:
        name, data = operation.name, operation.data
        place, thing = failpoints.place_of(name, data) if failpoints.ACTIVE else ("", "")
        failpoints.reach(f"before {place}", thing)
        if not self._objects.create(name, data):
            return fx.EXISTS
        failpoints.reach(f"after {place}", thing)
        return fx.CREATED

    def read(self, operation: fx.Read) -> bytes | None:
        return self._objects.read(operation.name)

    def read_many(self, operation: fx.ReadMany) -> Contents:
        return self._objects.read_many(operation.names)

    def list(self, operation: fx.List) -> Names:
        return self._objects.list(operation.prefix, operation.after)

    def list_many(self, operation: fx.ListMany) -> NameLists:
        return self._objects.list_many(operation.places)

    def delete(self, operation: fx.Delete) -> fx.Done:
        names = operation.names
        kind = top_folder(names[0]) if names else ""
        half = len(names) // 2
        failpoints.reach("before delete", kind)
        self._objects.delete(names[:half])
        failpoints.reach("during delete", kind)
        self._objects.delete(names[half:])
        return fx.DONE

    def copy(self, operation: fx.Copy) -> fx.Done | None:
        try:
            self._objects.copy(operation.source, operation.target)
        except FileNotFoundError:
            return None
        return fx.DONE

    def checksum(self, operation: fx.Checksum) -> Checksums:
        return self._objects.checksum_many(operation.names)


class MemberlessPerformer(StorePerformer):
    """Performs operations without a running member: those on the store and, given the functions, queries of tables.
    Anything else is a bug, and raises `AssertionError`."""

    def __init__(
        self,
        store: Objects,
        find: Find | None = None,
        history: History | None = None,
        head: Head | None = None,
    ) -> None:
        super().__init__(store)
        self._find = find
        self._history = history
        self._head = head

    def read_table(self, operation: fx.ReadTable) -> fx.TableHead:
        return self._head() if self._head is not None else _needs_member(operation)

    def find_table_version(self, operation: fx.FindTableVersion) -> int | fx.Failed | None:
        if self._find is None:
            return _needs_member(operation)
        try:
            return self._find(operation.sink, operation.transaction)
        except OSError:  # the table failed, not the store: the caller decides what to do
            return fx.FAILED

    def read_table_history(self, operation: fx.ReadTableHistory) -> fx.TableHistory | fx.Failed | None:
        if self._history is None:
            return None
        try:
            return self._history(operation.sink, operation.transaction)
        except OSError:
            return fx.FAILED

    def publish_table(self, operation: fx.PublishTable) -> int | None:
        return _needs_member(operation)

    def rewind_table(self, operation: fx.RewindTable) -> int | None:
        return _needs_member(operation)

    def list_folders(self, operation: fx.ListFolders) -> Incarnations:
        return _needs_member(operation)

    def make_folder(self, operation: fx.MakeFolder) -> fx.Done:
        return _needs_member(operation)

    def start_query(self, operation: fx.StartQuery) -> None:
        _needs_member(operation)

    def read_prepared(self, operation: fx.ReadPrepared) -> Prepared | None:
        return _needs_member(operation)

    def find_state(self, operation: fx.FindState) -> dict[str, str] | None:
        return _needs_member(operation)

    def find_stored(self, operation: fx.FindStored) -> StoredFiles:
        return _needs_member(operation)


def _needs_member(effect: fx.Effect) -> NoReturn:
    raise AssertionError(f"{effect} needs a running member")
