"""The interface that performs operations: one method per operation, and the dispatch to it.

The running system, commands, the simulator and tests each have a `Performer`. The type checker reports an operation
that one of them does not handle, and an answer of the wrong type.

A method either answers or raises. After an `OSError` the outcome is unknown, and the driver of the procedure answers
`FAILED`. Any other error cannot be retried, and is raised in the procedure.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, assert_never

from cutwater.protocol.base.effects import (
    AnyOperation,
    Checksum,
    Copy,
    Create,
    Created,
    Delete,
    Done,
    Failed,
    FindState,
    FindStored,
    FindTableVersion,
    List,
    ListFolders,
    ListMany,
    MakeFolder,
    Operation,
    PublishTable,
    Read,
    ReadMany,
    ReadPrepared,
    ReadTable,
    ReadTableHistory,
    RewindTable,
    StartQuery,
    Stored,
    TableHead,
    TableHistory,
)
from cutwater.protocol.base.records import Prepared

A = TypeVar("A")
Contents = list[bytes | None]
Names = list[str]
NameLists = list[list[str]]
Checksums = list[str | None]
Incarnations = list[int]
StoredFiles = tuple[list[Stored], list[Stored]]


class StoreOperations(Protocol):
    """Performs the operations that need only the store."""

    def create(self, operation: Create) -> Created | Failed: ...

    def read(self, operation: Read) -> bytes | Failed | None: ...

    def read_many(self, operation: ReadMany) -> Contents | Failed: ...

    def list(self, operation: List) -> Names | Failed: ...

    def list_many(self, operation: ListMany) -> NameLists | Failed: ...

    def delete(self, operation: Delete) -> Done | Failed: ...

    def copy(self, operation: Copy) -> Done | Failed | None: ...

    def checksum(self, operation: Checksum) -> Checksums | Failed: ...


class TableOperations(Protocol):
    """Performs the operations on the table of a sink."""

    def read_table(self, operation: ReadTable) -> TableHead | Failed: ...

    def find_table_version(self, operation: FindTableVersion) -> int | Failed | None: ...

    def read_table_history(self, operation: ReadTableHistory) -> TableHistory | Failed | None: ...

    def publish_table(self, operation: PublishTable) -> int | Failed | None: ...

    def rewind_table(self, operation: RewindTable) -> int | Failed | None: ...


class SparkOperations(Protocol):
    """Performs the operations on Spark and its folders."""

    def list_folders(self, operation: ListFolders) -> Incarnations | Failed: ...

    def make_folder(self, operation: MakeFolder) -> Done | Failed: ...

    def start_query(self, operation: StartQuery) -> Failed | None: ...

    def read_prepared(self, operation: ReadPrepared) -> Prepared | Failed | None: ...

    def find_state(self, operation: FindState) -> dict[str, str] | Failed | None: ...

    def find_stored(self, operation: FindStored) -> StoredFiles | Failed: ...


class Performer(StoreOperations, TableOperations, SparkOperations, Protocol):
    """Performs every operation."""


def perform(performer: Performer, operation: AnyOperation) -> Any:
    """Performs an operation; returns its answer."""
    match operation:  # the most frequent first: each case costs time
        case List():
            return _typed(operation, performer.list(operation))
        case Create():
            return _typed(operation, performer.create(operation))
        case Read():
            return _typed(operation, performer.read(operation))
        case ReadMany():
            return _typed(operation, performer.read_many(operation))
        case Delete():
            return _typed(operation, performer.delete(operation))
        case FindState():
            return _typed(operation, performer.find_state(operation))
        case ListMany():
            return _typed(operation, performer.list_many(operation))
        case Copy():
            return _typed(operation, performer.copy(operation))
        case Checksum():
            return _typed(operation, performer.checksum(operation))
        case ReadTable():
            return _typed(operation, performer.read_table(operation))
        case FindTableVersion():
            return _typed(operation, performer.find_table_version(operation))
        case ReadTableHistory():
            return _typed(operation, performer.read_table_history(operation))
        case PublishTable():
            return _typed(operation, performer.publish_table(operation))
        case RewindTable():
            return _typed(operation, performer.rewind_table(operation))
        case ListFolders():
            return _typed(operation, performer.list_folders(operation))
        case MakeFolder():
            return _typed(operation, performer.make_folder(operation))
        case StartQuery():
            return _typed(operation, performer.start_query(operation))
        case ReadPrepared():
            return _typed(operation, performer.read_prepared(operation))
        case FindStored():
            return _typed(operation, performer.find_stored(operation))
        case _:
            assert_never(operation)


def _typed(operation: Operation[A], answer: A | Failed) -> A | Failed:
    """The answer; it is of the type that the operation names, or the type checker refuses the call."""
    return answer
