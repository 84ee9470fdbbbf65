"""Calls stage functions, and builds plans, schemas and the topology for the journal from them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from cutwater.plan.chaining import ChainFacts
from cutwater.plan.graph import StageDef
from cutwater.protocol.base.errors import StoreError, UserError, mistakes_in, refuse
from cutwater.protocol.base.records import SinkSpec, StageSpec, Topology
from cutwater.sinks.contract import Sink
from cutwater.spark.blame import place_of
from cutwater.spark.channel_source import ChannelSource
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.same_source import reads_table, share_rows
from cutwater.spark.final_by import check_final_by
from cutwater.spark.internals.borders import at_border
from cutwater.spark.internals.plans import is_of_session
from cutwater.spark.kafka import is_kafka
from cutwater.spark.option_values import wrong_values
from cutwater.spark.packages import is_kafka_missing, kafka_advice
from cutwater.spark.plan import Plan, channel_schema, read_plan, refuse_clashing_names, row_schema
from cutwater.spark.refusals import why_refused, without_plan
from cutwater.spark.rules import rule_mistakes
from cutwater.spark.session import check_reach, missing_file_system
from cutwater.spark.source_options import misspelled
from cutwater.spark.stage import PlannedStage
from cutwater.store.contract import Store
from cutwater.store.status import ALONE


class PlannedPipeline(msgspec.Struct, frozen=True):
    """A member's stages, ready to start, and the complete graph."""

    name: str
    spark: SparkSession
    stages: Mapping[str, PlannedStage]
    topology: Topology
    sinks: dict[str, Sink]


class SparkRefuses(UserError):
    """Spark takes each of some stages, and not the query that they form together."""


