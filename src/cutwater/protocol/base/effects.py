"""The effects that the protocol asks the shell to perform.

Every procedure in this package that needs I/O is a generator. It *yields* one of the effects below and is
resumed with the answer; it performs no I/O itself. The running system drives these generators with real
storage, tables and sockets, the simulator with modelled ones. A crash is a generator that is never resumed.

An effect that reaches storage, tables or Spark is an `Operation`, typed by its answer. A procedure performs it
with `yield from ask(...)` or `yield from insist(...)`, so that the type checker knows the answer. An operation carries
everything needed to perform it (`performer.py`). `Sleep`, `Wait` and `Send` have no answer and are simply yielded.

The shell's duties
1. Perform effects of one generator in order, one at a time, and resume with the answer named below.
2. Answer an error with `FAILED`, never an exception. The outcome is then unknown: the write may have happened, or
   may still happen.
3. `Create` is put-if-absent, atomic per name, and durable when it answers `CREATED`.
4. A `Read` or `List` that starts after a `Create` or `Delete` answered reflects it.
5. Before each resumption, set the process's time; nothing in this package reads a clock.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from cutwater.protocol.base.records import Prepared, StageReport
from cutwater.protocol.base.replay_wire import Message as ReplayMessage
from cutwater.protocol.base.wire import Message as WireMessage

A = TypeVar("A")
R = TypeVar("R")


class Answer(Enum):
    """The store's answer to a write."""

    CREATED = "created"
    EXISTS = "exists"
    DONE = "done"
    FAILED = "failed"


CREATED: Final = Answer.CREATED
EXISTS: Final = Answer.EXISTS
DONE: Final = Answer.DONE
FAILED: Final = Answer.FAILED

Created = Literal[Answer.CREATED, Answer.EXISTS]
Done = Literal[Answer.DONE]
Failed = Literal[Answer.FAILED]


class Operation(msgspec.Struct, Generic[A], frozen=True):
    """An effect on storage, tables or Spark. The answer is an `A` or `FAILED`."""


class TableOperation(Operation[A], Generic[A], frozen=True):
    """An operation on the table of a sink."""

    sink: str


# --- the store ------------------------------------------------------------------------------------------


class Create(Operation[Created], frozen=True):
    """Put-if-absent. Answers `CREATED`, `EXISTS` or `FAILED`."""

    name: str
    data: bytes


class Read(Operation[bytes | None], frozen=True):
    """Answers the object's bytes, `None` if it does not exist, or `FAILED`."""

    name: str


class ReadMany(Operation[list[bytes | None]], frozen=True):
    """Reads several objects, in parallel where the store allows it. Answers a list of the answers to each `Read`, in
    the order of the names, or `FAILED`."""

    names: tuple[str, ...]


class List(Operation[list[str]], frozen=True):
    """Answers the sorted names below `prefix` that sort after `after`, or `FAILED`."""

    prefix: str
    after: str = ""


class ListMany(Operation[list[list[str]]], frozen=True):
    """Lists several prefixes, in parallel where the store allows it; each place is a `prefix` and an `after`.
    Answers a list of the answers to each `List`, in that order, or `FAILED`."""

    places: tuple[tuple[str, str], ...]


class Delete(Operation[Done], frozen=True):
    """Deletes objects, in any order. Answers `DONE` (also if some did not exist), or `FAILED` if some may
    remain."""

    names: tuple[str, ...]


class Copy(Operation[Done | None], frozen=True):
    """Copies an immutable object; an existing copy is kept. Answers `DONE`, `None` if the source does not exist,
    or `FAILED`. The copy is durable once its `Checksum` was answered."""

    source: str
    target: str


class Checksum(Operation[list[str | None]], frozen=True):
    """Makes objects durable, no matter who wrote them. Answers a list of their checksums, `None` for a missing one; or
    `FAILED`."""

    names: tuple[str, ...]


# --- time and messages ----------------------------------------------------------------------------------


class Sleep(msgspec.Struct, frozen=True):
    """Resumes after `ms`. No answer."""

    ms: int


class Wait(msgspec.Struct, frozen=True):
    """Resumes when the actor is woken, or after `ms`. No answer."""

    ms: int


class Send(msgspec.Struct, frozen=True):
    """Sends a message to another member, or to all if `to` is `None`. It may be lost. No answer."""

    to: str | None
    message: WireMessage | ReplayMessage


# --- tables ---------------------------------------------------------------------------------------------


class TableHead(msgspec.Struct, frozen=True):
    """The state of a table: its version, and Cutwater's transaction in it. A `forgetful` table has none, and its
    history does not go back far enough to tell whether it ever had one."""

    version: int
    transaction: int
    forgetful: bool = False


class ReadTable(TableOperation[TableHead], frozen=True):
    """Answers the sink's `TableHead`, or `FAILED`."""


class FindTableVersion(TableOperation[int | None], frozen=True):
    """Answers the table version with the highest transaction up to this one, `None` if the table cannot go back to
    it (its history or its files are gone), or `FAILED`."""

    transaction: int


class TableHistory(msgspec.Struct, frozen=True):
    """The log entry of one table version: Cutwater's transaction in it (0: none yet), the number of files added by the
    commit of that transaction, and a description of changes by others since then."""

    transaction: int
    files: int = 0
    foreign: tuple[str, ...] = ()


class ReadTableHistory(TableOperation[TableHistory | None], frozen=True):
    """Answers the `TableHistory` of the version that `FindTableVersion` answers, `None` if the table's log does not go
    back that far, or `FAILED`."""

    transaction: int


