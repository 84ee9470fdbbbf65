"""Hosting a stage: one query after the other, each for one incarnation.

A query is started for each incarnation of its stage, and stopped before the next one begins. What it may
read is in its feeds, which are brought up to date after every step of the protocol. Whether it has nothing
more to do, which a drain asks for, is answered by Spark itself: `processAllAvailable` returns when a
trigger has found neither new data nor a reason to run without. A source that never ends is brought to rest
by one more incarnation of the query that takes what is available now and then ends.
"""

from __future__ import annotations

import time
from functools import partial
from threading import Lock, Thread
from typing import Any

from pyspark.sql import DataFrame

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.member.journal import Fate, fate
from cutwater.protocol.member.stage import QueryEnd, Stage, StagePhase
from cutwater.spark.checkpoint import incarnations as folders
from cutwater.spark.commit_watcher import CommitWatcher
from cutwater.spark.errors import STOPPED, describe, is_spark_gone, kind_of, spark_is_gone, was_asked
from cutwater.spark.feed import Feed
from cutwater.spark.feeding import Feeding
from cutwater.spark.micro_batch import BatchWriter
from cutwater.spark.query import QUICK_TRIGGER_S, Query
from cutwater.spark.stage import BuiltStage
from cutwater.spark.surroundings import Surroundings

REST_WITHIN_S = 3.0
"""How long a drain waits for a source to fall silent by itself."""

IDLE_LOOK_S = 0.5


