"""`cutwater status`: the members running on a store, and what its journal says."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from cutwater.api.tables import sinks_of
from cutwater.cli.client import CHECKING
from cutwater.cli.cluster_options import Peer, Secret, peer_config
from cutwater.cli.live_view import view
from cutwater.cli.output import (
    AsJson,
    StoreUrl,
    command,
    console,
    local,
    local_ms,
    show,
    waiting,
    waiting_if_slow,
)
from cutwater.cluster.config import ClusterConfig
from cutwater.documents.status import status_document
from cutwater.protocol.base.durations import readable
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.paths import MARK_PREFIX
from cutwater.protocol.base.records import JournalState, settled
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.store.presence import UNABLE, Presence, Seen, Watch, silence_s
from cutwater.store.printable import one_line
from cutwater.store.process_identity import exists
from cutwater.store.status import ALONE, Status, read_status


@command
def status(
    store: StoreUrl = "./state",
    as_json: AsJson = False,
    peer: Peer = None,
    secret: Secret = "",
) -> None:
    """Show whether the pipeline is running, the status of its stages, and what is committed and published. With --peer,
    ask the members and read the journal from them."""
    where = open_store(store)
    cluster = peer_config(peer, secret)
    if cluster is not None:
        state, members = _ask_members(where, cluster, as_json)
    else:
        with waiting_if_slow(CHECKING, as_json) as tick:
            members = Watch(where).settle(tick)
        state = read_journal(where, must_exist=not members).state
    document = status_document(where.url, members, state, _late(where, state))
    text: list[Any] = []
    for seen in members:
        member = seen.status
        if seen.presence is Presence.RUNNING:
            by = Text(f"process {member.pid} on {member.host}, since {local(member.started_at)}", style="dim")
            # Relative to its last report, by its own clock: this machine's may differ.
            text += [view(member, where.url, member.updated_at, [], console().width), by, ""]
        else:
            text += [_gone(seen), ""]
    if not members:
        text += [f"no member has reported a status on {where.url} yet", ""]
    text += [Text(line) for line in _journal_lines(document["journal"], state.watermark)]
    show(as_json, document, *text)


def _ask_members(store: Store, cluster: ClusterConfig, as_json: bool) -> tuple[JournalState, list[Seen]]:
    from cutwater.cluster.observer import Observer

    last = read_status(store)
    if not last:
        raise UserError(f"no member has reported a status on {store.url} yet, so there is nobody to ask")
    with (
        waiting("asking the members", as_json) as update,
        Observer(cluster, last[0].pipeline, update) as observer,
    ):
        state = observer.read_journal(store).state
        reachable = observer.members()
        answers = {s.member: s for s in observer.statuses()}
    known = {s.member: s for s in last} | answers
    found = [
        Seen(s, Presence.RUNNING if name in reachable and not s.is_over else _absent(s), name in answers)
        for name, s in known.items()
    ]
    return state, found


def _absent(member: Status) -> Presence:
    return Presence.ENDED if member.is_over else Presence.SILENT


def _gone(seen: Seen) -> Text:
    member = seen.status
    who = f"process {member.pid} on {member.host}"
    at = f"at {local(member.updated_at)} by its clock"
    text = Text.assemble((member.pipeline, "bold"))
    if member.member != ALONE:
        text.append(f", member '{member.member}'")
    text.append(" is not running: ")
    if member.is_over:
        why = f": {one_line(member.trouble)}" if member.state == "failed" and member.trouble else ""
        return text.append(f"{member.state} {at} ({who}){why}")
    if seen.presence is Presence.ENDED:
        return text.append(
            f"{who} was {member.state} when it last reported, {at}, and has ended since; start it again to continue "
            "where it stopped",
            style="yellow",
        )
    if exists(member.process):
        return text.append(
            f"{who} exists, but has not reported for {readable(silence_s(member))} (last {at}): it {UNABLE}; resume "
            "it, or kill it and start it again",
            style="yellow",
        )
    return text.append(
        f"{who} was {member.state} when it last reported, {at}, has not reported for {readable(silence_s(member))} now, "
        "and seems to be gone; start it again to continue where it stopped",
        style="yellow",
    )


def _late(store: Store, state: JournalState) -> list[str]:
    """The sinks that do not show the newest checkpoint yet."""
    marks = settled(store.list(MARK_PREFIX))
    head = state.committed.get(state.head) if state.head is not None else None
    return [s for s in sinks_of(state) if head is not None and marks.get(s, 0) < head.index]


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
