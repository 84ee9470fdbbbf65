"""The life of a stage's Spark folders, with a modelled or a real query: batches, restarts, checkpoints, restores and
cleanups. The product does the same with both."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pyspark.sql import SparkSession

from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import Checkpoint, JournalState, StageReport, StageState
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.member.retention import deletable_states
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.new_folder import make_folder
from cutwater.spark.checkpoint.source_logs import SETTING
from cutwater.spark.checkpoint.stage_files import find_state, find_stored
from cutwater.store.contract import Store
from tests.support.folder_queries import Outputs, run, write_input
from tests.support.modelled_folder import Query

_ID = re.compile(r"(?<=/\d_)[^/.]+|(?<=/\d\d_)[^/.]+|(?<=/\d\d\d_)[^/.]+")


class Incarnation(Protocol):
    """A query in its folder."""

    batch: int

    def run(self, batches: int) -> object:
        """Runs exactly that many batches, of one file each; starts the query if necessary."""

    def files(self) -> list[int]:
        """The numbers of the files that its source believes it has read. Raises if it would not start."""


Begin = Callable[[Store, int, int, int, int], Incarnation]
"""Begins a query in the folder of a generation and an incarnation, which already has a batch; with the setting for the
compaction interval of source logs."""


@dataclass
class Life:
    """A stage, beginning with its first folder."""

    store: Store
    stage: str
    begin: Begin
    setting: int = 10
    generation: int = 1
    incarnation: int = 1
    cache: Cache = field(default_factory=Cache)
    kept: dict[int, dict[str, str]] = field(default_factory=dict)
    query: Incarnation = field(init=False)
    has_run: bool = False

    def __post_init__(self) -> None:
        make_folder(self.store, self.stage, 1, 1, None, None)
        self.query = self.begin(self.store, 1, 1, -1, self.setting)

    @property
    def prefix(self) -> str:
        return spark_prefix(self.stage, self.generation, self.incarnation)

    # --- events -----------------------------------------------------------------------------------------

    def run(self, batches: int) -> None:
        """Runs batches in a folder in which no query has run yet: no folder is used for two queries."""
        if self.has_run:
            self.restart()
        self.query.run(batches)
        self.has_run = True

    def setting_is(self, setting: int) -> None:
        """Changes the setting for the next start."""
        self.setting = setting
        if self.query.batch < 0:
            self.query = self.begin(self.store, self.generation, self.incarnation, -1, setting)

    def restart(self) -> None:
        self._make(self.generation, self.incarnation + 1, self.query.batch, source=self.incarnation)

    def keep(self, copied: bool = False) -> None:
        """Takes a checkpoint."""
        batch = self.query.batch
        if batch < 0 or batch in self.kept:
            return
        copies = f"checkpoints/{self.generation}-{batch}/state/{self.stage}/" if copied else None
        state = find_state(
            self.store, self.stage, self.generation, self.incarnation, batch, copies, self.cache
        )
        assert state is not None
        self.kept[batch] = state

    def restore(self, which: int) -> None:
        """Restores one of the checkpoints, and forgets later ones."""
        if self.kept:
            batch = sorted(self.kept)[which % len(self.kept)]
            self.kept = {b: state for b, state in self.kept.items() if b <= batch}
            self._make(self.generation + 1, 1, batch, state=self.kept[batch])

    def collect(self) -> None:
        """Deletes what no checkpoint needs."""
        _, states = find_stored(self.store, self.stage, self.generation, self.incarnation, self.cache)
        here = f"stages/{self.stage}/{self.generation}/"
        journal = JournalState(
            committed={
                b + 1: Checkpoint(b + 1, 1, self.generation, b + 1, 0, "", None, {self.stage: b}, None)
                for b, state in self.kept.items()
                if next(iter(state)).startswith(here)
            }
        )
        log = StageState(self.incarnation, self.query.batch)
        self.store.delete(deletable_states(journal, self.stage, self.generation, log, states))

    def forget_the_compact_file_before_the_last(self) -> None:
        """As earlier versions did, in the folder in which a query was running."""
        if not self.has_run:
            return
        prefix = f"{self.prefix}sources/0/"
        compact = [n for n in self.store.list(prefix) if n.endswith(".compact")]
        last = max(compact, key=lambda n: int(n.removeprefix(prefix).removesuffix(".compact")), default=None)
        named = {name for state in self.kept.values() for name in state}
        self.store.delete([n for n in compact if n != last and n not in named])

    def _make(
        self,
        generation: int,
        incarnation: int,
        batch: int,
        source: int | None = None,
        state: dict[str, str] | None = None,
    ) -> None:
        report = (
            StageReport(self.stage, 1, batch, False, consumed={}, offsets={}, watermark=NONE, state=state)
            if state is not None
            else None
        )
        make_folder(self.store, self.stage, generation, incarnation, source, report, batch, self.setting)
        self.generation, self.incarnation = generation, incarnation
        self.query = self.begin(self.store, generation, incarnation, batch, self.setting)
        self.cache = Cache()
        self.has_run = False
        self.check()

    # --- checks -----------------------------------------------------------------------------------------

    def check(self) -> None:
        """The source knows each file that was read exactly once, and no other; and needs few files for that."""
        batch = self.query.batch
        assert self.query.files() == list(range(batch + 1))
        named = self.named()
        assert named is not None
        assert len([name for name in named if "/sources/" in name]) <= 2 * self.longest + 2

    @property
    def longest(self) -> int:
        return max(40, self.setting)

    def named(self) -> set[str] | None:
        """The files that a checkpoint taken now would name."""
        batch = self.query.batch
        found = find_state(self.store, self.stage, self.generation, self.incarnation, batch, None, Cache())
        return {_plain(name) for name in found} if found is not None else None

    def there(self) -> set[str]:
        """All files, by name without the unique parts."""
        return {_plain(name) for name in self.store.list("")}


def _plain(name: str) -> str:
    return _ID.sub("*", name)


def modelled(stage: str, *, stateful: bool, rocksdb: bool, vouches: bool = True) -> Begin:
    """Queries that only write what Spark would write, with or without checksums in the records of batches."""
    ids: dict[int, list[str]] = {}

    def begin(store: Store, generation: int, incarnation: int, batch: int, setting: int) -> Query:
        return Query(
            store,
            incarnation,
            rocksdb,
            generation,
            batch,
            ids,
            setting=setting,
            stage=stage,
            stateful=stateful,
            vouches=vouches,
        )

    return begin


@dataclass
class Real:
    """A query that Spark runs. File n is entry n of the source's log, and batch n."""

    spark: SparkSession
    store: Store
    stage: str
    input: Path
    generation: int
    incarnation: int
    batch: int
    setting: int
    outputs: Outputs

    def run(self, batches: int) -> None:
        last = self.batch + batches
        for path in sorted(self.input.glob("*.parquet"))[last + 1 :]:
            path.unlink()  # from before a restore
        there = len(list(self.input.glob("*.parquet")))
        write_input(self.input, range(there, last + 1))
        for batch in [b for b in self.outputs if b > self.batch]:
            del self.outputs[batch]
        self.spark.conf.set(SETTING, str(self.setting))
        self.outputs |= run(
            self.spark, self.store, self.stage, self.input, self.incarnation, generation=self.generation
        )
        assert max(self.outputs) == last
        self.batch = last

    def files(self) -> list[int]:
        streaming = self.spark._jvm.org.apache.spark.sql.execution.streaming  # type: ignore[union-attr]
        self.spark.conf.set(SETTING, str(self.setting))
        where = self.store.spark_url(
            f"{spark_prefix(self.stage, self.generation, self.incarnation)}sources/0"
        )
        log = streaming.runtime.FileStreamSourceLog(1, self.spark._jsparkSession, where)
        return [int(Path(entry.path()).stem) for entry in log.restore()]


def real(spark: SparkSession, stage: str, input: Path, outputs: Outputs) -> Begin:
    """Queries of Spark; `stage` is the name of one of `folder_queries.QUERIES`."""

    def begin(store: Store, generation: int, incarnation: int, batch: int, setting: int) -> Real:
        return Real(spark, store, stage, input, generation, incarnation, batch, setting, outputs)

    return begin
