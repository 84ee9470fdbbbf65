"""`cutwater drain`: what decides is the journal and the marks; what members say of themselves only explains."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress

import msgspec

from cutwater.cli.ask import EndedMeanwhile, ask, find_running, nothing_runs
from cutwater.cli.cluster_options import Peer, Secret, peer_config
from cutwater.cli.output import AsJson, StoreUrl, Timeout, command, show, waiting
from cutwater.protocol.base.durations import seconds
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import MARK_PREFIX
from cutwater.protocol.base.records import JournalState, settled
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.protocol.member.journal import Journal
from cutwater.runtime.mailbox import new_id
from cutwater.store.at_rest import drive, read_journal
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.store.presence import Presence, Seen, Watch

WAIT = "10m"
BECAME = {"failed": "has failed", "stopped": "was stopped", "drained": "has drained"}


class Course(msgspec.Struct, frozen=True):
    """How far a drain is. `late`: the sinks that have not published the last epoch, each with its member. `seen`:
    the members of the graph in force that have a status, by name."""

    state: JournalState
    late: dict[str, str]
    seen: dict[str, Seen]

    @property
    def is_done(self) -> bool:
        """Whether all is committed and published."""
        return self.state.drained and not self.late

    @property
    def alive(self) -> list[str]:
        """The members that run, or may do so for all that is known yet."""
        return [n for n, s in self.seen.items() if s.presence in (Presence.RUNNING, Presence.UNKNOWN)]


@command
def drain(
    store: StoreUrl = "./state",
    timeout: Timeout = WAIT,
    as_json: AsJson = False,
    peer: Peer = None,
    secret: Secret = "",
) -> None:
    """Ends a running pipeline cleanly: every stage comes to rest, a last checkpoint, all of it published."""
    where = open_store(store)
    deadline = time.monotonic() + seconds(timeout, "timeout")
    cluster = peer_config(peer, secret)
    watch = Watch(where)
    there = find_running(where, watch, as_json, cluster)
    if there is None:
        _already(where, watch, as_json)
        return
    epoch: int | None = None
    request = Request(RequestKind.DRAIN, new_id())
    with suppress(EndedMeanwhile):
        epoch = ask(where, request, "drain", timeout, as_json, cluster, there)
    with waiting("waiting until all of it is published and every member has ended", as_json):
        course = _await_end(where, watch, epoch, deadline)
    last = course.state.head
    failed = sorted(name for name, seen in course.seen.items() if seen.status.state == "failed")
    lines = [f"drained: epoch {last} is committed and published everywhere"]
    if failed:
        lines.append(f"after that failed: {_words(course, failed)}")
    show(as_json, {"epoch": last, "state": "drained", "failed": failed}, *lines)


def _already(store: Store, watch: Watch, as_json: bool) -> None:
    """Nothing runs. Raises `UserError` unless there is nothing to drain either."""
    course = look(store, watch, read_journal(store))
    if not course.is_done:
        raise nothing_runs(store, "drain")
    last = course.state.head
    said = f"drained before: epoch {last} is committed and published everywhere, and nothing runs"
    show(as_json, {"epoch": last, "state": "drained", "failed": []}, said)


def look(store: Store, watch: Watch, journal: Journal) -> Course:
    """How far a drain is now. Reads on in the journal."""
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
    return Course(state, late, seen)


def _await_end(store: Store, watch: Watch, epoch: int | None, deadline: float) -> Course:
    """Returns when all is published and nobody runs any more. Raises `UserError` when that will not be."""
    journal = read_journal(store)
    while True:
        course = look(store, watch, journal)
        if course.is_done and not course.alive:
            return course
        _refuse_hopeless(course, epoch)
        if time.monotonic() > deadline:
            raise UserError(_unfinished(store, course))
        time.sleep(2 * watch.every_s)


def _refuse_hopeless(course: Course, epoch: int | None) -> None:
    last = course.state.head
    if not course.state.drained and epoch is not None:
        raise UserError(
            f"epoch {epoch} was committed as the last one, but '{course.state.leader}' has set the pipeline going again "
            "since: somebody or something has started a member. Stop that first, then drain again"
        )
    if not course.state.drained and not course.alive:
        raise UserError(
            f"the pipeline has ended without having been drained: {_words(course, course.seen)}. What is committed is "
            f"kept (epoch {last}): start it again, and see what it said itself"
        )
    owners = {name for name in course.late.values() if name in course.seen}
    gone = {name for name in owners if _is_gone(course.seen[name])} if course.alive else owners
    if course.state.drained and gone:
        sinks = sorted(sink for sink, name in course.late.items() if name in gone)
        raise UserError(
            f"epoch {last} is committed as the last one, but not published in {', '.join(sinks)}: "
            f"{_words(course, gone)}. Start the pipeline again, which publishes it, then drain once more"
        )


def _unfinished(store: Store, course: Course) -> str:
    what = f"it is not published yet in {', '.join(sorted(course.late))}"
    if course.is_done:
        what = f"it is published everywhere, but not everybody has ended: {_words(course, course.alive)}"
    elif not course.state.drained:
        what = "the last one, with which the pipeline ends, is not"
    return (
        f"epoch {course.state.head} is committed; {what}. `cutwater status --store {store.url}` shows what it waits for; "
        "give it more time with --timeout"
    )


def _is_gone(seen: Seen) -> bool:
    """Whether the process that took part in this drain has ended. That one said so before it began says nothing."""
    if seen.presence is Presence.ENDED:
        return seen.is_news or not seen.status.is_over
    return seen.presence is Presence.SILENT


def _words(course: Course, names: Iterable[str]) -> str:
    said = []
    for name in sorted(names):
        status, presence = course.seen[name].status, course.seen[name].presence
        word = BECAME.get(status.state, f"is {status.state}")
        if presence is Presence.SILENT:
            word = "gives no sign any more"
        elif presence is Presence.ENDED and not status.is_over:
            word = "was killed"
        why = f" ({status.trouble})" if status.trouble and status.state == "failed" else ""
        said.append(f"member '{name}' {word}{why}")
    return ", ".join(said) or "no member says how"
