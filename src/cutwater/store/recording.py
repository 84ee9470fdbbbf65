"""Records what a process did and saw, to be checked later (`python -m cutwater.sim --check`).

The simulator and the running system use the same format: one JSON object per line. `process` names the process, `n` is
that process's sequence number, `at_ms` its own clock, which cannot be compared with another's, and `knows` is the
journal index that it knew when it began the operation. A line is written when the answer has arrived and before the
procedure that asked continues; a message is recorded before it is sent. So nothing that a process relied on is missing
from its record, no matter when it was killed. This is why the recorder wraps the effects and is not an observer of
events (`protocol/base/events.py`): those are delivered later, and may be missed.

Protocol records are stored with their exact bytes, so a checker needs no store. No order between processes is recorded:
positions in the journal and in stage logs are the only common clock.

In the running system recording is off unless `CUTWATER_TRACE` names a folder. Each process then writes
`<folder>/<process>.jsonl`. A member's process is called `<member>-<boot>`; a command that steers is a process too.
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
    """The fields of every line. `process` is the prefix of the nonces of everything that the process appends."""

    process: str
    n: int
    at_ms: int
    knows: int


class Began(Line, frozen=True, kw_only=True, tag="began"):
    """The process starts. `topology` is the hash of the graph that it was started with. A command has no member."""

    member: str
    boot: str
    topology: str


class Creation(Line, frozen=True, kw_only=True, tag="create"):
    """Put-if-absent of an object with that hash, and the answer (after `failed` the object may or may not exist)."""

    name: str
    hash: str
    answer: Literal["created", "exists", "failed"]
    record: msgspec.Raw = NOTHING


class Reading(Line, frozen=True, kw_only=True, tag="read"):
    """What was found under a name; no hash if there was nothing. Failed reads are not recorded."""

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
    """A table commit with these files. `answer` is the new version, or `None` if the table had moved on."""

    sink: str
    expected_version: int
    transaction: int
    files: tuple[str, ...]
    answer: int | Failed | None


class Rewinding(Line, frozen=True, kw_only=True, tag="rewind"):
    """A rewind of a table to an earlier version. `answer` is as in `Publishing`."""

    sink: str
    expected_version: int
    transaction: int
    to_version: int
    force: bool = False
    answer: int | Failed | None


class TableRead(Line, frozen=True, kw_only=True, tag="table"):
    """A table's current version and transaction."""

    sink: str
    version: int
    transaction: int


class TableSearch(Line, frozen=True, kw_only=True, tag="table_version"):
    """The version with the highest transaction up to this one, or `None` if the history is gone."""

    sink: str
    transaction: int
    version: int | None


class Sent(Line, frozen=True, kw_only=True, tag="sent"):
    """A message to a member, or to all. Announcements and acks are recorded in full."""

    to: str | None
    kind: str
    message: Announcement | Ack | None = None


class Received(Line, frozen=True, kw_only=True, tag="received"):
    """A message from another process; `sender` is the name that the process gave."""

    kind: str
    sender: str = ""
    message: Announcement | Ack | None = None


class Ended(Line, frozen=True, kw_only=True, tag="ended"):
    """The process ends in an orderly way. Operations that its threads had begun may still be recorded after this."""

    why: str


AnyLine = (
    Began
    | Creation
    | Reading
    | Deletion
    | Copying
    | Publishing
    | Rewinding
    | TableRead
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
    """Whether an object with this name is a protocol record."""
    return log_prefix_of(name) is not None or mark_of(name) is not None or manifest_of(name) is not None


class Recorder:
    """Records what one process does. Calls `write` with whole lines, from any thread, one at a time."""

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
        topology = digest(encode(member.topology))
        began = {"member": member.name, "boot": member.boot, "topology": topology}
        return cls(write, process_of(member), member.journal, clock_ms, began)

    @property
    def knows(self) -> int:
        """The journal index that the process knows."""
        return self._journal.index

    def answered(self, effect: fx.AnyOperation, answer: Any, knows: int) -> None:
        """Records an answered operation if it changed something or if decisions depend on it. `knows` is the journal
        index that the process knew when it asked."""
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
                del fields["epoch"]  # the journal entry at `transaction` has it
                self._add(Publishing, knows, answer=word, **fields)
            case fx.RewindTable():
                self._add(Rewinding, knows, answer=word, **msgspec.structs.asdict(effect))
            case fx.ReadTable():
                if not failed:
                    found = {"version": answer.version, "transaction": answer.transaction}
                    self._add(TableRead, knows, sink=effect.sink, **found)
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
        """Records a message that is about to be sent."""
        self._add(Sent, self.knows, to=effect.to, **_message(effect.message))

    def received(self, sender: str, message: Any) -> None:
        """Records a message that arrived from another process."""
        self._add(Received, self.knows, sender=sender, **_message(message))

    def ended(self, why: str) -> None:
        """Records that the process ends."""
        self._add(Ended, self.knows, why=why)

    def watched(self, perform: Perform, send: Send) -> tuple[Perform, Send]:
        """Wraps the two functions so that everything that passes through them is recorded."""

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
            except OSError:  # no space for the record: the process continues without it
                self._write = None


def _content(name: str, data: bytes | None) -> dict[str, Any]:
    if data is None:
        return {"hash": None}
    found: dict[str, Any] = {"hash": digest(data)}
    if is_record(name) and b"\n" not in data:
        try:
            msgspec.json.decode(data)
        except (ValueError, RecursionError):  # damaged: its hash is enough
            return found
        found["record"] = msgspec.Raw(data)
    return found


def _message(message: Any) -> dict[str, Any]:
    kind = str(message.__struct_config__.tag)
    return {"kind": kind, "message": message if isinstance(message, Announcement | Ack) else None}


def process_of(member: Member) -> str:
    """The name of a member's process."""
    return f"{member.name}-{member.boot}"


def from_environment(member: Member) -> Recorder | None:
    """A recorder for a member if `CUTWATER_TRACE` is set, else `None`. Raises `OSError` if the folder is not
    writable."""
    write = _file_of(process_of(member))
    return None if write is None else Recorder.of_member(write, member, _now_ms)


def of_command(name: str, journal: Journal) -> Recorder | None:
    """A recorder for a command that leads for one request, if `CUTWATER_TRACE` is set."""
    write = _file_of(name)
    return None if write is None else Recorder(write, name, journal, _now_ms)


def _file_of(process: str) -> Callable[[bytes], object] | None:
    folder = os.environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    Path(folder).mkdir(parents=True, exist_ok=True)
    # Without a buffer each line is one write, so a killed process leaves at most one partial line.
    return open(Path(folder, f"{quote(process, safe='')}{SUFFIX}"), "ab", buffering=0).write


def _now_ms() -> int:
    return int(time.monotonic() * 1000)


def watched(recorder: Recorder | None, perform: Perform, send: Send) -> tuple[Perform, Send]:
    """`perform` and `send`, recorded if there is a recorder."""
    return (perform, send) if recorder is None else recorder.watched(perform, send)


def files_of(path: Path) -> list[Path]:
    """The files of a trace: a single file, or all in a folder."""
    return sorted(path.glob(f"*{SUFFIX}")) if path.is_dir() else [path]


def read(path: Path) -> Iterator[tuple[int, AnyLine | None]]:
    """The lines of a file, numbered from 1; `None` for an unreadable line. Skips a partial line at the end, which a
    killed process may leave."""
    with path.open("rb") as file:
        for number, data in enumerate(file, 1):
            if not data.endswith(b"\n"):
                return
            try:
                yield number, _DECODER.decode(data)
            except (ValueError, RecursionError):
                yield number, None
