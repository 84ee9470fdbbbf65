"""Whether the tables can go back to the checkpoint of a restore without losing or duplicating rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeVar

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
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.paths import MARK_PREFIX, mark_name, mark_prefix
from cutwater.protocol.base.records import (
    Checkpoint,
    JournalState,
    Manifest,
    Published,
    Topology,
    decode,
    settled,
)
from cutwater.protocol.base.wire import Request
from cutwater.protocol.leader.refusal import Refusal
from cutwater.protocol.leader.restore_graph import named_before
from cutwater.protocol.member.journal import Journal, timeline
from cutwater.protocol.member.publish import read_manifest, stranded

A = TypeVar("A")

NEWEST = 2**62
"""A transaction after all others: what a table answers about it is its newest state."""
TABLE_TRIES = 8
"""How often to ask a table that does not answer before the restore is refused."""


class TableAnswers:
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


def check_tables(
    state: JournalState,
    request: Request,
    target: Checkpoint,
    graph: Topology,
    manifest: Manifest,
    tables: TableAnswers,
) -> Procedure[None]:
    """Raises `Refusal` unless each sink can go back to the checkpoint (a sink that was added later: to before its first
    row), and nothing is lost with a sink that is gone. A current sink will have published the epoch by then, if the
    epoch is on the timeline; of any other epoch it has only what it had published."""
    assert state.topology is not None
    marks = yield from insist(List(MARK_PREFIX))
    dropped = {*request.drop, *named_before(state, manifest)}
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


def check_new_readers(
    request: Request, target: Checkpoint, graph: Topology, manifest: Manifest, tables: TableAnswers
) -> Procedure[None]:
    """A stage that the checkpoint does not have reads its own sources from the beginning. So if its tables have rows at
    that checkpoint, the stage was dropped before and is added again: raises `Refusal`. If it reads a source that the
    pipeline has read before, perhaps in a stage with another name, this applies to all tables downstream of it. It also
    applies to a stage of the checkpoint that begins to read such a source: one that is reset, and got the rows through a
    channel before, or one that has not read anything yet."""
    marks = yield from insist(List(MARK_PREFIX))
    for name, spec in graph.stages.items():
        begins = name not in manifest.stages or name in request.rereads
        if not begins or (spec.inputs and name not in request.native):
            continue
        for sink in _sinks_below(graph, name) if name in request.rereads else [s.name for s in spec.sinks]:
            if (yield from _has_rows(target, sink, marks, tables)):
                unknown = f"does not have stage '{name}', so its positions in its sources are unknown"
                if name in manifest.stages:
                    unknown = f"has no positions of stage '{name}' in sources of its own"
                raise Refusal(
                    FailureReason.NO_POSITIONS,
                    f"epoch {target.epoch} {unknown}: it would read them from the beginning, and sink '{sink}' already "
                    "has rows of it, which would be duplicated",
                )


def check_journal(journal: Journal, graph: Topology, tables: TableAnswers) -> Procedure[None]:
    """Raises `Refusal` if a table has the result of a later entry than the journal's last: the store is an older copy.
    This is asked before anything is written: the journal would grow past that entry, with other contents."""
    for sink in sorted(graph.sinks()):
        try:
            history = yield from tables.ask(ReadTableHistory(sink, NEWEST))
        except StoreError:
            continue  # the table cannot be read, which is reported by the other checks
        if history is not None and history.transaction > journal.index:
            yield from follow(journal.view)
        if history is not None and history.transaction > journal.index:
            raise Refusal(FailureReason.JOURNAL_BEHIND, older_store(journal.index, sink, history.transaction))


def older_store(index: int, sink: str, transaction: int) -> str:
    """What is wrong if a table has the result of a later entry than the journal's last."""
    return (
        f"the journal ends at entry {index}, but the table of sink '{sink}' has the result of entry {transaction}: the "
        "newest entries of the journal are missing, as in an older copy of the store"
    )


def check_returning_sinks(
    state: JournalState, target: Checkpoint, graph: Topology, manifest: Manifest, tables: TableAnswers
) -> Procedure[None]:
    """Raises `Refusal` if a sink that the checkpoint does not have has rows from before it, or would publish such rows:
    the sink was dropped and comes back, and its table lacks the rows in between. Nobody could see where they are
    missing."""
    marks = yield from insist(List(MARK_PREFIX))
    for sink in sorted(graph.sinks().keys() - manifest.release.keys()):
        # The newest mark of a sink is kept, also of one that was dropped. A new sink gets marks without rows for the
        # epochs before it.
        own = [m for m in marks if m.startswith(mark_prefix(sink)) and m <= mark_name(target.index, sink)]
        history = yield from tables.ask(ReadTableHistory(sink, target.index))
        has_rows = history is not None and history.transaction > 0
        if not has_rows and own:
            data = yield from insist(Read(own[-1]))
            has_rows = data is not None and decode(own[-1], data, Published).transaction > 0
        if not has_rows and history is None:  # the target has no log
            has_rows = yield from _has_rows(target, sink, (), tables)
        if has_rows:
            raise Refusal(
                FailureReason.SINK_RETURNS,
                f"sink '{sink}' was dropped before epoch {target.epoch} and comes back: its table has the rows up to "
                "then, and would lack those in between",
            )
        given_up = yield from _given_up(state, target, sink)
        if given_up is not None:
            raise Refusal(
                FailureReason.SINK_RETURNS,
                f"sink '{sink}' was dropped before epoch {target.epoch} and comes back: it would publish the rows of "
                f"epoch {given_up}, which were given up, and lack those in between",
            )


def _given_up(state: JournalState, target: Checkpoint, sink: str) -> Procedure[int | None]:
    """The newest kept epoch before a checkpoint in which a sink has rows to publish; `None` if there is none."""
    parent = target.parent
    while parent in state.committed:
        checkpoint = state.committed[parent]
        try:
            manifest = yield from read_manifest(checkpoint)
        except StoreError as error:
            raise Refusal(FailureReason.STORE_DAMAGED, str(error)) from error
        if manifest is not None and manifest.release.get(sink):
            return checkpoint.epoch
        parent = checkpoint.parent
    return None


def _has_rows(target: Checkpoint, sink: str, marks: Collection[str], tables: TableAnswers) -> Procedure[bool]:
    """Whether a sink has published anything up to a checkpoint."""
    if any(mark_prefix(sink) <= mark <= mark_name(target.index, sink) for mark in marks):
        return True
    begun = yield from tables.ask(FindTableVersion(sink, target.index))
    return begun != (yield from tables.ask(FindTableVersion(sink, 0)))


def _sinks_below(graph: Topology, stage: str) -> list[str]:
    """The sinks of a stage and of all stages that read it, directly or not."""
    below, found = [stage], []
    for name in below:  # which grows
        found += [sink.name for sink in graph.stages[name].sinks]
        below += [reader for reader in graph.readers(name) if reader not in below]
    return found


def _check_history(
    target: Checkpoint, sink: str, is_marked: bool, tables: TableAnswers
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
