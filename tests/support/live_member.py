"""Real members without Spark: runtime, mailbox, status, leader and store are those of the product; only the queries
have nothing to read, so every stage is at rest from the start."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.kv import MemoryCluster
from cutwater.cluster.links import Links
from cutwater.cluster.open_links import open_links
from cutwater.protocol.base.effects import StartQuery
from cutwater.protocol.base.records import Topology
from cutwater.protocol.member.stage import Stage
from cutwater.runtime import runtime
from cutwater.runtime.settings import Settings
from cutwater.spark.host_context import HostContext
from cutwater.spark.plan import Plan
from cutwater.spark.query_meter import QueryFacts
from cutwater.store.contract import Store
from tests.support.builders import pipeline, stage
from tests.support.configs import leader_config, member_config

ONE = pipeline(stage("s", member="main"))
TWO = pipeline(stage("a", member="one"), stage("b", "a", member="two"))


class RestingHost:
    """A stage whose query has nothing to do."""

    def __init__(self, context: HostContext, planned: Any) -> None:
        self.name = planned.name
        self.planned = planned
        self._context = context

    def attend(self, stage: Stage) -> None:
        if stage.asks_for_rest:
            self._context.call(lambda: stage.query_rested(-1))

    def start(self, operation: StartQuery) -> None: ...

    def measure(self) -> None: ...

    def facts(self) -> QueryFacts:
        return QueryFacts()

    def move(self, recorded: Any, positions: Any) -> Any:
        return recorded, positions

    def end(self) -> None: ...

    def close(self) -> None: ...

    def join(self) -> None: ...


class Members:
    """The members of one pipeline in this process, over links in memory."""

    def __init__(self, store: Store, topology: Topology, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(runtime, "StageHost", RestingHost)
        self.store = store
        self.topology = topology
        self.up: dict[str, runtime.Runtime] = {}
        self.log_lines: list[str] = []
        self._cluster = MemoryCluster()
        self._boots = 0

    def start(
        self,
        name: str,
        timeout_ms: int = 300,
        config: ClusterConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> runtime.Runtime:
        """Starts a member that reports often, and leads if nobody else does; with a `config` over the network. `clock` is
        its mailbox's."""
        self._boots += 1
        boot = f"boot{self._boots}"
        stages = {
            s: SimpleNamespace(
                name=s,
                inputs=spec.inputs,
                sinks=(),
                plan=Plan((), has_watermark=True),
                trigger_s=0.0,
                has_native_source=not spec.inputs,
                awaits_news=False,
                commit_group=None,
                chained=(),
                code={},
                rules=None,
            )
            for s, spec in self.topology.stages.items()
        }
        spark = SimpleNamespace(conf={}, version="0", sparkContext=SimpleNamespace(uiWebUrl=None))
        planned: Any = SimpleNamespace(
            name="shop", topology=self.topology, sinks={}, stages=stages, spark=spark
        )
        leader = leader_config(timeout_ms, timeout_ms // 3, interval_ms=3_600_000)
        settings = Settings(leader, member_config(poll_ms=50))
        links = Links(self._cluster.member(name, boot), self.log_lines.append)
        if config is not None:
            links = open_links(config, "shop", name, boot, self.log_lines.append)
        made = runtime.Runtime(planned, self.store, name, boot, settings, self.log_lines.append, links)
        made.reporter.every_s = 0.1
        made.mailbox._clock = clock
        self.up[name] = made
        made.start()
        return made

    def stop(self) -> None:
        for made in self.up.values():
            made.stop()


@contextmanager
def members(store: Store, topology: Topology = ONE) -> Iterator[Members]:
    """Members that are stopped when the test ends."""
    with pytest.MonkeyPatch.context() as patch:
        made = Members(store, topology, patch)
        try:
            yield made
        finally:
            made.stop()
