"""The record of what a process did and saw, for whoever checks it afterwards (`python -m cutwater.sim --check`).

The simulator and the running system write the same form: one JSON object per line. `process` says whose line
it is, `n` is that process's own running number, `at_ms` its own clock, which means nothing beside another's,
and `knows` how far it knew the journal when it began what the line tells. A line is written when the answer
is there and before the procedure that asked for it goes on; a message is written down before it leaves. So
nothing that a process built upon is missing from its record, whenever it was killed. This is why the recorder wraps the
effects and is no observer of events (`protocol/base/events.py`): those are handed over later, and may be missed.

An object that is a record of the protocol is written down with its exact bytes, so that a checker needs no
store. Between processes no order is recorded: places in the journal and in stage logs are the only common
clock.

In the running system this is off unless `CUTWATER_TRACE` names a folder; each process then writes
`<folder>/<process>.jsonl`: a member's is `<member>-<boot>`, a command that steers is one too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Literal, assert_never
from urllib.parse import quote

import msgspec

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.paths import log_prefix_of, manifest_of, mark_of
from cutwater.protocol.base.records import encode
from cutwater.protocol.base.wire import Ack, Announcement
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.member import Member

FOLDER_VARIABLE = "CUTWATER_TRACE"
SUFFIX = ".jsonl"
NOTHING = msgspec.Raw(b"null")
NO_MEMBER = {"member": "", "boot": "", "topology": ""}
Failed = Literal["failed"]


class Line(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every line says. `process` begins the nonces of all that the process appends."""

    process: str
    n: int
    at_ms: int
    knows: int


class Began(Line, frozen=True, kw_only=True, tag="began"):
    """The process begins. `topology` is the hash of the graph that it was started with. A command is of no member."""

    member: str
    boot: str
    topology: str


class Creation(Line, frozen=True, kw_only=True, tag="create"):
    """Put-if-absent of an object with that hash, and the answer (`failed` says nothing about the object)."""

    name: str
    hash: str
    answer: Literal["created", "exists", "failed"]
    record: msgspec.Raw = NOTHING


class Reading(Line, frozen=True, kw_only=True, tag="read"):
    """What was found under a name; no hash if there was nothing. Failed readings are not written down."""

    name: str
    hash: str | None
    record: msgspec.Raw = NOTHING


class Deletion(Line, frozen=True, kw_only=True, tag="delete"):
    names: tuple[str, ...]
    answer: Literal["done", "failed"]


class Copying(Line, frozen=True, kw_only=True, tag="copy"):
    """A copy; `missing`: there was nothing to copy."""

    source: str
    target: str
    answer: Literal["done", "missing", "failed"]


class Publishing(Line, frozen=True, kw_only=True, tag="publish"):
    """A table commit with these files. `answer` is the new version, nothing if the table had moved on."""

    sink: str
    expected_version: int
    transaction: int
    files: tuple[str, ...]
    answer: int | Failed | None


class Rewinding(Line, frozen=True, kw_only=True, tag="rewind"):
    """A table's way back to an earlier version; answered as `Publishing`."""

    sink: str
    expected_version: int
    transaction: int
    to_version: int
    force: bool = False
    answer: int | Failed | None


class TableLook(Line, frozen=True, kw_only=True, tag="table"):
    """What a table said of itself."""

    sink: str
    version: int
    transaction: int


class TableSearch(Line, frozen=True, kw_only=True, tag="table_version"):
    """Which version carries the highest transaction up to this one; nothing if the history is gone."""

    sink: str
    transaction: int
    version: int | None


class Sent(Line, frozen=True, kw_only=True, tag="sent"):
    """A message to a member, or to all. Announcements and acks are there in full."""

    to: str | None
    kind: str
    message: Announcement | Ack | None = None


class Received(Line, frozen=True, kw_only=True, tag="received"):
    """A message of another process; `sender` is the name that it goes by."""

    kind: str
    sender: str = ""
    message: Announcement | Ack | None = None


class Ended(Line, frozen=True, kw_only=True, tag="ended"):
    """The process ends, and knows it. What was under way in its threads may still be written down."""

    why: str


AnyLine = (
    Began
    | Creation
    | Reading
    | Deletion
    | Copying
    | Publishing
    | Rewinding
    | TableLook
    | TableSearch
    | Sent
    | Received
    | Ended
)

_ENCODE = msgspec.json.Encoder().encode
_DECODER: msgspec.json.Decoder[AnyLine] = msgspec.json.Decoder(AnyLine)

Perform = Callable[[fx.AnyOperation], Any]
Send = Callable[[fx.Send], None]


def is_record(name: str) -> bool:
    """Whether the object of this name is a record of the protocol."""
    return log_prefix_of(name) is not None or mark_of(name) is not None or manifest_of(name) is not None


