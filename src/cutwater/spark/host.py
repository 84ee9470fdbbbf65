"""Hosting a stage's query: starting, feeding, watching and stopping it.

A query is started for each incarnation of its stage, and stopped before the next one begins. What it may
read is in its feeds, which are brought up to date after every step of the protocol. Whether it has nothing
more to do, which a drain asks for, is answered by Spark itself: `processAllAvailable` returns when a
trigger has found neither new data nor a reason to run without. A source that never ends is brought to rest
by one more incarnation of the query that takes what is available now and then ends.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import DataFrame

from cutwater.plan.build import BuiltStage
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.durations import seconds
from cutwater.protocol.base.effects import StartQuery
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.member import channel
from cutwater.protocol.member.journal import Fate, fate
from cutwater.protocol.member.stage import QueryEnd, Stage, StagePhase
from cutwater.spark.checkpoint import incarnations as folders
from cutwater.spark.checkpoint.leaves import SourcesChanged
from cutwater.spark.feed import Feed, FeedClosed
from cutwater.spark.micro_batch import BatchWriter, StopAsked

if TYPE_CHECKING:
    from cutwater.runtime.runtime import Runtime

REST_WITHIN_S = 3.0
"""How long a drain waits for a source to fall silent by itself."""

QUICK_TRIGGER_S = 0.1
"""How often a query looks for new rows that is to end soon, with `once` or for a drain, whatever its trigger is."""

STOPPED = (
    "something else than Cutwater has stopped its query: spark.streams, a listener, a notebook's stop button"
)
"""What is said of a query that has ended without an error, although it was to go on."""

IDLE_LOOK_S = 0.5
WAITING = "Waiting for data to arrive"
"""What Spark says of a query whose last trigger has found nothing to do."""

COMMIT_LOOK_S = 0.005
COMMIT_LOOK_REMOTE_S = 0.1


class StageHost:
    """One hosted stage's queries, one after the other."""

    def __init__(self, runtime: Runtime, built: BuiltStage) -> None:
        self.runtime = runtime
        self.built = built
        self.name = built.name
        self.is_root = not built.definition.inputs
        self.finished = False
        """Whether the query has taken everything that was available, and ended."""
        self.error = ""
        self.query: Any = None
        self.writer: BatchWriter | None = None
        self.feeds: dict[str, Feed] = {}
        self.active_at = time.monotonic()
        """When the query was last started, or last had a batch under way or logged."""
        self._in_batch = False
        self._asks_spark = False
        self._incarnation = 0
        self._current: tuple[Stage | None, int, int] = None, 0, 0
        """The stage, its generation and its incarnation, as of the last step of the protocol."""
        self._available_now = False
        self._hurries = False
        """Whether the query has a quick trigger instead of its own, for the sake of a drain."""
        self._rest: Thread | None = None
        self._seen: tuple[Any, ...] = ()
        self._idle_due = 0.0
        self._last = -1
        self._lock = Lock()
        self._ended = Event()
        self._ended.set()
        self._closed = False

    # --- starting and stopping, in threads of the pool -------------------------------------------------

    def start(self, operation: StartQuery) -> None:
        """Starts the query in its incarnation's folder, after its predecessor has ended."""
        try:
            self._start(operation)
        except Exception as error:
            if is_spark_gone(error):  # which is no trouble with the store, and does not pass
                raise UserError(spark_is_gone(error)) from error
            raise

    def _start(self, operation: StartQuery) -> None:
        generation, incarnation = operation.generation, operation.incarnation
        with self._lock:
            self._stop_query()
            runtime, (stage, *current) = self.runtime, self._current
            if stage is None or current != [generation, incarnation] or self._closed:
                return
            definition = self.built.definition
            self._open_feeds(operation)
            prefix = f"stages/{self.name}/{generation}/spark/{incarnation}"
            self.writer = BatchWriter(
                runtime.store, self.name, generation, incarnation,
                folders.base_of(runtime.store, self.name, generation, incarnation), self.built.schema,
                self.built.plan.leaves, definition.sinks, self.built.has_readers, self.built.plan.has_watermark,
                self._on_prepared,
            )  # fmt: skip
            self.finished = False
            self._in_batch = False
            self.active_at = time.monotonic()
            self._incarnation = incarnation
            spark = runtime.built.spark
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
            batch = partial(self._run_batch, stage, self.writer)
            writer = self.built.frame.writeStream.foreachBatch(batch).outputMode(definition.output_mode)
            writer = writer.queryName(f"{runtime.built.name}.{self.name}")
            writer = writer.option("checkpointLocation", runtime.store.spark_url(prefix))
            takes_all = self._available_now or (runtime.settings.once and self.is_root)
            if takes_all:
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(processingTime=f"{int(self._trigger_s() * 1000)} milliseconds")
            try:
                folders.claim_sources(
                    runtime.store, self.name, generation, incarnation, self.built.plan.leaves
                )
                self.query = writer.start()
            except Exception as error:
                failure = error
                runtime.shell.call(lambda: self._on_end(stage, failure, False))
                return
            self._ended = Event()
            watched = self.query, stage, self._ended, self.writer if takes_all else None
            Thread(target=self._watch, args=watched, daemon=True).start()
            runtime.shell.call(lambda: None)  # the next step fills the feeds

    def _trigger_s(self) -> float:
        own_s = seconds(self.built.definition.trigger)
        return min(own_s, QUICK_TRIGGER_S) if self._hurries or self.runtime.settings.once else own_s

    def end(self) -> None:
        """Its stage is of a generation that is over: the query must not go on."""
        self._current = None, 0, 0
        writer = self.writer
        self.runtime.shell.work(lambda: self._end(writer))

    def _end(self, writer: BatchWriter | None) -> None:
        with self._lock:
            if self.writer is writer:  # else the next incarnation has begun, and stopped this one
                self._stop_query()

    def close(self) -> None:
        """The run is over: no further batch begins."""
        self._closed = True
        if self.writer is not None:
            self.writer.stopping = True

    def join(self) -> None:
        """Waits until the query has ended."""
        with self._lock:
            self._stop_query()

    def _stop_query(self) -> None:
        query, self.query = self.query, None
        if self.writer is not None:
            self.writer.stopping = True
        self._incarnation = 0
        for feed in self.feeds.values():
            feed.close()  # Spark waits for a source that waits
        if query is not None:
            with suppress(Py4JError, ConnectionError):  # Spark is gone, and the query with it
                query.stop()
            self._ended.wait(60)

    def _watch(self, query: Any, stage: Stage, ended: Event, takes_all: BatchWriter | None) -> None:
        """Waits for the end of a query; `takes_all` is the writer of one that ends when it has taken everything."""
        error: BaseException | None = None
        finished = False
        try:
            try:
                query.awaitTermination()
            finally:
                ended.set()
            finished = takes_all is not None and self._has_taken_all(query, takes_all)
        except Exception as raised:
            error = raised
        self.runtime.shell.call(lambda: self._on_end(stage, error, finished))

    def _has_taken_all(self, query: Any, writer: BatchWriter) -> bool:
        """Whether a query has ended because everything is taken. Spark ends it when a look at the sources has found
        nothing more, and remembers that; one that somebody stops has not looked, even if it was between two batches. A
        source that cannot say what is available now is read in one batch, and not looked at again."""
        execution = query._jsq.streamingQuery()
        if execution.noNewData():
            return True
        if type_of(execution.triggerExecutor()) != "SingleBatchExecutor" or writer.last is None:
            return False
        planned, committed = (self._numbers(writer, kind) for kind in ("offsets", "commits"))
        return writer.last in committed and max(planned) <= writer.last

    def _run_batch(self, stage: Stage, writer: BatchWriter, frame: DataFrame, spark_batch: int) -> None:
        """A micro-batch, in a thread of Spark's. However long it takes, the stage is not idle meanwhile."""
        self._in_batch = True
        if stage.idle:
            self.runtime.shell.call(lambda: self._settle_idle(stage))
        try:
            writer(frame, spark_batch)
        finally:
            self.active_at = time.monotonic()
            self._in_batch = False

    def _on_prepared(self, batch: int) -> None:
        """The batch's record is there, and Spark is about to commit it: look for that (rule 4)."""
        self.runtime.shell.work(lambda: self._look_for_commit(batch))

    def _look_for_commit(self, batch: int) -> None:
        writer = self.writer
        if writer is None:
            return
        name = f"{writer.folder}commits/{batch - writer.base - 1}"
        local = self.runtime.store.path(name) is not None
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not writer.stopping:
            with suppress(OSError):  # the store may be back for the next look
                if self.runtime.store.exists(name):
                    self.runtime.shell.poke(f"stage {self.name}")
                    return
            time.sleep(COMMIT_LOOK_S if local else COMMIT_LOOK_REMOTE_S)

    # --- how the query ended, in a turn of the shell ---------------------------------------------------

    def _on_end(self, stage: Stage, error: BaseException | None, finished: bool) -> None:
        runtime = self.runtime
        if self._closed or runtime.member.stages.get(self.name) is not stage:
            return  # it was stopped for its successor
        if finished:
            self.finished = True
            runtime.shell.poke(f"stage {self.name}")
            return
        if error is not None and is_spark_gone(error):
            raise UserError(spark_is_gone(error))
        if stage.phase is not StagePhase.RUNNING:
            stage.query_ended(QueryEnd.STOPPED, STOPPED)  # it has nothing to do for now
            return
        if error is not None and _was_asked(error):
            return  # it was to rest for a drain that has just come to nothing: `_see_to_drain` starts it again
        self.error = STOPPED if error is None else reason_of(error)
        end = QueryEnd.STOPPED if error is None else kind_of(error)
        if end is QueryEnd.HOPELESS:
            self.error += f". {self._way_out(error)}"
        after_ms = stage.query_ended(end, self.error)
        if after_ms is None:
            runtime.tell(f"stage '{self.name}' is given up after {self.restarts} tries: {self.error}")
            return
        runtime.tell(
            f"stage '{self.name}' {'has lost its query' if error is None else 'failed'} and is started again in "
            f"{after_ms / 1000:g} s ({self.restarts} of {runtime.settings.member.restarts}): {self.error}"
        )

    def _way_out(self, error: BaseException | None) -> str:
        """What helps against code that has changed beyond use. A reset keeps the positions on native sources: without
        them they would be read from the start, into tables that have their rows."""
        if is_about_sources(error) and self.built.has_native_source:
            return (
                f"Bring the old code back; or give the stage and its sinks new names and paths, and start with --restore "
                f"REF --drop {self.name}: the new stage reads its sources from the start, into new tables"
            )
        return (
            f"The code of stage '{self.name}' has changed beyond what its state allows: bring the old code back, or go "
            f"back to a checkpoint with --restore REF --reset {self.name}, which drops its state"
        )

    @property
    def restarts(self) -> int:
        """How often in a row its query has ended without a batch in between."""
        return self.runtime.member.tries.get(self.name, 0)

    # --- after every step, in its turn of the shell -----------------------------------------------------

    def attend(self, stage: Stage) -> None:
        """Brings feeds up to date and sees to drains."""
        self._current = stage, stage.generation, stage.incarnation
        if stage.phase in (StagePhase.STOPPED, StagePhase.FENCED):
            if self.query is not None:
                self.end()
            return
        if stage.incarnation != self._incarnation:
            return
        log, member = stage.log, self.runtime.member
        if time.monotonic() > self._idle_due:
            self._settle_idle(stage)
        seen = (
            stage.incarnation, stage.phase, stage.draining, self.finished, log.view.last, member.journal.index,
            tuple(member.log(i).view.last for i in self.feeds),
        )  # fmt: skip
        if seen == self._seen and not stage.draining:
            return
        self._seen = seen
        if log.state.last != self._last:
            self._note_batch(stage)
        self._feed(stage)
        self._see_to_drain(stage)

    def _note_batch(self, stage: Stage) -> None:
        self._last = stage.log.state.last
        self.active_at = time.monotonic()
        self._settle_idle(stage)

    def _settle_idle(self, stage: Stage) -> None:
        """A stage is idle when its query has ended with all that was there, or when it has been silent for long and
        Spark says that it waits. A query that is only just starting, or has a long batch under way, is silent too."""
        self._idle_due = time.monotonic() + IDLE_LOOK_S
        if self.finished or not self._is_silent(stage):
            stage.idle = self.finished
        elif not stage.idle and not self._asks_spark and self.query is not None:
            self._asks_spark = True
            query = self.query
            self.runtime.shell.work(lambda: self._ask_spark(query, stage))

    def _is_silent(self, stage: Stage) -> bool:
        silent_s = time.monotonic() - self.active_at
        return (
            silent_s > self.runtime.settings.idle_after_s and not self._in_batch and not self._unread(stage)
        )

    def _ask_spark(self, query: Any, stage: Stage) -> None:
        """In a thread of the pool."""
        try:
            status = query.status
            waits = status["message"] == WAITING and not status["isTriggerActive"]
        except Exception:
            waits = False  # the query has ended; whoever watches it knows why
        self.runtime.shell.call(lambda: self._on_spark_says(stage, waits))

    def _on_spark_says(self, stage: Stage, waits: bool) -> None:
        self._asks_spark = False
        stage.idle = waits and self._is_silent(stage)

    def _unread(self, stage: Stage) -> bool:
        for name in self.built.definition.inputs:
            producer = self.runtime.member.log(name).state
            try:
                if self._channel(name).unread(stage.log.state.consumed.get(name, -1), producer.last):
                    return True
            except channel.BatchUnknown:
                return True
        return False

    def _channel(self, name: str) -> channel.Channel:
        member = self.runtime.member
        return channel.Channel(
            member.log(name).state, channel.carried_batches(member.manifest, self.name, name)
        )

    # --- feeds ----------------------------------------------------------------------------------------

    def _open_feeds(self, operation: StartQuery) -> None:
        """New feeds for a new incarnation, which begins where the stage's log says."""
        max_rows = self.built.definition.max_rows
        for name, source in self.built.channels.items():
            source.feed = Feed(name, operation.consumed.get(name, -1), max_rows, operation.incarnation)
        self.feeds = {name: source.feed for name, source in self.built.channels.items()}
        self._seen = ()

    def _feed(self, stage: Stage) -> None:
        member = self.runtime.member
        for name, feed in self.feeds.items():
            producer = member.log(name).state
            limit = channel.readable(member.journal.state, stage.log.state, producer)
            try:
                fresh = self._channel(name).between(feed.known, producer.last)
            except channel.BatchUnknown:
                continue  # a zombie's position, or a log that this process has yet to read
            rows = {b: producer.batches[b].rows for b in fresh if b in producer.batches}
            url = self.runtime.store.spark_url
            feed.add([(b, list(map(url, fs)), rows.get(b, 0)) for b, fs in sorted(fresh.items())], limit)
            feed.forget(stage.log.state.consumed.get(name, -1))

    # --- coming to rest ---------------------------------------------------------------------------------

    def _see_to_drain(self, stage: Stage) -> None:
        if stage.phase is StagePhase.RESTING:
            if self.built.has_native_source and self.writer is not None:
                self.writer.stopping = True
            return
        if not stage.draining:
            drains = (begun.flags & Flags.DRAIN for begun in self.runtime.member.journal.state.open.values())
            if any(drains):
                return  # this incarnation has not heard of the drain yet
            if stage.quiet:
                stage.quiet = False
            if (self._available_now or self._hurries) or (
                self.writer is not None
                and self.writer.stopping
                and self.query is not None
                and not self.finished
            ):
                self._available_now = self._hurries = False  # the drain came to nothing: go on as before
                self.runtime.restart_stage(self.name)
            return
        if self._is_too_slow(stage):
            self._hurries = True
            self.runtime.restart_stage(self.name)
            return
        if stage.quiet or not self._input_is_done(stage):
            return
        if self.finished:
            self._be_quiet_when_logged(stage)
        elif self._rest is None or not self._rest.is_alive():
            self._rest = Thread(target=self._await_rest, args=(self.query, stage), daemon=True)
            self._rest.start()
            self.runtime.shell.later(REST_WITHIN_S, lambda: self._be_done_with(stage))

    def _is_too_slow(self, stage: Stage) -> bool:
        """Whether the query would not look at its channels for longer than a drain waits. (That of a root takes what
        is available now.)"""
        runs = not self._ended.is_set() and not self._in_batch
        return runs and not self.is_root and not stage.quiet and self._trigger_s() > REST_WITHIN_S

    def _input_is_done(self, stage: Stage) -> bool:
        """Whether every input has its barrier of the drain, and nothing is left to read before it."""
        member = self.runtime.member
        drains = [e for e in member.journal.state.open if fate(member.journal.state, e) is Fate.OPEN]
        for name in self.built.definition.inputs:
            barriers = member.log(name).state.barriers
            if not any(e in barriers for e in drains):
                return False
        return not self._unread(stage)

    def _await_rest(self, query: Any, stage: Stage) -> None:
        """Waits for Spark to find nothing more to do."""
        if query is None:
            return
        try:
            query.processAllAvailable()
        except Exception:
            return  # the query has ended; whoever watches it knows why
        last = self._last_committed()
        self.runtime.shell.call(lambda: self._rested(stage, last))

    def _rested(self, stage: Stage, last: int) -> None:
        if stage.log.state.last >= last and not self._unread(stage) and stage.draining:
            self._be_quiet(stage)
        self._rest = None

    def _be_quiet_when_logged(self, stage: Stage) -> None:
        def look() -> None:
            last = self._last_committed()
            self.runtime.shell.call(lambda: self._rested(stage, last))

        if self._rest is None:
            self._rest = Thread(target=look, daemon=True)
            self._rest.start()

    def _be_quiet(self, stage: Stage) -> None:
        if not stage.quiet:
            stage.quiet = True
            self.runtime.shell.poke(f"stage {self.name}")

    def _last_committed(self) -> int:
        """The last batch that Spark has committed in the running incarnation's folder; waits for the store to say."""
        writer = self.writer
        if writer is None:
            return -1
        return max(self._numbers(writer, "commits"), default=-1) + writer.base + 1

    def _numbers(self, writer: BatchWriter, kind: str) -> list[int]:
        """The batches that Spark has planned or committed, by its own count; none if the run is over."""
        prefix = f"{writer.folder}{kind}/"
        while not self._closed:
            try:
                names = [name.removeprefix(prefix) for name in self.runtime.store.list(prefix)]
            except OSError:
                time.sleep(COMMIT_LOOK_REMOTE_S)
                continue
            return [int(name) for name in names if name.isdigit()]
        return []

    def _be_done_with(self, stage: Stage) -> None:
        """A source that does not fall silent: take what is available now, and end."""
        current = self.runtime.member.stages.get(self.name)
        if stage is not current or stage.quiet or not stage.draining or self._available_now or self.finished:
            return
        if not self.built.has_native_source or not self._input_is_done(stage):
            return
        self._available_now = True
        self.runtime.restart_stage(self.name)


