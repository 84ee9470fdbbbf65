"""What the protocol asks of the shell around it.

Every procedure in this package that needs the outside world is a generator. It *yields* one of the
effects below and is resumed with the answer; it never does anything itself. The running system drives
these generators with real storage, tables and sockets, the simulator with modelled ones, and neither
can tell them what happened in between: a crash is a generator that is never resumed.

An effect that reaches storage, tables or Spark is an `Operation`, typed by its answer. A procedure performs it
with `yield from ask(...)` or `yield from insist(...)`, so that the type checker knows the answer. An operation carries
all that is needed to perform it (`performer.py`). `Sleep`, `Wait` and `Send` answer nothing and are simply yielded.

The shell's duties
1. Perform effects of one generator in order, one at a time, and resume with the answer named below.
2. An error is `FAILED`, never an exception. It says nothing: the write may have happened, or may yet.
3. `Create` is put-if-absent, atomic per name, and durable when it answers `CREATED`.
4. A `Read` or `List` that starts after a `Create` or `Delete` answered reflects it.
5. Before each resumption, set the process's time; nothing in here looks at a clock.
"""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import Any, Final, Generic, Literal, TypeVar, cast

import msgspec

from cutwater.protocol.base.records import Prepared, StageReport
from cutwater.protocol.base.replay_wire import Message as ReplayMessage
from cutwater.protocol.base.wire import Message as WireMessage

A = TypeVar("A")
R = TypeVar("R")


class Answer(Enum):
    """What a store says about a write."""

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
    """An effect on storage, tables or Spark. It is answered with an `A`, or with `FAILED`."""


class TableOperation(Operation[A], Generic[A], frozen=True):
    """An operation on the table of a sink."""

    sink: str


# --- the store ------------------------------------------------------------------------------------------


class Create(Operation[Created], frozen=True):
    """Put-if-absent. Answers `CREATED`, `EXISTS` or `FAILED`."""

    name: str
    data: bytes


class Read(Operation[bytes | None], frozen=True):
    """Answers the object's bytes, `None` if there is none, or `FAILED`."""

    name: str


class ReadMany(Operation[list[bytes | None]], frozen=True):
    """Reads several objects, side by side where the store allows it. Answers a list of what `Read` would
    answer for each, in the order of the names, or `FAILED`."""

    names: tuple[str, ...]


class List(Operation[list[str]], frozen=True):
    """Answers the sorted names below `prefix` that sort after `after`, or `FAILED`."""

    prefix: str
    after: str = ""


class ListMany(Operation[list[list[str]]], frozen=True):
    """Lists several places, side by side where the store allows it; each is a `prefix` and an `after`.
    Answers a list of what `List` would answer for each, in that order, or `FAILED`."""

    places: tuple[tuple[str, str], ...]


class Delete(Operation[Done], frozen=True):
    """Removes objects, in any order. Answers `DONE` (also for those that were not there), or `FAILED` if
    some may be left."""

    names: tuple[str, ...]


class Copy(Operation[Done | None], frozen=True):
    """Copies an object that never changes; a copy that is there already is fine. Answers `DONE`, `None` if
    there is nothing to copy, or `FAILED`. The copy is durable once its `Checksum` was answered."""

    source: str
    target: str


class Checksum(Operation[list[str | None]], frozen=True):
    """Makes objects durable, whoever wrote them. Answers a list of their checksums, `None` for one that is
    not there; or `FAILED`."""

    names: tuple[str, ...]


# --- time and messages ----------------------------------------------------------------------------------


class Sleep(msgspec.Struct, frozen=True):
    """Resumes after `ms`; answers nothing."""

    ms: int


class Wait(msgspec.Struct, frozen=True):
    """Resumes when the actor is poked, or after `ms`; answers nothing."""

    ms: int


class Send(msgspec.Struct, frozen=True):
    """Hands a message to another member, or to all if `to` is `None`. It may be lost. Answers nothing."""

    to: str | None
    message: WireMessage | ReplayMessage


# --- tables ---------------------------------------------------------------------------------------------


class TableHead(msgspec.Struct, frozen=True):
    """What a table says of itself: its version, and the version of Cutwater's transaction in it. A `forgetful`
    table has none, and its history does not go back far enough to say that there never was one."""

    version: int
    transaction: int
    forgetful: bool = False


