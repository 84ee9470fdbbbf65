"""The word of a barrier injector, in the memory of the process that hosts the stages."""

from __future__ import annotations

from threading import Lock

from cutwater.protocol.member.injector import BarrierRequest, Counters


class LocalWord:
    """A word that the threads of one process share (`protocol/member/injector.py`)."""

    def __init__(self) -> None:
        self.cell = [0]
        self._lock = Lock()
        self._triggered = 0
        self._superseded = 0
        self._last_superseded = 0

    def swap(self, value: int) -> int:
        with self._lock:
            old = self.cell[0]
            self.cell[0] = value
            self._triggered += 1
            if old:
                self._superseded += 1
                self._last_superseded = old
            return old

    def take(self, expected: int) -> bool:
        with self._lock:
            if self.cell[0] != expected:
                return False
            self.cell[0] = 0
            return True

    def counters(self) -> Counters:
        with self._lock:
            return Counters(
                self._triggered,
                self._superseded,
                BarrierRequest.unpack(self.cell[0]),
                BarrierRequest.unpack(self._last_superseded),
            )
