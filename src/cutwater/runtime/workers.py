"""Threads for work that waits: storage, tables, Spark.

Like the standard library's pool, for tasks whose result nobody asks for: they cost a third of what they do there.
The threads do not keep the process alive, because what they wait for may never come.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

Task = Callable[[], None]


class Workers:
    """Up to `most` threads, started when they are needed. A task must not raise."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._free = 0
        """Threads that wait for a task, less the tasks that wait for one of them."""
        self._closed = False

    def offer(self, task: Task) -> bool:
        """Has a task done at once by some thread; `False` if none is free."""
        with self._lock:
            if self._closed or (self._free <= 0 and not self._grow()):
                return False
            self._put(task)
            return True

    def submit(self, task: Task) -> None:
        """Has a task done by some thread; nothing is done any more after `close`. Raises `RuntimeError` if the
        machine gives us not a single thread."""
        with self._lock:
            if self._closed:
                return
            if self._free <= 0 and not self._grow() and not self._threads:
                raise RuntimeError("no thread can be started: too many run on this machine, or for this user")
            self._put(task)

    def _put(self, task: Task) -> None:
        self._free -= 1
        self._tasks.put(task)

    def _grow(self) -> bool:
        """Starts a thread, unless there are enough or the machine gives no more."""
        if len(self._threads) >= self._most:
            return False
        thread = Thread(target=self._work, name=f"{self._name}-{len(self._threads) + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._threads.append(thread)
        self._free += 1
        return True

    def close(self) -> None:
        """Begins no further task; what is under way is left to itself."""
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._tasks.put(None)

    def join(self) -> None:
        """Waits for what was under way when it was closed."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not self._closed:
                task()
            with self._lock:
                self._free += 1
