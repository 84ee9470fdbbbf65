"""Assembles a pipeline's graph from the parts of its members.

Every member writes its part, `graph/<member>.json`, to the store: its stages, and their columns as far as they are
known. It calls a stage function as soon as the columns of the function's inputs are known. When nothing is missing, all
members have the same graph, and the first leader writes it to the journal. From then on the journal has the graph, and
a member that comes back needs nobody else to know it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping

import msgspec

from cutwater.plan.build import Builder
from cutwater.plan.chaining import RECORDED, ChainFacts, Chaining, decide, make_topology, refuse_impossible
from cutwater.plan.graph import NAME, StageDef, goes_nowhere
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.paths import GRAPH_PREFIX, graph_part_name, graph_part_of
from cutwater.protocol.base.records import StageSpec, Topology, decode, seal
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore
from cutwater.store.status import ALONE


class WaitEnded(Exception):
    """This member was asked to end while it waited for others."""


class GraphPart(msgspec.Struct, frozen=True):
    """One member's stages. `reads` has the inputs of all of them, `stages` the specs of those whose columns are known.
    `beat` increases while the member waits for others: a part that does not change is from an earlier run."""

    member: str
    boot: str
    beat: int
    reads: dict[str, tuple[str, ...]]
    stages: dict[str, StageSpec]
    listen: tuple[str, ...] = ()
    """The member's addresses."""
    facts: dict[str, ChainFacts] = {}
    """What decides about chaining these stages."""

    @property
    def is_complete(self) -> bool:
        return len(self.stages) == len(self.reads)


class Assembled(msgspec.Struct, frozen=True):
    """A complete graph, the addresses of the other members, and the hash of the graph in the journal that it was made
    from (empty at the first start). `why_not`: of the stages that are read and not chained, why."""

    topology: Topology
    endpoints: tuple[str, ...]
    base: str
    why_not: dict[str, str] = {}


def own_stages(stages: dict[str, StageDef], member: str | None) -> tuple[str, dict[str, StageDef]]:
    """The name of the member that runs here, and its stages. Raises `UserError` if that is not clear."""
    named = sorted({stage.member for stage in stages.values() if stage.member is not None})
    unnamed = [stage.name for stage in stages.values() if stage.member is None]
    if member is not None and not NAME.fullmatch(member):
        raise UserError(f"'{member}' cannot name a member: use letters, digits and underscores")
    if named and unnamed:
        raise UserError(
            f"some stages name the member that runs them ({', '.join(named)}), and {', '.join(unnamed)} do not: give "
            "all of them member=, or none"
        )
    if named and member is None:
        raise UserError(
            f"the stages of this pipeline belong to members ({', '.join(named)}): choose the one to run here with "
            "--member NAME (start(member=...))"
        )
    if named and member not in named:
        raise UserError(f"no stage has member='{member}'; the members are {', '.join(named)}")
    here = member or ALONE
    own = {n: s for n, s in stages.items() if s.member in (None, here)}
    return here, {n: msgspec.structs.replace(s, member=here) for n, s in own.items()}


