"""The modelled object store and tables. Only these survive a crash.

Control objects are bytes, as in the real store. The content of a data or state file is the modelled rows themselves:
per path an interval of event numbers. So the loss or duplication of a single event is detected, although no event is an
object of its own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from typing import Any

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import TableHead, TableHistory
from cutwater.sim.topology import Path

Rows = dict[Path, tuple[int, int]]
"""Per path, the events [from, to) in a file."""


HIGHEST = "\U0010ffff"
"""A character that sorts after all others."""


class SimStore:
    """Objects by name. Spark's files are durable only after a call of `checksum`."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {}
        self._names: list[str] = []
        self._unsynced: set[str] = set()

    def create(self, name: str, content: Any, synced: bool = True) -> bool:
        if name in self.objects:
            return False
        self.objects[name] = content
        insort(self._names, name)
        if not synced:
            self._unsynced.add(name)
        return True

    def delete(self, name: str) -> None:
        self._unsynced.discard(name)
        if self.objects.pop(name, None) is not None:
            del self._names[bisect_left(self._names, name)]

    def checksum(self, name: str) -> str | None:
        """Makes the object durable, as the real store does."""
        self._unsynced.discard(name)
        content = self.objects.get(name)
        return None if content is None else checksum_of(content)

    def lose_power(self) -> None:
        """Drops everything that is not durable."""
        for name in sorted(self._unsynced):
            self.delete(name)

    def list(self, prefix: str, after: str = "") -> list[str]:
        names = self._names
        start = bisect_right(names, after) if after > prefix else bisect_left(names, prefix)
        if start == len(names) or not names[start].startswith(prefix):
            return []
        return names[start : bisect_left(names, prefix + HIGHEST, start)]


def checksum_of(content: Any) -> str:
    """Of modelled rows or state."""
    return digest(repr(content).encode())


@dataclass(slots=True)
class TableVersion:
    """One version of a table: the last event of each path that it shows, and its transaction. Commits of others leave
    both unchanged; `foreign_ms` is when such a commit was made."""

    transaction: int
    shown: dict[Path, int]
    foreign_ms: int | None = None


@dataclass(slots=True)
class SimTable:
    """A table with transactions and versions that can be rewound, like a Delta table. Like those it may forget the
    transactions of all versions up to `forgotten`."""

    versions: list[TableVersion] = field(default_factory=lambda: [TableVersion(0, {})])
    failing_until_ms: int = 0
    forgotten: int = -1

    def head(self) -> TableHead:
        newest = len(self.versions) - 1
        return TableHead(newest, self.versions[-1].transaction if newest > self.forgotten else 0)

    @property
    def transaction(self) -> int:
        """The last transaction, whether or not the table remembers it."""
        return self.versions[-1].transaction

    def find(self, transaction: int) -> int | None:
        found = [v.transaction for v in self.versions if v.transaction <= transaction]
        return self._first(found[-1]) if found else None

    def _first(self, transaction: int) -> int:
        """The version that this transaction created; commits of others come after it."""
        return bisect_left(self.versions, transaction, key=lambda version: version.transaction)

    def foreign(self, after: int) -> list[int]:
        """The times of others' commits after that version."""
        return [v.foreign_ms for v in self.versions[after + 1 :] if v.foreign_ms is not None]

    def history(self, transaction: int) -> TableHistory | None:
        version = self.find(transaction)
        if version is None:
            return None
        done = tuple(f"something at {ms} ms" for ms in self.foreign(version))
        return TableHistory(self.versions[version].transaction, 1 << 62, done)


class RowsOverlap(Exception):
    """Rows do not continue the existing ones: some are missing or duplicated."""


def extend(shown: dict[Path, int], rows: Rows) -> dict[Path, int]:
    """`shown` extended by these rows. Raises `RowsOverlap` if they do not begin where it ends."""
    result = dict(shown)
    for path, (low, high) in rows.items():
        if result.get(path, 0) != low:
            kind = "lost" if low > result.get(path, 0) else "duplicated"
            raise RowsOverlap(f"rows of {path} {kind}: has up to {result.get(path, 0)}, next begins at {low}")
        result[path] = high
    return result