def type_of(java: Any) -> str:
    """The name of a Java object's class, without its package."""
    return str(java.getClass().getSimpleName())


def _was_asked(error: BaseException) -> bool:
    return any(asked.__name__ in str(error) for asked in (StopAsked, FeedClosed))


INCOMPATIBLE = ("NOT_COMPATIBLE", "INCOMPATIBLE", "INVALID_SCHEMA", "VALIDATION_FAILURE")
OTHER_SOURCES = ("sources in the checkpoint", SourcesChanged.__name__)


def is_incompatible(error: BaseException) -> bool:
    """Whether Spark refuses to go on from this state with this code, which no retry can help."""
    return is_about_sources(error) or any(word in str(error) for word in INCOMPATIBLE)


def is_about_sources(error: BaseException | None) -> bool:
    """Whether the code reads something else than its positions are of."""
    return isinstance(error, SourcesChanged) or any(word in str(error) for word in OTHER_SOURCES)


def kind_of(error: BaseException) -> QueryEnd:
    """What an error means for the next try."""
    if is_incompatible(error):
        return QueryEnd.HOPELESS
    return QueryEnd.OVERLOADED if is_overload(error) else QueryEnd.FAILED


def spark_is_gone(error: BaseException) -> str:
    """What to tell the user when the JVM no longer answers."""
    return (
        f"Spark has gone away under this run ({reason_of(error)}): its process has ended, by itself or by somebody's "
        "hand. Nothing is lost; start the pipeline again"
    )


def is_spark_gone(error: BaseException) -> bool:
    """Whether the JVM no longer answers."""
    return isinstance(error, Py4JNetworkError | ConnectionError) or "Error while sending or receiving" in str(
        error
    )


def is_overload(error: BaseException) -> bool:
    """Whether a Python worker took longer to start than Spark waits for it (ten seconds, not to be set)."""
    return "failed to connect back" in str(error)


def reason_of(error: BaseException) -> str:
    """The user's own error out of what Spark makes of it: its last line tells."""
    text = str(error).partition("terminated with exception: ")[2] or str(error)
    # What Spark said of the batch, without how it came to hear of it.
    text = text.rpartition("BatchFailed: ")[2]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    python = [line for line in lines if _is_error_line(line) and not line.startswith("Py4J")]
    java = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    told = python[-1:] or java[-1:] or lines
    return (" ".join(told) if told else type(error).__name__)[:500]


def _is_error_line(line: str) -> bool:
    head = line.split(":", 1)[0]
    return ":" in line and head.replace(".", "").isidentifier() and head.endswith(("Error", "Exception"))
