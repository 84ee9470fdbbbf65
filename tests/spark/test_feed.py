"""The feed of a channel: which batches a reader may read, without Spark."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from cutwater.spark.feed import Feed, FeedClosed


def fed(*batches: tuple[int, list[str], int], limit: int, max_rows: int = 0) -> Feed:
    feed = Feed("a", -1, max_rows)
    feed.add(batches, limit)
    return feed


def test_a_reader_reads_up_to_the_limit_and_skips_empty_batches() -> None:
    feed = fed((0, ["p"], 10), (1, [], 0), (2, ["q", "r"], 5), (3, ["s"], 1), limit=2)
    assert feed.next_position(None) == 2
    assert feed.files(None, 2) == ["p", "q", "r"]
    assert feed.next_position(2) == 2
    feed.add([], 3)
    assert feed.next_position(2) == 3
    feed.add([(4, [], 0)], 4)
    assert feed.next_position(3) == 3, "the batch is empty"
    feed.add([], 1)
    assert feed.limit == 4, "the limit never goes back"


def test_max_rows_takes_whole_batches_and_at_least_one() -> None:
    batches = [(b, [f"p{b}"], 100) for b in range(10)]
    assert fed(*batches, limit=9, max_rows=250).next_position(None) == 1
    assert fed(*batches, limit=9, max_rows=50).next_position(3) == 4
    assert fed(*batches, limit=9, max_rows=200).next_position(None) == 1


def test_available_now_does_not_grow() -> None:
    feed = fed((0, ["p"], 1), (1, ["q"], 1), limit=0)
    feed.freeze()
    feed.add([], 1)
    assert feed.next_position(None) == 0


def test_a_reader_waits_for_a_planned_batch_that_is_not_known_yet() -> None:
    feed = fed((0, ["p"], 1), limit=0)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(feed.files, None, 2)
        feed.add([(1, ["q"], 1)], 1)
        feed.add([(2, ["r"], 1)], 1)
        assert asked.result(10) == ["p", "q", "r"]


def test_waiting_for_a_batch_ends_with_the_incarnation() -> None:
    feed = fed(limit=-1)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(feed.files, None, 0)
        feed.close()
        with pytest.raises(FeedClosed, match="channel 'a'"):
            asked.result(10)


def test_a_batch_that_never_becomes_known_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutwater.spark.feed.KNOWN_WITHIN_S", 0.05)
    with pytest.raises(RuntimeError, match="batch 0 of channel 'a' is planned"):
        fed(limit=-1).files(None, 0)


def test_the_last_batch_that_spark_asks_for_at_its_start_is_empty() -> None:
    feed = Feed("a", 7)
    assert feed.files(5, 7) == []
    assert feed.next_position(7) == 7


def test_batches_before_the_position_are_forgotten() -> None:
    feed = fed(*[(b, [f"p{b}"], 1) for b in range(5)], limit=4)
    feed.forget(2)
    assert feed.next_position(2) == 4
    assert feed.files(2, 4) == ["p3", "p4"]
    assert feed.next_position(1) == 1, "it is no longer known"
