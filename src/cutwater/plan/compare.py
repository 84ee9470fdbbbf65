"""The graph of the code, compared with the one in the store."""

from __future__ import annotations

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.records import Topology, encode
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store


def check_topology(store: Store, topology: Topology) -> None:
    """Raises `UserError` if the pipeline in the store has a different graph."""
    state = read_journal(store, must_exist=False).state
    if state.topology is None or state.topology_hash == digest(encode(topology)):
        return
    before, now = set(state.topology.members()), set(topology.members())
    if before < now:
        absent = " and ".join(f"member '{name}'" for name in sorted(now - before))
        raise UserError(
            f"the pipeline in {store.url} has started without {absent}, with "
            f"{', '.join(sorted(before))}. To join it at its newest checkpoint, start with --restore latest "
            "(start(restore='latest')); members that start together each name the others with --wait-for"
        )
    changes = "; ".join(differences(state.topology, topology)) or "its description differs"
    raise UserError(
        f"the pipeline in {store.url} is not the one in this code: {changes}. To continue with the changed code from "
        "the newest checkpoint, start with --restore latest (start(restore='latest')); add --drop STAGE for a stage that "
        "is gone, --reset STAGE for one that has to start at that checkpoint without its state"
    )


def differences(before: Topology, after: Topology) -> list[str]:
    """Descriptions of how one graph differs from another."""
    olds, news = before.written(), after.written()
    said = [f"stage '{s}' is new" for s in sorted(news.keys() - olds.keys())]
    said += [f"stage '{s}' is gone" for s in sorted(olds.keys() - news.keys())]
    for name in sorted(olds.keys() & news.keys()):
        old, new = olds[name], news[name]
        was, now = (
            graph.chained[name].reader if name in graph.chained else None for graph in (before, after)
        )
        if was is not None and was != now:
            said.append(f"stage '{name}' is no longer chained into '{was}'")
        if now is not None and was != now:
            said.append(f"stage '{name}' is now chained into '{now}'")
        is_ordered = not any(set(spec.inputs) & {*before.chained, *after.chained} for spec in (old, new))
        if old.inputs != new.inputs if is_ordered else set(old.inputs) != set(new.inputs):
            said.append(f"stage '{name}' reads {list(new.inputs)}, and used to read {list(old.inputs)}")
        sinks, used = ([s.name for s in spec.sinks] for spec in (new, old))
        if sinks != used:
            said.append(f"the sinks of stage '{name}' are {sinks}, not {used}")
        finals = {s.name: s.final for s in old.sinks}
        said += [
            f"sink '{s.name}' {'now has final_by, and had none' if s.final else 'no longer has final_by'}"
            for s in new.sinks
            if s.final != finals.get(s.name, s.final)
        ]
        if old.member != new.member:
            said.append(f"stage '{name}' moved from member '{old.member}' to '{new.member}'")
        if (
            None not in (old.schema, new.schema) and old.schema != new.schema
        ):  # a stage that nobody reads has none
            said.append(f"stage '{name}' gives its readers other columns")
    return said
