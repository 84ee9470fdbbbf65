"""Watches for Spark's commits: a batch counts only when its commit is in the store (rule 4).

Spark does not report its commits, so each host has a thread that looks for them. It looks only while a commit is due,
and sleeps otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Condition, Thread

from cutwater.store.contract import Store

LOOK_S = 0.005
LOOK_REMOTE_S = 0.1
GIVE_UP_S = 30.0
"""How long to look for one commit; after that the stage's appender finds it with its next poll."""


class CommitWatcher:
    """Calls `on_commit`, in the watcher's thread, when the commit of the last `watch` exists."""

    def __init__(self, store: Store, name: str, on_commit: Callable[[], None]) -> None:
        self._store = store
        self._on_commit = on_commit
        self._changed = Condition()
        self._wanted: str | None = None
        self._until = 0.0
        self._closed = False
        self._is_started = False
        self._thread = Thread(target=self._run, name=f"cutwater-commits-{name}", daemon=True)

    def watch(self, commit: str) -> None:
        """Look for the object `commit` from now on, instead of the previous one."""
        with self._changed:
            self._wanted, self._until = commit, time.monotonic() + GIVE_UP_S
            if not self._is_started and not self._closed:
                self._is_started = True
                self._thread.start()
            self._changed.notify_all()

    def forget(self) -> None:
        """Stop looking."""
        with self._changed:
            self._wanted = None

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._wanted, self._closed = None, True
            self._changed.notify_all()

    def _run(self) -> None:
        while (commit := self._next()) is not None:
            if self._is_there(commit):
                with self._changed:
                    is_wanted = self._wanted == commit
                    if is_wanted:
                        self._wanted = None
                if is_wanted:
                    self._on_commit()
            else:
                time.sleep(LOOK_S if self._store.path(commit) is not None else LOOK_REMOTE_S)

    def _next(self) -> str | None:
        """Wait for a commit to look for; `None` after `close`."""
        with self._changed:
            if self._wanted is not None and time.monotonic() > self._until:
                self._wanted = None
            self._changed.wait_for(lambda: self._closed or self._wanted is not None)
            return None if self._closed else self._wanted

    def _is_there(self, commit: str) -> bool:
        with suppress(OSError):  # the store may answer the next time
            return self._store.exists(commit)
        return False
