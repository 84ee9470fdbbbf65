"""The form of one log entry on disk and on the wire, and the hash chain that joins entries.

Both kinds of log (the journal, and one log per stage and generation) have the same envelope. An entry
names its own place, the hash of the entry before it, and the place of the newest SNAPSHOT at or before
it. That last field is what lets a writer or a reader that slept find out that its place was compacted
away (see `log.py`).
"""

from __future__ import annotations

import hashlib
from typing import Generic, TypeVar

import msgspec

from cutwater.protocol.base.errors import PeerError

B = TypeVar("B")

GENESIS = "0" * 64
"""What the first entry of a log names as the hash of its predecessor."""


# `gc=False`: entries are frozen trees and cannot be part of a cycle. A process may hold a million of them,
# and Python's cyclic collector would walk them all again and again.


class Entry(msgspec.Struct, Generic[B], frozen=True, gc=False):
    """One entry of a log.

    `index` is its place, from 1. `prev` is the hash of the bytes at the place before. `snapshot` is the
    place of the newest SNAPSHOT up to and including this entry, 0 if there is none. `nonce` is unique to
    the attempt to write it, so a writer can recognise its own entry after an error.
    """

    index: int
    prev: str
    snapshot: int
    nonce: str
    body: B


class Sealed(msgspec.Struct, Generic[B], frozen=True, gc=False):
    """An entry together with its exact bytes and their hash; the chain is over the bytes."""

    entry: Entry[B]
    data: bytes
    hash: str


def digest(data: bytes) -> str:
    """The hash that the chain and manifests use."""
    return hashlib.sha256(data).hexdigest()


# Every control object is a JSON object whose last field is the checksum of all before it: damage is seen when the
# object is read, whoever reads it. Objects that were written before there were checksums have none.

_FIELD = b',"sum":"'
_END = b'"}'
_HEX = frozenset(b"0123456789abcdef")


def with_checksum(data: bytes) -> bytes:
    """A JSON object with its own checksum in it."""
    return data[:-1] + _FIELD + digest(data).encode() + _END


def check(data: bytes) -> None:
    """Raises `PeerError` if a JSON object is not what its own checksum says."""
    data = data.rstrip()  # an editor may have ended its line
    field, checksum, end = data[-74:-66], data[-66:-2], data[-2:]
    if end != _END:
        return  # it has none, or is no JSON object any more, as whoever decodes it will see
    if field == _FIELD:
        if digest(data[:-74] + b"}").encode() != checksum:
            raise PeerError("its checksum differs")
    elif field[-1:] == b'"' and _HEX.issuperset(checksum):
        raise PeerError("the name of its checksum is damaged")


class Codec(Generic[B]):
    """Encodes and decodes the entries of one kind of log."""

    def __init__(self, body_type: object) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._decode = msgspec.json.Decoder(Entry[body_type]).decode  # type: ignore[valid-type]

    def seal(self, entry: Entry[B]) -> Sealed[B]:
        """The entry with its bytes and their hash."""
        data = with_checksum(self._encode(entry))
        return Sealed(entry, data, digest(data))

    def open(self, data: bytes) -> Sealed[B]:
        """The entry that these bytes are. Raises `PeerError` if they are none; nothing else happens."""
        try:
            check(data)
            return Sealed(self._decode(data), data, digest(data))
        except (PeerError, ValueError, RecursionError) as error:  # ValueError: not JSON, or not UTF-8
            raise PeerError(f"not a log entry ({error}): {data[:60]!r}") from error


def follows(before: Sealed[B] | None, after: Sealed[B]) -> bool:
    """Whether `after` may stand right behind `before` (`None`: at the very start of the log)."""
    if before is None:
        return after.entry.index == 1 and after.entry.prev == GENESIS
    return after.entry.index == before.entry.index + 1 and after.entry.prev == before.hash
