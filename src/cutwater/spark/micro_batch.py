"""What happens inside a micro-batch of a stage's query.

Rule 4. The output of the batch, for the channel and every sink, goes to folders of this attempt alone; then a prepared
record that names it goes to the incarnation's Spark folder; only then does the function return and Spark commit the
batch. If there are several targets, the rows are computed and written once, and the other targets are made from those
files: a plan that is not deterministic cannot show one version to one target and another to the next.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from cutwater.protocol.base.paths import (
    Attempt,
    attempt_prefix,
    batch_file_name,
    spark_prefix,
    staged_attempt_name,
)
from cutwater.protocol.base.records import Offset, StagedFile
from cutwater.protocol.base.watermark import NONE, UNKNOWN, Watermark, known
from cutwater.sinks.contract import Sink
from cutwater.sinks.footers import Footer, read_footers
from cutwater.sinks.staged_files import is_data
from cutwater.spark.checkpoint.folder import Cache, Voucher
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.offsets import parse_offsets, position_in
from cutwater.spark.checkpoint.prepared import Judged, write_prepared
from cutwater.spark.files import Files
from cutwater.spark.internals.types import PLAIN_TYPES
from cutwater.spark.rules import OnViolation, Rules
from cutwater.spark.split import RulesViolated, Splitter
from cutwater.store import failpoints
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore


class StopAsked(Exception):
    """Raised inside a micro-batch to end its query there. The batch may be run again later."""


class BatchFailed(Exception):
    """A micro-batch could not be computed or written; the message is that of Spark or of the user's code."""


class Output(msgspec.Struct, frozen=True):
    """What a batch has given: the channel's files, those of each sink, the number of good rows and their bytes, and how
    many rows violate each rule."""

    files: tuple[str, ...]
    staged: dict[str, tuple[StagedFile, ...]]
    rows: int
    size: int
    violations: dict[str, int] = {}


