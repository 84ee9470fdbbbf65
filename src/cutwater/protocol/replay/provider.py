"""The serving side of a catch-up: the entries of a log that a member holds, in bounded answers.

A member that is itself catching up serves the entries that its session has delivered. Only entries of the
journal are added, so nothing undecided is served. The size is bounded; dropped entries are served by other
members or by the store.
"""

from __future__ import annotations

from collections.abc import Iterable

from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.replay_wire import AskRange, Compacted, EntriesChunk, FetchEntries, HaveRange


class Provider:
    """The newest entries of a log: those from `first` on, as bytes.

    An answer has at most `max_entries` and `max_bytes`, but at least one entry if it is held: otherwise an
    entry larger than the limit could never be fetched. At most `keep_bytes` are held, and always the newest
    entry.
    """

    def __init__(
        self,
        first: int = 1,
        entries: Iterable[bytes] = (),
        *,
        max_entries: int = 10_000,
        max_bytes: int = 4 << 20,
        keep_bytes: int = 256 << 20,
    ) -> None:
        if first < 1:
            raise UserError(f"provider: the first index of a log is 1, not {first}")
        self._first = first
        self._entries: list[bytes] = []
        self._gone = 0  # number of dropped entries at the front of `_entries`
        self._size = 0
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._keep_bytes = keep_bytes
        self.append(first, entries)

    def available(self) -> tuple[int, int]:
        """The first and the last index held; the last is below the first if none is."""
        return self._first, self._first + len(self._entries) - self._gone - 1

    @property
    def held_bytes(self) -> int:
        """The size of the entries held."""
        return self._size

    def append(self, first: int, entries: Iterable[bytes]) -> None:
        """Adds entries from `first` on. If `first` is beyond the next index (a SNAPSHOT replaced the entries
        between), the older entries are dropped. Raises `UserError` if `first` is already held."""
        following = self.available()[1] + 1
        if first < following:
            raise UserError(f"provider: entry {first} is already held; the next one is {following}")
        if first > following:
            self._first, self._entries, self._gone, self._size = first, [], 0, 0
        new = list(entries)
        self._entries += new
        self._size += sum(map(len, new))
        while self._size > self._keep_bytes and len(self._entries) - self._gone > 1:
            self._drop()
        self._tidy()

    def compact(self, first: int) -> None:
        """Drops all entries below `first`."""
        while self._first < first and self._gone < len(self._entries):
            self._drop()
        self._first = max(self._first, first)
        self._tidy()

    def serve(self, first: int, last: int, max_entries: int, max_bytes: int) -> list[bytes] | int:
        """The entries from `first` on, within all limits, and none if they are not held yet; or the first index held,
        if `first` was compacted away."""
        if first < self._first:
            return self._first
        start = first - self._first + self._gone
        count = min(last - first + 1, max(min(max_entries, self._max_entries), 1))
        room = min(max_bytes, self._max_bytes)
        answer: list[bytes] = []
        for data in self._entries[start : start + max(count, 0)]:
            room -= len(data)
            if room < 0 and answer:
                break
            answer.append(data)
        return answer

    def answer(self, message: AskRange | FetchEntries) -> HaveRange | EntriesChunk | Compacted:
        """The answer to a request."""
        if isinstance(message, AskRange):
            return HaveRange(message.request_id, *self.available())
        served = self.serve(message.first, message.last, self._max_entries, message.max_bytes)
        if isinstance(served, int):
            return Compacted(message.request_id, served)
        return EntriesChunk(message.request_id, message.first, served)

    def _drop(self) -> None:
        self._size -= len(self._entries[self._gone])
        self._entries[self._gone] = b""
        self._gone += 1
        self._first += 1

    def _tidy(self) -> None:
        """Removes dropped entries once they are half of the list, so the cost per entry is small."""
        if self._gone * 2 > len(self._entries):
            del self._entries[: self._gone]
            self._gone = 0
