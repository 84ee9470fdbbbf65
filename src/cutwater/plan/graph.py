"""Stage definitions, and the graph that their signatures form."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from cutwater.plan.chaining import Wish
from cutwater.plan.given import check_count, check_duration
from cutwater.protocol.base.errors import UserError, refuse
from cutwater.sinks.contract import Sink
from cutwater.sinks.quarantine import Quarantine
from cutwater.spark.rules import Rules, define_rules

SPARK = "spark"
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MODES = ("append", "update", "complete")


class StageDef(msgspec.Struct, frozen=True):
    """One stage as the user defined it: the function, its inputs, its options."""

    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...]
    wants_spark: bool
    sinks: tuple[Sink, ...]
    output_mode: str
    trigger: str | None
    max_rows: int | None
    allow_watermark_above_fan_in: bool
    allow_shared_source: bool
    member: str | None
    commit_group: str | None
    wish: Wish = Wish.NEVER
    """Whether it runs inside the query of its reader."""
    rules: Rules | None = None
    """What its rows must be like. A quarantine for bad rows is one of its sinks."""

    @property
    def good_sinks(self) -> tuple[Sink, ...]:
        """The sinks that get its good rows."""
        return tuple(sink for sink in self.sinks if not isinstance(sink, Quarantine))


def apart(stages: Mapping[str, StageDef]) -> dict[str, StageDef]:
    """The stages of one of several drivers. None is chained unless it demands that: another driver may begin to read it,
    and only its own driver could divide the query then."""
    may = Wish.MAY
    return {n: msgspec.structs.replace(s, wish=Wish.NEVER) if s.wish is may else s for n, s in stages.items()}


def define(
    function: Callable[..., Any],
    *,
    name: str | None,
    sinks: Sequence[Sink],
    output_mode: str,
    trigger: str | None,
    max_rows: int | None,
    allow_watermark_above_fan_in: bool,
    allow_shared_source: bool,
    member: str | None,
    commit_group: str | None,
    wish: Wish = Wish.NEVER,
    expect: Mapping[str, str] | None = None,
    on_violation: object = None,
) -> StageDef:
    """Define a stage from a function and its options. Raises `UserError` if they are not valid."""
    name = name or function.__name__
    if not NAME.fullmatch(name):
        raise UserError(
            f"'{name}' cannot name a stage: use letters, digits and underscores; pass name= to the decorator"
        )
    if name == SPARK:
        raise UserError(
            f"a stage cannot be named '{SPARK}', which is the session's parameter; pass name= to the decorator"
        )
    inputs, wants_spark = _parameters(name, function)
    if output_mode not in MODES:
        raise UserError(f"stage '{name}': output_mode is '{output_mode}'; give one of {', '.join(MODES)}")
    if not isinstance(sinks, Sequence) or isinstance(sinks, str):
        raise UserError(
            f"stage '{name}': sinks is {_shown(sinks)}; give a list: sinks=[cutwater.delta(path)]"
        )
    rules = define_rules(name, expect, on_violation)
    for sink in sinks:
        if isinstance(sink, Quarantine):
            raise UserError(
                f"stage '{name}' has quarantine {sink.name} among its sinks; give it as on_violation, next to expect"
            )
    sinks = (*sinks, on_violation) if isinstance(on_violation, Quarantine) else sinks
    for sink in sinks:
        _check_sink(name, output_mode, sink)
    if trigger is not None:
        check_duration(trigger, f"stage '{name}': trigger")
    if max_rows is not None:
        check_count(max_rows, f"stage '{name}': max_rows", 1, ", or None for no limit")
    return StageDef(
        name, function, inputs, wants_spark, tuple(sinks), output_mode, trigger, max_rows,
        allow_watermark_above_fan_in, allow_shared_source, member, commit_group, wish, rules,
    )  # fmt: skip


def _shown(sinks: object) -> str:
    return f"the sink {sinks.name}" if isinstance(sinks, Sink) else repr(sinks)


def _parameters(stage: str, function: Callable[..., Any]) -> tuple[tuple[str, ...], bool]:
    """The stages that a function reads, and whether it wants the session. A parameter with a default is neither."""
    inputs: list[str] = []
    wants_spark = False
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise UserError(
                f"stage '{stage}' takes {stars}{parameter.name}: every parameter must name a stage, or be '{SPARK}'"
            )
        if parameter.name == SPARK:
            wants_spark = True
        elif parameter.default is parameter.empty:
            inputs.append(parameter.name)
    return tuple(inputs), wants_spark


def _check_sink(stage: str, output_mode: str, sink: Sink) -> None:
    if not isinstance(sink, Sink):
        raise UserError(
            f"stage '{stage}': {sink!r} is not a sink; give cutwater.delta(path), cutwater.parquet(path) or "
            "cutwater.foreach_epoch(function)"
        )
    if output_mode != "append" and sink.appends_only:
        raise UserError(
            f"stage '{stage}' has output_mode '{output_mode}', but sink {sink.name} can only be appended to: it would "
            "have duplicate rows. Use append mode with a watermark, cutwater.delta(path, keys=...) in update mode, or "
            "cutwater.foreach_epoch(function)"
        )
    if output_mode == "complete" and sink.final_by is not None:
        raise UserError(
            f"stage '{stage}' has output_mode 'complete', whose rows come again with every batch, and {sink.name} "
            f"waits until a window is closed (final_by={sink.final_by!r}): leave out final_by, or use append mode"
        )


def in_order(stages: dict[str, StageDef], elsewhere: bool = False) -> list[StageDef]:
    """The stages, each after its inputs; with `elsewhere` they may read, and be read by, stages of other members. Raises
    `UserError` if they are not a valid pipeline."""
    refuse(list(graph_mistakes(stages, elsewhere)))
    return each_after_inputs(stages)


def graph_mistakes(stages: dict[str, StageDef], elsewhere: bool = False) -> Iterator[str]:
    """Why these stages are not a valid pipeline."""
    if not stages:
        yield "the pipeline has no stages: add functions with @pipeline.stage"
    for stage in stages.values():
        for name in stage.inputs:
            if name not in stages and not elsewhere:
                known = ", ".join(s for s in stages if s != stage.name)
                yield (
                    f"stage '{stage.name}' reads '{name}', but there is no such stage (there are: {known or 'none'}); "
                    f"every parameter must name a stage, or be '{SPARK}'"
                )
    read = {name for stage in stages.values() for name in stage.inputs}
    for stage in stages.values():
        if stage.name not in read and not stage.good_sinks and not elsewhere:
            yield goes_nowhere(stage.name)
        if stage.name in read and stage.output_mode != "append":
            yield (
                f"stage '{stage.name}' has output_mode '{stage.output_mode}' and is read by other stages, but a channel "
                "carries each row once: use append mode with a watermark, or write the result to a sink"
            )
    yield from _clashing_sinks(stages)


def goes_nowhere(stage: str) -> str:
    return (
        f"stage '{stage}' has no sink, and no other stage reads it, so its output would go nowhere: add "
        "sinks=[cutwater.delta(path)], or remove it"
    )


def _clashing_sinks(stages: dict[str, StageDef]) -> Iterator[str]:
    seen: dict[str, str] = {}
    places: dict[str, str] = {}
    for stage in stages.values():
        for sink in stage.sinks:
            if sink.name in seen:
                yield (
                    f"two sinks are named '{sink.name}' (stages '{seen[sink.name]}' and '{stage.name}'); "
                    "give one of them another name="
                )
            seen[sink.name] = stage.name
            place = sink.path.rstrip("/") if sink.path is not None else None
            if place is not None and place in places:
                yield (
                    f"stages '{places[place]}' and '{stage.name}' both write to {place}; a table has one writer: "
                    "union() their rows in one stage, or give each its own table"
                )
            if place is not None:
                places[place] = stage.name


def each_after_inputs(stages: dict[str, StageDef]) -> list[StageDef]:
    """The stages, each after its inputs. Raises `UserError` if they form a cycle."""
    done: dict[str, StageDef] = {}
    path: list[str] = []

    def visit(name: str) -> None:
        if name in done:
            return
        if name in path:
            cycle = " → ".join([*path[path.index(name) :], name])
            raise UserError(f"the stages {cycle} form a cycle; a pipeline must not have one")
        path.append(name)
        for before in stages[name].inputs:
            if before in stages:
                visit(before)
        path.pop()
        done[name] = stages[name]

    for name in stages:
        visit(name)
    return list(done.values())