class ReadTable(TableOperation[TableHead], frozen=True):
    """Answers the sink's `TableHead`, or `FAILED`."""


class FindTableVersion(TableOperation[int | None], frozen=True):
    """Answers the table version that carries the highest transaction up to this one, `None` if the table
    cannot go back to it (its history or its files are gone), or `FAILED`."""

    transaction: int


class TableHistory(msgspec.Struct, frozen=True):
    """What a table's log says of one of its versions: Cutwater's transaction in it (0: none yet), how many files the
    commit of that transaction added, and what others did to the table since then, in words."""

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
    """Makes the table's rows those of `to_version` again, in one commit; answers as `PublishTable`. Only with
    `force` this undoes what others did to the table since."""

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
    """Makes an incarnation's own Spark folder: from `source`'s, up to the last batch that Spark committed
    there and with its prepared records; or, without one, from what `report` names; or empty. With `reset`
    nothing of what `report` names is taken over but how far the stage's own sources were read. `last` is the last batch
    in the stage's log and `commit` the checksum of Spark's commit of it: nothing is taken over that only earlier
    batches need. Answers `DONE` when the folder is complete, or `FAILED`."""

    stage: str
    generation: int
    incarnation: int
    source: int | None
    report: StageReport | None
    last: int
    commit: str
    reset: bool = False


class StartQuery(Operation[None], frozen=True):
    """Starts the stage's query in that folder. It goes on behind `consumed`, the last batch of each input that the
    stage has read. Answers nothing, or `FAILED`."""

    stage: str
    generation: int
    incarnation: int
    consumed: dict[str, int]


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
    `unknown`: which batches need it cannot be told, because its folder has no mark: whoever was making or
    deleting the folder did not come to the end, or the mark was lost."""

    name: str
    incarnation: int
    batch: int
    until: int | None = None
    unknown: bool = False


class FindStored(Operation[tuple[list[Stored], list[Stored]]], frozen=True):
    """Answers what lies below a stage's folder in a generation: a list of channel files and one of state
    files, or `FAILED`. `incarnation` is the one that runs."""

    stage: str
    generation: int
    incarnation: int


StoreEffect = Create | Read | ReadMany | List | ListMany | Delete | Copy | Checksum
TableEffect = ReadTable | FindTableVersion | ReadTableHistory | PublishTable | RewindTable
SparkEffect = ListFolders | MakeFolder | StartQuery | ReadPrepared | FindState | FindStored
AnyOperation = StoreEffect | TableEffect | SparkEffect
"""Every operation that there is, so that the type checker finds a place that does not handle one."""

Effect = AnyOperation | Sleep | Wait | Send
Procedure = Generator[Effect, Any, R]
"""A sans-I/O procedure: yields effects, is sent their answers, returns `R`."""

RETRY_MS = 20
RETRY_MAX_MS = 640


def backoff_ms(attempt: int) -> int:
    """How long to wait before try `attempt` + 1; doubles from 20 ms to 640 ms."""
    return min(RETRY_MS << min(attempt, 5), RETRY_MAX_MS)


def ask(operation: Operation[A]) -> Procedure[A | Failed]:
    """Performs an operation once; its answer, or `FAILED`."""
    answer: A | Failed = yield cast(AnyOperation, operation)
    return answer


def insist(operation: Operation[A]) -> Procedure[A]:
    """Performs an operation that may be repeated safely until it does not fail; its answer."""
    attempt = 0
    while True:
        answer: A | Failed = yield cast(AnyOperation, operation)
        if answer is not FAILED:
            return answer
        yield Sleep(backoff_ms(attempt))
        attempt += 1


def put(name: str, data: bytes) -> Procedure[bool]:
    """Makes sure that `name` holds `data`; `False` if it holds something else already.

    An error says nothing and "exists" may be our own earlier write, so both are settled by reading back.
    """
    attempt = 0
    while (yield from ask(Create(name, data))) is not CREATED:
        found = yield from ask(Read(name))
        if found is not FAILED and found is not None:
            return found == data
        yield Sleep(backoff_ms(attempt))
        attempt += 1
    return True