class PublishTable(TableOperation[int | None], frozen=True):
    """Adds the files of an epoch in one table commit. Answers the new version, `None` if the table has moved on from
    `expected_version`, or `FAILED`."""

    expected_version: int
    transaction: int
    files: tuple[str, ...]
    epoch: int


class RewindTable(TableOperation[int | None], frozen=True):
    """Resets the table's rows to those of `to_version`, in one commit; answers as `PublishTable`. Changes made by
    others since are undone only with `force`."""

    expected_version: int
    transaction: int
    to_version: int
    force: bool = False


# --- Spark ----------------------------------------------------------------------------------------------


class ListFolders(Operation[list[int]], frozen=True):
    """Answers the incarnations of a stage whose Spark folder is complete, or `FAILED`."""

    stage: str
    generation: int


class MakeFolder(Operation[Done], frozen=True):
    """Creates the Spark folder of an incarnation: from the folder of incarnation `source`, up to the last batch that
    Spark has committed there, with its prepared records; without a `source`, from the files that `report` names; or
    empty. With `reset`, only the positions in the stage's own sources are taken from `report`. `last` is the last batch
    in the stage's log, and `commit` the checksum of Spark's commit of it; files that only earlier batches need are not
    taken over. Answers `DONE` when the folder is complete, or `FAILED`."""

    stage: str
    generation: int
    incarnation: int
    source: int | None
    report: StageReport | None
    last: int
    commit: str
    reset: bool = False


class Pace(Enum):
    """How a query is triggered. `OWN`: with the stage's own trigger. `QUICK`: without long pauses. `TAKE_ALL`: it takes
    what is available now, and ends. Only at its own pace does a query run batches because time passes."""

    OWN = "own"
    QUICK = "quick"
    TAKE_ALL = "take_all"


class StartQuery(Operation[None], frozen=True):
    """Starts the stage's query in that folder. It continues after `consumed`, the last batch of each input that the
    stage has read, at this pace. Answers `None`, or `FAILED`."""

    stage: str
    generation: int
    incarnation: int
    consumed: dict[str, int]
    pace: Pace


class ReadPrepared(Operation[Prepared | None], frozen=True):
    """Answers the prepared record of a batch if Spark has committed it (`commits/b` exists), else `None`;
    or `FAILED`."""

    stage: str
    generation: int
    incarnation: int
    batch: int


class FindState(Operation[dict[str, str] | None], frozen=True):
    """Answers names and checksums of the state files of a batch, `None` if some are gone, or `FAILED`.
    With `copy_to`, copies them below that prefix first and answers the copies."""

    stage: str
    generation: int
    incarnation: int
    batch: int
    copy_to: str | None


class Stored(msgspec.Struct, frozen=True):
    """An object below a stage's folder: output of an attempt at a batch, or a file of a batch's state. A
    state file that later batches share (a delta, a table that was not rewritten) is needed up to `until`.
    `unknown`: it is not known which batches need it, because its folder has no mark: creating or deleting the folder
    was interrupted, or the mark was lost."""

    name: str
    incarnation: int
    batch: int
    until: int | None = None
    unknown: bool = False


class FindStored(Operation[tuple[list[Stored], list[Stored]]], frozen=True):
    """Answers the objects below a stage's folder in a generation: a list of channel files and one of state files, or
    `FAILED`. `incarnation` is the running one."""

    stage: str
    generation: int
    incarnation: int


StoreEffect = Create | Read | ReadMany | List | ListMany | Delete | Copy | Checksum
TableEffect = ReadTable | FindTableVersion | ReadTableHistory | PublishTable | RewindTable
SparkEffect = ListFolders | MakeFolder | StartQuery | ReadPrepared | FindState | FindStored
AnyOperation = StoreEffect | TableEffect | SparkEffect
"""All operations, so that the type checker finds places that do not handle one."""

Effect = AnyOperation | Sleep | Wait | Send
Procedure = Generator[Effect, Any, R]
"""A sans-I/O procedure: yields effects, is sent their answers, returns `R`."""

RETRY_MS = 20
RETRY_MAX_MS = 640


def backoff_ms(attempt: int) -> int:
    """The delay before try `attempt` + 1; doubles from 20 ms to 640 ms."""
    return min(RETRY_MS << min(attempt, 5), RETRY_MAX_MS)


# Below, an `Operation` is one of `AnyOperation`. A `cast` would say so, too, but these are the hottest lines of all.


def ask(operation: Operation[A]) -> Procedure[A | Failed]:
    """Performs an operation once; returns its answer, or `FAILED`."""
    answer: A | Failed = yield operation  # type: ignore[misc]
    return answer


def insist(operation: Operation[A]) -> Procedure[A]:
    """Repeats an idempotent operation until it does not fail; returns its answer."""
    attempt = 0
    while True:
        answer: A | Failed = yield operation  # type: ignore[misc]
        if answer is not FAILED:
            return answer
        yield Sleep(backoff_ms(attempt))
        attempt += 1


def put(name: str, data: bytes) -> Procedure[bool]:
    """Ensures that `name` holds `data`; returns `False` if it already holds something else.

    After an error the outcome is unknown, and "exists" may be our own earlier write, so both are resolved by
    reading back.
    """
    attempt = 0
    while (yield from ask(Create(name, data))) is not CREATED:
        found = yield from ask(Read(name))
        if found is not FAILED and found is not None:
            return found == data
        yield Sleep(backoff_ms(attempt))
        attempt += 1
    return True
