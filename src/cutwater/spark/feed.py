"""The feed: what one incarnation of a stage may read of one channel.

The member fills it after every step of the protocol. The query's source (see `channel_source.py`) plans its batches from
it without asking the store, and waits in it for news. A position is the number of the last batch read. A batch that is
not in the feed is not an empty batch: its reader waits until it is known.
"""

from __future__ import annotations

from collections.abc import Sequence

from cutwater.spark.news import News

KNOWN_WITHIN_S = 120.0


class FeedClosed(Exception):
    """The incarnation that this feed belongs to has ended."""


class Feed:
    """Filled by the member's loop, read by the threads of a query."""

    def __init__(
        self,
        input: str,
        after: int,
        max_rows: int | None = None,
        incarnation: int = 0,
        news: News | None = None,
    ) -> None:
        self.input = input
        self.incarnation = incarnation
        self.start = after
        """The position at which the incarnation begins."""
        self.known = after
        """The last known batch."""
        self.limit = after
        """The last batch that may be read now, by the hold rule."""
        self._max_rows = max_rows
        self._batches: dict[int, tuple[tuple[str, ...], int]] = {}
        self._frozen: int | None = None
        self._closed = False
        self._position = after
        """Where the next batch begins."""
        self._news = news if news is not None else News()
        self._changed = self._news.changed
        self._news.add_feed(lambda: self._reach(self._position) > self._position)

    def add(self, batches: Sequence[tuple[int, Sequence[str], int]], limit: int) -> None:
        """Add further batches (number, files, rows), in order, and say how far may be read."""
        with self._changed:
            for number, files, rows in batches:
                self._batches[number] = (tuple(files), rows)
                self.known = number
            self.limit = max(self.limit, limit)
            self._changed.notify_all()

    def forget(self, upto: int) -> None:
        """Drop batches up to this one: the reader's log is past them."""
        with self._changed:
            for number in [b for b in self._batches if b <= upto]:
                del self._batches[number]

    def freeze(self) -> None:
        """Read only what is available now."""
        with self._changed:
            self._frozen = self.limit

    def close(self) -> None:
        """End all waits."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def next_position(self, position: int | None) -> int:
        """How far a batch that begins after `position` (`None` at the start) reads: whole batches of the channel, and at
        least one if there is one with rows. May wait for one (see `news.py`)."""
        with self._changed:
            self._position = self.start if position is None else position
        self._news.look(self.input)
        with self._changed:
            return self._reach(self._position)

    def _reach(self, begin: int) -> int:
        reached = begin
        limit = self.limit if self._frozen is None else min(self.limit, self._frozen)
        rows = 0
        for batch in range(begin + 1, limit + 1):
            known = self._batches.get(batch)
            if known is None:
                break
            if known[0]:
                rows += known[1]
                if self._max_rows and rows > self._max_rows and reached > begin:
                    break
                reached = batch
        return reached

    def files(self, after: int | None, upto: int) -> list[str]:
        """The files of the batches in (`after`, `upto`]. When Spark starts, it asks for its last batch again without
        reading it, so there are no files before the start. Waits for a planned batch that is not known yet. Raises
        `FeedClosed` if the incarnation ends meanwhile."""
        found: list[str] = []
        with self._changed:
            for batch in range((self.start if after is None else max(after, self.start)) + 1, upto + 1):
                found += self._known(batch)
        return found

    def _known(self, batch: int) -> tuple[str, ...]:
        if not self._changed.wait_for(lambda: self._closed or batch in self._batches, KNOWN_WITHIN_S):
            raise RuntimeError(
                f"batch {batch} of channel '{self.input}' is planned, but its files did not become known within "
                f"{KNOWN_WITHIN_S:.0f} s"
            )
        if self._closed:
            raise FeedClosed(f"the reader of channel '{self.input}' has been stopped")
        return self._batches[batch][0]
