"""Hosting a stage: one query after the other, each for one incarnation.

The host starts a query for each incarnation of its stage, and stops it before the next one begins. The query's feeds say
what it may read; the host updates them after every step of the protocol. It reports what the query does to the stage,
which decides what follows (`protocol/member/stage.py`); the host decides nothing.
"""

from __future__ import annotations

import time
from functools import partial
from threading import Lock, Thread
from typing import Any

import msgspec
from pyspark.sql import DataFrame

from cutwater.protocol.base.effects import Pace, StartQuery
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.paths import batch_file_name
from cutwater.protocol.member.stage import Stage, StagePhase
from cutwater.spark.blame import blamed
from cutwater.spark.checkpoint import incarnations, new_folder
from cutwater.spark.checkpoint.folder import MovedPositions, Positions
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.commit_watcher import CommitWatcher
from cutwater.spark.errors import describe, kind_of, spark_is_gone
from cutwater.spark.feed_updater import FeedUpdater
from cutwater.spark.host_context import HostContext, Task
from cutwater.spark.internals.gateway import is_spark_gone
from cutwater.spark.kafka import KafkaSources, is_suspect
from cutwater.spark.micro_batch import BatchWriter
from cutwater.spark.query import QUICK_TRIGGER_S, Query
from cutwater.spark.query_meter import QueryFacts, QueryMeter
from cutwater.spark.stage import PlannedStage

IDLE_LOOK_S = 0.5
"""How often to ask Spark whether a silent query waits for data."""


