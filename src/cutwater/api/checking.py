"""Checks a pipeline without starting it: everything that a start would refuse, all at once, and without writing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
from pyspark.sql import SparkSession

from cutwater.api.config import RunConfig
from cutwater.api.pipeline import Pipeline
from cutwater.plan.assemble import chain, check_graph, known_elsewhere, own_stages, recorded_facts
from cutwater.plan.build import Builder, PlannedPipeline, bind_sinks
from cutwater.plan.chaining import ChainFacts, Chaining, Wish, make_topology
from cutwater.plan.compare import differences
from cutwater.plan.graph import StageDef, apart, each_after_inputs, graph_mistakes
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import CutwaterError, UserError, mistakes_in
from cutwater.protocol.base.paths import sink_description_name
from cutwater.protocol.base.records import StageSpec, Topology, encode, seal
from cutwater.runtime.restore import check_sources, restore_before_start
from cutwater.sinks.contract import Sink
from cutwater.sinks.records import Description
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.internals.gateway import end_session
from cutwater.spark.session import check_reach, make_session
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store
from cutwater.store.figures import plural
from cutwater.store.opening import look_at
from cutwater.store.overlay import Overlay
from cutwater.store.presence import Presence, Watch
from cutwater.store.status import ALONE

NO_STORE = "memory:///no-store"


class CheckedSink(msgspec.Struct, frozen=True):
    name: str
    kind: str
    path: str | None
    final_by: str | None


class CheckedStage(msgspec.Struct, frozen=True):
    """A stage of the graph. `sources`: descriptions of its native sources. `is_checked`: whether its plan is known.
    `chained_into`: the reader in whose query it runs; `not_chained`: why it has a query of its own, if it is read and
    chaining it is allowed, or the store has it chained. `rules`: the conditions for its rows, by name;
    `on_violation`: what happens to bad ones (fail, drop or quarantine)."""

    name: str
    member: str
    inputs: tuple[str, ...]
    sources: tuple[str, ...] = ()
    sinks: tuple[CheckedSink, ...] = ()
    output_mode: str = "append"
    is_checked: bool = True
    chained_into: str | None = None
    not_chained: str | None = None
    rules: dict[str, str] = {}
    on_violation: str = ""


class Report(msgspec.Struct):
    """The result of a check. `start`: what a start on the store needs, as options of `cutwater run`."""

    pipeline: str
    stages: list[CheckedStage] = []
    mistakes: list[str] = []
    notes: list[str] = []
    start: list[str] = []

    @contextmanager
    def collecting(self) -> Any:
        """Adds the mistakes that the enclosed code raises to the report, and continues."""
        try:
            yield
        except CutwaterError as error:
            self.add(mistakes_in(error))
        except OSError as error:
            self.add([str(error)])

    def add(self, mistakes: Any) -> None:
        self.mistakes += [text for text in mistakes if text not in self.mistakes]


def check_pipeline(
    pipeline: Pipeline, store: str | None, config: RunConfig, log: Callable[[str], None]
) -> Report:
    """Checks a pipeline, or one member of it. With a store, also compares it with what the store has. Starts a Spark
    session, but no query, and writes nothing."""
    report = Report(pipeline.name)
    own: dict[str, StageDef] = {}
    member = config.member or ALONE
    with report.collecting():
        member, own = _own(pipeline.stages, config.member)
    elsewhere = len({stage.member for stage in own.values()}) > 1 or config.member is not None
    report.add(graph_mistakes(own, elsewhere))
    own = apart(own) if elsewhere else own
    where: Store = Overlay(None, NO_STORE)
    with report.collecting():
        where = look_at(store, is_store=True) if store is not None else where
    reads = {name: stage.inputs for name, stage in own.items()}
    others: dict[str, StageSpec] = {}
    with report.collecting():
        others = known_elsewhere(where, member, reads)
    log("starting Spark to look at the plans; no query is started")
    spark = make_session(pipeline.name, config.master, config.conf)
    try:
        log(f"looking at the plans of {plural(len(own), 'stage')}")
        _check_stages(report, own, others, where, spark, store is not None, log)
    finally:
        end_session(spark)
    return report


def _own(stages: dict[str, StageDef], member: str | None) -> tuple[str, dict[str, StageDef]]:
    """The stages to check: those of one member, or of all members in the file if none is chosen."""
    if member is None and stages and all(stage.member is not None for stage in stages.values()):
        return ALONE, stages
    return own_stages(stages, member)


def _check_stages(
    report: Report,
    own: dict[str, StageDef],
    others: Mapping[str, StageSpec],
    store: Store,
    spark: SparkSession,
    has_store: bool,
    log: Callable[[str], None],
) -> None:
    ordered: list[StageDef] = []
    with report.collecting():
        ordered = each_after_inputs(own)  # other mistakes of the graph leave plans to look at
    if not ordered and own:
        report.stages = [_shown(stage, None) for stage in own.values()]
        return
    builder = Builder(report.pipeline, ordered, spark)
    with report.collecting():
        builder.advance(others)
    report.stages = [_other(spec) for spec in others.values()]
    report.stages += [_shown(stage, builder) for stage in ordered]
    for name, reader in builder.waits_for.items():
        if name not in others and not any(f"'{reader}' reads '{name}'" in text for text in report.mistakes):
            report.notes.append(
                f"stage '{reader}' is not checked: it reads '{name}' of another member, whose columns "
                + ("the store does not know yet" if has_store else "only the store knows; give --store")
            )
    recorded = read_journal(store, must_exist=False).state.topology if has_store else None
    chaining = Chaining()
    with report.collecting():
        chaining = chain(
            builder, others, recorded_facts(recorded) if recorded is not None else {}, recorded, False
        )
    was_chained = recorded.chained if recorded is not None else ()
    report.stages = _with_chaining(report.stages, chaining, builder.facts, was_chained)
    topology = Topology({})
    with report.collecting():
        topology = make_topology({**others, **builder.specs}, chaining.readers)
    planned = PlannedPipeline(report.pipeline, spark, {}, topology, {})
    with report.collecting():
        planned = builder.finish(topology)
    log("looking at the tables" + (" and the store" if has_store else ""))
    if has_store:
        with report.collecting():
            check_reach(spark, store.spark_url("any"))
    else:
        for sink in planned.sinks.values():
            with suppress(CutwaterError, OSError):  # binding it says the same
                _take_for_known(store, sink)
    with report.collecting():
        bind_sinks(_with_own_targets(planned), store, create=False)
    if has_store and not report.mistakes and not builder.unchecked:
        with report.collecting():
            _compare(report, store, planned, topology)


def _with_own_targets(planned: PlannedPipeline) -> PlannedPipeline:
    """Without the sinks that share a name or a path, which is in the report: each would be taken for the other."""
    sinks = [sink for stage in planned.stages.values() for sink in stage.sinks]
    names, paths = Counter(sink.name for sink in sinks), Counter(_path_of(sink) for sink in sinks)

    def is_alone(sink: Sink) -> bool:
        return names[sink.name] == 1 and (sink.path is None or paths[_path_of(sink)] == 1)

    stages = {
        name: msgspec.structs.replace(stage, sinks=tuple(filter(is_alone, stage.sinks)))
        for name, stage in planned.stages.items()
    }
    return msgspec.structs.replace(planned, stages=stages)


def _path_of(sink: Sink) -> str | None:
    return sink.path.rstrip("/") if sink.path is not None else None


def _take_for_known(store: Store, sink: Sink) -> None:
    """Without a store the owner of a table is unknown, so an existing table counts as the pipeline's own."""
    if sink.path is not None:
        url = look_at(sink.path).url
        store.put(sink_description_name(sink.name), seal(Description(sink.kind, url, sink=sink.name)))