class BatchWriter:
    """The foreachBatch function of one incarnation of a stage."""

    def __init__(
        self,
        store: Store,
        stage: str,
        generation: int,
        incarnation: int,
        base: int,
        schema: StructType,
        leaves: Sequence[Leaf],
        sinks: Sequence[Sink],
        has_readers: bool,
        has_watermark: bool,
        on_prepared: Callable[[int], None],
        cache: Cache | None = None,
        rules: Rules | None = None,
    ) -> None:
        self.store = store
        self.stage = stage
        self.generation = generation
        self.incarnation = incarnation
        self.base = base
        self.schema = schema
        self.rules = rules
        self.sinks = [sink for sink in sinks if rules is None or sink.name != rules.quarantine]
        """Those that get all good rows."""
        self.quarantine = next((sink for sink in sinks if sink not in self.sinks), None)
        self.has_readers = has_readers
        self.has_watermark = has_watermark
        self.on_prepared = on_prepared
        self.cache = cache or Cache()
        """What this process knows of the stage's folders; the appender takes the record of a batch from here."""
        self.stopping = False
        self.violated: str | None = None
        """Why the run ends, if a batch has bad rows that it must not have."""
        self.last: int | None = None
        """The last batch of this incarnation that was prepared, by Spark's count."""
        self._reader: Files | None = None
        self._splitter = Splitter(store, stage, schema, rules) if rules is not None else None
        self._voucher = Voucher(store, self.folder, leaves)

    @property
    def folder(self) -> str:
        """The incarnation's Spark folder."""
        return spark_prefix(self.stage, self.generation, self.incarnation)

    def __call__(self, frame: DataFrame, spark_batch: int) -> None:
        if self.stopping:
            raise StopAsked
        batch = spark_batch + self.base + 1
        attempt = Attempt(self.incarnation, batch, uuid.uuid4().hex[:8])
        try:
            output = self._write(frame, attempt)
        except Exception as error:
            if self.stopping:
                raise StopAsked from None
            self.violated = str(error) if isinstance(error, RulesViolated) else None
            # Spark searches the message with a regular expression that fails on long texts.
            raise BatchFailed(in_short(error)) from None
        if self.stopping:
            raise StopAsked
        prepared = self._prepared(spark_batch, batch, output)
        failpoints.reach("before prepared", self.stage)
        write_prepared(self.store, self.stage, self.generation, self.incarnation, prepared, self.cache)
        failpoints.reach("after prepared", self.stage)
        self.last = spark_batch
        self.on_prepared(batch)

    # --- output ---------------------------------------------------------------------------------------

    def _write(self, frame: DataFrame, attempt: Attempt) -> Output:
        """Write a batch to all its targets."""
        if self._splitter is None and not self.has_readers and len(self.sinks) == 1:
            sink = self.sinks[0]
            staging = staged_attempt_name(self.generation, attempt)
            sink.writer(frame).mode("append").parquet(sink.staging(staging))
            found = sink.staged(staging)
            rows, size = sink.measure(found)
            return Output((), {sink.name: tuple(found)} if found else {}, rows, size)
        folder = attempt_prefix(self.stage, self.generation, attempt)
        options = self._passing(frame) if not self.sinks else {}
        staged: dict[str, tuple[StagedFile, ...]] = {}
        violations: dict[str, int] = {}
        if self._splitter is None:
            frame.write.options(**options).mode("append").parquet(self.store.spark_url(folder.rstrip("/")))
            footers = self._written(folder)
        else:
            footers, violations = self._split(self._splitter, frame, attempt, folder, options, staged)
        for sink in self.sinks:
            if footers or sink.takes_empty:
                staging = staged_attempt_name(self.generation, attempt)
                known = self._derive(frame, sink, staging, footers)
                staged[sink.name] = tuple(sink.staged(staging, known))
        rows, size = sum(f.rows for f in footers.values()), sum(f.size for f in footers.values())
        kept = tuple(footers) if self.has_readers else ()
        return Output(kept, {k: v for k, v in staged.items() if v}, rows, size, violations)

    def _split(
        self,
        splitter: Splitter,
        frame: DataFrame,
        attempt: Attempt,
        folder: str,
        options: Mapping[str, str],
        staged: dict[str, tuple[StagedFile, ...]],
    ) -> tuple[dict[str, Footer], dict[str, int]]:
        """Write the good rows to `folder`, and stage the bad ones if the stage has a quarantine. Returns the footers of
        the former, and how many rows violate each rule."""
        rules = splitter.rules
        split = splitter.write(frame, folder, options)
        if split.bad and rules.on_violation is OnViolation.FAIL:
            error = splitter.refusal(self._files(frame), split)
            self.store.delete(self.store.list(folder))
            raise error
        bad = splitter.bad_rows(self._files(frame), split) if self.quarantine is not None else None
        if bad is not None and self.quarantine is not None:
            staging = staged_attempt_name(self.generation, attempt)
            self.quarantine.writer(bad).mode("append").parquet(self.quarantine.staging(staging))
            staged[self.quarantine.name] = tuple(self.quarantine.staged(staging))
        splitter.clear(folder)
        return split.good, rules.counts(split.rows)

    def _passing(self, frame: DataFrame) -> dict[str, str]:
        """Options for files that only pass through a channel: on one machine nothing is gained by compression, or by
        dictionaries of numbers, which take a third of the time of writing a file."""
        local = str(frame.sparkSession.sparkContext.master).startswith("local")
        if not local or not isinstance(self.store, LocalStore):
            return {}
        plain = [f.name for f in self.schema if isinstance(f.dataType, PLAIN_TYPES)]
        return {"compression": "none", **{f"parquet.enable.dictionary#{name}": "false" for name in plain}}

    def _derive(
        self, frame: DataFrame, sink: Sink, attempt: str, written: Mapping[str, Footer]
    ) -> dict[str, Footer]:
        """Make a sink's files from those already written: by links, where rows stay unchanged. Returns the footers of
        the linked files, by their name in the attempt's folder: nobody has to read them again."""
        target = sink.staging(attempt)
        paths = {name: self.store.path(name) for name in written}
        local = target.removeprefix("file://") if target.startswith("file://") else target
        if written and local.startswith("/") and sink.stages_unchanged and all(paths.values()):
            folder = Path(local)
            folder.mkdir(parents=True, exist_ok=True)
            linked = {}
            for name, path in paths.items():
                assert path is not None
                _link(path, folder / path.name)
                linked[path.name] = written[name]
            return linked
        urls = [self.store.spark_url(name) for name in written]
        rows = self._files(frame).frame(urls, self.schema.json())
        sink.writer(rows).mode("append").parquet(target)
        return {}

    def _files(self, frame: DataFrame) -> Files:
        if self._reader is None:
            self._reader = Files(frame.sparkSession)
        return self._reader

    def _written(self, folder: str) -> dict[str, Footer]:
        """The files with rows that Spark has written to a folder, with their footers."""
        names = [name for name in self.store.list(folder) if is_data(name.removeprefix(folder))]
        footers = zip(names, read_footers(self.store, names), strict=True)
        return {name: footer for name, footer in footers if footer.rows}

    # --- the record -------------------------------------------------------------------------------------

    def _prepared(self, spark_batch: int, batch: int, output: Output) -> Judged:
        where = self.folder + batch_file_name("offsets", spark_batch)
        data = self.store.read(where)
        if data is None:
            raise RuntimeError(
                f"{where} is missing, although batch {batch} of stage '{self.stage}' is running"
            )
        planned = parse_offsets(where, data)
        consumed: dict[str, int] = {}
        offsets: dict[str, Offset] = {}
        for leaf, text in enumerate(planned.sources):
            position = position_in(text) if text is not None else None
            if position is not None:
                consumed[position[0]] = position[1]
            elif text is not None:
                offsets[str(leaf)] = text
        watermark: Watermark = NONE
        if self.has_watermark:
            watermark = known(planned.watermark_ms) if planned.watermark_ms > 0 else UNKNOWN
        checksums = self._voucher.checksums(spark_batch, data)
        return Judged(
            batch,
            output.files,
            output.staged,
            consumed=consumed,
            offsets=offsets,
            watermark=watermark,
            rows=output.rows,
            size=output.size,
            checksums=checksums,
            violations={self.stage: output.violations} if output.violations else {},
        )


def in_short(error: BaseException, lines: int = 30) -> str:
    """The first and last lines of an error message, without Java frames."""
    said = [line for line in str(error).splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    if len(said) > lines:
        said = [*said[: lines // 2], "...", *said[-lines // 2 :]]
    return "\n".join([f"{type(error).__name__}: {said[0] if said else ''}", *said[1:]])


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileExistsError:
        return
    except OSError:
        shutil.copyfile(source, target)
