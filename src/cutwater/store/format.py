"""The version of a store's format, kept in the object `format.json`.

A new store gets the object when it is opened for the first time. A store without it has version 1: it was written
before stores recorded their version. Later versions of Cutwater may add fields to the object, but must keep `version` and
the checksum as they are, so that every version can read it.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from cutwater.protocol.base.chain import check_checksum
from cutwater.protocol.base.errors import PeerError, StoreError
from cutwater.protocol.base.paths import FORMAT_NAME
from cutwater.protocol.base.records import seal

CURRENT = 1
"""The version that new stores get."""
READABLE = frozenset({1})
"""The versions that this code can read and write."""


class Format(msgspec.Struct, frozen=True):
    """The contents of `format.json`."""

    version: int


class FormatDamaged(StoreError):
    """`format.json` cannot be read."""


class Objects(Protocol):
    """The part of a store that the check needs."""

    url: str

    def create(self, name: str, data: bytes) -> bool: ...

    def read(self, name: str) -> bytes | None: ...


def check_format(store: Objects, *, create: bool) -> None:
    """Checks with one read that this code supports the store's format. With `create`, adds a missing `format.json`.
    Raises `FormatDamaged`, or `StoreError` if the version is unknown or the store fails."""
    try:
        data = store.read(FORMAT_NAME)
        if data is None and create and not store.create(FORMAT_NAME, seal(Format(CURRENT))):
            data = store.read(FORMAT_NAME)  # another process was faster
    except OSError as error:
        raise StoreError(f"cannot read the format version of {store.url}: {error}") from error
    if data is not None:
        _refuse_unknown(store.url, _decode(store.url, data).version)


def _decode(url: str, data: bytes) -> Format:
    try:
        check_checksum(data)
        return msgspec.json.decode(data, type=Format)
    except (PeerError, ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
        raise FormatDamaged(
            f"{FORMAT_NAME} in {url} is damaged ({error}), so the version of the store is unknown. Restore it from a "
            "backup, or remove it if the store was only ever used with this version of Cutwater"
        ) from error


def _refuse_unknown(url: str, version: int) -> None:
    if version not in READABLE:
        readable = ", ".join(map(str, sorted(READABLE)))
        raise StoreError(
            f"{url} has format version {version}, but this version of Cutwater reads only {readable}. "
            "Nothing was changed. Use the version of Cutwater that wrote the store (`pip install --upgrade cutwater` "
            "if it is newer), or pass a different store"
        )
