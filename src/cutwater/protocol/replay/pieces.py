"""The buffer of a catch-up: received pieces of the log, and which of them are proven.

A trusted entry proves the entry before it, by its `prev`. So pieces are proven *backwards*, from a hash read
from the store. A piece that does not end in the expected hash was forged by its sender: blame is certain and
never falls on the sender of a neighbouring piece.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Generic, TypeVar

from cutwater.protocol.base.chain import Codec, Sealed
from cutwater.protocol.base.errors import PeerError, StoreError
from cutwater.protocol.replay.messages import Anchor, ReplayConfig

B = TypeVar("B")
Span = tuple[int, int]
"""A range of indexes: the first and the last."""


class Piece(Generic[B]):
    """Consecutive entries from one sender, with an intact hash chain; `proven` if the store confirms it."""

    __slots__ = ("entries", "first", "last", "proven", "sender", "size")

    def __init__(self, sender: str, entries: list[Sealed[B]]) -> None:
        self.sender = sender
        self.entries = entries
        self.first = entries[0].entry.index
        self.last = entries[-1].entry.index
        self.size = sum([len(e.data) for e in entries])
        self.proven = False

    def takes(self, other: Piece[B]) -> bool:
        """Whether the next piece may be merged into this one."""
        same = self.sender == other.sender and not self.proven
        return same and self.entries[-1].hash == other.entries[0].entry.prev


class Pieces(Generic[B]):
    """Disjoint pieces in order, the hashes that the store confirms, and the space left.

    `known` has trusted hashes by index: read from the store, or derived from one by a proven chain.
    """

    def __init__(self, target: Anchor, config: ReplayConfig) -> None:
        self.items: list[Piece[B]] = []
        self.known: dict[int, str] = {target.index: target.hash}
        self.size = 0
        self.peak_size = 0
        self._piece_bytes = config.chunk_bytes
        self._limit = config.buffer_bytes
        self._oversize: dict[int, int] = {}  # sizes of entries that did not fit, by index

    # --- receiving and proving --------------------------------------------------------------------------

    def add(self, piece: Piece[B]) -> str | None:
        """Adds a piece where nothing is buffered. Returns the forger if one is found, as `learn` does."""
        left = self._at(piece.first - 1)
        if left is not None and left.takes(piece) and left.size + piece.size <= self._piece_bytes:
            self.remove([left])  # merge short answers and single announced entries
            piece = Piece(piece.sender, left.entries + piece.entries)
        self._insert(piece)
        for index in sorted((i for i in self.known if piece.first <= i <= piece.last), reverse=True):
            if (forger := self.learn(index, self.known[index])) is not None:
                return forger
        return None

    def learn(self, index: int, hash: str) -> str | None:
        """Records a trusted hash and proves what follows from it. Returns the sender of a piece that turned out to be
        forged and was dropped. Raises `StoreError` on a contradiction."""
        while True:
            at = self._at(index)
            proven = at.entries[index - at.first].hash if at is not None and at.proven else hash
            if self.known.setdefault(index, proven) != hash:
                raise StoreError(
                    f"the store has two different entries at {index} ({self.known[index][:12]} and "
                    f"{hash[:12]}): the log is damaged there; restore it from a copy"
                )
            if at is None or at.proven:
                return None
            if at.last > index:
                self._cut(at, index)
            elif at.entries[-1].hash != hash:
                self.remove([at])
                return at.sender
            else:
                at.proven = True
                index, hash = at.first - 1, at.entries[0].entry.prev

    # --- removing ---------------------------------------------------------------------------------------

    def take(self, index: int) -> list[Sealed[B]]:
        """Removes and returns the consecutive proven entries from `index` on."""
        taken: list[Sealed[B]] = []
        count = 0
        for piece in self.items:
            if not piece.proven or piece.first != index + len(taken):
                break
            taken += piece.entries
            self.size -= piece.size
            count += 1
        del self.items[:count]
        return taken

    def forget_below(self, index: int) -> None:
        """Drops everything below `index`."""
        at = self._at(index - 1)
        if at is not None and at.last >= index:
            self._cut(at, index - 1)
        self.remove([p for p in self.items if p.last < index])
        self.known = {i: h for i, h in self.known.items() if i >= index - 1}
        self._oversize = {i: n for i, n in self._oversize.items() if i >= index}

    def forget_unproven(self, sender: str) -> None:
        """Drops the unproven pieces of a forger."""
        self.remove([p for p in self.items if p.sender == sender and not p.proven])

    def remove(self, pieces: list[Piece[B]]) -> None:
        for piece in pieces:
            self.items.remove(piece)
            self.size -= piece.size

    # --- space ------------------------------------------------------------------------------------------

    def room_for(self, index: int) -> int:
        """The expected size in bytes of an answer that begins at `index`."""
        return max(self._piece_bytes, self._oversize.get(index, 0))

    def make_room(self, index: int, size: int) -> bool:
        """Drops higher pieces for the missing one at `index`, if that frees enough space."""
        if sum(p.size for p in self.items if p.last < index) + size > self._limit:
            return False
        while self.size + size > self._limit:
            self.remove(self.items[-1:])
        return True

    def trim(self) -> None:
        """Drops the highest pieces until the rest is within the limit. The size of an entry that is larger than a
        chunk is remembered, so that it is fetched again only when there is space for it."""
        while self.size > self._limit:
            piece = self.items[-1]
            self.remove([piece])
            if piece.size > self._piece_bytes:
                self._oversize[piece.first] = piece.size
        self.peak_size = max(self.peak_size, self.size)

    # --- queries ----------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The highest buffered index; 0 if there is none."""
        return self.items[-1].last if self.items else 0

    def run(self, index: int) -> tuple[int, int]:
        """The last index of the consecutive pieces from `index` on, and their size."""
        size = 0
        for piece in self.items:
            if piece.first != index:
                break
            index = piece.last + 1
            size += piece.size
        return index - 1, size

    def gaps(self, first: int, last: int, busy: list[Span]) -> list[Span]:
        """The missing ranges from `first` to `last`, in order; `busy` ranges do not count as missing."""
        gaps = []
        for a, b in sorted([(p.first, p.last) for p in self.items] + busy):
            if a > last:
                break
            if a > first:
                gaps.append((first, a - 1))
            first = max(first, b + 1)
        return [*gaps, (first, last)] if first <= last else gaps

    def _at(self, index: int) -> Piece[B] | None:
        place = bisect_left(self.items, index, key=lambda p: p.last)
        found = self.items[place] if place < len(self.items) else None
        return found if found is not None and found.first <= index else None

    def _insert(self, piece: Piece[B]) -> None:
        self.items.insert(bisect_left(self.items, piece.first, key=lambda p: p.first), piece)
        self.size += piece.size

    def _cut(self, piece: Piece[B], index: int) -> None:
        """Splits a piece in two, the first of which ends at `index`."""
        self.remove([piece])
        middle = index - piece.first + 1
        for part in (piece.entries[:middle], piece.entries[middle:]):
            half = Piece(piece.sender, part)
            half.proven = piece.proven
            self._insert(half)


def received(
    codec: Codec[B], sender: str, asked: Span, max_bytes: int, first: int, entries: Sequence[bytes]
) -> Piece[B]:
    """The piece that answers a request for the span `asked`: consecutive entries from its start. It may be shorter
    than the span, and a single entry may be of any size. Raises `PeerError` for anything else."""
    last = first + len(entries) - 1
    if not entries:
        raise PeerError(f"sent nothing for {asked[0]}-{asked[1]}")
    if first != asked[0] or last > asked[1]:
        raise PeerError(f"sent {first}-{last}, but was asked for {asked[0]}-{asked[1]}")
    chain: list[Sealed[B]] = []
    prev = None
    for index, data in enumerate(entries, first):
        sealed = codec.open(data)
        entry = sealed.entry
        if entry.index != index:
            raise PeerError(f"sent entry {entry.index} as entry {index}")
        if entry.prev != prev and prev is not None:
            raise PeerError(f"sent entries that do not follow each other at {index}")
        prev = sealed.hash
        chain.append(sealed)
    piece = Piece(sender, chain)
    if len(entries) > 1 and piece.size > max_bytes:
        raise PeerError(f"sent {piece.size} bytes, but was asked for {max_bytes}")
    return piece
