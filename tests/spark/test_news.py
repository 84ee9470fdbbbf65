"""A query that waits for news instead of looking for them: without Spark, and with it."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cutwater.spark import news as news_module
from cutwater.spark.channel_source import ChannelSource
from cutwater.spark.feed import Feed
from cutwater.spark.internals.gateway import accept_calls
from cutwater.spark.news import News
from cutwater.spark.query import WAITING
from tests.support.spark_helpers import await_that

LONG_S = 20.0


@pytest.fixture(autouse=True)
def long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that ends in these tests was woken."""
    monkeypatch.setattr(news_module, "WAIT_S", 60.0)


class Looker:
    """The thread of a query, which looks at one feed after the other."""

    def __init__(self, *feeds: Feed) -> None:
        self.feeds = feeds
        self._pool = ThreadPoolExecutor(1)

    def trigger(self) -> Future[list[int]]:
        """How far each feed reaches for the batch after its start."""
        return self._pool.submit(lambda: [feed.next_position(feed.start) for feed in self.feeds])

    def found_nothing(self) -> None:
        assert self.trigger().result(LONG_S) == [feed.start for feed in self.feeds]

    def sleep(self, news: News) -> Future[list[int]]:
        """A trigger that waits."""
        asked = self.trigger()
        await_that("the query waits", lambda: news.is_awaited, LONG_S)
        return asked


@pytest.fixture
def news() -> News:
    return News(waits=True)


@pytest.fixture
def pair(news: News) -> tuple[Feed, Feed]:
    return Feed("a", -1, news=news), Feed("b", -1, news=news)


@pytest.mark.parametrize("which", [0, 1])
def test_a_query_that_found_nothing_waits_until_any_of_its_feeds_has_rows(
    news: News, pair: tuple[Feed, Feed], which: int
) -> None:
    looker = Looker(*pair)
    looker.found_nothing()
    assert not news.is_awaited
    asked = looker.sleep(news)
    pair[which].add([(0, ["p"], 1)], 0)
    reached = [-1, -1]
    reached[which] = 0
    assert asked.result(LONG_S) == reached
    assert not news.is_awaited


def test_a_query_does_not_wait_for_rows_that_came_between_two_triggers(
    news: News, pair: tuple[Feed, Feed]
) -> None:
    looker = Looker(*pair)
    looker.found_nothing()
    pair[1].add([(0, ["p"], 1)], 0)
    assert looker.trigger().result(LONG_S) == [-1, 0]


def test_batches_without_rows_and_those_that_may_not_be_read_yet_end_no_wait(
    news: News, pair: tuple[Feed, Feed]
) -> None:
    looker = Looker(*pair)
    looker.found_nothing()
    asked = looker.sleep(news)
    pair[0].add([(0, [], 0), (1, ["p"], 1)], 0)
    assert news.is_awaited
    pair[0].add([], 1)
    assert asked.result(LONG_S) == [1, -1]


def test_a_query_does_not_wait_after_a_batch_so_that_closed_windows_are_emitted_at_once(
    news: News, pair: tuple[Feed, Feed]
) -> None:
    looker = Looker(*pair)
    looker.found_nothing()
    news.batch_began()
    looker.found_nothing()
    asked = looker.sleep(news)
    news.close()
    asked.result(LONG_S)


@pytest.mark.parametrize("end", [News.close, lambda news: news.allow_waits(False)])
def test_a_wait_ends_when_the_query_is_stopped_or_has_to_rest_and_no_other_begins(
    news: News, pair: tuple[Feed, Feed], end: Any
) -> None:
    looker = Looker(*pair)
    looker.found_nothing()
    asked = looker.sleep(news)
    end(news)
    assert asked.result(LONG_S) == [-1, -1]
    for _ in range(3):
        looker.found_nothing()


