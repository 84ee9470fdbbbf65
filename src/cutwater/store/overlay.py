"""A store for dry runs: what is written stays in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from cutwater.store.contract import Checksums, Contents, NameLists, Names, Store, Tail, check_name


class Overlay:
    """Shows the objects of another store, if there is one, and keeps changes in memory."""

    def __init__(self, below: Store | None, url: str) -> None:
        self.url = url
        self._below = below
        self._changed: dict[str, bytes | None] = {}
        """The contents of objects that were written here; `None` for those that were deleted."""

    def create(self, name: str, data: bytes) -> bool:
        if self.exists(name):
            return False
        self.put(name, data)
        return True

    def put(self, name: str, data: bytes) -> None:
        self._changed[check_name(name)] = data

    def read(self, name: str) -> bytes | None:
        if check_name(name) in self._changed:
            return self._changed[name]
        return self._below.read(name) if self._below is not None else None

    def read_many(self, names: Sequence[str]) -> Contents:
        below = self._below.read_many(names) if self._below is not None else [None] * len(names)
        return [self._changed.get(name, data) for name, data in zip(names, below, strict=True)]

    def list(self, prefix: str, after: str = "") -> Names:
        found = set(self._below.list(prefix, after)) if self._below is not None else set()
        for name, data in self._changed.items():
            if data is None:
                found.discard(name)
            elif name.startswith(prefix) and name > after:
                found.add(name)
        return sorted(found)

    def list_many(self, places: Sequence[tuple[str, str]]) -> NameLists:
        return [self.list(*place) for place in places]

    def delete(self, names: Iterable[str]) -> None:
        self._changed.update(dict.fromkeys(map(check_name, names)))

    def exists(self, name: str) -> bool:
        return self.size(name) is not None

    def size(self, name: str) -> int | None:
        if check_name(name) in self._changed:
            data = self._changed[name]
            return len(data) if data is not None else None
        return self._below.size(name) if self._below is not None else None

    def tail(self, name: str, length: int) -> Tail | None:
        data = self.read(name)
        return None if data is None else Tail(data[max(0, len(data) - length) :], len(data))

    def copy(self, source: str, target: str) -> None:
        data = self.read(source)
        if data is None:
            raise FileNotFoundError(source)
        self.create(target, data)

    def checksum(self, name: str) -> str | None:
        data = self.read(name)
        return None if data is None else hashlib.sha256(data).hexdigest()

    def checksum_many(self, names: Sequence[str]) -> Checksums:
        return [self.checksum(name) for name in names]

    def path(self, name: str) -> Path | None:
        return self._below.path(name) if self._below is not None else None

    def spark_url(self, name: str) -> str:
        return self._below.spark_url(name) if self._below is not None else f"{self.url}/{name}"