def _with_chaining(
    stages: list[CheckedStage],
    chaining: Chaining,
    facts: Mapping[str, ChainFacts],
    was_chained: Collection[str],
) -> list[CheckedStage]:
    asked = {name for name, known in facts.items() if known.wish is not Wish.NEVER} | set(was_chained)
    return [
        msgspec.structs.replace(
            stage,
            chained_into=chaining.readers.get(stage.name),
            not_chained=chaining.why_not.get(stage.name) if stage.name in asked else None,
        )
        for stage in stages
    ]


def _compare(report: Report, store: Store, planned: PlannedPipeline, topology: Topology) -> None:
    """Notes what a start on this store would report."""
    for seen in Watch(store).settle(lambda: None):
        if seen.status.pipeline != report.pipeline:
            raise UserError(
                f"the store {store.url} belongs to pipeline '{seen.status.pipeline}', and this one is "
                f"'{report.pipeline}'; give each pipeline a store of its own"
            )
        if seen.presence is Presence.RUNNING:
            report.notes.append(
                f"it is running on this store now: process {seen.status.pid} on {seen.status.host}"
            )
    check_graph(topology)
    state = read_journal(store, must_exist=False).state
    leaves = {name: stage.plan.leaves for name, stage in planned.stages.items()}
    if state.topology is None:
        report.notes.append(f"{store.url} has no pipeline yet; a start begins with an empty one")
    elif state.topology_hash == digest(encode(topology)):
        if state.head is not None:
            forked = state.generations.get(state.generation)
            moved = forked.moved if forked is not None and state.head == forked.epoch else {}
            check_sources(store, state.committed[state.head], "latest", leaves, (), moved)
            report.notes.append(f"a start continues after epoch {state.head}")
    else:
        _try_restore(report, store, state.topology, topology, state.topology_hash, leaves)


