"""`cutwater status`: what runs on a store, and what its journal says."""

from __future__ import annotations

import time
from typing import Any

import msgspec
from rich.text import Text

from cutwater.cluster.config import ClusterConfig
from cutwater.commands.clustering import Peer, Secret, peer_config
from cutwater.commands.output import (
    AsJson,
    StoreUrl,
    command,
    console,
    iso,
    iso_ms,
    local,
    local_ms,
    show,
    waiting,
)
from cutwater.durations import readable
from cutwater.live import view
from cutwater.offline import read_journal
from cutwater.protocol.errors import UserError
from cutwater.protocol.housekeeping import settled
from cutwater.protocol.records import MARK_PREFIX, JournalState
from cutwater.reading import sinks_of
from cutwater.status import Status, read_status, stale_after
from cutwater.stores import Store, open_store


@command
def status(
    store: StoreUrl = "./state",
    as_json: AsJson = False,
    peer: Peer = None,
    secret: Secret = "",
) -> None:
    """Shows whether the pipeline runs, how its stages fare, and what is committed and published. With --peer
    the members are asked themselves, and the journal is learned from them."""
    where = open_store(store)
    members = read_status(where)
    stale = stale_after(where)
    cluster = peer_config(peer, secret)
    if cluster is not None:
        state, members = _ask_members(where, members, cluster, as_json)
    else:
        state = read_journal(where, must_exist=not members).state
    document: dict[str, Any] = {
        "store": where.url,
        "running": any(m.is_alive(stale) for m in members),
        "members": [_member(m, stale) for m in members],
        "journal": _journal(where, state),
    }
    text: list[Any] = []
    for member in members:
        if member.is_alive(stale):
            by = Text(f"process {member.pid} on {member.host}, since {local(member.started_at)}", style="dim")
            text += [view(member, where.url, time.time(), [], console().width), by, ""]
        else:
            text += [_gone(member), ""]
    if not members:
        text += [f"no pipeline has run on {where.url} yet", ""]
    text += [Text(line) for line in _journal_lines(document["journal"], state.watermark)]
    show(as_json, document, *text)


def _ask_members(
    store: Store, last: list[Status], cluster: ClusterConfig, as_json: bool
) -> tuple[JournalState, list[Status]]:
    from cutwater.cluster.observer import Observer

    if not last:
        raise UserError(f"no pipeline has run on {store.url} yet, so its members cannot be asked")
    with waiting("asking the members", as_json) as say, Observer(cluster, last[0].pipeline, say) as observer:
        state = observer.read_journal(store).state
        now = {s.member: s for s in observer.statuses()}
    return state, [now.pop(s.member, s) for s in last] + list(now.values())


def _member(member: Status, stale: float) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(member)
    for field in ("started_at", "updated_at", "epoch_at", "open_since"):
        found[field] = iso(found[field])
    found["watermark"] = iso_ms(member.watermark)
    for stage in found["stages"]:
        stage["watermark"] = iso_ms(stage["watermark"])
    return found | {"alive": member.is_alive(stale)}


def _gone(member: Status) -> Text:
    ago = readable(max(0.0, time.time() - member.updated_at))
    text = Text.assemble((member.pipeline, "bold"), " does not run: ")
    if member.is_over:
        return text.append(f"{member.state} {ago} ago (process {member.pid} on {member.host})")
    return text.append(
        f"process {member.pid} on {member.host} was {member.state} when it last gave a sign, {ago} ago, and "
        "seems to be gone; start it again, and it goes on where it was",
        style="yellow",
    )


def _journal(store: Store, state: JournalState) -> dict[str, Any]:
    marks = settled(store.list(MARK_PREFIX))
    head = state.committed.get(state.head) if state.head is not None else None
    late = [s for s in sinks_of(state) if head is not None and marks.get(s, 0) < head.index]
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
        "unpublished": late,
    }


def _journal_lines(journal: dict[str, Any], watermark: int | None) -> list[str]:
    kept, names = journal["kept"], journal["savepoints"]
    lines = [f"checkpoints  {', '.join(map(str, kept)) or 'none yet'}"]
    if names:
        lines.append("savepoints   " + ", ".join(f"{n} (epoch {e})" for n, e in sorted(names.items())))
    line = f"timeline     generation {journal['generation']}"
    if journal["restored_to"] is not None:
        line += f", restored from epoch {journal['restored_to']}"
    lines.append(line + (", drained" if journal["drained"] else ""))
    if watermark is not None:
        lines.append(f"watermark    {local_ms(watermark)}")
    if journal["head"] is not None:
        late = ", ".join(journal["unpublished"])
        lines.append(
            f"published    epoch {journal['head']} " + (f"not yet in {late}" if late else "everywhere")
        )
    return lines
