"""Hands events to observers, outside the turns of the shell.

Every observer has a bounded queue and a thread of its own. So one that is slow, or that never returns, delays neither
the member nor the other observers: when its queue is full, it misses events, and the log says how many. One that raises
an error still gets the next event.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from queue import SimpleQueue
from threading import Thread

from cutwater.protocol.base.events import Event

Observer = Callable[[float, Event], None]
"""Called with each event in order, and the time of its emission in seconds of `time.monotonic`."""

Log = Callable[[str], None]

MAX_QUEUE = 10_000
"""Events that may wait for one observer: many minutes of a busy member."""
FLUSH_S = 10.0
"""How long `close` waits for the observers to process their queues."""


class Dispatcher:
    """Hands every event to all observers. `log` gets a line for observers that fail or miss events."""

    def __init__(self, observers: Mapping[str, Observer], log: Log, max_queue: int = MAX_QUEUE) -> None:
        self._lanes = [_Lane(name, observer, log, max_queue) for name, observer in observers.items()]

    def start(self) -> None:
        for lane in self._lanes:
            lane.thread.start()

    def emit(self, event: Event) -> None:
        """Hands over an event, from any thread. Never waits and never raises."""
        at = time.monotonic()
        for lane in self._lanes:
            lane.offer(at, event)

    def close(self, timeout_s: float = FLUSH_S) -> None:
        """Returns when the observers have seen every event that was emitted, or after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        for lane in self._lanes:
            lane.close()
        for lane in self._lanes:
            if lane.thread.is_alive():
                lane.thread.join(max(0.0, deadline - time.monotonic()))


class _Lane:
    """One observer, its queue and its thread."""

    def __init__(self, name: str, observer: Observer, log: Log, max_queue: int) -> None:
        self.thread = Thread(target=self._run, name=f"cutwater-{name}", daemon=True)
        self._name = name
        self._observer = observer
        self._log = log
        self._max_queue = max_queue
        self._queue: SimpleQueue[tuple[float, Event] | None] = SimpleQueue()
        self._missed = 0
        self._has_failed = False

    def offer(self, at: float, event: Event) -> None:
        if self._queue.qsize() < self._max_queue:
            self._queue.put((at, event))
        else:
            self._missed += 1

    def close(self) -> None:
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            try:
                self._observer(*item)
            except Exception as error:
                self._report_failure(error)
            if self._missed and self._queue.empty():
                self._report_missed()
        self._report_missed()

    def _report_failure(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._say(f"{self._name} failed and will miss an event: {type(error).__name__}: {error}")

    def _report_missed(self) -> None:
        missed, self._missed = self._missed, 0
        if missed:
            self._say(f"{self._name} was too slow and has missed {missed} events")

    def _say(self, line: str) -> None:
        with suppress(Exception):
            self._log(line)
