"""From a pipeline's stages and options to a runtime: session, graph, links."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import msgspec
from pyspark.sql import SparkSession

from cutwater.api.config import RunConfig
from cutwater.cluster.open_links import open_links
from cutwater.inspection.older_store import refuse_older_store
from cutwater.inspection.unpublished import refuse_other_columns
from cutwater.plan.assemble import Assembled, assemble
from cutwater.plan.build import Builder, PlannedPipeline, bind_sinks, register_sinks
from cutwater.plan.compare import check_topology
from cutwater.plan.graph import StageDef, apart
from cutwater.plan.known_sources import adds_topics, refuse_known_topics, register_sources
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.records import JournalState, StageReport
from cutwater.protocol.member.publish import in_force
from cutwater.runtime.restore import (
    GraphMoved,
    check_moved_files,
    check_new_sources,
    restore_before_start,
)
from cutwater.runtime.runtime import Runtime
from cutwater.runtime.settings import Settings
from cutwater.spark.kafka import is_kafka
from cutwater.spark.kafka_trial import try_kafka
from cutwater.spark.plan import Plan
from cutwater.spark.session import (
    check_reach,
    copy_session,
    make_session,
    try_file_systems,
)
from cutwater.store.at_rest import load_manifest, read_journal
from cutwater.store.contract import Store


def new_session(
    pipeline: str, config: RunConfig, spark: SparkSession | None, log: Callable[[str], None]
) -> SparkSession:
    """The session for a pipeline's queries: a copy of the user's, or a new one."""
    if spark is None:
        return make_session(pipeline, config.master, config.conf, log)
    if config.master or config.conf:
        raise UserError("give either your own session (spark=) or settings for a new one (master=, conf=)")
    return copy_session(spark)


@dataclass(frozen=True)
class Starting:
    """One start of one member of a pipeline. `is_leaving`: whether it should stop waiting for other members."""

    pipeline: str
    store: Store
    config: RunConfig
    member: str
    log: Callable[[str], None]
    is_leaving: Callable[[], bool]

    def new_runtime(
        self, session: SparkSession, stages: Mapping[str, StageDef], own: Sequence[StageDef]
    ) -> Runtime:
        """The runtime, not started, of a member that has `own` of the `stages` in its code, in order. Waits until the
        graph is complete, and carries out a requested restore. Raises `UserError` if the pipeline cannot run."""
        config, store = self.config, self.store
        boot = uuid.uuid4().hex[:8]
        if config.cluster is not None:
            own = [*apart({stage.name: stage for stage in own}).values()]
        builder = Builder(self.pipeline, own, session)
        expected = {*config.wait_for, *(s.member for s in stages.values() if s.member is not None)}
        assembled, planned = self._assemble(builder, own, expected)
        register_sinks(planned)
        register_sources({name: stage.plan.leaves for name, stage in planned.stages.items()}, store)
        cluster, is_alone = config.cluster, len(planned.topology.members()) == 1
        if not is_alone and cluster is None:
            raise UserError(
                f"the members {', '.join(planned.topology.members())} must be able to reach each other: give the address "
                "on which this one listens (--listen tcp/HOST:PORT) and that of another (--peer tcp/HOST:PORT)"
            )
        if not is_alone and cluster is not None and cluster.gossip:
            cluster = msgspec.structs.replace(
                cluster, peers=tuple(sorted({*cluster.peers, *assembled.endpoints}))
            )
        links = open_links(cluster, self.pipeline, self.member, boot, self.log)
        settings = Settings(config.leader(is_alone), config.for_member(store, cluster is None))
        return Runtime(planned, store, self.member, boot, settings, self.log, links)

    def _assemble(
        self, builder: Builder, own: Sequence[StageDef], expected: set[str]
    ) -> tuple[Assembled, PlannedPipeline]:
        """The complete graph with this member's stages, as it is in the journal or will be after the requested
        restore."""
        config, store = self.config, self.store
        reads = {stage.name: stage.inputs for stage in own}
        listen = config.cluster.reachable if config.cluster is not None else ()
        while True:
            assembled = assemble(
                store,
                self.member,
                builder,
                reads,
                expected,
                listen,
                self.log,
                self.is_leaving,
                config.rechain,
            )
            planned = builder.finish(assembled.topology)
            leaves = {name: stage.plan.leaves for name, stage in planned.stages.items()}
            if config.restore is None:
                check_moved_files(store, leaves)
            check_reach(planned.spark, store.spark_url("any"))
            bind_sinks(planned, store)
            # Permissions may differ by prefix, so every place that is written to is tried.
            tables = [sink.spark_root for sink in planned.sinks.values()]
            try_file_systems(planned.spark, [store.spark_url("any").removesuffix("/any"), *tables])
            refuse_older_store(store, planned.sinks.values())
            self._try_kafka(planned)
            sinks = [(name, sink) for name, stage in planned.stages.items() for sink in stage.sinks]
            if config.restore is None:
                self._refuse_known_topics(planned)
                check_new_sources(store, leaves)
                break
            try:
                restore_before_start(
                    store, planned.topology, str(config.restore), tuple(config.drop), tuple(config.reset), self.log,
                    config.force, assembled.base, leaves,
                    partial(refuse_other_columns, store, sinks),
                )  # fmt: skip
                break
            except GraphMoved:
                self.log("another member has changed the graph in the meantime; assembling it again")
        for name, stage in planned.stages.items():
            if stage.chained:
                self.log(f"the query of stage '{name}' also runs {', '.join(stage.chained)}")
        check_topology(store, planned.topology)
        refuse_other_columns(store, sinks, read_journal(store, must_exist=False).state)
        return assembled, planned

    def _refuse_known_topics(self, planned: PlannedPipeline) -> None:
        """Raises `UserError` if a stage begins to read a Kafka topic that was read elsewhere before."""
        leaves = {name: plan.leaves for name, plan in _kafka_plans(planned).items()}
        state = read_journal(self.store, must_exist=False).state if leaves else None
        if state is not None and state.head is not None:
            index = state.committed[state.head].index
            refuse_known_topics(self.store, self._reports(state), leaves, index)

    def _try_kafka(self, planned: PlannedPipeline) -> None:
        """Ask Kafka for what stages will read from it for the first time. Raises `UserError`."""
        plans = _kafka_plans(planned)
        if plans:
            state = read_journal(self.store, must_exist=False).state
            reports = self._reports(state)
            new = {
                name: plan
                for name, plan in plans.items()
                if state.head_cuts.get(name, -1) < 0 or adds_topics(reports.get(name), plan.leaves)
            }
            try_kafka(planned.spark, new, self.log)

    def _reports(self, state: JournalState) -> Mapping[str, StageReport]:
        """The parts of the newest checkpoint, by stage."""
        if state.head is None:
            return {}
        try:
            return in_force(load_manifest(self.store, state.committed[state.head]), state).stages
        except StoreError:
            if self.config.restore is None:
                raise
            return {}  # the restore says so, or falls back to an older one


def _kafka_plans(planned: PlannedPipeline) -> dict[str, Plan]:
    """The plans of the stages that read Kafka."""
    return {
        name: stage.plan for name, stage in planned.stages.items() if any(map(is_kafka, stage.plan.sources))
    }
