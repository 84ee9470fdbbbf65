"""Restores and the names of savepoints: the requests that are one journal entry each.

A leader carries them out for requests; a command does so whether or not a member is running, and takes the lead for the
length of one request (`command`). Both run the same procedures, in the same order: take the lead, *then* read and
validate, then write one entry. Nobody else writes in that term, so what was valid stays valid until the entry is
written. The answer comes from the state after the entry was applied, not from the fact that it was written. The entry
has the request's id, so a request is carried out once, however often it is received.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Protocol

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import (
    Procedure,
    Sleep,
    backoff_ms,
)
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.log import AppendPhase, append, follow
from cutwater.protocol.base.records import (
    JournalBody,
    JournalState,
    Leader,
    Restored,
    Savepoint,
    encode,
)
from cutwater.protocol.base.wire import Reply, Request, RequestKind
from cutwater.protocol.leader.refusal import Refusal
from cutwater.protocol.leader.restore_graph import (
    check_chaining,
    check_in_flight,
    check_inputs,
    check_stages,
    graph_after,
    target_of,
)
from cutwater.protocol.leader.restore_tables import (
    TableAnswers,
    check_journal,
    check_new_readers,
    check_returning_sinks,
    check_tables,
)
from cutwater.protocol.member.journal import Journal, may_name
from cutwater.protocol.member.publish import read_manifest

LEAD_TRIES = 10
"""How often a command takes the lead again after a member has taken it in the middle of the request."""


class Writer(Protocol):
    """A leader in one term: of a member, or of a command."""

    @property
    def journal(self) -> Journal: ...

    @property
    def term(self) -> int: ...

    @property
    def tables(self) -> TableAnswers:
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


def refusal_of_restore(journal: Journal, request: Request) -> Procedure[Reply | None]:
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

    It must be quick, and tables may be slow, so they are asked before it takes the lead. Their answers are as good as
    answers from within the term, because tables do not know about terms. Everything else is read and decided again after
    taking the lead.
    """
    for attempt in range(LEAD_TRIES):
        yield from follow(journal.view)
        known = answer(journal.state, request)
        if known is not None:
            return known
        tables = TableAnswers()
        if request.kind is RequestKind.RESTORE:
            # This is for the tables' answers; the rest may still change, unless the journal itself is an old one.
            refused = yield from _refused(_Command(journal, journal.state.term, nonce, tables), request)
            if refused is not None and refused.reason == FailureReason.JOURNAL_BEHIND.value:
                return refused
        lead = _Command(journal, journal.state.term + 1, nonce, tables)  # the journal may be further by now
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

    def __init__(
        self, journal: Journal, term: int, nonce: Callable[[], str], tables: TableAnswers | None = None
    ) -> None:
        self.journal = journal
        self.term = term
        self.tables = tables or TableAnswers()
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
    target = target_of(state, request)
    graph = graph_after(state, request)
    try:
        manifest = yield from read_manifest(target)
    except StoreError as error:
        raise Refusal(FailureReason.STORE_DAMAGED, str(error)) from error
    if manifest is None:
        raise Refusal(FailureReason.STORE_DAMAGED, f"the manifest of epoch {target.epoch} is missing")
    check_stages(state, request, graph, manifest)
    check_chaining(request, graph, manifest)
    manifest = manifest.with_moved(request.moved, graph)
    check_inputs(request, graph, manifest)
    check_in_flight(state, request, graph, manifest)
    yield from check_journal(writer.journal, graph, writer.tables)
    yield from check_tables(state, request, target, graph, manifest, writer.tables)
    yield from check_new_readers(request, target, graph, manifest, writer.tables)
    yield from check_returning_sinks(state, target, graph, manifest, writer.tables)
    changed = digest(encode(graph)) != state.topology_hash
    return Restored(
        writer.term,
        state.generation + 1,
        target.epoch,
        target.cuts
        if not request.moved
        else {name: report.batch for name, report in manifest.stages.items()},
        tuple(sorted(request.reset)),
        request.force,
        graph if changed else None,
        digest(encode(graph)) if changed else "",
        request.request_id,
        request.moved,
    )
