"""Appending to a log, following it, and compacting it: the same three procedures for every log.

Theory of operation. A log is a set of objects named by index, each created by put-if-absent. The writer that
creates index i has decided that entry. Three things make this harder than it sounds.

*An error is not an answer.* A write that failed may have happened, or may happen later. So a writer
reads the index back and compares bytes (they contain a nonce); while there is no entry it writes the *same*
bytes again. It never continues before it knows whose entry is there.

*Compaction must not reopen an index.* When there is a SNAPSHOT at K, the entries below K are deleted, and a
suspended writer, or a write that was still in flight, can then create index N < K again. Every entry
contains the index of the newest snapshot at or before it, so every writer and *reader* of N looks at the
highest entry after N: if its snapshot is beyond N, the entry at N is void.
(The reader needs this as much as the writer: a late write at N has a correct `prev` for a reader that
stopped at N - 1, and there may be no writer left to undo it.)

*Two writers.* The loser reads the index and adds the winner's entry to its view. What it does then is up to
the caller (a former leader stops; a fenced incarnation stops).
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from cutwater.protocol.base.chain import GENESIS, Codec, Entry, Sealed, follows
from cutwater.protocol.base.effects import (
    CREATED,
    FAILED,
    Create,
    Delete,
    List,
    Procedure,
    Read,
    ReadMany,
    Sleep,
    ask,
    backoff_ms,
    insist,
)
from cutwater.protocol.base.errors import VERIFY_FIRST, PeerError, StoreError
from cutwater.protocol.base.paths import entry_name, entry_of
from cutwater.protocol.base.transitions import Table

B = TypeVar("B")

RESTORE_A_COPY = f"{VERIFY_FIRST}restore the store from a copy"
"""What to do about a damaged log."""

MAX_READ = 500
"""The maximum number of entries per read."""


class AppendPhase(Enum):
    PUTTING = "putting"
    READING = "reading_back"
    LOOKING = "looking"
    OTHERS = "looking_at_anothers"
    MINE = "mine"
    TAKEN = "taken"
    VOID = "void"


APPEND = Table(
    "append",
    "Appending one entry to a log",
    AppendPhase.PUTTING,
    {
        (AppendPhase.PUTTING, "created"): AppendPhase.LOOKING,
        (AppendPhase.PUTTING, "exists_or_error"): AppendPhase.READING,
        (AppendPhase.READING, "nothing_there"): AppendPhase.PUTTING,
        (AppendPhase.READING, "own_bytes"): AppendPhase.LOOKING,
        (AppendPhase.READING, "other_bytes"): AppendPhase.OTHERS,
        (AppendPhase.LOOKING, "no_newer_snapshot"): AppendPhase.MINE,
        (AppendPhase.LOOKING, "newer_snapshot"): AppendPhase.VOID,
        (AppendPhase.OTHERS, "no_newer_snapshot"): AppendPhase.TAKEN,
        (AppendPhase.OTHERS, "newer_snapshot"): AppendPhase.VOID,
    },
)


class LogView(Generic[B]):
    """One process's view of one log: the entries from the newest snapshot it has seen, in order.

    `on_entry(sealed, jumped)` is called for each new entry; `jumped` means that entries before it were
    skipped, so the state derived from them must be replaced (the entry is then a SNAPSHOT).
    """

    def __init__(
        self,
        prefix: str,
        codec: Codec[B],
        snapshot_type: type,
        on_entry: Callable[[Sealed[B], bool], None],
    ) -> None:
        self.prefix = prefix
        self.codec = codec
        self.snapshot_type = snapshot_type
        self.on_entry = on_entry
        self.entries: list[Sealed[B]] = []
        self.last = 0
        """The index of the last known entry, 0 if there is none."""

    @property
    def snapshot(self) -> int:
        """The index of the newest known SNAPSHOT, 0 if there is none."""
        return self.entries[-1].entry.snapshot if self.entries else 0

    def push(self, sealed: Sealed[B]) -> None:
        """Adds the next entry. A known entry is ignored; an entry that does not follow raises `StoreError` and changes
        nothing."""
        if sealed.entry.index <= self.last:
            return
        before = self.entries[-1] if self.entries else None
        if not follows(before, sealed):
            raise StoreError(
                f"{entry_name(self.prefix, sealed.entry.index)} does not follow entry {self.last} (the hash "
                f"chain is broken); {RESTORE_A_COPY}"
            )
        self.entries.append(sealed)
        self.last = sealed.entry.index
        if sealed.entry.snapshot == sealed.entry.index:
            del self.entries[:-1]
        self.on_entry(sealed, False)

    def jump(self, sealed: Sealed[B]) -> None:
        """Skips to a SNAPSHOT beyond the last known entry."""
        if sealed.entry.index > self.last:
            self.entries = [sealed]
            self.last = sealed.entry.index
            self.on_entry(sealed, True)

    def seal(self, body: B, nonce: str, *, snapshot: bool = False) -> Sealed[B]:
        """The next entry of the log, with this body."""
        index = self.last + 1
        prev = self.entries[-1].hash if self.entries else GENESIS
        return self.codec.seal(Entry(index, prev, index if snapshot else self.snapshot, nonce, body))

    def open(self, name: str, data: bytes) -> Sealed[B]:
        """Decodes the entry in object `name`; raises `StoreError` if it is damaged or has another index."""
        try:
            sealed = self.codec.open(data)
        except PeerError as error:
            raise StoreError(f"{name} is damaged ({error}); {RESTORE_A_COPY}") from error
        entry = sealed.entry
        if entry_name(self.prefix, entry.index) != name:
            raise StoreError(
                f"{name} contains entry {entry.index}, not the one that its name says; {RESTORE_A_COPY}"
            )
        if (entry.snapshot == entry.index) != (type(entry.body) is self.snapshot_type):
            raise StoreError(
                f"{name} is marked as a snapshot and is not one, or the reverse; {RESTORE_A_COPY}"
            )
        return sealed


def append(view: LogView[B], sealed: Sealed[B]) -> Procedure[AppendPhase]:
    """Writes `sealed` at its index and determines whose entry is there: rule 1.

    Returns `MINE` (it is in the log, and in `view`), `TAKEN` (another writer's entry is, and is in `view`) or
    `VOID` (the index is below a snapshot; follow the log to learn more). Does not return before that is known.
    """
    index, name = sealed.entry.index, entry_name(view.prefix, sealed.entry.index)
    phase = APPEND.start
    attempt = 0
    found: Sealed[B] = sealed
    while phase not in (AppendPhase.LOOKING, AppendPhase.OTHERS):
        answer = yield from ask(Create(name, sealed.data))
        phase = APPEND.next(phase, "created" if answer is CREATED else "exists_or_error")
        while phase is AppendPhase.READING:
            data = yield from ask(Read(name))
            if data is FAILED:
                yield Sleep(backoff_ms(attempt))
            elif data is None:
                phase = APPEND.next(phase, "nothing_there")
                yield Sleep(backoff_ms(attempt))
            elif data == sealed.data:
                phase = APPEND.next(phase, "own_bytes")
            else:
                found = view.open(name, data)
                phase = APPEND.next(phase, "other_bytes")
            attempt += 1
    newest = yield from newest_snapshot(view, index)
    if newest > index:
        return APPEND.next(phase, "newer_snapshot")
    view.push(found)
    return APPEND.next(phase, "no_newer_snapshot")


def newest_snapshot(view: LogView[B], index: int) -> Procedure[int]:
    """The index of the newest SNAPSHOT according to the highest entry after `index`; 0 if there is none."""
    while True:
        names = yield from insist(List(view.prefix, entry_name(view.prefix, index)))
        highest = next((name for name in reversed(names) if entry_of(view.prefix, name) is not None), None)
        if highest is None:
            return 0
        data = yield from insist(Read(highest))
        if data is not None:  # else it was compacted away in between, and there is a newer one
            return view.open(highest, data).entry.snapshot


def follow(view: LogView[B], heard: int = 0) -> Procedure[int]:
    """Reads from the last known entry to the end of the log; returns the number of entries added to the view.

    Entries are trusted only after a check of the highest entry, made *after* reading them. `heard` is an index
    that others have reported; no listing is needed to know what to read up to it.
    """
    before = view.last
    lost = 0
    while True:
        start = view.last
        if heard > start:
            names = [entry_name(view.prefix, i) for i in range(start + 1, min(heard, start + MAX_READ) + 1)]
            heard = 0
        else:
            names = yield from entries_after(view, start)
        if not names:
            return view.last - before
        fresh = yield from read_on(view, start, names)
        names = yield from entries_after(view, start)
        if fresh and names and names[-1] == entry_name(view.prefix, fresh[-1].entry.index):
            highest = fresh[-1]
        else:
            data = (yield from insist(Read(names[-1]))) if names else None
            if data is None:
                continue
            highest = view.open(names[-1], data)
        if highest.entry.snapshot > start:
            if not (yield from _jump(view, highest.entry.snapshot)):
                if lost == highest.entry.snapshot:
                    raise StoreError(
                        f"{entry_name(view.prefix, lost)} is missing, the snapshot that {names[-1]} builds "
                        f"on; {RESTORE_A_COPY}"
                    )
                lost = highest.entry.snapshot  # unless a newer one has replaced it: check again
        elif view.last == start:  # else another procedure of this process has read further
            if not fresh and names[0] != entry_name(view.prefix, start + 1):
                raise StoreError(
                    f"{entry_name(view.prefix, start + 1)} is missing, but {names[0]} is there: an entry of "
                    f"the log was lost; {RESTORE_A_COPY}"
                )
            for sealed in fresh:
                view.push(sealed)
            if highest.entry.index == view.last:
                return view.last - before


def take_announced(view: LogView[B], index: int, data: bytes) -> bool:
    """Adds an announced entry if it is the next one: what is announced is durable. Any other is read from the store."""
    if index != view.last + 1:
        return False
    try:
        sealed = view.open(entry_name(view.prefix, index), data)
    except StoreError:
        return False
    if not follows(view.entries[-1] if view.entries else None, sealed):
        return False
    view.push(sealed)
    return True


def is_replaced(view: LogView[B]) -> Procedure[bool]:
    """Whether the store has another log now: the last known entry differs, or it is missing and none follows it. (An
    entry is deleted only when a later one is a SNAPSHOT.)"""
    if not view.entries:
        return False
    known = view.entries[-1]
    data = yield from insist(Read(entry_name(view.prefix, known.entry.index)))
    if data is None:
        return not (yield from entries_after(view, known.entry.index))
    return data != known.data


def entries_after(view: LogView[B], index: int) -> Procedure[list[str]]:
    """The names of the entries after `index` in the store, sorted."""
    names = yield from insist(List(view.prefix, entry_name(view.prefix, index)))
    return [name for name in names if entry_of(view.prefix, name) is not None]


def next_names(view: LogView[B], start: int, names: list[str]) -> list[str]:
    """The names of the entries directly after `start` among `names`, without a gap, at most `MAX_READ`."""
    wanted: list[str] = []
    for name in names[:MAX_READ]:
        if name != entry_name(view.prefix, start + 1 + len(wanted)):
            break
        wanted.append(name)
    return wanted


def read_on(view: LogView[B], start: int, names: list[str]) -> Procedure[list[Sealed[B]]]:
    """The entries directly after `start`, without a gap, as far as `names` go. They are read in parallel, because a
    log may be long and a store distant."""
    wanted = next_names(view, start, names)
    found = (yield from insist(ReadMany(tuple(wanted)))) if wanted else []
    return open_all(view, wanted, found)


def open_all(view: LogView[B], names: list[str], found: list[bytes | None]) -> list[Sealed[B]]:
    """Decodes the entries in these objects, up to the first missing one."""
    fresh: list[Sealed[B]] = []
    for name, data in zip(names, found, strict=True):
        if data is None:
            break
        fresh.append(view.open(name, data))
    return fresh


def _jump(view: LogView[B], index: int) -> Procedure[bool]:
    """Skips to the snapshot at `index`; `False` if it does not exist."""
    name = entry_name(view.prefix, index)
    data = yield from insist(Read(name))
    if data is not None:
        view.jump(view.open(name, data))
    return data is not None


def compact(view: LogView[B], body: B, nonce: str) -> Procedure[AppendPhase]:
    """Appends `body`, a SNAPSHOT of the log, and deletes the entries before it."""
    phase = yield from append(view, view.seal(body, nonce, snapshot=True))
    if phase is AppendPhase.MINE:
        yield from trim(view)
    return phase


def trim(view: LogView[B]) -> Procedure[None]:
    """Deletes every entry below the newest SNAPSHOT."""
    keep = entry_name(view.prefix, view.snapshot)
    names = yield from insist(List(view.prefix))
    yield from insist(Delete(tuple(n for n in names if n < keep and entry_of(view.prefix, n) is not None)))
