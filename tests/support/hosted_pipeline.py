"""A pipeline of two stages for tests of hosting: the real product, except that Spark's queries are modelled."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql.types import LongType, StructField, StructType

from cutwater.cluster.kv import MemoryCluster
from cutwater.cluster.links import Links
from cutwater.protocol.base.records import SinkSpec, StageSpec, Topology
from cutwater.protocol.base.wire import Reply, Request, RequestKind
from cutwater.runtime.runtime import Runtime
from cutwater.runtime.settings import Settings
from cutwater.runtime.store_requests import new_id
from cutwater.sinks import parquet, parquet_files
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.feed import Feed
from cutwater.spark.plan import Plan
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.configs import leader_config, member_config
from tests.support.modelled_query import SPARK, Frame, Numbers, Query
from tests.support.spark_helpers import await_that

SCHEMA = StructType([StructField("id", LongType())])


class HostedPipeline:
    """A pipeline of two stages: `source` produces numbers, `copied` reads them and writes them to a table."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(str(folder / "state"), create=True)
        assert isinstance(self.store, LocalStore)
        self.numbers = Numbers(3)
        self.log_lines: list[str] = []
        self.table = folder / "out"
        self.source = Frame(self.store, self.numbers, None)
        self.channel = SimpleNamespace(name="source", feed=Feed("source", -1))
        self.copied = Frame(self.store, None, self.channel)
        self.leaves = (Leaf(format="numbers", log=0),)
        self.with_watermark: set[str] = set()
        self._boots = 0
        self.up: Runtime | None = None

    def start(
        self,
        *,
        every_ms: int = 200,
        once: bool = False,
        idle_after_s: float = 60.0,
        restarts: int = 2,
        rest_within_ms: int = 3_000,
        retained: int = 3,
    ) -> Runtime:
        made = self.make(
            every_ms=every_ms, once=once, idle_after_s=idle_after_s, restarts=restarts, rest_within_ms=rest_within_ms,
            retained=retained,
        )  # fmt: skip
        made.start()
        return made

    def make(
        self,
        *,
        every_ms: int = 200,
        once: bool = False,
        idle_after_s: float = 60.0,
        restarts: int = 2,
        rest_within_ms: int = 3_000,
        retained: int = 3,
    ) -> Runtime:
        """A member that is not started."""
        self._boots += 1
        sink = parquet(str(self.table))
        sink.bind(self.store, "out", SCHEMA.json())
        stages = {
            "source": self._built("source", self.source, (), self.leaves, {}),
            "copied": self._built(
                "copied", self.copied, ("source",), (Leaf(channel="source"),), {"source": self.channel}, sink
            ),
        }
        specs = {
            "source": StageSpec("source", (), "main", ()),
            "copied": StageSpec("copied", ("source",), "main", (SinkSpec("out"),)),
        }
        planned: Any = SimpleNamespace(
            name="shop", topology=Topology(specs), sinks={"out": sink}, stages=stages, spark=SPARK
        )
        settings = Settings(
            leader_config(300, 100, interval_ms=every_ms, retained=retained),
            member_config(
                poll_ms=50,
                restarts=restarts,
                rest_within_ms=rest_within_ms,
                idle_after_ms=int(idle_after_s * 1000),
                once=once,
            ),
        )
        boot = f"boot{self._boots}"
        links = Links(MemoryCluster().member("main", boot), self.log_lines.append)
        self.up = Runtime(planned, self.store, "main", boot, settings, self.log_lines.append, links)
        self.up.reporter.every_s = 0.1
        return self.up

    def _built(
        self,
        name: str,
        frame: Frame,
        inputs: tuple[str, ...],
        leaves: tuple[Leaf, ...],
        channels: Any,
        *sinks: Any,
    ) -> Any:
        return SimpleNamespace(
            name=name, inputs=inputs, frame=frame, schema=SCHEMA, channels=channels, sinks=sinks,
            plan=Plan((), name in self.with_watermark, leaves=leaves), has_readers=not sinks,
            output_mode="append", trigger_s=0.0, max_rows=0, has_native_source=not inputs, awaits_news=bool(inputs),
            commit_group=None, chained=(), code={}, rules=None,
        )  # fmt: skip

    def stop(self) -> None:
        if self.up is not None:
            self.up.stop()

    def shown(self) -> list[int]:
        """The numbers in the table, sorted."""
        files = parquet_files(str(self.table)) if self.table.exists() else []
        return sorted(i for file in files for i in pq.ParquetFile(file).read()["id"].to_pylist())

    def await_shown(self, count: int) -> None:
        await_that(f"{count} rows, each once", lambda: self.shown() == list(range(count)), 30)

    def ask(self, kind: RequestKind, **what: Any) -> Reply:
        assert self.up is not None
        return self.up.request(Request(kind, new_id(), **what), 30)


def newest(frame: Frame) -> Query:
    return frame.queries[-1]


def last_batch(shop: HostedPipeline, stage: str) -> int:
    assert shop.up is not None
    return shop.up.member.log(stage).state.last


def has_rows(shop: HostedPipeline) -> bool:
    """Whether the first rows have reached the log of the second stage."""
    assert shop.up is not None
    log = shop.up.member.log("copied").state
    return any(batch.rows for batch in log.batches.values())


def has_read(shop: HostedPipeline, rows: int) -> bool:
    """Whether the second stage has logged so many rows."""
    assert shop.up is not None
    return sum(b.rows for b in shop.up.member.log("copied").state.batches.values()) == rows
