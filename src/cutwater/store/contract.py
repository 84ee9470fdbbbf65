"""The store contract: named objects, in a local folder or in a bucket.

All durable state of Cutwater is in a store, so every kind of store makes the same promises: `create` is
put-if-absent, atomic per name, and durable when it returns; nobody ever sees a partial object; a read or
list that starts after a write returned sees that write. After an error the write may or may not have happened.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from cutwater.protocol.base.errors import StoreError

Names = list[str]
NameLists = list[list[str]]
Contents = list[bytes | None]
Checksums = list[str | None]
_MAX_PARALLEL = 16

TEMP = ".tmp"
"""The folder for temporary files. Its name begins with a dot, so it is never listed."""


class StoreUnavailable(OSError):
    """A store operation failed for a reason that may be temporary; it may still have taken effect."""


class CannotWrite(StoreUnavailable):
    """The store can be read but not written to: its disk is full or read-only. The message names both."""


class Tail(NamedTuple):
    """The end of an object, and the size of the whole object in bytes."""

    data: bytes
    size: int


class Store(Protocol):
    """Objects by name. A name is a relative path like `journal/000000000001.json`."""

    url: str

    def create(self, name: str, data: bytes) -> bool:
        """Put-if-absent, durable on return; `False` if the object exists."""

    def put(self, name: str, data: bytes) -> None:
        """Replaces the object atomically. Not synced: for hints, which may be lost."""

    def read(self, name: str) -> bytes | None:
        """The object's contents, or `None` if there is no such object."""

    def read_many(self, names: Sequence[str]) -> Contents:
        """The result of `read` for each name. Object stores read in parallel."""

    def list(self, prefix: str, after: str = "") -> Names:
        """The sorted names that begin with `prefix`, at any depth, and sort after `after`. A path with a
        component that begins with a dot is never listed."""

    def list_many(self, places: Sequence[tuple[str, str]]) -> NameLists:
        """The result of `list` for each pair of prefix and `after`. Object stores list in parallel."""

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects, and ignores those that do not exist."""

    def exists(self, name: str) -> bool: ...

    def size(self, name: str) -> int | None:
        """The object's size in bytes, or `None` if there is no such object."""

    def tail(self, name: str, length: int) -> Tail | None:
        """The last `length` bytes of the object, fewer if it is shorter; `None` if there is no such object. Where the
        object store can do that, it is one request."""

    def copy(self, source: str, target: str) -> None:
        """Copies an immutable object. If the target exists, it is an earlier copy, and is kept. The copy is
        durable only after a call of `checksum`."""

    def checksum(self, name: str) -> str | None:
        """SHA-256 of the contents in hex, or `None` if there is no such object. First makes the object durable,
        no matter who wrote it, because the caller is about to rely on it."""

    def checksum_many(self, names: Sequence[str]) -> Checksums:
        """The result of `checksum` for each name, computed in parallel."""

    def path(self, name: str) -> Path | None:
        """The object's file if this store is a local folder, else `None`."""

    def spark_url(self, name: str) -> str:
        """The URL under which Spark opens the object."""


def check_name(name: str) -> str:
    """Returns the name if it is valid for an object. Raises `StoreError` otherwise."""
    if "\0" in name or any(part in ("", ".", "..") for part in name.split("/")):
        raise StoreError(
            f"{name!r} cannot be the name of an object: it must be a plain path inside the store"
        )
    return name


def checksums(store: Store, names: Sequence[str]) -> Checksums:
    """The result of `store.checksum` for each name, computed in parallel."""
    with ThreadPoolExecutor(_MAX_PARALLEL) as pool:
        return list(pool.map(store.checksum, names))
