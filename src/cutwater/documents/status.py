"""The status of a pipeline: its members, its graph, and what its journal says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from cutwater.documents.timestamps import iso, iso_ms
from cutwater.protocol.base.records import JournalState
from cutwater.store.presence import Presence, Seen


def status_document(
    url: str, members: Sequence[Seen], state: JournalState, late: Collection[str]
) -> dict[str, Any]:
    """What `cutwater status --json` prints. `late`: the sinks that do not show the newest checkpoint yet."""
    return {
        "store": url,
        "running": any(m.presence is Presence.RUNNING for m in members),
        "members": [_member(m) for m in members],
        "journal": journal_document(state, late),
        "graph": _graph(state),
    }


def _member(seen: Seen) -> dict[str, Any]:
    member = seen.status
    found: dict[str, Any] = msgspec.to_builtins(member)
    for field in ("started_at", "updated_at", "epoch_at", "open_since"):
        found[field] = iso(found[field])
    found["watermark"] = iso_ms(member.watermark)
    for stage in found["stages"]:
        stage["watermark"] = iso_ms(stage["watermark"])
    return found | {"alive": seen.presence is Presence.RUNNING, "presence": seen.presence.value}


def journal_document(state: JournalState, late: Collection[str]) -> dict[str, Any]:
    """What the journal says."""
    return {
        "generation": state.generation,
        "restored_to": state.generations[state.generation].epoch
        if state.generation in state.generations
        else None,
        "term": state.term,
        "leader": state.leader,
        "head": state.head,
        "open": sorted(state.open),
        "kept": sorted(state.committed),
        "savepoints": state.savepoints,
        "watermark": iso_ms(state.watermark),
        "drained": state.drained,
        "unpublished": sorted(late),
    }


def _graph(state: JournalState) -> list[dict[str, Any]]:
    """The stages, each after those that it reads. `runs_in`: the stage in whose query a chained one runs."""
    graph = state.topology
    if graph is None:
        return []
    stages = graph.written()
    ordered: dict[str, None] = {}
    waiting = [(name, iter(stages[name].inputs)) for name in reversed(stages)]
    entered: set[str] = set()
    while waiting:  # no recursion: a chain may be long
        name, inputs = waiting[-1]
        entered.add(name)
        following = next((i for i in inputs if i in stages and i not in entered), None)
        if following is None:
            ordered[name] = None
            waiting.pop()
        else:
            waiting.append((following, iter(stages[following].inputs)))
    return [
        msgspec.to_builtins(msgspec.structs.replace(stages[name], schema=None))
        | {"runs_in": graph.query_of(name) if name in graph.chained else ""}
        for name in ordered
    ]
