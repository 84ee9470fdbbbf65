"""`cutwater drain`. The journal and the marks decide whether it is done; the members' own statuses only explain."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from cutwater.cli.client import Client, PipelineEnded, client_command, not_running
from cutwater.cli.output import show, waiting
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import MARK_PREFIX
from cutwater.protocol.base.records import JournalState, settled
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.protocol.member.journal import Journal
from cutwater.runtime.store_requests import new_id
from cutwater.store.at_rest import drive, read_journal
from cutwater.store.contract import Store
from cutwater.store.presence import Presence, Seen, Watch

OUTCOMES = {"failed": "has failed", "stopped": "was stopped", "drained": "has drained"}


class DrainProgress(msgspec.Struct, frozen=True):
    """The progress of a drain. `late`: the sinks that have not published the last epoch, each with its member. `seen`:
    the members of the current graph that have a status, by name."""

    state: JournalState
    late: dict[str, str]
    seen: dict[str, Seen]

    @property
    def is_done(self) -> bool:
        """Whether everything is committed and published."""
        return self.state.drained and not self.late

    @property
    def alive(self) -> list[str]:
        """The members that are running, or may be."""
        return [n for n, s in self.seen.items() if s.presence in (Presence.RUNNING, Presence.UNKNOWN)]


@client_command()
def drain(client: Client) -> None:
    """Stop a running pipeline cleanly: stages finish, a last checkpoint is committed and published."""
    deadline = time.monotonic() + client.timeout_s
    member = client.running_member()
    if member is None:
        _report_earlier_drain(client)
        return
    epoch: int | None = None
    with suppress(PipelineEnded):
        epoch = client.ask(Request(RequestKind.DRAIN, new_id()), "drain", member)
    with waiting("waiting until everything is published and every member has ended", client.as_json):
        progress = _await_end(client.store, client.watch, epoch, deadline)
    last = progress.state.head
    failed = sorted(name for name, seen in progress.seen.items() if seen.status.state == "failed")
    lines = [f"drained: epoch {last} is committed and published everywhere"]
    if failed:
        lines.append(f"failed after that: {_describe(progress, failed)}")
    show(client.as_json, {"epoch": last, "state": "drained", "failed": failed}, *lines)


def _report_earlier_drain(client: Client) -> None:
    """Nothing is running. Raises `UserError` unless the pipeline is already drained."""
    progress = look(client.store, client.watch, read_journal(client.store))
    if not progress.is_done:
        raise not_running(client, "drain")
    last = progress.state.head
    text = f"already drained: epoch {last} is committed and published everywhere, and nothing is running"
    show(client.as_json, {"epoch": last, "state": "drained", "failed": []}, text)


def look(store: Store, watch: Watch, journal: Journal) -> DrainProgress:
    """The current progress of a drain, after reading new journal entries."""
    drive(store, follow(journal.view))
    state = journal.state
    graph = state.topology
    head = state.committed.get(state.head) if state.head is not None else None
    late: dict[str, str] = {}
    if graph is not None and head is not None:
        marks = settled(store.list(MARK_PREFIX))
        owners = {sink.name: spec.member for spec in graph.stages.values() for sink in spec.sinks}
        late = {sink: member for sink, member in owners.items() if marks.get(sink, 0) < head.index}
    members = graph.members() if graph is not None else ()
    seen = {one.status.member: one for one in watch.look() if one.status.member in members}
    return DrainProgress(state, late, seen)


def _await_end(store: Store, watch: Watch, epoch: int | None, deadline: float) -> DrainProgress:
    """Wait until everything is published and nothing is running. Raises `UserError` if that can no longer happen."""
    journal = read_journal(store)
    while True:
        progress = look(store, watch, journal)
        if progress.is_done and not progress.alive:
            return progress
        _refuse_hopeless(progress, epoch)
        if time.monotonic() > deadline:
            raise UserError(_unfinished(store, progress))
        time.sleep(2 * watch.every_s)


def _refuse_hopeless(progress: DrainProgress, epoch: int | None) -> None:
    last = progress.state.head
    if not progress.state.drained and epoch is not None:
        raise UserError(
            f"epoch {epoch} was committed as the last one, but '{progress.state.leader}' has restarted the pipeline "
            "since: somebody or something has started a member. Stop that first, then drain again"
        )
    if not progress.state.drained and not progress.alive:
        raise UserError(
            f"the pipeline ended without being drained: {_describe(progress, progress.seen)}. What is committed is kept "
            f"(epoch {last}): check the log of its last run, then start it again"
        )
    owners = {name for name in progress.late.values() if name in progress.seen}
    gone = {name for name in owners if _is_gone(progress.seen[name])} if progress.alive else owners
    if progress.state.drained and gone:
        sinks = sorted(sink for sink, name in progress.late.items() if name in gone)
        raise UserError(
            f"epoch {last} is committed as the last one, but not published in {', '.join(sinks)}: "
            f"{_describe(progress, gone)}. Start the pipeline again, which publishes it, then drain once more"
        )


def _unfinished(store: Store, progress: DrainProgress) -> str:
    what = f"it is not published yet in {', '.join(sorted(progress.late))}"
    if progress.is_done:
        what = f"it is published everywhere, but some members have not ended: {_describe(progress, progress.alive)}"
    elif not progress.state.drained:
        what = "the last epoch, which ends the pipeline, is not committed yet"
    return (
        f"epoch {progress.state.head} is committed; {what}. `cutwater status --store {store.url}` shows what it is "
        "waiting for; to wait longer, use --timeout"
    )


def _is_gone(seen: Seen) -> bool:
    """Whether the process that took part in this drain has ended. A status from before the drain proves nothing."""
    if seen.presence is Presence.ENDED:
        return seen.is_news or not seen.status.is_over
    return seen.presence is Presence.SILENT


def _describe(progress: DrainProgress, names: Iterable[str]) -> str:
    outcomes = []
    for name in sorted(names):
        status, presence = progress.seen[name].status, progress.seen[name].presence
        outcome = OUTCOMES.get(status.state, f"is {status.state}")
        if presence is Presence.SILENT:
            outcome = "no longer reports"
        elif presence is Presence.ENDED and not status.is_over:
            outcome = "was killed"
        why = f" ({status.trouble})" if status.trouble and status.state == "failed" else ""
        outcomes.append(f"member '{name}' {outcome}{why}")
    return ", ".join(outcomes) or "no member has a status"
