"""Restores and the names of savepoints: the requests that are one journal entry each.

A leader carries them out for requests; a command does so whether or not a member is running, and takes the lead for the
length of one request (`command`). Both run the same procedures, in the same order: take the lead, *then* read and
validate, then write one entry. Nobody else writes in that term, so what was valid stays valid until the entry is
written. The answer comes from the state after the entry was applied, not from the fact that it was written. The entry
has the request's id, so a request is carried out once, however often it is received.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol, TypeVar

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import (
    FAILED,
    Failed,
    FindTableVersion,
    List,
    Procedure,
    Read,
    ReadTableHistory,
    Sleep,
    TableHistory,
    TableOperation,
    ask,
    backoff_ms,
    insist,
)
from cutwater.protocol.base.errors import StoreError, listed
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.log import AppendPhase, append, follow
from cutwater.protocol.base.paths import MARK_PREFIX, mark_name, mark_prefix
from cutwater.protocol.base.records import (
    Checkpoint,
    JournalBody,
    JournalState,
    Leader,
    Manifest,
    Published,
    Restored,
    Savepoint,
    Topology,
    columns,
    decode,
    encode,
    settled,
)
from cutwater.protocol.base.wire import Reply, Request, RequestKind
from cutwater.protocol.member.journal import Journal, may_name, timeline
from cutwater.protocol.member.publish import read_manifest, stranded

A = TypeVar("A")

TABLE_TRIES = 8
"""How often a table that does not answer is asked; then the restore is refused."""

LEAD_TRIES = 10
"""How often a command takes the lead again after a member has taken it in the middle of the request."""


class Refusal(Exception):
    """A request cannot be carried out, and nothing was written. Never leaves this file."""

    def __init__(self, reason: FailureReason, detail: str) -> None:
        self.reason, self.detail = reason, detail


class Tables:
    """Asks tables, and remembers their answers."""

    def __init__(self) -> None:
        self._known: dict[TableOperation[Any], Any] = {}

    def ask(self, operation: TableOperation[A]) -> Procedure[A]:
        """Returns the answer. Raises `StoreError` if there cannot be one, and `Refusal` if the table does not answer."""
        if operation not in self._known:
            self._known[operation] = yield from self._insist(operation)
        answer: A | Failed | StoreError = self._known[operation]
        if isinstance(answer, StoreError):
            raise answer
        if answer is FAILED:
            raise Refusal(
                FailureReason.TABLE_UNAVAILABLE,
                f"the table of sink '{operation.sink}' did not answer whether it can go back",
            )
        return answer

    def _insist(self, operation: TableOperation[A]) -> Procedure[A | Failed | StoreError]:
        for attempt in range(TABLE_TRIES):
            try:
                answer = yield from ask(operation)
            except StoreError as error:
                return error
            if answer is not FAILED:
                return answer
            yield Sleep(backoff_ms(attempt))
        return FAILED


class Writer(Protocol):
    """A leader in one term: of a member, or of a command."""

    @property
    def journal(self) -> Journal: ...

    @property
    def term(self) -> int: ...

    @property
    def tables(self) -> Tables:
        """The answers of tables so far."""
        ...

    def record(self, make: Callable[[int], JournalBody]) -> Procedure[bool]:
        """Appends what `make` returns for the next place; `False` if the term is over."""
        ...


def steer(writer: Writer, request: Request, coming: Collection[str] = ()) -> Procedure[Reply | None]:
    """Carries out a request to restore, to name a checkpoint or to remove a name, and returns the answer; `None` if the
    term ended first, so that the next leader has to be asked. `coming` are the names of savepoints in progress."""
    known = answer(writer.journal.state, request)
    if known is not None:
        return known
    try:
        if request.kind is RequestKind.RESTORE:
            body: JournalBody = yield from _restored(writer, request)
        else:
            body = _savepoint(writer, request, coming)
    except Refusal as refusal:
        return Reply(request.request_id, False, None, refusal.reason.value, refusal.detail)
    if not (yield from writer.record(lambda _: body)):
        return None
    return answer(writer.journal.state, request)


def refusal(journal: Journal, request: Request) -> Procedure[Reply | None]:
    """Why a restore would be refused now; `None` if it would not be. Writes nothing."""
    return (yield from _refused(_Command(journal, journal.state.term, str), request))


def _refused(writer: Writer, request: Request) -> Procedure[Reply | None]:
    try:
        yield from _restored(writer, request)
    except Refusal as refused:
        return Reply(request.request_id, False, None, refused.reason.value, refused.detail)
    return None


def answer(state: JournalState, request: Request) -> Reply | None:
    """The answer to a request that was carried out, according to the journal; `None` if it was not, or so long ago that
    the journal no longer knows."""
    if request.request_id not in state.answers:
        return None
    return Reply(request.request_id, True, state.answers[request.request_id])


def command(journal: Journal, name: str, nonce: Callable[[], str], request: Request) -> Procedure[Reply]:
    """Carries out one request without a member: leads, under `name`, for the length of the request. The previous leader
    finds its term over, reads why, and leads again.

    It does so quickly, and tables may be slow, so they are asked before this takes the lead. Their answers are as good
    as answers from within the term, because tables know nothing of terms. Everything else is read and decided again
    after taking the lead.
    """
    for attempt in range(LEAD_TRIES):
        yield from follow(journal.view)
        known = answer(journal.state, request)
        if known is not None:
            return known
        lead = _Command(journal, journal.state.term + 1, nonce)
        if request.kind is RequestKind.RESTORE:
            yield from _refused(lead, request)  # only for the tables' answers; the rest may still change
        entry = Leader(lead.term, name, resumes=False)
        if (yield from append(journal.view, journal.view.seal(entry, nonce()))) is AppendPhase.MINE:
            reply = yield from steer(lead, request)
            if reply is not None:
                return reply
        yield Sleep(backoff_ms(attempt))
    detail = f"{journal.state.leader} took the lead each time before the request was carried out"
    return Reply(request.request_id, False, None, FailureReason.NOT_LEADER.value, detail)


class _Command:
    """The term of a command."""

    def __init__(self, journal: Journal, term: int, nonce: Callable[[], str]) -> None:
        self.journal = journal
        self.term = term
        self.tables = Tables()
        self._nonce = nonce

    def record(self, make: Callable[[int], JournalBody]) -> Procedure[bool]:
        view = self.journal.view
        while self.journal.state.term == self.term:
            body = make(view.last + 1)
            if (yield from append(view, view.seal(body, self._nonce()))) is AppendPhase.MINE:
                return True
            yield from follow(view)
        return False


# --- names of savepoints ----------------------------------------------------------------------------------


def _savepoint(writer: Writer, request: Request, coming: Collection[str]) -> Savepoint:
    """The entry that gives a name to a kept checkpoint, or removes it; retention does the rest."""
    state = writer.journal.state
    name = request.name or request.request_id
    kept = request.kind is RequestKind.SAVEPOINT
    epoch = request.epoch if kept else state.savepoints.get(name)
    if epoch is None:
        known = ", ".join(sorted(state.savepoints)) or "none"
        raise Refusal(FailureReason.NO_SUCH_CHECKPOINT, f"there is no savepoint '{name}'; there are: {known}")
    if kept and epoch not in state.committed:
        raise Refusal(FailureReason.NO_SUCH_CHECKPOINT, f"no checkpoint of epoch {epoch} is kept")
    body = Savepoint(writer.term, state.generation, name, epoch, kept, request.request_id)
    if not may_name(state, body) or (kept and name in coming):
        raise Refusal(FailureReason.NAME_TAKEN, name_taken(state, name))
    return body


def name_taken(state: JournalState, name: str) -> str:
    """Why a savepoint cannot have this name."""
    if name not in state.savepoints:
        return f"a savepoint '{name}' is being taken"
    return f"savepoint '{name}' already exists (epoch {state.savepoints[name]})"


# --- restores ---------------------------------------------------------------------------------------------


def _restored(writer: Writer, request: Request) -> Procedure[Restored]:
    """The entry that begins the next generation at a kept checkpoint, if everything allows it."""
    state = writer.journal.state
    target = _target(state, request)
    graph = _graph(state, request)
    try:
        manifest = yield from read_manifest(target)
    except StoreError as error:
        raise Refusal(FailureReason.STORE_DAMAGED, str(error)) from error
    if manifest is None:
        raise Refusal(FailureReason.STORE_DAMAGED, f"the manifest of epoch {target.epoch} is missing")
    _check_stages(state, request, graph, manifest)
    _check_inputs(request, graph, manifest)
    _check_in_flight(state, graph, manifest)
    yield from _check_tables(state, request, target, graph, manifest, writer.tables)
    yield from _check_new_readers(request, target, graph, manifest, writer.tables)
    changed = digest(encode(graph)) != state.topology_hash
    return Restored(
        writer.term,
        state.generation + 1,
        target.epoch,
        target.cuts,
        tuple(sorted(request.reset)),
        request.force,
        graph if changed else None,
        digest(encode(graph)) if changed else "",
        request.request_id,
    )


def _target(state: JournalState, request: Request) -> Checkpoint:
    epoch = request.epoch
    if request.name is not None:
        named = state.savepoints.get(request.name)
        if epoch is not None and named != epoch:
            raise Refusal(
                FailureReason.NO_SUCH_CHECKPOINT,
                f"'{request.name}' is no longer the savepoint of epoch {epoch}",
            )
        epoch = named
    target = state.committed.get(epoch) if epoch is not None else None
    if target is None:
        what = (
            f"no checkpoint of epoch {epoch} is kept" if epoch else f"there is no savepoint '{request.name}'"
        )
        raise Refusal(FailureReason.NO_SUCH_CHECKPOINT, what)
    return target


def _graph(state: JournalState, request: Request) -> Topology:
    """The graph after the restore: the requested one, or the current one without the dropped stages."""
    assert state.topology is not None  # a checkpoint is committed, so there is a graph
    graph = request.topology
    if graph is None:
        graph = Topology({n: s for n, s in state.topology.stages.items() if n not in request.drop})
    elif request.base is not None and request.base != state.topology_hash:
        raise Refusal(
            FailureReason.GRAPH_CHANGED, "another member has changed the pipeline's graph meanwhile"
        )
    for reader, gone in graph.dangling().items():
        member = graph.stages[reader].member
        raise Refusal(
            FailureReason.STILL_READ,
            f"stage '{reader}' of member '{member}' reads {', '.join(gone)}, which the pipeline would no longer have",
        )
    return graph


def _check_stages(state: JournalState, request: Request, graph: Topology, manifest: Manifest) -> None:
    """Raises `Refusal` if a stage of the checkpoint, or of the current graph, would be lost without being named."""
    assert state.topology is not None
    stages = manifest.stages.keys() | state.topology.stages.keys()
    known = stages | manifest.release.keys() | state.topology.sinks().keys()
    gone = sorted(stages - graph.stages.keys() - set(request.drop) - _named_before(state, manifest))
    if gone:
        raise Refusal(
            FailureReason.STAGE_GONE,
            f"the pipeline or the checkpoint has stages that this code does not have: {', '.join(gone)}. To remove them "
            f"with their state, add {' '.join(f'--drop {s}' for s in gone)}",
        )
    for name in request.drop:
        if name in graph.stages or name in graph.sinks():
            raise Refusal(
                FailureReason.NO_SUCH_STAGE,
                f"--drop {name}: the code still has it; remove it there, or --reset the stage",
            )
        if name not in known:
            raise Refusal(
                FailureReason.NO_SUCH_STAGE,
                f"--drop {name}: there is no such stage; there are {', '.join(sorted(stages))}",
            )
    for name in request.reset:
        if name not in graph.stages:
            raise Refusal(
                FailureReason.NO_SUCH_STAGE,
                f"--reset {name}: there is no such stage; there are {', '.join(sorted(graph.stages))}",
            )


def _named_before(state: JournalState, manifest: Manifest) -> set[str]:
    """The stages and sinks that the checkpoint has and the current graph does not, if the current generation began at
    that checkpoint and nothing was committed since: the request for that restore has named them."""
    assert state.topology is not None
    if not state.head == manifest.epoch == state.generations[state.generation].epoch:
        return set()
    return manifest.stages.keys() - state.topology.stages.keys() | (
        manifest.release.keys() - state.topology.sinks().keys()
    )


def _check_inputs(request: Request, graph: Topology, manifest: Manifest) -> None:
    """Raises `Refusal` if a stage that keeps its state reads other stages than at the checkpoint: it has no position on
    a new input, and its state may have rows of one that is gone."""
    for name, spec in graph.stages.items():
        report = manifest.stages.get(name)
        if report is None or name in request.reset or set(spec.inputs) == report.consumed.keys():
            continue
        before = ", ".join(sorted(report.consumed)) or "no other stage"
        now = ", ".join(spec.inputs) or "no other stage"
        raise Refusal(
            FailureReason.INPUTS_CHANGED,
            f"stage '{name}' reads {now}, and read {before} at epoch {manifest.epoch}. To start it there without its "
            f"state, add --reset {name}",
        )


def _check_in_flight(state: JournalState, graph: Topology, manifest: Manifest) -> None:
    """Raises `Refusal` if there are rows in flight from a stage whose columns have changed since."""
    assert state.topology is not None
    for flight in manifest.in_flight:
        now = graph.stages.get(flight.producer)
        in_force = state.topology.stages.get(flight.producer)
        if now is None or flight.reader not in graph.stages or not any(flight.batches.values()):
            continue
        before = flight.columns
        if before is None and in_force is not None:  # a manifest from before it kept the columns
            before = columns(in_force.schema)
        if before is not None and before != columns(now.schema):
            raise Refusal(
                FailureReason.ROWS_IN_FLIGHT,
                f"the checkpoint has rows in flight from '{flight.producer}' to '{flight.reader}', and the columns of "
                f"'{flight.producer}' have changed since",
            )


def _check_tables(
    state: JournalState,
    request: Request,
    target: Checkpoint,
    graph: Topology,
    manifest: Manifest,
    tables: Tables,
) -> Procedure[None]:
    """Raises `Refusal` unless each sink can go back to the checkpoint (a sink that was added later: to before its first
    row), and nothing is lost with a sink that is gone. A current sink will have published the epoch by then, if the
    epoch is on the timeline; of any other epoch it has only what it had published."""
    assert state.topology is not None
    marks = yield from insist(List(MARK_PREFIX))
    dropped = {*request.drop, *_named_before(state, manifest)}
    lost = stranded(manifest, target, state.topology, graph, settled(marks), dropped)
    if lost:
        raise Refusal(FailureReason.SINK_GONE, "; ".join(lost))
    on_timeline = target in timeline(state)
    for sink in sorted(graph.sinks()):
        will_publish = on_timeline and sink in state.topology.sinks()
        is_marked = mark_name(target.index, sink) in marks
        if sink in manifest.release and not will_publish and not is_marked:
            raise Refusal(
                FailureReason.NOT_PUBLISHED,
                f"epoch {target.epoch} was abandoned before sink '{sink}' had published it, so that table has no "
                "version to go back to",
            )
        try:
            history = yield from _check_history(target, sink, is_marked, tables)
            if history is None or not history.foreign or request.force:
                continue
            if will_publish and (yield from _has_yet_to_publish(state, target, sink, history, marks)):
                continue  # on top of what others did, which stays
        except StoreError as error:
            raise Refusal(FailureReason.TABLE_HISTORY_GONE, str(error)) from error
        raise Refusal(
            FailureReason.TABLE_CHANGED,
            f"the table of sink '{sink}' cannot go back to epoch {target.epoch} without undoing what others did to it "
            f"since: {listed(history.foreign)}",
        )


def _check_new_readers(
    request: Request, target: Checkpoint, graph: Topology, manifest: Manifest, tables: Tables
) -> Procedure[None]:
    """A stage that the checkpoint does not have reads its own sources from the beginning. So if its tables have rows at
    that checkpoint, the stage was dropped before and is added again: raises `Refusal`. If it reads a source that the
    pipeline has read before, in a stage of another name perhaps, that goes for all tables below it."""
    marks = yield from insist(List(MARK_PREFIX))
    for name, spec in graph.stages.items():
        if name in manifest.stages or (spec.inputs and name not in request.native):
            continue
        for sink in _sinks_below(graph, name) if name in request.rereads else [s.name for s in spec.sinks]:
            first = mark_prefix(sink)
            known = any(first <= mark <= mark_name(target.index, sink) for mark in marks)
            if not known:
                begun = yield from tables.ask(FindTableVersion(sink, target.index))
                known = begun != (yield from tables.ask(FindTableVersion(sink, 0)))
            if known:
                raise Refusal(
                    FailureReason.NO_POSITIONS,
                    f"epoch {target.epoch} does not have stage '{name}', so its positions in its sources are unknown: it "
                    f"would read them from the beginning, and sink '{sink}' already has rows of it, which would be "
                    "duplicated",
                )


def _sinks_below(graph: Topology, stage: str) -> list[str]:
    """The sinks of a stage and of all stages that read it, directly or not."""
    below, found = [stage], []
    for name in below:  # which grows
        found += [sink.name for sink in graph.stages[name].sinks]
        below += [reader for reader in graph.readers(name) if reader not in below]
    return found


def _check_history(
    target: Checkpoint, sink: str, is_marked: bool, tables: Tables
) -> Procedure[TableHistory | None]:
    """The table's history of the version to go back to; raises `Refusal` if it cannot go back."""
    gone = f"the table of sink '{sink}' cannot go back to epoch {target.epoch}: "
    if (yield from tables.ask(FindTableVersion(sink, target.index))) is None:
        why = "its history or files of it were removed, or it must not lose rows (delta.appendOnly)"
        raise Refusal(FailureReason.TABLE_HISTORY_GONE, gone + why)
    history = yield from tables.ask(ReadTableHistory(sink, target.index))
    name = mark_name(target.index, sink)
    data = (yield from insist(Read(name))) if is_marked else None
    mark = decode(name, data, Published) if data is not None else None
    if mark is not None and history is not None and mark.transaction not in (0, history.transaction):
        raise Refusal(
            FailureReason.TABLE_HISTORY_GONE,
            f"{gone}what the sink had written up to then is no longer in the table's log. It was overwritten by another "
            "writer, or the table was replaced",
        )
    return history


def _has_yet_to_publish(
    state: JournalState, target: Checkpoint, sink: str, history: TableHistory, marks: Collection[str]
) -> Procedure[bool]:
    """Whether rows of an epoch up to the target are not in the table yet; they are published before it goes back."""
    for checkpoint in timeline(state):
        is_marked = mark_name(checkpoint.index, sink) in marks
        if history.transaction < checkpoint.index <= target.index and not is_marked:
            manifest = yield from read_manifest(checkpoint)
            if manifest is not None and manifest.release.get(sink):
                return True
    return False
