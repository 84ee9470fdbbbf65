"""Updates the feeds of a stage's query from the logs that the member follows."""

from __future__ import annotations

from collections.abc import Mapping

from cutwater.protocol.member.channel import BatchUnknown
from cutwater.protocol.member.stage import Stage
from cutwater.spark.channel_source import ChannelSource
from cutwater.spark.feed import Feed
from cutwater.spark.news import News
from cutwater.store.contract import Store


class FeedUpdater:
    """The feeds of one stage, new ones for each incarnation."""

    def __init__(self, store: Store, channels: Mapping[str, ChannelSource], max_rows: int | None) -> None:
        self.feeds: dict[str, Feed] = {}
        self._store = store
        self._channels = channels
        self._max_rows = max_rows

    def open(self, consumed: Mapping[str, int], incarnation: int, waits: bool = False) -> News:
        """Make new feeds for a new incarnation that begins at these positions. `waits`: whether its query may wait for
        news of them."""
        news = News(waits)
        for name, source in self._channels.items():
            source.feed = Feed(name, consumed.get(name, -1), self._max_rows, incarnation, news)
        self.feeds = {name: source.feed for name, source in self._channels.items()}
        return news

    def fill(self, stage: Stage) -> None:
        """Add new batches to the feeds, and say how far the query may read. Callers must hold the turn."""
        url = self._store.spark_url
        for name, feed in self.feeds.items():
            try:
                fresh = stage.channel(name).between(feed.known, stage.producer(name).last)
            except BatchUnknown:
                continue  # a zombie's position, or a log that this process has yet to read
            rows = {b: logged.rows for b in fresh if (logged := stage.producer(name).batches.get(b))}
            batches = [(b, list(map(url, files)), rows.get(b, 0)) for b, files in sorted(fresh.items())]
            feed.add(batches, stage.readable(name))
            feed.forget(stage.log.state.consumed.get(name, -1))

    def close(self) -> None:
        """Close the feeds. Must come before the query is stopped, because Spark waits for a source that waits."""
        for feed in self.feeds.values():
            feed.close()