def assemble(
    store: Store,
    member: str,
    builder: Builder,
    reads: dict[str, tuple[str, ...]],
    expected: Collection[str],
    listen: tuple[str, ...],
    log: Callable[[str], None],
    is_leaving: Callable[[], bool] = lambda: False,
    rechain: bool = False,
) -> Assembled:
    """Build this member's stages, and return the complete graph when every part of it exists. `expected` are members to
    wait for in any case. Also returns the addresses of the others, so that a member that has lost them can find them
    again. `rechain`: this member's stages may be chained although the recorded graph has queries of their own for them.
    Raises `UserError` if the parts do not fit together, `WaitEnded` if `is_leaving` says so first."""
    part = GraphPart(member, uuid.uuid4().hex[:8], 0, reads, {}, listen)
    reader = _PartReader(store, member)
    logged = ""
    while True:
        state = read_journal(store, must_exist=False).state
        recorded = state.topology
        parts = reader.read()
        if recorded is not None:
            others = _recorded_elsewhere(recorded, part, parts)
        else:
            present = [p for p in parts.values() if p.member in reader.live]
            _refuse_clashes([part, *present])
            others = {n: spec for p in present for n, spec in p.stages.items()}
        builder.advance(others)
        theirs = recorded_facts(recorded) if recorded is not None else _facts_of(present)
        if builder.is_done:  # the others have to know first which chains Spark refuses
            _tried(builder, others, theirs, recorded, rechain)
        part = msgspec.structs.replace(part, beat=part.beat + 1, stages=dict(builder.specs))
        part = msgspec.structs.replace(part, facts=dict(builder.facts))
        store.put(graph_part_name(member), seal(part))
        if recorded is not None:
            missing = _unknown_inputs(builder, others)
        else:
            missing = _missing(builder, present, others, set(expected) - reader.live - {member})
            if not expected:
                missing += _unread({**others, **builder.specs})
        if not missing and builder.is_done:
            chaining = chain(builder, others, theirs, recorded, rechain)
            topology = make_topology({**others, **builder.specs}, chaining.readers)
            check_graph(topology)
            endpoints = tuple(sorted({e for p in parts.values() for e in p.listen} - set(listen)))
            return Assembled(topology, endpoints, state.topology_hash, chaining.why_not)
        line = f"waiting for {'; '.join(missing)}"
        if line != logged:
            logged = line
            log(line)
        if is_leaving():
            raise WaitEnded(line)
        time.sleep(0.25 if isinstance(store, LocalStore) else 2.0)


def chain(
    builder: Builder,
    others: Mapping[str, StageSpec],
    theirs: Mapping[str, ChainFacts],
    recorded: Topology | None,
    rechain: bool,
) -> Chaining:
    """Decides which stages are chained, with what is known of those of other members (`theirs`). Raises `UserError` if a
    stage of this member must be, and cannot."""
    found = _tried(builder, others, theirs, recorded, rechain)
    refuse_impossible(found, builder.facts)
    return found


def _tried(
    builder: Builder,
    others: Mapping[str, StageSpec],
    theirs: Mapping[str, ChainFacts],
    recorded: Topology | None,
    rechain: bool,
) -> Chaining:
    """Decides without stages that Spark takes alone, but not in one query."""
    specs = {**others, **builder.specs}
    while True:
        facts = {**theirs, **builder.facts}
        found = decide(specs, facts, recorded, builder.specs.keys() if rechain else ())
        if not builder.refuse_chains(make_topology(specs, found.readers)):
            return found


def recorded_facts(recorded: Topology) -> dict[str, ChainFacts]:
    """What is known of stages by their place in the graph in force: their members decided."""
    return dict.fromkeys(recorded.chained, RECORDED)


def _facts_of(parts: list[GraphPart]) -> dict[str, ChainFacts]:
    return {name: facts for part in parts for name, facts in part.facts.items()}


def known_elsewhere(store: Store, member: str, reads: Mapping[str, tuple[str, ...]]) -> dict[str, StageSpec]:
    """The stages of other members as the store knows them now, without waiting for anybody. `reads` has the stages of
    this member, with their inputs."""
    recorded = read_journal(store, must_exist=False).state.topology
    parts = _PartReader(store, member).read()
    if recorded is not None:
        return _recorded_elsewhere(recorded, GraphPart(member, "", 0, dict(reads), {}), parts)
    return {n: spec for part in parts.values() for n, spec in part.stages.items() if n not in reads}


def part_kind(name: str) -> type[GraphPart] | None:
    """The type of an object below `graph/`, `None` if it is not a part of a graph."""
    return GraphPart if graph_part_of(name) is not None else None


class _PartReader:
    """Reads the parts of the other members. `live` are the members whose part has changed since the first read."""

    def __init__(self, store: Store, member: str) -> None:
        self._store = store
        self._own = graph_part_name(member)
        self._first: dict[str, GraphPart] | None = None
        self.live: set[str] = set()

    def read(self) -> dict[str, GraphPart]:
        names = [n for n in self._store.list(GRAPH_PREFIX) if n != self._own and part_kind(n) is not None]
        parts: dict[str, GraphPart] = {}
        for name, data in zip(names, self._store.read_many(names), strict=True):
            try:
                if data is not None:
                    part = decode(name, data, GraphPart)
                    parts[part.member] = part
            except StoreError as error:
                raise UserError(
                    f"{name} in {self._store.url} is damaged ({error.__cause__}); restart that member, which writes it "
                    "again"
                ) from error
        if self._first is None:
            self._first = parts
        self.live |= {m for m, p in parts.items() if self._first.get(m) != p}
        return parts