class StageHost:
    """One hosted stage's queries, one after the other."""

    def __init__(self, context: HostContext, planned: PlannedStage) -> None:
        self.planned = planned
        self.name = planned.name
        self._context = context
        self._feed_updater = FeedUpdater(context.store, planned.channels, planned.max_rows)
        self._meter = QueryMeter()
        self._commits = CommitWatcher(context.store, self.name, self._on_commit)
        self._current: Query | None = None
        self._incarnation = 0
        self._rest: Thread | None = None
        """Waits for Spark to find nothing more to do, for a drain."""
        self._asks_spark = False
        self._idle_due = 0.0
        self._seen: tuple[Any, ...] = ()
        self._lock = Lock()
        self._closed = False
        self.kafka = KafkaSources(context.spark, self.name, planned.plan)

    def move(self, recorded: tuple[Leaf, ...] | None, positions: Positions) -> MovedPositions:
        """The record of the sources and the positions with which the stage starts when it is reset. Raises
        `StoreUnavailable` if Kafka does not answer."""
        return self.kafka.moved(recorded, positions)

    @property
    def query(self) -> Any:
        """Spark's query, while there is one."""
        return self._current.spark if self._current is not None else None

    def measure(self) -> None:
        """Ask Spark about the query, for `facts`. May take long."""
        planned = self.planned
        self._meter.measure(self.query, planned.has_native_source, planned.awaits_news, planned.chained)

    def facts(self) -> QueryFacts:
        """The status of the query, without asking Spark."""
        limits = {name: feed.limit for name, feed in self._feed_updater.feeds.items()}
        return msgspec.structs.replace(self._meter.facts, limits=limits)

    # --- starting and stopping, in threads of the pool -------------------------------------------------

    def start(self, operation: StartQuery) -> None:
        """Starts the query in its incarnation's folder, after its predecessor has ended."""
        try:
            self._start(operation)
        except Exception as error:
            if is_spark_gone(error):  # not an error of the store, and permanent
                raise UserError(spark_is_gone(error)) from error
            raise

    def _start(self, operation: StartQuery) -> None:
        generation, incarnation = operation.generation, operation.incarnation
        context, planned = self._context, self.planned
        with self._lock:
            self._stop_query()
            stage = context.look(lambda: self._find(incarnation))
            if stage is None or self._closed:
                return
            takes_all = operation.pace is Pace.TAKE_ALL
            may_wait = planned.awaits_news and not takes_all
            news = self._feed_updater.open(operation.consumed, incarnation, may_wait)
            self._seen = ()
            query = Query(self._new_writer(generation, incarnation), takes_all, news)
            self._current, self._incarnation = query, incarnation
            context.spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
            trigger_s = planned.trigger_s
            if operation.pace is Pace.QUICK:
                trigger_s = min(trigger_s, QUICK_TRIGGER_S)
            batch = partial(self._run_batch, stage, query)
            try:
                new_folder.claim_sources(
                    context.store,
                    self.name,
                    generation,
                    incarnation,
                    planned.plan.leaves,
                    self.kafka.identified,
                )
                self._refuse_lost(generation, incarnation)
                with context.starting:
                    name, rests = f"{context.pipeline}.{self.name}", operation.pace is not Pace.OWN
                    query.start(planned, name, trigger_s, batch, planned.plan.has_timers and rests)
            except Exception as error:
                failure = error
                context.call(lambda: self._on_end(stage, failure))
                return
            query.watch(partial(self._on_watched, query, stage, operation))
            context.call(lambda: None)  # the next step fills the feeds

    def _refuse_lost(self, generation: int, incarnation: int) -> None:
        """Raises `KafkaLoss` if the query cannot continue because Kafka has lost records."""
        if self.kafka:
            self.kafka.refuse_lost(
                new_folder.claimed_positions(self._context.store, self.name, generation, incarnation)
            )

    def _new_writer(self, generation: int, incarnation: int) -> BatchWriter:
        store, planned, cache = self._context.store, self.planned, self._context.caches[self.name]
        return BatchWriter(
            store, self.name, generation, incarnation,
            incarnations.base_of(store, self.name, generation, incarnation, cache), planned.schema, planned.plan.leaves,
            planned.sinks, planned.has_readers, planned.plan.has_watermark, self._on_prepared, cache,
            planned.rules,
        )  # fmt: skip

    def end(self) -> None:
        """Stop the query: the generation of its stage has ended."""
        query = self._current
        self._context.work(lambda: self._end(query))

    def _end(self, query: Query | None) -> None:
        with self._lock:
            if self._current is query:  # else the next incarnation has begun, and stopped this one
                self._stop_query()

    def close(self) -> None:
        """The run has ended: let no further batch begin."""
        self._closed = True
        self._commits.close()
        if self._current is not None:
            self._current.close()

    def join(self) -> None:
        """Waits until the query has ended."""
        with self._lock:
            self._stop_query()

    def _stop_query(self) -> None:
        query, self._current = self._current, None
        self._incarnation = 0
        self._commits.forget()
        self._feed_updater.close()
        if query is not None:
            query.stop()

    # --- the query's life, in threads of Spark's and of its own ----------------------------------------

    def _run_batch(self, stage: Stage, query: Query, frame: DataFrame, spark_batch: int) -> None:
        """A micro-batch."""
        query.news.batch_began()
        batch = query.began = spark_batch + query.writer.base + 1
        self._report(stage, lambda: stage.batch_began(batch))
        query.writer(frame, spark_batch)

    def _on_prepared(self, batch: int) -> None:
        """The batch's record is there, and Spark is about to commit it: look for that (rule 4)."""
        query = self._current
        if query is not None:
            number = batch - query.writer.base - 1
            self._commits.watch(query.writer.folder + batch_file_name("commits", number))

    def _on_commit(self) -> None:
        self._context.call(self._log_commit)

    def _on_watched(
        self, query: Query, stage: Stage, operation: StartQuery, error: BaseException | None
    ) -> None:
        try:
            if error is None and query.takes_all and query.has_taken_all():
                last = query.last_committed()
                self._report(stage, lambda: stage.query_took_all(last))
                return
            if query.writer.violated is not None:
                self._context.call(partial(self._refuse_rows, stage, query.writer.violated))
                return
            if error is not None and is_suspect(error):
                self._refuse_lost(operation.generation, operation.incarnation)
        except Exception as raised:
            error = raised
        self._context.call(lambda: self._on_end(stage, error))

    def _await_rest(self, query: Query, stage: Stage) -> None:
        last = query.await_rest()
        if last is not None:
            self._report(stage, lambda: stage.query_rested(last))

    def _ask_spark(self, query: Query, stage: Stage) -> None:
        if query.waits():
            self._report(stage, stage.query_waits)
        self._asks_spark = False

    def _report(self, stage: Stage, fact: Task) -> None:
        """Report a fact to the stage in a turn, unless its next incarnation has begun."""
        self._context.call(lambda: fact() if self._is_current(stage) else None)

    # --- in a turn --------------------------------------------------------------------------------------

    def _find(self, incarnation: int) -> Stage | None:
        """The stage, if this incarnation is its newest."""
        stage = self._context.find(self.name)
        return stage if stage is not None and stage.incarnation == incarnation else None

    def _log_commit(self) -> None:
        stage = self._context.find(self.name)
        if stage is not None and not self._closed:
            stage.batch_committed()

    def _is_current(self, stage: Stage) -> bool:
        return not self._closed and self._context.find(self.name) is stage

    def _on_end(self, stage: Stage, error: BaseException | None) -> None:
        """The query has ended, and has not taken everything."""
        if not self._is_current(stage):
            return  # it was stopped for its successor
        if error is not None and is_spark_gone(error):
            raise UserError(spark_is_gone(error))
        why = blamed(self.name, describe(self.name, error), error, self.planned.code)
        stage.query_ended(kind_of(error), why)

    def _refuse_rows(self, stage: Stage, why: str) -> None:
        """A batch has bad rows, and must not have any: another attempt would find the same ones."""
        if self._is_current(stage):
            raise UserError(why)

    def attend(self, stage: Stage) -> None:
        """After every step: brings the feeds up to date, and does what the stage asks for."""
        query = self._current
        if stage.phase in (StagePhase.STOPPED, StagePhase.FENCED):
            if query is not None:
                self.end()
            return
        if query is None or stage.incarnation != self._incarnation:
            return
        if stage.stops_batches:
            query.writer.stopping = True
        is_asking = self._rest is not None and self._rest.is_alive()
        if self.planned.awaits_news and not query.takes_all:
            query.news.allow_waits(not (stage.asks_for_rest or is_asking))
        if (
            stage.asks_for_rest and not query.takes_all and not is_asking
        ):  # asking makes Spark forget what it found
            self._rest = Thread(target=self._await_rest, args=(query, stage), daemon=True)
            self._rest.start()
        self._ask_whether_it_waits(query, stage)
        seen = (
            stage.incarnation, stage.phase, stage.log.view.last, stage.member.journal.index,
            tuple(stage.member.log(i).view.last for i in self._feed_updater.feeds),
        )  # fmt: skip
        if seen != self._seen:
            self._seen = seen
            self._feed_updater.fill(stage)

    def _ask_whether_it_waits(self, query: Query, stage: Stage) -> None:
        if self._asks_spark or time.monotonic() < self._idle_due:
            return
        self._idle_due = time.monotonic() + IDLE_LOOK_S
        if stage.may_be_idle:
            self._asks_spark = True
            self._context.work(lambda: self._ask_spark(query, stage))
