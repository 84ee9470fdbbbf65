"""How the feeds of a stage follow what its member knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cutwater.protocol.member.channel import BatchUnknown
from cutwater.spark.feed import FeedClosed
from cutwater.spark.feed_updater import FeedUpdater
from cutwater.store.opening import open_store


class Known:
    """A stage that reads channels whose batches are known up to some point."""

    def __init__(self) -> None:
        self.files: dict[int, tuple[str, ...]] = {}
        self.rows: dict[int, int] = {}
        self.limit = -1
        self.consumed: dict[str, int] = {}
        self.is_unknown = False
        self.asked: list[tuple[int, int]] = []

    @property
    def log(self) -> Any:
        return SimpleNamespace(state=SimpleNamespace(consumed=self.consumed))

    def channel(self, name: str) -> Any:
        return SimpleNamespace(between=self._between)

    def _between(self, after: int, upto: int) -> dict[int, tuple[str, ...]]:
        self.asked.append((after, upto))
        if self.is_unknown:
            raise BatchUnknown("of a zombie")
        return {b: self.files[b] for b in sorted(self.files, reverse=True) if after < b <= upto}

    def producer(self, name: str) -> Any:
        batches = {b: SimpleNamespace(rows=rows) for b, rows in self.rows.items()}
        return SimpleNamespace(last=max(self.files, default=-1), batches=batches)

    def readable(self, name: str) -> int:
        return self.limit


@pytest.fixture
def known() -> Any:
    return Known()


def feed_updater(max_rows: int | None = None) -> FeedUpdater:
    sources: Any = {"a": SimpleNamespace(feed=None), "b": SimpleNamespace(feed=None)}
    return FeedUpdater(open_store("memory://"), sources, max_rows)


def test_an_incarnation_begins_with_new_feeds_at_its_positions() -> None:
    made = feed_updater()
    assert made.feeds == {}
    made.open({"a": 4}, 2)
    before = made.feeds
    assert {n: (f.input, f.start, f.known, f.limit, f.incarnation) for n, f in before.items()} == {
        "a": ("a", 4, 4, 4, 2), "b": ("b", -1, -1, -1, 2),
    }  # fmt: skip
    made.open({"a": 5}, 3)
    assert made.feeds["a"] is not before["a"]
    assert made.feeds["a"] is made._channels["a"].feed


def test_feeds_learn_of_each_batch_once_and_how_far_may_be_read(known: Known) -> None:
    made = feed_updater(max_rows=5)
    made.open({"a": 0, "b": 0}, 1)
    known.files = {1: ("p",), 2: (), 3: ("q", "r"), 4: ("s",)}
    known.rows = {1: 3, 3: 3}
    known.limit = 3
    made.fill(known)  # type: ignore[arg-type]
    feed = made.feeds["a"]
    assert (feed.known, feed.limit) == (4, 3)
    assert feed.next_position(None) == 1, "with batch 3 it would be more rows than a batch takes"
    assert feed.files(0, 3) == ["memory:/p", "memory:/q", "memory:/r"]
    known.consumed = {"a": 2}
    made.fill(known)  # type: ignore[arg-type]
    assert known.asked == [(0, 4), (0, 4), (4, 4), (4, 4)]
    assert feed.next_position(1) == 1, "what is logged as read is forgotten"
    assert made.feeds["b"].next_position(1) == 3


def test_what_is_not_known_yet_is_left_for_later(known: Known) -> None:
    made = feed_updater()
    made.open({"a": 0}, 1)
    known.files, known.limit, known.is_unknown = {1: ("p",)}, 1, True
    made.fill(known)  # type: ignore[arg-type]
    assert len(known.asked) == 2, "each channel is asked for"
    assert made.feeds["a"].limit == 0
    known.is_unknown = False
    made.fill(known)  # type: ignore[arg-type]
    assert made.feeds["a"].next_position(None) == 1


def test_nobody_waits_for_a_feed_that_is_closed() -> None:
    made = feed_updater()
    made.open({}, 1)
    made.close()
    for feed in made.feeds.values():
        with pytest.raises(FeedClosed):
            feed.files(None, 0)
