"""Threads for work that may wait for the store. They are daemon threads, so none delays the end of the process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import BoundedSemaphore, Thread
from typing import TypeVar

R = TypeVar("R")


class Busy(Exception):
    """All threads are in use."""


class Threads:
    """At most `limit` at once. One that waits for a store that does not answer counts until the store answers, even if
    nobody waits for its result any more."""

    def __init__(self, limit: int, name: str) -> None:
        self._free = BoundedSemaphore(limit)
        self._name = name

    def begin(self, task: Callable[[], None]) -> None:
        """Run a task. Raises `Busy`."""
        if not self._free.acquire(blocking=False):
            raise Busy

        def run() -> None:
            try:
                task()
            finally:
                self._free.release()

        Thread(target=run, name=self._name, daemon=True).start()

    async def result(self, make: Callable[[], R]) -> R:
        """What `make` returns or raises. Raises `Busy`."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def finish(act: Callable[[], None]) -> None:
            with suppress(RuntimeError):  # the loop is closed: the server ends
                loop.call_soon_threadsafe(lambda: None if future.done() else act())

        def run() -> None:
            try:
                found = make()
            except BaseException as error:
                failure = error
                finish(lambda: future.set_exception(failure))
            else:
                finish(lambda: future.set_result(found))

        self.begin(run)
        return await future