def _try_restore(
    report: Report, store: Store, before: Topology, after: Topology, base: str, leaves: Mapping[str, Any]
) -> None:
    """Tries a restore with the changed graph, on a copy of the journal in memory."""
    was, now = before.written(), after.written()
    gone = sorted(was.keys() - now.keys())
    gone += sorted({*before.sinks()} - {*after.sinks()} - {s.name for n in gone for s in was[n].sinks})
    reset = sorted(n for n in was.keys() & now.keys() if {*was[n].inputs} != {*now[n].inputs})
    report.notes.append(f"the graph differs from the store's: {'; '.join(differences(before, after))}")
    restore_before_start(
        store, after, "latest", tuple(gone), tuple(reset), lambda line: None, base=base, leaves=leaves
    )
    report.start = ["--restore", "latest"]
    report.start += [word for name in gone for word in ("--drop", name)]
    report.start += [word for name in reset for word in ("--reset", name)]


def _shown(stage: StageDef, builder: Builder | None) -> CheckedStage:
    plan = builder.plan_of(stage.name) if builder is not None else None
    sources = tuple(_source(leaf) for leaf in plan.leaves if leaf.channel is None) if plan is not None else ()
    sinks = tuple(CheckedSink(s.name, s.kind, s.path, s.final_by) for s in stage.sinks)
    checked = CheckedStage(
        stage.name, stage.member or ALONE, stage.inputs, sources, sinks, stage.output_mode, plan is not None
    )
    if stage.rules is None:
        return checked
    rules, what = stage.rules.conditions, stage.rules.on_violation.value
    return msgspec.structs.replace(checked, rules=rules, on_violation=what)


def _source(leaf: Leaf) -> str:
    return f"{leaf.format} {leaf.place.removeprefix('path=')}".rstrip()


def _other(spec: StageSpec) -> CheckedStage:
    sinks = tuple(CheckedSink(sink.name, "", None, None) for sink in spec.sinks)
    return CheckedStage(spec.name, spec.member, spec.inputs, (), sinks)
