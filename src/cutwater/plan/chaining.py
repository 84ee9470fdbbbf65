"""Which stages run inside the query of the stage that reads them, and why the others do not.

A chained stage saves a query and a channel, so its rows are never written. That must not change a row of any table, so
there are many conditions. All of them are judged on stages as they were written, never on the queries that they form:
whether something is refused does not depend on what is chained.

The graph records what is chained. A pipeline that goes on keeps that: what is recorded is split only when a condition no
longer holds, and what is not recorded is chained only when a restore asks for it (`--rechain`), because positions and
state move with a stage.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from enum import Enum

import msgspec

from cutwater.protocol.base.errors import refuse
from cutwater.protocol.base.records import ChainedStage, StageSpec, Topology


class Wish(Enum):
    """What the code says about chaining a stage into its reader."""

    MUST = "must"
    MAY = "may"
    NEVER = "never"


class ChainFacts(msgspec.Struct, frozen=True):
    """What decides about chaining a stage, besides the graph. `reads`: how often its plan contains each of its inputs.
    `is_native`: it reads sources of its own. `stateful`: an operator of its plan that keeps state, or that is not known
    to keep none. `has_own_trigger`: its trigger is not the default. `refused`: why it works alone, but not inside its
    reader's query."""

    wish: Wish = Wish.NEVER
    reads: dict[str, int] = {}
    is_native: bool = False
    stateful: str = ""
    has_watermark: bool = False
    has_own_trigger: bool = False
    has_max_rows: bool = False
    has_commit_group: bool = False
    has_rules: bool = False
    refused: str = ""


class Chaining(msgspec.Struct, frozen=True):
    """The decision: the reader of each stage that is chained, and for each stage that is read and not chained, why."""

    readers: dict[str, str] = {}
    why_not: dict[str, str] = {}


RECORDED = ChainFacts(Wish.MAY)
"""For a stage of another member that is recorded as chained: its member decided."""


def decide(
    specs: Mapping[str, StageSpec],
    facts: Mapping[str, ChainFacts],
    recorded: Topology | None = None,
    rechain: Collection[str] = (),
) -> Chaining:
    """Decides for all stages of a graph, as written. `recorded`: the graph in force, which keeps its chaining. `rechain`:
    the stages that may be chained although they are not recorded so."""
    readers = {name: [r for r, spec in specs.items() if name in spec.inputs] for name in specs}
    why: dict[str, str] = {}
    for name in specs:
        if readers[name]:
            reasons = _own_reasons(name, specs, facts, readers[name], recorded, name in rechain)
            if (reason := next(reasons, None)) is not None:
                why[name] = reason
    while (more := _mixed(specs, facts, readers, why)) is not None:
        why |= more
    return Chaining({name: found[0] for name, found in readers.items() if found and name not in why}, why)


def refuse_impossible(chaining: Chaining, facts: Mapping[str, ChainFacts]) -> None:
    """Raises `UserError` for stages that must be chained and cannot be."""
    refuse(
        [
            f"stage '{name}' has chain=True and cannot be chained: {chaining.why_not.get(name, 'no stage reads it')}. "
            "Remove chain=True, or change that"
            for name, known in facts.items()
            if known.wish is Wish.MUST and name not in chaining.readers
        ]
    )


def _own_reasons(
    name: str,
    specs: Mapping[str, StageSpec],
    facts: Mapping[str, ChainFacts],
    readers: list[str],
    recorded: Topology | None,
    may_merge: bool,
) -> Iterator[str]:
    """Why a stage cannot be chained, whatever else is chained."""
    mine, reader = facts.get(name, ChainFacts()), readers[0]
    theirs = facts.get(reader, ChainFacts())
    if mine.wish is Wish.NEVER:
        yield "chaining is off for it (chain=False, or a pipeline of several drivers)"
    if len(readers) > 1:
        yield f"{len(readers)} stages read it: {', '.join(sorted(readers))}"
    if specs[name].member != specs[reader].member:
        yield f"its reader '{reader}' runs on member '{specs[reader].member}'"
    if specs[name].sinks:
        yield "it has a sink"
    if mine.stateful:
        yield f"it keeps state ({mine.stateful})"
    if mine.has_watermark:
        yield "it has withWatermark(), which would also act on its reader"
    if mine.has_own_trigger:
        yield "it has a trigger of its own"
    if mine.has_max_rows:
        yield "it has max_rows"
    if mine.has_commit_group:
        yield "it has commit_group"
    if mine.has_rules:
        yield "it has rules for its rows, which are judged as they are written"
    if mine.refused:
        yield mine.refused
    if theirs.has_max_rows:
        yield f"its reader '{reader}' has max_rows, which counts the rows of a channel"
    if theirs.reads.get(name, 1) > 1:
        yield f"'{reader}' uses it {theirs.reads[name]} times, and each use would compute it again"
    if recorded is not None and not may_merge and not _is_recorded(name, reader, recorded):
        yield _why_not_recorded(name, reader, recorded)


