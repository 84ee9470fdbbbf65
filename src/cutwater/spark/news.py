"""Waiting for news: a query that reads only channels sleeps in its source until there is something to read.

Spark's queries poll: every trigger asks each source how far it reaches. A query whose trigger found nothing asks again,
and then waits in its first source, until *any* of its feeds has something for the next batch. What counts is what the
feeds have, not that they changed, so nothing is missed, and batches without rows wake nobody.

Spark holds a lock of the query meanwhile, and `stop()` and `processAllAvailable()` want it. So a wait is short, ends when
the query is stopped, and there is none while somebody waits for the query to rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Condition

WAIT_S = 1.0
"""The longest wait: for those who stop a query without us."""


class News:
    """What the feeds of one incarnation have for the query's next batch. `waits`: whether the query may wait for it.
    `changed` is notified of every change of a feed, and must be held for one."""

    def __init__(self, waits: bool = False) -> None:
        self.changed = Condition()
        self._waits = waits
        self._feeds: list[Callable[[], bool]] = []
        self._looked: set[str] = set()
        """The sources in which the query has looked since its last batch."""
        self._asleep = False
        self._closed = False

    def add_feed(self, has_news: Callable[[], bool]) -> None:
        """Count this feed in. `has_news` is called with `changed` held."""
        self._feeds.append(has_news)

    def look(self, source: str) -> None:
        """The query looks at a source for its next batch. If it has looked there since its last batch, the trigger before
        found nothing: then wait until there is news, no longer than `WAIT_S`."""
        with self.changed:
            if source in self._looked:
                self._looked.clear()
                self._wait()
            self._looked.add(source)

    def _wait(self) -> None:
        until = time.monotonic() + WAIT_S
        self._asleep = True
        try:
            while self._waits and not self._closed and not self._are_there():
                left_s = until - time.monotonic()
                if left_s <= 0 or not self.changed.wait(left_s):
                    return
        finally:
            self._asleep = False

    def _are_there(self) -> bool:
        return any(has_news() for has_news in self._feeds)

    def batch_began(self) -> None:
        """The next trigger must not wait: Spark may have more to do, such as emitting windows that this batch closes."""
        with self.changed:
            self._looked.clear()

    @property
    def is_awaited(self) -> bool:
        """Whether the query waits, and there is none."""
        with self.changed:
            return self._asleep and not self._are_there()

    def allow_waits(self, allowed: bool) -> None:
        """Whether the query may wait from now on; a wait that is not allowed ends."""
        with self.changed:
            if self._waits != allowed:
                self._waits = allowed
                self.changed.notify_all()

    def close(self) -> None:
        """The query is stopped: end its wait, and allow no other."""
        with self.changed:
            self._closed = True
            self.changed.notify_all()
