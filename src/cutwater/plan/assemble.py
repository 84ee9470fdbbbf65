"""How a pipeline's graph comes together from what its members have.

Every member puts its part, `graph/<member>.json`, into the store: its stages, and their columns as far as they
are known. Its stage functions are called when the columns of what they read are there. When nothing is missing
any more, all have the same whole, and the first leader puts that into the journal; from then on the journal
says what the graph is, and a member that comes back needs nobody else to know it.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Collection, Mapping

import msgspec

from cutwater.plan.build import Builder, whole
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
    """Whoever waited for other members is to end."""


class GraphPart(msgspec.Struct, frozen=True):
    """One member's stages. `reads` has all of them with what they read, `stages` those whose columns are
    known. `beat` counts up while it waits for others: a part that does not change was left behind by an
    earlier run."""

    member: str
    boot: str
    beat: int
    reads: dict[str, tuple[str, ...]]
    stages: dict[str, StageSpec]
    listen: tuple[str, ...] = ()
    """Where it can be reached."""

    @property
    def is_complete(self) -> bool:
        return len(self.stages) == len(self.reads)


class Assembled(msgspec.Struct, frozen=True):
    """A whole graph, where the other members can be reached, and the hash of the graph in the journal that it
    was made from (none at the first start)."""

    topology: Topology
    endpoints: tuple[str, ...]
    base: str


def own_stages(stages: dict[str, StageDef], member: str | None) -> tuple[str, dict[str, StageDef]]:
    """The name of the member that runs here, and its stages. Raises `UserError` if that is not clear."""
    named = sorted({stage.member for stage in stages.values() if stage.member is not None})
    unnamed = [stage.name for stage in stages.values() if stage.member is None]
    if member is not None and not NAME.fullmatch(member):
        raise UserError(f"'{member}' cannot name a member: use letters, digits and underscores")
    if named and unnamed:
        raise UserError(
            f"some stages say which member hosts them ({', '.join(named)}), and {', '.join(unnamed)} do not: give "
            "all of them member=, or none"
        )
    if named and member is None:
        raise UserError(
            f"the stages of this pipeline belong to members ({', '.join(named)}): say which of them runs here, with "
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
    tell: Callable[[str], None],
    is_leaving: Callable[[], bool] = lambda: False,
) -> Assembled:
    """Builds this member's stages and gives the whole graph, when every part of it is there. `expected` are
    the members without which it does not begin. Also gives where the others can be reached: who has lost the
    others finds them again by that. Raises `UserError` if the parts do not fit together, `WaitEnded` if it
    `is_leaving` before all are there."""
    part = GraphPart(member, uuid.uuid4().hex[:8], 0, reads, {}, listen)
    looks = _Looks(store, member)
    told = ""
    while True:
        state = read_journal(store, must_exist=False).state
        recorded = state.topology
        parts = looks.look()
        if recorded is not None:
            others = _recorded_elsewhere(recorded, part, parts)
        else:
            present = [p for p in parts.values() if p.member in looks.live]
            _refuse_clashes([part, *present])
            others = {n: spec for p in present for n, spec in p.stages.items()}
        builder.advance(others)
        part = msgspec.structs.replace(part, beat=part.beat + 1, stages=dict(builder.specs))
        store.put(graph_part_name(member), seal(part))
        if recorded is not None:
            missing = _unknown_inputs(builder, others)
        else:
            missing = _missing(builder, present, others, set(expected) - looks.live - {member})
            if not expected:
                missing += _unread({**others, **builder.specs})
        if not missing and builder.is_done:
            topology = whole({**others, **builder.specs})
            check_whole(topology)
            endpoints = tuple(sorted({e for p in parts.values() for e in p.listen} - set(listen)))
            return Assembled(topology, endpoints, state.topology_hash)
        line = f"waiting for {'; '.join(missing)}"
        if line != told:
            told = line
            tell(line)
        if is_leaving():
            raise WaitEnded(line)
        time.sleep(0.25 if isinstance(store, LocalStore) else 2.0)


def part_kind(name: str) -> type[GraphPart] | None:
    """What an object below `graph/` is; `None` if it is none of ours."""
    return GraphPart if graph_part_of(name) is not None else None


class _Looks:
    """What the others have put into the store, and who of them does so now."""

    def __init__(self, store: Store, member: str) -> None:
        self._store = store
        self._own = graph_part_name(member)
        self._first: dict[str, GraphPart] | None = None
        self.live: set[str] = set()

    def look(self) -> dict[str, GraphPart]:
        names = [n for n in self._store.list(GRAPH_PREFIX) if n != self._own and part_kind(n) is not None]
        parts: dict[str, GraphPart] = {}
        for name, data in zip(names, self._store.read_many(names), strict=True):
            try:
                if data is not None:
                    part = decode(name, data, GraphPart)
                    parts[part.member] = part
            except StoreError as error:
                raise UserError(
                    f"{name} in {self._store.url} is no part of a graph ({error.__cause__}); start that member again, "
                    "which writes it anew"
                ) from error
        if self._first is None:
            self._first = parts
        self.live |= {m for m, p in parts.items() if self._first.get(m) != p}
        return parts


def _recorded_elsewhere(
    recorded: Topology, part: GraphPart, parts: Mapping[str, GraphPart]
) -> dict[str, StageSpec]:
    """The other members' stages as the journal has them, with the columns of those that nobody read so far."""
    found = {}
    for name, spec in recorded.stages.items():
        if spec.member != part.member and name not in part.reads:
            theirs = parts[spec.member].stages.get(name) if spec.member in parts else None
            schema = spec.schema or (theirs.schema if theirs is not None else None)
            found[name] = msgspec.structs.replace(spec, schema=schema)
    return found