class Builder:
    """Calls the stage functions of one member, each as soon as the columns of its inputs are known.

    `stages` are in order, each after its inputs. Raises `UserError` for plans that cannot be part of a pipeline, with all
    mistakes of the stages that can be called; it names each stage and says what to do.
    """

    def __init__(self, name: str, stages: Sequence[StageDef], spark: SparkSession) -> None:
        self.name = name
        self.specs: dict[str, StageSpec] = {}
        self._spark = spark
        self._ordered = stages
        self._called: dict[str, tuple[DataFrame, Plan, dict[str, ChannelSource]]] = {}
        self._composed: dict[tuple[str, ...], tuple[DataFrame, Plan, dict[str, ChannelSource]]] = {}
        """The queries with several stages that were made, by their stages."""
        self.facts: dict[str, ChainFacts] = {}
        """What decides about chaining the stages that were called."""

    def advance(self, others: Mapping[str, StageSpec]) -> None:
        """Call the functions whose inputs are known, given the stages of `others`."""
        found: list[str] = []
        for stage in self._ordered:
            specs = {**others, **self.specs}
            if stage.name not in self.specs and all(i in specs for i in stage.inputs):
                try:
                    found += self._call(stage, specs)
                except UserError as error:
                    found += mistakes_in(error)
        called = [(s, self._called[s.name][1]) for s in self._ordered if s.name in self.specs]
        found += [*_shared_sources(called), *_own_tables(called, self._ordered)]
        refuse(list(dict.fromkeys(found)))

    @property
    def unchecked(self) -> list[str]:
        """The stages whose functions were not called, or gave nothing to check."""
        return [stage.name for stage in self._ordered if stage.name not in self.specs]

    @property
    def waits_for(self) -> dict[str, str]:
        """The missing stages of other members, each with a stage that reads it."""
        own = {stage.name for stage in self._ordered}
        left = [stage for stage in self._ordered if stage.name not in self.specs]
        return {i: stage.name for stage in left for i in stage.inputs if i not in own}

    @property
    def is_done(self) -> bool:
        return len(self.specs) == len(self._ordered)

    def plan_of(self, stage: str) -> Plan | None:
        """The plan of a stage whose function was called."""
        called = self._called.get(stage)
        return called[1] if called is not None else None

    def _call(self, stage: StageDef, specs: Mapping[str, StageSpec]) -> list[str]:
        """Call one function. Returns what is wrong with its plan; raises `UserError` if there is none."""
        channels = {i: _channel(stage, specs[i], self._spark) for i in stage.inputs}
        frame = _result(stage, self._spark, {name: channel.frame() for name, channel in channels.items()})
        plan = read_plan(frame)
        found = list(_plan_mistakes(stage, plan))
        refuse_clashing_names(stage.name, frame.schema)
        if (why := why_refused(frame, stage.output_mode)) is not None:
            found.append(f"stage '{stage.name}': Spark would refuse its query. {why}")
        if stage.rules is not None:
            found += rule_mistakes(stage.name, stage.rules, frame)
        sinks = tuple(SinkSpec(sink.name, sink.final_by is not None) for sink in stage.sinks)
        schema, refused = None, ""
        try:
            schema = channel_schema(stage.name, frame.schema)
        except UserError as error:
            refused = str(error)
        if refused and any(stage.name in other.inputs for other in self._ordered):
            found.append(refused)
        self._called[stage.name] = frame, plan, channels
        self.facts[stage.name] = _chain_facts(stage, plan)
        self.specs[stage.name] = StageSpec(stage.name, stage.inputs, stage.member or ALONE, sinks, schema)
        return found

    def finish(self, topology: Topology) -> PlannedPipeline:
        """The stages that have a query of their own, ready to start as part of this graph; if the graph has mistakes,
        those that could be called. Raises `UserError` if Spark refuses what chained stages form together."""
        planned = {}
        called = [stage for stage in self._ordered if stage.name in self._called]
        by_name = {stage.name: stage for stage in called}
        for stage in called:
            if stage.name in topology.chained:
                continue
            frame, plan, channels = self._called[stage.name]
            chained = topology.chain(stage.name)
            if chained:
                frame, plan, channels = self._query_of(stage, chained, by_name, topology)
            places = {s: place_of(by_name[s].function) for s in (*chained, stage.name)} if chained else {}
            planned[stage.name] = PlannedStage(
                stage.name, topology.stages[stage.name].inputs, frame, plan, row_schema(frame.schema), channels,
                stage.sinks, bool(topology.readers(stage.name)), stage.output_mode, stage.trigger, stage.max_rows,
                stage.commit_group, chained, {s: place for s, place in places.items() if place is not None}, stage.rules,
            )  # fmt: skip
        sinks = {sink.name: sink for stage in called for sink in stage.sinks}
        return PlannedPipeline(self.name, self._spark, planned, topology, sinks)

    def refuse_chains(self, topology: Topology) -> bool:
        """Try the queries of all chains in this graph. Returns whether Spark refuses any, though it takes each of their
        stages alone: `facts` say so from now on. Raises `UserError` if a function fails otherwise."""
        refused: dict[str, str] = {}
        by_name = {stage.name: stage for stage in self._ordered}
        for name in topology.stages.keys() & by_name.keys():
            chained = topology.chain(name)
            if chained:
                try:
                    self._query_of(by_name[name], chained, by_name, topology)
                except SparkRefuses as error:
                    refused |= dict.fromkeys(chained, str(error))
        for name, why in refused.items():
            self.facts[name] = msgspec.structs.replace(self.facts[name], refused=why)
        return bool(refused)

    def _query_of(
        self, stage: StageDef, chained: Sequence[str], by_name: Mapping[str, StageDef], topology: Topology
    ) -> tuple[DataFrame, Plan, dict[str, ChannelSource]]:
        """The query of a stage with others chained into it, which is made once. Raises `UserError`; `SparkRefuses` if
        Spark does not take what the stages form together."""
        key = (*chained, stage.name)
        if key not in self._composed:
            self._composed[key] = self._chained(stage, chained, by_name, topology)
        return self._composed[key]

    def _chained(
        self, stage: StageDef, chained: Sequence[str], by_name: Mapping[str, StageDef], topology: Topology
    ) -> tuple[DataFrame, Plan, dict[str, ChannelSource]]:
        """The functions are called again, with the rows themselves where they had channels."""
        channels: dict[str, ChannelSource] = {}
        read: dict[str, DataFrame] = {}

        def rows_of(name: str) -> DataFrame:
            known = self.specs[name].schema if name in self.specs else topology.stages[name].schema
            assert known is not None  # it was read through a channel before
            if name in chained:
                frame = called(by_name[name])
                if channel_schema(name, frame.schema) != known:
                    raise SparkRefuses(
                        f"its columns differ when it is called inside the query of '{stage.name}'"
                    )
                return at_border(frame, name, known)
            if name not in read:
                channels[name] = ChannelSource(self._spark, stage.name, name, known)
                read[name] = channels[name].frame()
            return read[name]

        def called(of: StageDef) -> DataFrame:
            return _result(of, self._spark, {i: rows_of(i) for i in of.inputs})

        together = f"the query of '{stage.name}' with {', '.join(chained)} inside, and takes each alone"
        try:
            frame = called(stage)
        except UserError as error:
            if isinstance(error.__cause__, AnalysisException):
                raise SparkRefuses(f"Spark refuses {together}: {error}") from error
            raise
        if (why := why_refused(frame, stage.output_mode)) is not None:
            raise SparkRefuses(f"Spark refuses {together}: {why}")
        return frame, read_plan(frame, chained), channels


