"""Threads for work that waits: storage, tables, Spark.

Like the standard library's pool, but for tasks whose result nobody needs; a task costs a third of what it costs there.
The threads do not keep the process alive, because what they wait for may never happen.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread

Task = Callable[[], None]


class Workers:
    """Up to `most` threads, started on demand. A task must not raise."""

    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        self._lock = Lock()
        self._threads: list[Thread] = []
        self._free = 0
        """Idle threads, minus the tasks that are queued for them."""
        self._closed = False

    def offer(self, task: Task) -> bool:
        """Runs a task at once in some thread; `False` if no thread is idle and none can be started."""
        with self._lock:
            if self._closed or (self._free <= 0 and not self._grow()):
                return False
            self._put(task)
            return True

    def submit(self, task: Task) -> None:
        """Runs a task in some thread; does nothing after `close`. Raises `RuntimeError` if not a single thread can be
        started."""
        with self._lock:
            if self._closed:
                return
            if self._free <= 0 and not self._grow() and not self._threads:
                raise RuntimeError("cannot start a thread: this machine or this user has too many")
            self._put(task)

    def _put(self, task: Task) -> None:
        self._free -= 1
        self._tasks.put(task)

    def _grow(self) -> bool:
        """Starts a thread, unless there are enough or the machine allows no more."""
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
        """Starts no further task. Tasks in progress are not waited for."""
        with self._lock:
            self._closed = True
            for _ in self._threads:
                self._tasks.put(None)

    def join(self) -> None:
        """Waits for the tasks that were in progress when it was closed."""
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not self._closed:
                task()
            with self._lock:
                self._free += 1