class StageHost:
    """One hosted stage's queries, one after the other."""

    def __init__(self, around: Surroundings, built: BuiltStage) -> None:
        self.built = built
        self.name = built.name
        self.is_root = not built.inputs
        self.finished = False
        """Whether the query has taken everything that was available, and ended."""
        self.error = ""
        """Why the query ended that was lost last."""
        self.active_at = time.monotonic()
        """When the query was last started, or last had a batch under way or logged."""
        self._around = around
        self._feeding = Feeding(around.store, built.channels, built.max_rows)
        self._commits = CommitWatcher(around.store, self.name, lambda: around.poke(f"stage {self.name}"))
        self._current: Query | None = None
        self._incarnation = 0
        self._in_batch = False
        self._asks_spark = False
        self._available_now = False
        self._hurries = False
        """Whether the query has a quick trigger instead of its own, for the sake of a drain."""
        self._rest: Thread | None = None
        self._seen: tuple[Any, ...] = ()
        self._idle_due = 0.0
        self._last = -1
        self._lock = Lock()
        self._closed = False

    @property
    def query(self) -> Any:
        """Spark's query, while there is one."""
        return self._current.spark if self._current is not None else None

    @property
    def feeds(self) -> dict[str, Feed]:
        return self._feeding.feeds

    # --- starting and stopping, in threads of the pool -------------------------------------------------

    def start(self, generation: int, incarnation: int) -> None:
        """Starts the query in its incarnation's folder, after its predecessor has ended."""
        try:
            self._start(generation, incarnation)
        except Exception as error:
            if is_spark_gone(error):  # which is no trouble with the store, and does not pass
                raise UserError(spark_is_gone(error)) from error
            raise

    def _start(self, generation: int, incarnation: int) -> None:
        around, built = self._around, self.built
        with self._lock:
            self._stop_query()
            stage = around.find(self.name)
            if stage is None or stage.incarnation != incarnation or self._closed:
                return
            self._feeding.open(stage)
            self._seen = ()
            takes_all = self._available_now or (around.once and self.is_root)
            query = Query(self._new_writer(generation, incarnation), takes_all)
            self.finished = False
            self._in_batch = False
            self.active_at = time.monotonic()
            self._current, self._incarnation = query, incarnation
            around.spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
            batch = partial(self._run_batch, stage, query.writer)
            try:
                folders.claim_sources(around.store, self.name, generation, incarnation, built.plan.leaves)
                query.start(built, f"{around.pipeline}.{self.name}", self._trigger_s(), batch)
            except Exception as error:
                failure = error
                around.call(lambda: self._on_end(stage, failure, False))
                return
            query.watch(partial(self._on_watched, query, stage))
            around.call(lambda: None)  # the next step fills the feeds

    def _new_writer(self, generation: int, incarnation: int) -> BatchWriter:
        store, built = self._around.store, self.built
        return BatchWriter(
            store, self.name, generation, incarnation,
            folders.base_of(store, self.name, generation, incarnation), built.schema, built.plan.leaves,
            built.sinks, built.has_readers, built.plan.has_watermark, self._on_prepared,
        )  # fmt: skip

    def _trigger_s(self) -> float:
        own_s = self.built.trigger_s
        return min(own_s, QUICK_TRIGGER_S) if self._hurries or self._around.once else own_s

    def end(self) -> None:
        """The generation of its stage is over: the query must not go on."""
        query = self._current
        self._around.work(lambda: self._end(query))

    def _end(self, query: Query | None) -> None:
        with self._lock:
            if self._current is query:  # else the next incarnation has begun, and stopped this one
                self._stop_query()

    def close(self) -> None:
        """The run is over: no further batch begins."""
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
        self._feeding.close()
        if query is not None:
            query.stop()

    # --- the query's life, in threads of Spark's and of its own ----------------------------------------

    def _run_batch(self, stage: Stage, writer: BatchWriter, frame: DataFrame, spark_batch: int) -> None:
        """A micro-batch. However long it takes, the stage is not idle meanwhile."""
        self._in_batch = True
        if stage.idle:
            self._around.call(lambda: self._settle_idle(stage))
        try:
            writer(frame, spark_batch)
        finally:
            self.active_at = time.monotonic()
            self._in_batch = False

    def _on_prepared(self, batch: int) -> None:
        """The batch's record is there, and Spark is about to commit it: look for that (rule 4)."""
        query = self._current
        if query is not None:
            self._commits.watch(f"{query.writer.folder}commits/{batch - query.writer.base - 1}")

    def _on_watched(self, query: Query, stage: Stage, error: BaseException | None) -> None:
        finished = False
        if error is None and query.takes_all:
            try:
                finished = query.has_taken_all()
            except Exception as raised:
                error = raised
        self._around.call(lambda: self._on_end(stage, error, finished))

    # --- how the query ended, in a turn ----------------------------------------------------------------

    def _on_end(self, stage: Stage, error: BaseException | None, finished: bool) -> None:
        around = self._around
        if self._closed or around.find(self.name) is not stage:
            return  # it was stopped for its successor
        if finished:
            self.finished = True
            around.poke(f"stage {self.name}")
            return
        if error is not None and is_spark_gone(error):
            raise UserError(spark_is_gone(error))
        if stage.phase is not StagePhase.RUNNING:
            stage.query_ended(QueryEnd.STOPPED, STOPPED)  # it has nothing to do for now
            return
        if error is not None and was_asked(error):
            return  # it was to rest for a drain that was just aborted: `_see_to_drain` starts it again
        self.error = describe(self.name, error, self.built.has_native_source)
        after_ms = stage.query_ended(kind_of(error), self.error)
        if after_ms is None:
            around.tell(f"stage '{self.name}' is given up after {self.restarts} tries: {self.error}")
            return
        around.tell(
            f"stage '{self.name}' {'has lost its query' if error is None else 'failed'} and is started again in "
            f"{after_ms / 1000:g} s ({self.restarts} of {around.restarts}): {self.error}"
        )

    @property
    def restarts(self) -> int:
        """How often in a row its query has ended without a batch in between."""
        stage = self._around.find(self.name)
        return stage.member.tries.get(self.name, 0) if stage is not None else 0

    # --- after every step, in its turn ------------------------------------------------------------------

    def attend(self, stage: Stage) -> None:
        """Brings feeds up to date and sees to drains."""
        if stage.phase in (StagePhase.STOPPED, StagePhase.FENCED):
            if self._current is not None:
                self.end()
            return
        if stage.incarnation != self._incarnation:
            return
        log = stage.log
        if time.monotonic() > self._idle_due:
            self._settle_idle(stage)
        seen = (
            stage.incarnation, stage.phase, stage.draining, self.finished, log.view.last,
            stage.member.journal.index, tuple(stage.member.log(i).view.last for i in self.feeds),
        )  # fmt: skip
        if seen == self._seen and not stage.draining:
            return
        self._seen = seen
        if log.state.last != self._last:
            self._last = log.state.last
            self.active_at = time.monotonic()
            self._settle_idle(stage)
        self._feeding.fill(stage)
        self._see_to_drain(stage)

    def _settle_idle(self, stage: Stage) -> None:
        """A stage is idle when its query has ended with all that was there, or when it has been silent for long and
        Spark says that it waits. A query that is only just starting, or has a long batch under way, is silent too."""
        self._idle_due = time.monotonic() + IDLE_LOOK_S
        query = self._current
        if self.finished or not self._is_silent(stage):
            stage.idle = self.finished
        elif not stage.idle and not self._asks_spark and query is not None:
            self._asks_spark = True
            self._around.work(lambda: self._ask_spark(query, stage))

    def _is_silent(self, stage: Stage) -> bool:
        silent_s = time.monotonic() - self.active_at
        return silent_s > self._around.idle_after_s and not self._in_batch and not stage.has_unread()

    def _ask_spark(self, query: Query, stage: Stage) -> None:
        """In a thread of the pool."""
        waits = query.waits()
        self._around.call(lambda: self._on_spark_says(stage, waits))

    def _on_spark_says(self, stage: Stage, waits: bool) -> None:
        self._asks_spark = False
        stage.idle = waits and self._is_silent(stage)

    # --- coming to rest ---------------------------------------------------------------------------------

    def _see_to_drain(self, stage: Stage) -> None:
        query = self._current
        if stage.phase is StagePhase.RESTING:
            if self.built.has_native_source and query is not None:
                query.writer.stopping = True
            return
        if not stage.draining:
            drains = (begun.flags & Flags.DRAIN for begun in stage.member.journal.state.open.values())
            if any(drains):
                return  # this incarnation has not heard of the drain yet
            if stage.quiet:
                stage.quiet = False
            is_stopping = query is not None and query.writer.stopping and not self.finished
            if self._available_now or self._hurries or is_stopping:
                self._available_now = self._hurries = False  # the drain was aborted: go on as before
                self._around.restart(self.name)
            return
        if self._is_too_slow(stage):
            self._hurries = True
            self._around.restart(self.name)
            return
        if stage.quiet or not self._input_is_done(stage) or query is None:
            return
        if self.finished:
            self._be_quiet_when_logged(query, stage)
        elif self._rest is None or not self._rest.is_alive():
            self._rest = Thread(target=self._await_rest, args=(query, stage), daemon=True)
            self._rest.start()
            self._around.later(REST_WITHIN_S, lambda: self._be_done_with(stage))

    def _is_too_slow(self, stage: Stage) -> bool:
        """Whether the query would not look at its channels for longer than a drain waits. (That of a root takes what
        is available now.)"""
        runs = self._current is not None and not self._current.has_ended and not self._in_batch
        return runs and not self.is_root and not stage.quiet and self._trigger_s() > REST_WITHIN_S

    def _input_is_done(self, stage: Stage) -> bool:
        """Whether every input has its barrier of the drain, and nothing is left to read before it."""
        state = stage.member.journal.state
        drains = [e for e in state.open if fate(state, e) is Fate.OPEN]
        for name in self.built.inputs:
            if not any(e in stage.producer(name).barriers for e in drains):
                return False
        return not stage.has_unread()

    def _await_rest(self, query: Query, stage: Stage) -> None:
        """Waits for Spark to find nothing more to do."""
        try:
            query.spark.processAllAvailable()
        except Exception:
            return  # the query has ended; whoever watches it knows why
        last = query.last_committed()
        self._around.call(lambda: self._rested(stage, last))

    def _rested(self, stage: Stage, last: int) -> None:
        if stage.log.state.last >= last and not stage.has_unread() and stage.draining:
            self._be_quiet(stage)
        self._rest = None

    def _be_quiet_when_logged(self, query: Query, stage: Stage) -> None:
        def look() -> None:
            last = query.last_committed()
            self._around.call(lambda: self._rested(stage, last))

        if self._rest is None:
            self._rest = Thread(target=look, daemon=True)
            self._rest.start()

    def _be_quiet(self, stage: Stage) -> None:
        if not stage.quiet:
            stage.quiet = True
            self._around.poke(f"stage {self.name}")

    def _be_done_with(self, stage: Stage) -> None:
        """A source that does not fall silent: take what is available now, and end."""
        current = self._around.find(self.name)
        if stage is not current or stage.quiet or not stage.draining or self._available_now or self.finished:
            return
        if not self.built.has_native_source or not self._input_is_done(stage):
            return
        self._available_now = True
        self._around.restart(self.name)