def _why_not_recorded(name: str, reader: str, recorded: Topology) -> str:
    """Why a stage is not chained that the graph in force does not have chained into this reader."""
    first = (
        "start once with --restore latest, without chain=True for it, and add --rechain after a checkpoint"
    )
    if name not in recorded.stages and name not in recorded.chained:
        return f"it is new, and its reader '{reader}' is not: {first}"
    if name in recorded.chained:
        return f"the pipeline in the store has it chained into '{recorded.chained[name].reader}': {first}"
    moves = "--restore latest --rechain moves it into its reader's"
    return f"the pipeline in the store runs it as a query of its own ({moves})"


def _is_recorded(name: str, reader: str, recorded: Topology) -> bool:
    """Whether a graph has a stage chained into this reader; two stages that are both new may begin as they like."""
    before = recorded.chained.get(name)
    if before is not None:
        return before.reader == reader
    return name not in recorded.stages and reader not in recorded.stages and reader not in recorded.chained


def _mixed(
    specs: Mapping[str, StageSpec],
    facts: Mapping[str, ChainFacts],
    readers: Mapping[str, list[str]],
    why: Mapping[str, str],
) -> dict[str, str] | None:
    """Why the inputs of one stage cannot be chained into it because its query would read both channels and sources, or
    only some of them are chained: such a query can neither wait for its channels nor come to rest."""

    def chained(name: str) -> bool:
        return bool(readers[name]) and name not in why

    def leaves(name: str) -> set[str]:
        """What the query of a stage reads, of what is below the stage."""
        found = {"source"} if facts.get(name, ChainFacts()).is_native else set()
        for i in specs[name].inputs:
            found |= leaves(i) if i in specs and chained(i) else {"channel"}
        return found

    for name, spec in specs.items():
        inside = [i for i in spec.inputs if i in specs and chained(i)]
        outside = [i for i in spec.inputs if i not in inside]
        if inside and outside:
            which = ", ".join(f"'{i}'" for i in outside)
            return dict.fromkeys(inside, f"its reader '{name}' also reads {which}, which is not chained")
        if inside and len(leaves(name)) > 1:
            return dict.fromkeys(inside, f"the query of '{name}' would read both channels and sources")
    return None


def make_topology(specs: Mapping[str, StageSpec], readers: Mapping[str, str] | None = None) -> Topology:
    """The graph of all these stages, of which those in `readers` are chained. It has the columns only of stages that are
    read: other stages may change theirs freely."""
    readers = readers or {}
    read = {i for spec in specs.values() for i in spec.inputs}
    stages: dict[str, StageSpec] = {}
    for name in sorted(specs.keys() - readers.keys()):
        spec = specs[name]
        stages[name] = msgspec.structs.replace(
            spec, inputs=_channels(name, specs, readers), schema=spec.schema if name in read else None
        )
    chained = {
        name: ChainedStage(name, specs[name].inputs, readers[name], specs[name].schema)
        for name in sorted(readers)
    }
    return Topology(stages, chained)


def _channels(name: str, specs: Mapping[str, StageSpec], readers: Mapping[str, str]) -> tuple[str, ...]:
    """The channels that the query of a stage reads."""
    inputs = specs[name].inputs
    if not any(i in readers for i in inputs):
        return inputs
    return tuple(
        sorted({c for i in inputs for c in (_channels(i, specs, readers) if i in readers else (i,))})
    )
