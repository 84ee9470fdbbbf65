"""The store contract: named objects, in a local folder or in a bucket.

Everything that Cutwater remembers lies in a store, so all kinds of store give the same promises: `create` is
put-if-absent, atomic per name and durable when it returns; nobody ever sees half an object; a read or
list that starts after a write returned sees it. An error says nothing about whether the write happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from cutwater.protocol.base.errors import StoreError

Names = list[str]
NameLists = list[list[str]]
Contents = list[bytes | None]
Checksums = list[str | None]
_SIDE_BY_SIDE = 16

TEMP = ".tmp"
"""The folder for what is not an object yet. Its name begins with a dot, so it is never listed."""


class StoreUnavailable(OSError):
    """The store did not do what was asked, for a reason that may pass; whether it happened is not known."""


class Store(Protocol):
    """Objects by name. A name is a relative path like `journal/000000000001.json`."""

    url: str

    def create(self, name: str, data: bytes) -> bool:
        """Put-if-absent, durable on return; `False` if the object exists."""

    def put(self, name: str, data: bytes) -> None:
        """Replaces the object atomically. Not synced: for hints, which may be lost."""

    def read(self, name: str) -> bytes | None:
        """The object's contents, `None` if there is none."""

    def read_many(self, names: Sequence[str]) -> Contents:
        """What `read` gives for each name; from a bucket side by side."""

    def list(self, prefix: str, after: str = "") -> Names:
        """The sorted names that begin with `prefix`, at any depth, and sort after `after`. A path with a
        component that begins with a dot is never listed."""

    def list_many(self, places: Sequence[tuple[str, str]]) -> NameLists:
        """What `list` gives for each prefix and `after`; from a bucket side by side."""

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects; those that are not there are fine."""

    def exists(self, name: str) -> bool: ...

    def size(self, name: str) -> int | None:
        """In bytes; `None` if there is no such object."""

    def copy(self, source: str, target: str) -> None:
        """Copies an immutable object. A target that is there already is a copy made earlier, and fine. The
        copy is durable once its `checksum` was asked for."""

    def checksum(self, name: str) -> str | None:
        """SHA-256 of the contents in hex, `None` if there is no such object. Makes the object durable first,
        whoever wrote it: who asks is about to rely on it."""

    def checksum_many(self, names: Sequence[str]) -> Checksums:
        """What `checksum` gives for each name, side by side."""

    def path(self, name: str) -> Path | None:
        """The object's file, if this store is a local folder."""

    def spark_url(self, name: str) -> str:
        """What Spark opens to get at the object."""


def check_name(name: str) -> str:
    """The name, if it is one that an object can have. Raises `StoreError` otherwise."""
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise StoreError(
            f"{name!r} cannot be the name of an object: it must be a plain path inside the store"
        )
    return name


def checksums(store: Store, names: Sequence[str]) -> Checksums:
    """What a store's `checksum` gives for each name, side by side."""
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        return list(pool.map(store.checksum, names))