def _unknown_inputs(builder: Builder, others: Mapping[str, StageSpec]) -> list[str]:
    return [
        f"stage '{name}', which '{reader}' reads and the pipeline does not have yet: start the member that has it, with "
        "--restore latest"
        for name, reader in builder.waits_for.items()
        if name not in others
    ]


def _missing(
    builder: Builder, present: list[GraphPart], others: Mapping[str, StageSpec], expected: set[str]
) -> list[str]:
    """What the graph still lacks, in words."""
    coming = {n: p.member for p in present for n in p.reads}
    said = [f"member '{m}', which does not run yet" for m in sorted(expected)]
    for name, reader in builder.waits_for.items():
        if name not in others:
            who = coming.get(name)
            more = f"of member '{who}'" if who else "which no member that runs has"
            said.append(f"stage '{name}' {more}, and which '{reader}' reads")
    for part in present:
        if not part.is_complete:
            left = ", ".join(sorted(part.reads.keys() - part.stages.keys()))
            said.append(f"member '{part.member}', which waits itself (for what {left} reads)")
        unknown = (
            {i for spec in part.stages.values() for i in spec.inputs} - others.keys() - builder.specs.keys()
        )
        said += [f"stage '{i}', which member '{part.member}' reads" for i in sorted(unknown - coming.keys())]
    return said


def _unread(stages: Mapping[str, StageSpec]) -> list[str]:
    """Who else is to come is not known here: a stage without a sink waits for whoever reads it."""
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
                    f"members '{other}' and '{part.member}' both have a stage '{name}'; a stage has one host: rename "
                    "one of them"
                )
    _refuse_circles({name: inputs for part in parts for name, inputs in part.reads.items()})


def _refuse_circles(reads: Mapping[str, tuple[str, ...]]) -> None:
    left = dict(reads)
    while left:
        ready = [n for n, inputs in left.items() if not left.keys() & set(inputs)]
        if not ready:
            raise UserError(
                f"the stages {', '.join(sorted(left))} read each other in a circle; a pipeline has none"
            )
        for name in ready:
            del left[name]


def check_whole(topology: Topology) -> None:
    """Raises `UserError` for a graph that is no pipeline: what no member could see alone."""
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
    _refuse_circles({name: spec.inputs for name, spec in topology.stages.items()})