def _chain_facts(stage: StageDef, plan: Plan) -> ChainFacts:
    return ChainFacts(
        stage.wish,
        {i: plan.uses(i) for i in stage.inputs},
        any(source.input is None for source in plan.sources),
        plan.stateful,
        plan.has_watermark,
        stage.trigger is not None,
        stage.max_rows is not None,
        stage.commit_group is not None,
        stage.rules is not None,
    )


def bind_sinks(planned: PlannedPipeline, store: Store, create: bool = True) -> None:
    """Bind each sink to the store and to the schema of its rows. Raises `UserError` if a sink cannot take its rows, and
    `StoreError` if its location cannot be used. Registers nothing, because the start may still be refused
    (`register_sinks` does that). Without `create`, not even the folder of a table is created."""
    places: dict[str, str] = {}
    errors: list[UserError | StoreError] = []
    for stage in planned.stages.values():
        for sink in stage.sinks:
            try:
                _bind(stage, sink, store, planned.spark, places, create)
            except (UserError, StoreError) as error:
                errors.append(error)
    if len(errors) == 1:
        raise errors[0]
    refuse(list(dict.fromkeys(str(error) for error in errors)))


def _bind(
    stage: PlannedStage, sink: Sink, store: Store, spark: SparkSession, places: dict[str, str], create: bool
) -> None:
    if sink.final_by is not None and not stage.plan.has_watermark:
        raise UserError(
            f"sink '{sink.name}' publishes rows when their window is closed (final_by={sink.final_by!r}), but "
            f"stage '{stage.name}' has no watermark, so no window ever closes: add withWatermark()"
        )
    if sink.final_by is not None:
        check_final_by(stage.frame, sink.name, sink.final_by)
    sink.output_mode = stage.output_mode
    sink.never_null = frozenset(field.name for field in stage.frame.schema if not field.nullable)
    sink.bind(store, sink.name, stage.columns_for(sink).json(), register=False, create=create)
    if sink.url is not None and (other := places.setdefault(sink.url, sink.name)) != sink.name:
        raise UserError(
            f"sinks '{other}' and '{sink.name}' both write to {sink.url}; a table has one writer: union() their "
            "rows in one stage, or give each sink its own table"
        )
    if sink.url is not None:
        check_reach(spark, sink.staging("any"))
    sink.attach(spark)


def register_sinks(planned: PlannedPipeline) -> None:
    """Record the sinks in the store. From now on they may write."""
    for sink in planned.sinks.values():
        sink.register()


def _channel(stage: StageDef, producer: StageSpec, spark: SparkSession) -> ChannelSource:
    if producer.schema is None:
        raise UserError(
            f"stage '{stage.name}' reads '{producer.name}' of member '{producer.member}', which has a column that a "
            "channel cannot carry; the log of that member says which"
        )
    return ChannelSource(spark, stage.name, producer.name, producer.schema)


def _result(stage: StageDef, spark: SparkSession, inputs: Mapping[str, DataFrame]) -> DataFrame:
    """What a stage's function returns."""
    arguments: dict[str, Any] = {"spark": spark} if stage.wants_spark else {}
    arguments |= inputs
    try:
        frame = stage.function(**arguments)
    except UserError:
        raise
    except Exception as error:
        if (missing := missing_file_system(spark, str(error))) is not None:
            raise UserError(f"stage '{stage.name}': {missing}") from error
        if is_kafka_missing(error):
            raise UserError(
                f"stage '{stage.name}' reads Kafka, and Spark has no Kafka connector. {kafka_advice()}"
            ) from error
        raise UserError(
            f"stage '{stage.name}': its function raised {type(error).__name__}: {_first_lines(str(error))}"
        ) from error
    if not isinstance(frame, DataFrame):
        got = "nothing (is a return missing?)" if frame is None else f"a {type(frame).__name__}"
        raise UserError(f"stage '{stage.name}' must return a streaming DataFrame, but returned {got}")
    if not frame.isStreaming:
        raise UserError(
            f"stage '{stage.name}' returned a batch DataFrame: read its source with spark.readStream, or read another "
            "stage by naming it as a parameter"
        )
    if not is_of_session(frame, spark):
        raise UserError(
            f"stage '{stage.name}' uses a Spark session other than the pipeline's, whose settings its query needs: add "
            "the parameter `spark` to the function and read with it. To join a DataFrame of your own session, begin "
            "with the stream: stream.join(yours, ...)"
        )
    return frame