class Recorder:
    """Writes down what one process does. `write` is given whole lines, from any thread, one at a time."""

    def __init__(
        self,
        write: Callable[[bytes], object],
        process: str,
        journal: Journal,
        clock_ms: Callable[[], int],
        began: dict[str, str] = NO_MEMBER,
    ) -> None:
        self._write: Callable[[bytes], object] | None = write
        self._process = process
        self._journal = journal
        self._clock_ms = clock_ms
        self._lock = Lock()
        self._n = 0
        self._add(Began, 0, **began)

    @classmethod
    def of_member(
        cls, write: Callable[[bytes], object], member: Member, clock_ms: Callable[[], int]
    ) -> Recorder:
        """The recorder of a member's process."""
        topology = digest(encode(member.topology))
        began = {"member": member.name, "boot": member.boot, "topology": topology}
        return cls(write, process_of(member), member.journal, clock_ms, began)

    @property
    def knows(self) -> int:
        """How far the process knows the journal."""
        return self._journal.index

    def answered(self, effect: fx.AnyOperation, answer: Any, knows: int) -> None:
        """An operation was answered; `knows` is how far the journal was known when it was asked for. Those are written
        down that change something or that decisions rest on."""
        failed = answer is fx.FAILED
        word = answer.value if isinstance(answer, fx.Answer) else answer
        match effect:
            case fx.Create():
                self._add(
                    Creation, knows, name=effect.name, answer=word, **_content(effect.name, effect.data)
                )
            case fx.Read():
                if not failed:
                    self._add(Reading, knows, name=effect.name, **_content(effect.name, answer))
            case fx.ReadMany():
                for name, data in () if failed else zip(effect.names, answer, strict=True):
                    self._add(Reading, knows, name=name, **_content(name, data))
            case fx.Delete():
                self._add(Deletion, knows, names=effect.names, answer=word)
            case fx.Copy():
                word = "missing" if answer is None else word
                self._add(Copying, knows, source=effect.source, target=effect.target, answer=word)
            case fx.PublishTable():
                fields = msgspec.structs.asdict(effect)
                del fields["epoch"]  # the entry at `transaction` says it
                self._add(Publishing, knows, answer=word, **fields)
            case fx.RewindTable():
                self._add(Rewinding, knows, answer=word, **msgspec.structs.asdict(effect))
            case fx.ReadTable():
                if not failed:
                    found = {"version": answer.version, "transaction": answer.transaction}
                    self._add(TableLook, knows, sink=effect.sink, **found)
            case fx.FindTableVersion():
                if not failed:
                    self._add(
                        TableSearch, knows, sink=effect.sink, transaction=effect.transaction, version=answer
                    )
            case fx.List() | fx.ListMany() | fx.Checksum() | fx.ReadTableHistory():
                pass
            case fx.ListFolders() | fx.MakeFolder() | fx.StartQuery():
                pass
            case fx.ReadPrepared() | fx.FindState() | fx.FindStored():
                pass
            case _:
                assert_never(effect)

    def sent(self, effect: fx.Send) -> None:
        """A message is about to leave."""
        self._add(Sent, self.knows, to=effect.to, **_message(effect.message))

    def received(self, sender: str, message: Any) -> None:
        """A message has come from another process."""
        self._add(Received, self.knows, sender=sender, **_message(message))

    def ended(self, why: str) -> None:
        """The process ends."""
        self._add(Ended, self.knows, why=why)

    def watched(self, perform: Perform, send: Send) -> tuple[Perform, Send]:
        """The same two, and everything that goes through them is written down."""

        def recorded_perform(effect: fx.AnyOperation) -> Any:
            knows = self.knows
            try:
                answer = perform(effect)
            except BaseException:
                self.answered(effect, fx.FAILED, knows)
                raise
            self.answered(effect, answer, knows)
            return answer

        def recorded_send(effect: fx.Send) -> None:
            self.sent(effect)
            send(effect)

        return recorded_perform, recorded_send

    def _add(self, line_type: Callable[..., Line], knows: int, **fields: Any) -> None:
        with self._lock:
            if self._write is None:
                return
            self._n += 1
            line = line_type(process=self._process, n=self._n, at_ms=self._clock_ms(), knows=knows, **fields)
            try:
                self._write(_ENCODE(line) + b"\n")
            except OSError:  # no room for the record: the work goes on without it
                self._write = None


def _content(name: str, data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {"hash": None}
    found: dict[str, Any] = {"hash": digest(data)}
    if is_record(name) and b"\n" not in data:
        try:
            msgspec.json.decode(data)
        except (ValueError, RecursionError):  # damaged: its hash says enough
            return found
        found["record"] = msgspec.Raw(data)
    return found


def _message(message: Any) -> dict[str, Any]:
    kind = str(message.__struct_config__.tag)
    return {"kind": kind, "message": message if isinstance(message, Announcement | Ack) else None}


def process_of(member: Member) -> str:
    """What the process of a member is called."""
    return f"{member.name}-{member.boot}"


def from_environment(member: Member) -> Recorder | None:
    """The recorder of a member that `CUTWATER_TRACE` asks for; nothing if it does not. Raises `OSError` if the
    folder cannot be written."""
    write = _file_of(process_of(member))
    return None if write is None else Recorder.of_member(write, member, _now_ms)


def of_command(name: str, journal: Journal) -> Recorder | None:
    """The same for a command that leads for the length of one request."""
    write = _file_of(name)
    return None if write is None else Recorder(write, name, journal, _now_ms)


def _file_of(process: str) -> Callable[[bytes], object] | None:
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    # Without a buffer each line is one write: a process that is killed leaves half a line at most.
    return open(Path(folder, f"{quote(process, safe='')}{SUFFIX}"), "ab", buffering=0).write


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


def watched(recorder: Recorder | None, perform: Perform, send: Send) -> tuple[Perform, Send]:
    """`perform` and `send`, written down if there is a recorder."""
    return (perform, send) if recorder is None else recorder.watched(perform, send)


def files_of(path: Path) -> list[Path]:
    """The files of a trace: one, or those in a folder."""
    return sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]


def read(path: Path) -> Iterator[tuple[int, AnyLine | None]]:
    """The lines of one file with their numbers, from 1; nothing for one that cannot be read. Half a line at
    the end, which a killed process leaves, is passed over."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if not data.endswith(b"\n"):
                return
            try:
                yield number, _DECODER.decode(data)
            except (ValueError, RecursionError):
                yield number, None