def _recorded_elsewhere(
    recorded: Topology, part: GraphPart, parts: Mapping[str, GraphPart]
) -> dict[str, StageSpec]:
    """The other members' stages from the journal, plus the columns of stages that have had no reader so far."""
    found = {}
    for name, spec in recorded.written().items():
        if spec.member != part.member and name not in part.reads:
            theirs = parts[spec.member].stages.get(name) if spec.member in parts else None
            schema = spec.schema or (theirs.schema if theirs is not None else None)
            found[name] = msgspec.structs.replace(spec, schema=schema)
    return found


def _unknown_inputs(builder: Builder, others: Mapping[str, StageSpec]) -> list[str]:
    return [
        f"stage '{name}', which '{reader}' reads and the pipeline does not have yet: start the member that has it with "
        "--restore latest"
        for name, reader in builder.waits_for.items()
        if name not in others
    ]


def _missing(
    builder: Builder, present: list[GraphPart], others: Mapping[str, StageSpec], expected: set[str]
) -> list[str]:
    """Descriptions of what the graph still lacks."""
    coming = {n: p.member for p in present for n in p.reads}
    missing = [f"member '{m}', which is not running yet" for m in sorted(expected)]
    for name, reader in builder.waits_for.items():
        if name not in others:
            member = coming.get(name)
            owner = f"of member '{member}'" if member else "which no running member has"
            missing.append(f"stage '{name}', {owner}, read by '{reader}'")
    for part in present:
        if not part.is_complete:
            left = ", ".join(sorted(part.reads.keys() - part.stages.keys()))
            missing.append(f"member '{part.member}', which is itself waiting for inputs of {left}")
        unknown = (
            {i for spec in part.stages.values() for i in spec.inputs} - others.keys() - builder.specs.keys()
        )
        missing += [
            f"stage '{i}', which member '{part.member}' reads" for i in sorted(unknown - coming.keys())
        ]
    return missing


def _unread(stages: Mapping[str, StageSpec]) -> list[str]:
    """Stages without a sink that need a reader. The other members are not known in advance, so these wait for one."""
    read = {i for spec in stages.values() for i in spec.inputs}
    return [
        f"a member that reads stage '{name}', which has no sink"
        for name, spec in sorted(stages.items())
        if name not in read and not spec.sinks
    ]


def _refuse_clashes(parts: list[GraphPart]) -> None:
    seen: dict[str, str] = {}
    for part in parts:
        for name in part.reads:
            other = seen.setdefault(name, part.member)
            if other != part.member:
                raise UserError(
                    f"members '{other}' and '{part.member}' both have a stage '{name}'; a stage belongs to one member: "
                    "rename one of them"
                )
    _refuse_cycles({name: inputs for part in parts for name, inputs in part.reads.items()})


def _refuse_cycles(reads: Mapping[str, tuple[str, ...]]) -> None:
    left = dict(reads)
    while left:
        ready = [n for n, inputs in left.items() if not left.keys() & set(inputs)]
        if not ready:
            raise UserError(
                f"the stages {', '.join(sorted(left))} form a cycle; a pipeline must not have one"
            )
        for name in ready:
            del left[name]


def check_graph(topology: Topology) -> None:
    """Raises `UserError` if the complete graph is not a valid pipeline, which no member can see alone."""
    for reader, gone in topology.dangling().items():
        member = topology.stages[reader].member
        raise UserError(
            f"stage '{reader}' of member '{member}' reads {', '.join(gone)}, which no member has. "
            f"{FailureReason.STILL_READ.advice}"
        )
    sinks: dict[str, str] = {}
    for spec in topology.stages.values():
        if not spec.sinks and not topology.readers(spec.name):
            raise UserError(goes_nowhere(spec.name))
        for sink in spec.sinks:
            other = sinks.setdefault(sink.name, spec.name)
            if other != spec.name:
                raise UserError(
                    f"two sinks are named '{sink.name}' (stage '{other}' of member "
                    f"'{topology.stages[other].member}' and '{spec.name}' of '{spec.member}'); give one of them "
                    "another name="
                )
    _refuse_cycles({name: spec.inputs for name, spec in topology.stages.items()})
