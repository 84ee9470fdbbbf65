"""One incarnation's query: starting it, asking Spark about it, stopping it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Any

from pyspark.sql import DataFrame

from cutwater.protocol.base.paths import BatchKind, batch_file_of, batch_files_prefix
from cutwater.spark.internals.gateway import CALL_ERRORS
from cutwater.spark.internals.queries import found_nothing_new, is_one_batch
from cutwater.spark.micro_batch import BatchWriter
from cutwater.spark.news import News
from cutwater.spark.stage import PlannedStage

QUICK_TRIGGER_S = 0.1
"""How often a query that must end soon looks for new rows, whatever its trigger is."""

WAITING = "Waiting for data to arrive"
"""Spark's status message for a query whose last trigger found nothing to do."""

NO_DATA_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
ENDS_WITHIN_S = 60
LOOK_AGAIN_S = 0.1

Batch = Callable[[DataFrame, int], None]


class Query:
    """A query in its incarnation's folder. `takes_all`: it reads what is available now, and then ends. `news`: that of
    its feeds."""

    def __init__(self, writer: BatchWriter, takes_all: bool, news: News) -> None:
        self.writer = writer
        self.takes_all = takes_all
        self.news = news
        self.spark: Any = None
        """Spark's StreamingQuery, after the start."""
        self.began = -1
        """The last batch that has begun, by the log's count."""
        self._ended = Event()
        self._ended.set()
        self._closed = False

    def start(
        self, planned: PlannedStage, name: str, trigger_s: float, batch: Batch, for_data_only: bool = False
    ) -> None:
        """Start the query; raises what Spark raises. `for_data_only`: it runs no batch without new data, so that it can
        become idle although it has timers. No other query of this session may be started at the same time: Spark copies
        the setting when a query starts."""
        starter = (
            planned.frame.writeStream.foreachBatch(batch).outputMode(planned.output_mode).queryName(name)
        )
        folder = self.writer.store.spark_url(self.writer.folder.rstrip("/"))
        starter = starter.option("checkpointLocation", folder)
        if self.takes_all:
            starter = starter.trigger(availableNow=True)
        else:
            starter = starter.trigger(processingTime=f"{int(trigger_s * 1000)} milliseconds")
        if not for_data_only:
            self.spark = starter.start()
        else:
            settings = planned.frame.sparkSession.conf
            settings.set(NO_DATA_BATCHES, "false")
            try:
                self.spark = starter.start()
            finally:
                settings.set(NO_DATA_BATCHES, "true")
        self._ended.clear()

    def watch(self, on_end: Callable[[BaseException | None], None]) -> None:
        """Call `on_end`, in a new thread, when the query has ended, with the error that ended it."""
        Thread(target=self._watch, args=(on_end,), daemon=True).start()

    def _watch(self, on_end: Callable[[BaseException | None], None]) -> None:
        error: BaseException | None = None
        try:
            self.spark.awaitTermination()
        except Exception as raised:
            error = raised
        finally:
            self._ended.set()
        on_end(error)

    def close(self) -> None:
        """Let no further batch begin, and stop waiting for the store and for news."""
        self.writer.stopping = self._closed = True
        self.news.close()

    def stop(self) -> None:
        """Stop the query, and wait until it has ended. Its feeds must already be closed."""
        self.close()
        if self.spark is not None:
            with suppress(*CALL_ERRORS):  # Spark has ended, and the query with it
                self.spark.stop()
            self._ended.wait(ENDS_WITHIN_S)

    # --- asking Spark ------------------------------------------------------------------------------

    def waits(self) -> bool:
        """Whether the last trigger found nothing to do, and no batch is running."""
        if self.news.is_awaited:
            return True
        try:
            status = self.spark.status
            return bool(status["message"] == WAITING and not status["isTriggerActive"])
        except Exception:
            return False  # the query has ended; its watcher reports why

    def await_rest(self) -> int | None:
        """Wait until Spark finds nothing to do: neither new data nor a reason to run without. Returns the last committed
        batch, by the log's count, or `None` if the query has ended. If a batch began just when Spark answered, there may
        be more to do: then asks again."""
        while not self._closed:
            began = self.began
            try:
                self.spark.processAllAvailable()
            except Exception:
                return None  # the watcher of the query reports why
            last = self.last_committed()
            if began == self.began:
                return last
        return None

    def has_taken_all(self) -> bool:
        """Whether the query has ended because it has read everything. Spark ends it when it finds nothing new in the
        sources, and remembers that; a query that was stopped has not looked, even between two batches. A source that
        cannot say what is available now is read in one batch, without another look."""
        if found_nothing_new(self.spark):
            return True
        last = self.writer.last
        if last is None or not is_one_batch(self.spark):
            return False
        return last in self._numbers("commits") and max(self._numbers("offsets")) <= last

    def last_committed(self) -> int:
        """The last batch that Spark has committed in this folder, by the log's count; waits until the store answers."""
        return max(self._numbers("commits"), default=-1) + self.writer.base + 1

    def _numbers(self, kind: BatchKind) -> list[int]:
        """The batches that Spark has planned or committed, by Spark's count; none after `close`."""
        folder = self.writer.folder
        while not self._closed:
            try:
                names = self.writer.store.list(folder + batch_files_prefix(kind))
            except OSError:
                time.sleep(LOOK_AGAIN_S)
                continue
            files = (batch_file_of(name.removeprefix(folder)) for name in names)
            return [file.batch for file in files if file is not None]
        return []