def test_a_query_waits_again_after_a_drain_that_was_aborted(news: News, pair: tuple[Feed, Feed]) -> None:
    looker = Looker(*pair)
    news.allow_waits(False)
    looker.found_nothing()
    looker.found_nothing()
    news.allow_waits(True)
    asked = looker.sleep(news)
    news.close()
    asked.result(LONG_S)


def test_a_wait_is_short_even_if_nothing_ends_it(news: News, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(news_module, "WAIT_S", 0.05)
    looker = Looker(Feed("a", -1, news=news))
    looker.found_nothing()
    begun = time.monotonic()
    looker.found_nothing()
    assert time.monotonic() - begun >= 0.05
    assert not news.is_awaited


def test_a_query_that_may_not_wait_never_does() -> None:
    looker = Looker(Feed("a", -1, news=News()))
    for _ in range(5):
        looker.found_nothing()


# --- with Spark -------------------------------------------------------------------------------------------

COLUMNS = StructType().add("id", "long").add("ts", "timestamp")


class Reading:
    """A query over one channel that waits, with what it has read and how often it has looked."""

    def __init__(self, spark: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        accept_calls(spark)
        self.spark, self.folder = spark, folder
        self.news = News(waits=True)
        self.source = ChannelSource(spark, "reader", "a", COLUMNS.json())
        self.source.feed = Feed("a", -1, news=self.news)
        self.batches: list[list[int]] = []
        self.looks = 0
        look = self.news.look

        def counted(source: str) -> None:
            self.looks += 1
            look(source)

        monkeypatch.setattr(self.news, "look", counted)

    def put(self, batch: int, ids: range, minute: int = 0) -> None:
        name = self.folder / f"data/1-{batch}-x"
        rows = self.spark.range(ids.start, ids.stop).selectExpr(
            "id", f"timestamp '2026-01-01 00:{minute:02d}:00' as ts"
        )
        rows.coalesce(1).write.parquet(str(name))
        self.source.feed.add(
            [(batch, [f"file://{path}" for path in name.glob("*.parquet")], len(ids))], batch
        )

    def start(self, frame: DataFrame) -> Any:
        def keep(rows: DataFrame, batch: int) -> None:
            self.news.batch_began()
            self.batches.append(sorted(row[0] for row in rows.collect()))

        writer = frame.writeStream.foreachBatch(keep).trigger(processingTime="0 milliseconds")
        return writer.option("checkpointLocation", str(self.folder / "checkpoint")).start()


@pytest.mark.slow
def test_sparks_query_sleeps_is_woken_rests_and_stops(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(spark, tmp_path, monkeypatch)
    query = reading.start(reading.source.frame())
    try:
        await_that("it waits after its first batch", lambda: reading.news.is_awaited, 60)
        looks = reading.looks
        assert query.status["message"] != WAITING, "so the news must say that the query waits"
        reading.put(0, range(3))
        await_that("it reads the rows", lambda: [0, 1, 2] in reading.batches, 60)
        await_that("it waits again", lambda: reading.news.is_awaited, 60)
        assert reading.looks - looks <= 3, "one that was woken, one after the batch, one that waits"
        reading.news.allow_waits(False)
        begun = time.monotonic()
        query.processAllAvailable()
        assert time.monotonic() - begun < 30, "and not until the wait is over"
        reading.news.allow_waits(True)
        await_that("it waits again", lambda: reading.news.is_awaited, 60)
    finally:
        reading.news.close()
        begun = time.monotonic()
        query.stop()
    assert time.monotonic() - begun < 30
    assert [batch for batch in reading.batches if batch] == [[0, 1, 2]]


@pytest.mark.slow
def test_a_window_that_the_last_rows_close_is_emitted_without_a_wait(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading = Reading(spark, tmp_path, monkeypatch)
    windows = reading.source.frame().withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute"))
    query = reading.start(windows.count().selectExpr("count"))
    try:
        reading.put(0, range(3))
        reading.put(1, range(3, 5), minute=10)
        await_that("the first window is emitted", lambda: [3] in reading.batches, 60)
    finally:
        reading.news.close()
        query.stop()
