"""The format of a log entry, in the store and on the wire, and the hash chain that links entries.

Both kinds of log (the journal, and one log per stage and generation) have the same envelope. An entry
contains its own index, the hash of the entry before it, and the index of the newest SNAPSHOT at or before
it. From that last field, a writer or reader that was suspended learns that its index was compacted away (see
`log.py`).
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Generic, TypeVar

import msgspec

from cutwater.protocol.base.errors import PeerError

B = TypeVar("B")

GENESIS = "0" * 64
"""The `prev` hash of the first entry of a log."""


# `gc=False`: entries are frozen trees and cannot be part of a cycle. A process may hold a million of them,
# and Python's cyclic collector would walk them all again and again.


class Entry(msgspec.Struct, Generic[B], frozen=True, gc=False):
    """One entry of a log.

    `index` counts from 1. `prev` is the hash of the bytes of the entry before. `snapshot` is the index of the
    newest SNAPSHOT up to and including this entry, 0 if there is none. `nonce` is unique per attempt to write
    the entry, so that a writer recognizes its own entry after an error.
    """

    index: int
    prev: str
    snapshot: int
    nonce: str
    body: B


class Sealed(msgspec.Struct, Generic[B], frozen=True, gc=False):
    """An entry with its exact bytes and their hash. The chain is computed over the bytes."""

    entry: Entry[B]
    data: bytes
    hash: str


def digest(data: bytes) -> str:
    """The hash used by the chain and by manifests."""
    return hashlib.sha256(data).hexdigest()


# Every control object is a JSON object whose last field is the checksum of everything before it, so every reader
# detects damage. Objects written by versions without checksums have none.

_FIELD = b',"sum":"'
_END = b'"}'
_HEX = frozenset(b"0123456789abcdef")


def with_checksum(data: bytes) -> bytes:
    """Adds the checksum field to a JSON object."""
    return data[:-1] + _FIELD + digest(data).encode() + _END


def check_checksum(data: bytes) -> None:
    """Raises `PeerError` if a JSON object does not match its checksum."""
    data = data.rstrip()  # an editor may have added a newline
    field, checksum, end = data[-74:-66], data[-66:-2], data[-2:]
    if end != _END:
        return  # no checksum, or not a JSON object, which fails on decoding
    if field == _FIELD:
        if digest(data[:-74] + b"}").encode() != checksum:
            raise PeerError("its checksum differs")
    elif field[-1:] == b'"' and _HEX.issuperset(checksum):
        raise PeerError("the name of its checksum is damaged")


REMEMBERED = 128
"""How many entries a codec remembers: the newest entry of a log is read again and again."""


class Codec(Generic[B]):
    """Encodes and decodes the entries of one kind of log. Callers share the entries, and must not change them."""

    def __init__(self, body_type: object) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Entry[body_type]).decode  # type: ignore[valid-type]
        self._open = lru_cache(REMEMBERED)(self._open_anew)

    def seal(self, entry: Entry[B]) -> Sealed[B]:
        """The entry with its bytes and their hash."""
        data = with_checksum(self._encode(entry))
        return Sealed(entry, data, digest(data))

    def open(self, data: bytes) -> Sealed[B]:
        """Decodes an entry. Raises `PeerError` if the bytes are not an entry, and no other error."""
        try:
            return self._open(data)
        except (PeerError, ValueError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
            raise PeerError(f"not a log entry ({error}): {data[:60]!r}") from error

    def _open_anew(self, data: bytes) -> Sealed[B]:
        check_checksum(data)
        return Sealed(self._decode(data), data, digest(data))


def follows(before: Sealed[B] | None, after: Sealed[B]) -> bool:
    """Whether `after` is the direct successor of `before` (`None`: the first entry of the log)."""
    if before is None:
        return after.entry.index == 1 and after.entry.prev == GENESIS
    return after.entry.index == before.entry.index + 1 and after.entry.prev == before.hash
