"""Loads a trace and indexes it: lines by process, objects by name and hash, tables by sink.

Nothing is judged here, except whether the trace itself is complete.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, assert_never

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import Codec, Entry, digest
from cutwater.protocol.base.errors import PeerError, StoreError
from cutwater.protocol.base.paths import entry_name
from cutwater.protocol.base.wire import Announcement
from cutwater.store import recording as rec

Record = Entry[Any] | r.Manifest | r.Published
"""A protocol record."""


@dataclass(frozen=True, slots=True)
class At:
    """A line and its file."""

    file: str
    line: rec.AnyLine

    def __str__(self) -> str:
        return f"{self.file}: {self.line.process} n {self.line.n}"


@dataclass(frozen=True, slots=True)
class Problem:
    """A violated rule, a description, and the lines that show it."""

    rule: str
    what: str
    lines: tuple[At, ...]


@dataclass(slots=True)
class Findings:
    """The checker's results. What cannot be decided because it was not recorded is only counted."""

    problems: list[Problem] = field(default_factory=list)
    not_recorded: Counter[str] = field(default_factory=Counter)

    def wrong(self, rule: str, what: str, *lines: At) -> None:
        self.problems.append(Problem(rule, what, lines))


@dataclass(slots=True)
class Variant:
    """Bytes that a process wrote or found at one place of a log. `writer` is the process that its nonce names; `made`
    are the lines that created it, `tried` those whose answer leaves open whether they did."""

    hash: str
    entry: Entry[Any]
    made: list[At] = field(default_factory=list)
    tried: list[At] = field(default_factory=list)
    found: list[At] = field(default_factory=list)

    @property
    def writer(self) -> str:
        return self.entry.nonce.rpartition("-")[0]

    @property
    def stands(self) -> bool:
        """Whether it is known that the log contained this entry."""
        return bool(self.made or self.found)

    @property
    def lines(self) -> tuple[At, ...]:
        """The lines that show it best."""
        return tuple([*self.made, *self.found, *self.tried][:1])


@dataclass(slots=True)
class Log:
    """One log: everything that was seen at its places, and the chain once it is built."""

    name: str
    places: dict[int, dict[str, Variant]] = field(default_factory=dict)
    chain: dict[int, Variant] = field(default_factory=dict)
    newest_snapshot: int = 0
    """The index of the newest SNAPSHOT; every place before it may have been emptied."""

    def whole(self, first: int, last: int) -> bool:
        """Whether every entry from `first` to `last` is known."""
        return all(index in self.chain for index in range(first, last + 1))


@dataclass(slots=True)
class Trace:
    """Everything that was recorded."""

    processes: dict[str, list[At]] = field(default_factory=dict)
    members: dict[str, str] = field(default_factory=dict)
    """The member of each process."""
    ended: set[str] = field(default_factory=set)
    journal: Log = field(default_factory=lambda: Log("journal"))
    stages: dict[tuple[str, int], Log] = field(default_factory=dict)
    records: dict[tuple[str, str], Record] = field(default_factory=dict)
    """The record in an object, by its name and hash."""
    manifests: dict[str, tuple[r.Manifest, At]] = field(default_factory=dict)


def load(path: Path, findings: Findings) -> Trace:
    """Reads a trace: a file, or the files of a folder. Raises `OSError` if there is no trace."""
    trace = Trace()
    found: list[At] = []
    for file in rec.files_of(path):
        for number, line in rec.read(file):
            if line is None:
                findings.wrong("trace", f"line {number} of {file.name} cannot be read")
            else:
                found.append(At(file.name, line))
    trace.members = {at.line.process: at.line.member for at in found if isinstance(at.line, rec.Began)}
    for at in found:
        _add(trace, at, findings)
    if not trace.processes and not findings.problems:
        raise OSError(f"{path} contains no trace")
    return trace


def _add(trace: Trace, at: At, findings: Findings) -> None:
    line = at.line
    lines = trace.processes.setdefault(line.process, [])
    before = lines[-1].line.n if lines else 0
    if line.n != before + 1:
        findings.wrong("trace", f"{line.process} has line {line.n} after {before}", *lines[-1:], at)
    if not lines and not isinstance(line, rec.Began):
        findings.wrong("trace", f"the recording of {line.process} does not begin with its start", at)
    lines.append(at)
    match line:
        case rec.Ended():
            trace.ended.add(line.process)
        case rec.Creation() | rec.Reading():
            if line.hash is not None and line.record != rec.NOTHING:
                _add_record(trace, at, line.name, bytes(line.record), line.hash, findings)
        case rec.Received():
            if isinstance(line.message, Announcement) and _is_evidence(trace, line):
                name, data = entry_name(paths.JOURNAL_PREFIX, line.message.index), bytes(line.message.entry)
                _add_record(trace, at, name, data, digest(data), findings)
        case rec.Began() | rec.Deletion() | rec.Copying() | rec.Sent():
            pass
        case rec.Publishing() | rec.Rewinding() | rec.TableRead() | rec.TableSearch():
            pass
        case _:
            assert_never(line)


def _is_evidence(trace: Trace, line: rec.Received) -> bool:
    """Whether an announced entry must be in the journal: one from a member must, one from a stranger need not."""
    if not isinstance(line.message, Announcement) or line.message.entry == rec.NOTHING:
        return False
    return line.sender in ("", *trace.members.values())


def _add_record(trace: Trace, at: At, name: str, data: bytes, hashed: str, findings: Findings) -> None:
    key = name, hashed
    if key not in trace.records:
        if digest(data) != hashed:
            findings.wrong("trace", f"{name} does not match its hash", at)
        try:
            trace.records[key] = decode_object(name, data)
        except (PeerError, StoreError) as error:
            findings.wrong("trace", f"{name} is not a record: {error}", at)
            return
    record = trace.records[key]
    match record:
        case Entry():
            _add_entry(log_of(trace, name), place_of(name), hashed, record, at)
        case r.Manifest():
            trace.manifests.setdefault(hashed, (record, at))
        case r.Published():
            pass
        case _:
            assert_never(record)


def _add_entry(log: Log, index: int, hashed: str, entry: Entry[Any], at: At) -> None:
    variant = log.places.setdefault(index, {}).setdefault(hashed, Variant(hashed, entry))
    if isinstance(at.line, rec.Reading | rec.Received):
        variant.found.append(at)
    elif isinstance(at.line, rec.Creation) and at.line.answer == "created":
        variant.made.append(at)
    else:
        variant.tried.append(at)


def decode_object(name: str, data: bytes) -> Record:
    """Decodes the record in an object of this name. Raises `PeerError` or `StoreError` if it is not a record."""
    if paths.mark_of(name) is not None:
        return r.decode(name, data, r.Published)
    if paths.manifest_of(name) is not None:
        return r.decode(name, data, r.Manifest)
    if paths.log_prefix_of(name) is None:
        raise StoreError(f"no record has the name {name}")
    codec: Codec[Any] = r.JOURNAL if paths.journal_entry_of(name) is not None else r.STAGE
    return codec.open(data).entry


def log_of(trace: Trace, name: str) -> Log:
    """The log that an entry's object belongs to."""
    of = paths.stage_entry_of(name)
    if of is None:
        return trace.journal
    key = of.stage, of.generation
    return trace.stages.setdefault(key, Log(f"log of {of.stage} in generation {of.generation}"))


def place_of(name: str) -> int:
    """The index in an entry's name."""
    of = paths.stage_entry_of(name)
    index = of.index if of is not None else paths.journal_entry_of(name)
    assert index is not None, f"{name} is not an entry of a log"
    return index
