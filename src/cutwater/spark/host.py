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
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from cutwater import folders
from cutwater.built import BuiltStage
from cutwater.durations import seconds
from cutwater.leaves import SourcesChanged
from cutwater.protocol import channel
from cutwater.protocol.barrier import Flags
from cutwater.protocol.errors import UserError
from cutwater.protocol.journal import Fate, fate
from cutwater.protocol.stage import Stage, StagePhase
from cutwater.spark.feed import Feed, FeedClosed
from cutwater.spark.query import BatchWriter, StopAsked

if TYPE_CHECKING:
    from cutwater.runtime import Runtime

REST_WITHIN_S = 3.0
"""How long a drain waits for a source to fall silent by itself."""

LONGEST_BACKOFF_S = 30.0
PATIENCE = 4
"""How many times as often a query is started again that failed because the machine was too busy."""

IDLE_LOOK_S = 0.5
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
        self.restarts = 0
        self.error = ""
        self.query: Any = None
        self.writer: BatchWriter | None = None
        self.feeds: dict[str, Feed] = {}
        self.last_batch_at = time.monotonic()
        self._incarnation = 0
        self._available_now = False
        self._resting_since: float | None = None
        self._rest: Thread | None = None
        self._seen: tuple[Any, ...] = ()
        self._idle_due = 0.0
        self._last = -1
        self._lock = Lock()
        self._ended = Event()
        self._ended.set()
        self._closed = False

    # --- starting and stopping, in threads of the pool -------------------------------------------------

    def start(self, generation: int, incarnation: int) -> None:
        """Starts the query in its incarnation's folder, after its predecessor has ended."""
        with self._lock:
            self._stop_query()
            runtime, stage = self.runtime, self.runtime.member.stages.get(self.name)
            if stage is None or stage.incarnation != incarnation or self._closed:
                return
            definition = self.built.definition
            self._open_feeds(stage)
            prefix = f"stages/{self.name}/{generation}/spark/{incarnation}"
            self.writer = BatchWriter(
                runtime.store, self.name, generation, incarnation,
                folders.base_of(runtime.store, self.name, generation, incarnation), self.built.schema,
                definition.sinks, self.built.has_readers, self.built.plan.has_watermark,
                self._on_prepared,
            )  # fmt: skip
            self.finished = False
            self._incarnation = incarnation
            spark = runtime.built.spark
            spark.sparkContext.setLocalProperty("spark.scheduler.pool", self.name)
            writer = self.built.frame.writeStream.foreachBatch(self.writer).outputMode(definition.output_mode)
            writer = writer.queryName(f"{runtime.built.name}.{self.name}")
            writer = writer.option("checkpointLocation", runtime.store.spark_url(prefix))
            if self._available_now or (runtime.settings.once and self.is_root):
                writer = writer.trigger(availableNow=True)
            else:
                writer = writer.trigger(
                    processingTime=f"{int(seconds(definition.trigger) * 1000)} milliseconds"
                )
            try:
                folders.claim_sources(
                    runtime.store, self.name, generation, incarnation, self.built.plan.leaves
                )
                self.query = writer.start()
            except Exception as error:
                failure = error
                runtime.shell.call(lambda: self._on_end(incarnation, failure))
                return
            self._ended = Event()
            Thread(target=self._watch, args=(self.query, incarnation, self._ended), daemon=True).start()
            runtime.shell.call(lambda: None)  # the next step fills the feeds

    def end(self) -> None:
        """Its stage is of a generation that is over: the query must not go on."""
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
            query.stop()
            self._ended.wait(60)

    def _watch(self, query: Any, incarnation: int, ended: Event) -> None:
        error: BaseException | None = None
        try:
            query.awaitTermination()
        except Exception as raised:
            error = raised
        ended.set()
        self.runtime.shell.call(lambda: self._on_end(incarnation, error))

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

    def _on_end(self, incarnation: int, error: BaseException | None) -> None:
        runtime = self.runtime
        if (incarnation != self._incarnation and self._incarnation != 0) or self._closed:
            return
        if self._incarnation == 0 and error is None:
            return
        if error is None or _was_asked(error):
            if self._available_now or (runtime.settings.once and self.is_root):
                self.finished = error is None
                runtime.shell.poke(f"stage {self.name}")
            return
        self.error = reason_of(error)
        if is_spark_gone(error):
            raise UserError(
                f"Spark has gone away under this run ({self.error}): its process has ended, by itself or by somebody's "
                "hand. Nothing is lost; start the pipeline again"
            )
        self.restarts += 1
        hopeless = is_incompatible(error)
        if hopeless:
            self.error += (
                f". The code of stage '{self.name}' has changed beyond what its state allows: bring the old code "
                f"back, or go back to a checkpoint with --restore REF --reset {self.name}, which drops its state"
            )
        if hopeless or self.restarts > runtime.settings.restarts * (PATIENCE if is_overload(error) else 1):
            runtime.member.failures[self.name] = self.error
            runtime.tell(f"stage '{self.name}' is given up after {self.restarts} tries: {self.error}")
            runtime.shell.poke("capture")
            return
        wait = min(runtime.settings.backoff_s * 2 ** (self.restarts - 1), LONGEST_BACKOFF_S)
        runtime.tell(
            f"stage '{self.name}' failed and is started again in {wait:g} s "
            f"({self.restarts} of {runtime.settings.restarts}): {self.error}"
        )
        runtime.shell.later(wait, lambda: runtime.restart_stage(self.name))

    # --- after every step, in its turn of the shell -----------------------------------------------------

    def attend(self, stage: Stage) -> None:
        """Brings feeds up to date and sees to drains."""
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
        self.last_batch_at = time.monotonic()
        self._settle_idle(stage)
        batch = stage.log.state.batches.get(self._last)
        if batch is not None and batch.incarnation == stage.incarnation:
            self.restarts = 0

    def _settle_idle(self, stage: Stage) -> None:
        self._idle_due = time.monotonic() + IDLE_LOOK_S
        silent = time.monotonic() - self.last_batch_at > self.runtime.settings.idle_after_s
        stage.idle = self.finished or (silent and not self._unread(stage))

    def _unread(self, stage: Stage) -> bool:
        for name in self.built.definition.inputs:
            producer = self.runtime.member.log(name).state
            try:
                if self._channel(name).unread(stage.log.state.consumed[name], producer.last):
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

    def _open_feeds(self, stage: Stage) -> None:
        """New feeds for a new incarnation, which begins where the stage's log says."""
        max_rows = self.built.definition.max_rows
        for name, source in self.built.channels.items():
            source.feed = Feed(name, stage.log.state.consumed.get(name, -1), max_rows, stage.incarnation)
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
            self._resting_since = None
            if stage.quiet:
                stage.quiet = False
            if self._available_now or (
                self.writer is not None and self.writer.stopping and self.query is not None
            ):
                self._available_now = False  # the drain came to nothing: go on as before
                self.runtime.restart_stage(self.name)
            return
        if stage.quiet or not self._input_is_done(stage):
            return
        if self.finished:
            self._be_quiet_when_logged(stage)
        elif self._rest is None or not self._rest.is_alive():
            self._resting_since = self._resting_since or time.monotonic()
            self._rest = Thread(target=self._await_rest, args=(self.query, stage), daemon=True)
            self._rest.start()
            self.runtime.shell.later(REST_WITHIN_S, lambda: self._be_done_with(stage))

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
        while writer is not None and not self._closed:
            prefix = f"{writer.folder}commits/"
            try:
                ids = [n.removeprefix(prefix) for n in self.runtime.store.list(prefix)]
                break
            except OSError:
                time.sleep(COMMIT_LOOK_REMOTE_S)
        else:
            return -1
        return max((int(i) for i in ids if i.isdigit()), default=-1) + writer.base + 1

    def _be_done_with(self, stage: Stage) -> None:
        """A source that does not fall silent: take what is available now, and end."""
        current = self.runtime.member.stages.get(self.name)
        if stage is not current or stage.quiet or not stage.draining or self._available_now or self.finished:
            return
        if not self.built.has_native_source or not self._input_is_done(stage):
            return
        self._available_now = True
        self.runtime.restart_stage(self.name)


def _was_asked(error: BaseException) -> bool:
    return any(asked.__name__ in str(error) for asked in (StopAsked, FeedClosed))


INCOMPATIBLE = (
    "NOT_COMPATIBLE",
    "INCOMPATIBLE",
    "INVALID_SCHEMA",
    "sources in the checkpoint",
    "VALIDATION_FAILURE",
    SourcesChanged.__name__,
)


def is_incompatible(error: BaseException) -> bool:
    """Whether Spark refuses to go on from this state with this code, which no retry can help."""
    return isinstance(error, SourcesChanged) or any(word in str(error) for word in INCOMPATIBLE)


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
