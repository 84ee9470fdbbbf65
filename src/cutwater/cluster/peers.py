"""What a member knows about one process of another member: whether it is present, and its slots.

A process is *introduced* when it has answered our question with a valid seal. Only then does it count as present, and
only then are its slots visible. The answer has all its slots at one moment. A slot pushed later has a higher number
and wins, a slot deleted later stays deleted, and a late message changes nothing.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")
MAX_WAITING = 100
MAX_WAITING_BYTES = 64 << 20
"""Limits for undelivered mail, by count and by size. Mail beyond them is lost, and the reader asks again."""
MAX_SLOTS = 10_000
MAX_SLOT_BYTES = 256 << 20
"""The limit of slots of one process. It deletes its old ones, so it never comes near."""


class PeerSlots(msgspec.Struct, frozen=True, array_like=True):
    """All slots of a process after its message number `seq`: number and value by key."""

    seq: int
    slots: dict[str, tuple[int, bytes]]


class BoundedQueue(Generic[T]):
    """Undelivered mail, in order."""

    def __init__(self) -> None:
        self._items: deque[tuple[T, int]] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._items)

    def add(self, item: T, size: int) -> None:
        """Adds the item if there is room."""
        if len(self._items) < MAX_WAITING and self._bytes + size <= MAX_WAITING_BYTES:
            self._items.append((item, size))
            self._bytes += size

    def take(self) -> T:
        """The oldest."""
        item, size = self._items.popleft()
        self._bytes -= size
        return item


class Peer:
    """One process of another member."""

    def __init__(self, name: str, boot: str) -> None:
        self.name = name
        self.boot = boot
        self.present = False
        """Whether its liveliness token is present."""
        self.introduced = False
        """Whether it has answered since its token last appeared."""
        self.shown = False
        """Whether it was ever introduced."""
        self.asked: bytes | None = None
        """The nonce of the outstanding question."""
        self.gone_s: float | None = None
        self.order = 0
        self.waiting: BoundedQueue[bytes] = BoundedQueue()
        self._slots: dict[str, tuple[int, bytes | None]] = {}
        self._bytes = 0
        self._high: dict[str, int] = {}
        self._known = 0

    @property
    def alive(self) -> bool:
        return self.present and self.introduced

    def appear(self) -> None:
        """Its token appeared, perhaps again, so it must be asked for its current slots."""
        self.present, self.introduced, self.gone_s = True, False, None

    def vanish(self, now_s: float) -> None:
        """Its token disappeared."""
        self.present, self.introduced, self.asked, self.gone_s = False, False, None, now_s

    def expired(self, now_s: float, grace_s: float) -> bool:
        return self.gone_s is not None and now_s - self.gone_s >= grace_s

    def push(self, stream: str, seq: int, key: str, value: bytes | None) -> bool:
        """Applies a change of a slot; `None` deletes it. Returns whether subscribers must be notified. Numbers only
        grow within each stream, and a change that the last answer already included is not new."""
        if seq <= max(self._known, self._high.get(stream, 0)):
            return False
        self._high[stream] = seq
        if value is None and self.introduced:
            self._drop(key)
        elif not self._keep(key, seq, value):
            return False
        return self.shown and value is not None

    def _drop(self, key: str) -> None:
        _, value = self._slots.pop(key, (0, None))
        self._bytes -= len(value or b"")

    def _keep(self, key: str, seq: int, value: bytes | None) -> bool:
        """Returns whether there was room for the slot."""
        self._drop(key)
        if len(self._slots) >= MAX_SLOTS or self._bytes + len(value or b"") > MAX_SLOT_BYTES:
            return False
        self._slots[key] = seq, value
        self._bytes += len(value or b"")
        return True

    def introduce(self, snapshot: PeerSlots) -> list[tuple[str, bytes]]:
        """Applies its answer. Returns the changes to notify subscribers of, in the order they were written."""
        merged: dict[str, tuple[int, bytes]] = dict(snapshot.slots)
        for key, (seq, value) in self._slots.items():
            if seq > snapshot.seq:
                merged.pop(key, None)
                if value is not None:
                    merged[key] = seq, value
        before = self._slots if self.shown else {}
        news = [(s, k, v) for k, (s, v) in merged.items() if s > before.get(k, (0, None))[0]]
        self._slots = dict(merged)
        self._bytes = sum(len(value) for _, value in merged.values())
        self._known = max(self._known, snapshot.seq)
        self.introduced = self.shown = True
        self.asked = None
        return [(key, value) for _, key, value in sorted(news)]

    def read(self, key: str) -> bytes | None:
        return self._slots.get(key, (0, None))[1] if self.shown else None

    def items(self) -> list[tuple[str, bytes]]:
        """Its slots, in the order they were written."""
        if not self.shown:
            return []
        return [(k, v) for k, (s, v) in sorted(self._slots.items(), key=lambda i: i[1][0]) if v is not None]