def _plan_mistakes(stage: StageDef, plan: Plan) -> Iterator[str]:
    unread = set(stage.inputs) - {s.input for s in plan.sources if s.input is not None}
    if unread:
        yield (
            f"stage '{stage.name}' has the parameter {', '.join(sorted(unread))} but does not use it; use it or remove it"
        )
    if stage.commit_group is not None and not any(map(is_kafka, plan.sources)):
        yield (
            f"stage '{stage.name}' has commit_group={stage.commit_group!r}, which is for stages that read Kafka, and "
            "this one does not; remove it"
        )
    for source in plan.sources:
        for given, meant in misspelled(source):
            yield (
                f"stage '{stage.name}' reads {source.format} with the option {given}, which Spark does not know and "
                f"would ignore; did you mean {meant}?"
            )
        yield from (
            f"stage '{stage.name}' reads {source.format} with {what}" for what in wrong_values(source)
        )
        how = dict(source.options).get("cleansource", "off")
        if how.lower() != "off":
            yield (
                f"stage '{stage.name}' reads files with cleanSource={how}: Spark would remove files as soon as it has "
                "read them, before an epoch is committed, and a restore could not read them again. Remove the option, "
                "and delete files that were read before the oldest checkpoint (see `cutwater checkpoints`) with a job "
                "of your own"
            )
    if plan.fan_in_watermark and not stage.allow_watermark_above_fan_in:
        inputs = ", ".join(plan.fan_in_watermark)
        yield (
            f"stage '{stage.name}' has withWatermark() above a fan-in of {inputs}: rows of an input that falls behind "
            "would be dropped as late. Put withWatermark() on each input before the join or union, for example "
            f"{plan.fan_in_watermark[0]}.withWatermark(...); or accept this with "
            "@pipeline.stage(allow_watermark_above_fan_in=True)"
        )


def _shared_sources(called: Iterable[tuple[StageDef, Plan]]) -> Iterator[str]:
    seen: list[tuple[Leaf, str]] = []
    for stage, plan in called:
        for source, leaf in zip(plan.sources, plan.leaves, strict=True):
            if source.is_shareable:
                continue
            others = [(n, known.place) for known, n in seen if n != stage.name and share_rows(leaf, known)]
            seen.append((leaf, stage.name))
            if others and not stage.allow_shared_source:
                other, place = others[0]
                part = f", or a part of it ('{other}' reads {place})" if place != leaf.place else ""
                yield (
                    f"stages '{other}' and '{stage.name}' both read the source {source}{part}, each at its own pace, so "
                    "their tables would not show the same rows of it. Read it in one stage that is a parameter of both; "
                    "or accept this with @pipeline.stage(allow_shared_source=True)"
                )


def _own_tables(called: Iterable[tuple[StageDef, Plan]], stages: Iterable[StageDef]) -> Iterator[str]:
    sinks = [(stage.name, sink) for stage in stages for sink in stage.sinks]
    for reader, plan in called:
        for writer, sink in sinks:
            path = sink.path
            if path is None or not any(reads_table(leaf, path) for leaf in plan.leaves):
                continue
            advice = f"Read the stage itself: name it as a parameter, def {reader.name}({writer})"
            if writer == reader.name:
                advice = "A stage cannot read its own output"
            yield (
                f"stage '{reader.name}' reads {path}, the table that sink '{sink.name}' of this pipeline writes: a "
                f"restore would take the table back, and not what was read from it. {advice}"
            )


def _first_lines(text: str, count: int = 3) -> str:
    lines = [line.strip() for line in without_plan(text).splitlines() if line.strip()]
    return " ".join(lines[:count])
