"""Starting from a checkpoint, with the same code or with changed code."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from cutwater.plan.known_sources import known_before, refuse_known_topics
from cutwater.protocol.base.effects import TableHistory
from cutwater.protocol.base.errors import StoreError, UserError, listed
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.records import Checkpoint, JournalState, StageReport, Topology
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.protocol.leader.steering import refusal_of_restore
from cutwater.protocol.member.journal import timeline
from cutwater.protocol.member.publish import in_force
from cutwater.runtime.store_requests import answered, new_id
from cutwater.spark.checkpoint.first_positions import is_claimed
from cutwater.spark.checkpoint.leaves import Leaf, SourcesChanged
from cutwater.spark.checkpoint.moved_files import FilesMoved
from cutwater.spark.checkpoint.moves import Move, plan_move, write_move
from cutwater.spark.checkpoint.new_folder import (
    newly_read,
    recorded_sources,
    refuse_moved_files,
    refuse_other_sources,
)
from cutwater.store.at_rest import carry_out, drive, load_manifest, read_journal, resolve
from cutwater.store.checkpoint_objects import checkpoint_problems
from cutwater.store.contract import Store
from cutwater.store.perform import Find, History


class GraphMoved(UserError):
    """The current graph is no longer the one that the graph of a restore was made from."""


def restore_before_start(
    store: Store,
    topology: Topology | None,
    ref: str,
    drop: tuple[str, ...],
    reset: tuple[str, ...],
    log: Callable[[str], None],
    force: bool = False,
    base: str | None = None,
    leaves: Mapping[str, Sequence[Leaf]] | None = None,
    check_target: Callable[[JournalState, Checkpoint], None] = lambda state, target: None,
) -> int:
    """Starts a new generation at a checkpoint, whether or not a member is running, and returns its epoch. `topology` is
    the new graph, if it may have changed, and `base` the hash of the graph that it was made from; `leaves` says by
    stage what its plan reads, for the stages whose code is known. Writes nothing unless the checkpoint is complete and
    undamaged, its positions belong to what these stages read, and `check_target` does not raise. Raises `UserError` if
    the restore is refused."""
    leaves = leaves or {}
    native = tuple(name for name, found in leaves.items() if any(leaf.channel is None for leaf in found))
    journal = read_journal(store)
    target = whole_checkpoint(store, journal.state, ref, log)
    moves = _plan_moves(store, target, topology, leaves, reset)
    planned = {name: move.report for name, move in moves.items()}
    check_sources(store, target, ref, leaves, reset, planned)
    check_target(journal.state, target)
    name = ref if ref in journal.state.savepoints else None
    unread = _read_from_start(store, target, leaves, reset, planned)
    rereads = known_before(store, unread, target.index, _recorded(store, target) if unread else None)
    fresh = tuple(name for name, move in moves.items() if move.is_fresh)
    request = Request(
        RequestKind.RESTORE, new_id(), name, target.epoch, reset=tuple(sorted({*reset, *fresh})), drop=drop, force=force,
        topology=topology, base=base, native=native, rereads=tuple(rereads), moved=planned,
    )  # fmt: skip
    refused = None
    if moves:
        refused = drive(store, refusal_of_restore(journal, request), finder(store), history=historian(store))
    if refused is None:
        moved = {name: write_move(store, target, move) for name, move in moves.items()}
        request = msgspec.structs.replace(request, moved=moved)
    reply = refused or carry_out(store, journal, request, finder(store), historian(store))
    if reply.reason == FailureReason.GRAPH_CHANGED.value:
        raise GraphMoved(f"{reply.detail}. {FailureReason.GRAPH_CHANGED.advice}")
    if reply.reason == FailureReason.NO_POSITIONS.value:
        why = [f" ({text})" for stage, text in rereads.items() if f"stage '{stage}'" in (reply.detail or "")]
        reply = msgspec.structs.replace(reply, detail=f"{reply.detail}{''.join(why)}")
    epoch = answered(reply, RequestKind.RESTORE)
    assert epoch is not None
    log(f"restored epoch {epoch}: generation {journal.state.generation} begins there")
    stages = journal.state.topology.stages.keys() if journal.state.topology is not None else set()
    for query in sorted(moves):
        log(
            f"the query of stage '{query}' runs other stages than at epoch {epoch}, and continues where they were"
        )
    for stage in sorted(stages - target.cuts.keys() - moves.keys()):
        own = ", and reads its own sources from the beginning" if stage in native else ""
        log(f"stage '{stage}' is new and starts at the cut of epoch {epoch}{own}")
    return epoch


def _plan_moves(
    store: Store,
    target: Checkpoint,
    topology: Topology | None,
    leaves: Mapping[str, Sequence[Leaf]],
    reset: Sequence[str],
) -> dict[str, Move]:
    """Where the queries begin in which other stages run than at a checkpoint."""
    if topology is None:
        return {}
    manifest = load_manifest(store, target)
    moves = {}
    for query in manifest.moved_queries(topology):
        if query not in leaves:
            member = topology.stages[query].member
            raise UserError(
                f"the query of stage '{query}' would run other stages than at epoch {target.epoch}, and only its member "
                f"'{member}' can move it. Nothing was changed. Start that member with --restore first, with chain=False "
                "for the stage that this one reads"
            )
        moves[query] = plan_move(store, manifest, topology, query, leaves[query], reset)
    return moves


def _read_from_start(
    store: Store,
    target: Checkpoint,
    leaves: Mapping[str, Sequence[Leaf]],
    reset: tuple[str, ...],
    moved: Mapping[str, StageReport],
) -> dict[str, Sequence[Leaf]]:
    """By stage, the sources in which it has no position at a checkpoint: those of a new stage, those that a reset stage
    begins to read, and those that a stage begins to read which has read nothing so far."""
    reports = load_manifest(store, target).stages
    found = {stage: read for stage, read in leaves.items() if stage not in reports and stage not in moved}
    known = reports.keys() - moved.keys()
    anew = {s: newly_read(store, reports[s], leaves[s]) for s in reset if s in known and s in leaves}
    return {
        **found,
        **_not_begun(store, reports | dict(moved), leaves),
        **{s: read for s, read in anew.items() if read},
    }


def _not_begun(
    store: Store, reports: Mapping[str, StageReport], leaves: Mapping[str, Sequence[Leaf]]
) -> dict[str, Sequence[Leaf]]:
    """By stage, the sources in which it has no position although the checkpoint has the stage, and that it was never
    started to read."""
    found: dict[str, Sequence[Leaf]] = {}
    for stage in leaves.keys() & reports.keys():
        report = reports[stage]
        unread = [
            leaf
            for number, leaf in enumerate(leaves[stage])
            if leaf.channel is None and str(number) not in report.offsets
        ]
        is_new = [leaf for leaf in unread if not is_claimed(store, stage, leaf)] if unread else []
        if is_new:
            found[stage] = is_new
    return found


def check_new_sources(store: Store, leaves: Mapping[str, Sequence[Leaf]]) -> None:
    """Raises `UserError` if a stage that continues, and has read nothing so far, begins to read a source that the
    pipeline has read before. Writes nothing."""
    state = read_journal(store, must_exist=False).state if leaves else None
    if state is None or state.head is None:
        return
    head = state.committed[state.head]
    try:
        found = in_force(load_manifest(store, head), state).stages
    except StoreError:  # found out when the stage starts
        return
    reports = {stage: report for stage, report in found.items() if report.batch < 0}
    for stage, what in known_before(store, _not_begun(store, reports, leaves), head.index).items():
        raise UserError(
            f"stage '{stage}' has read nothing so far, and now {what}: tables could have rows twice. Nothing was "
            "changed. Bring the old source back, or start with --restore latest, which asks the tables"
        )


def _recorded(store: Store, target: Checkpoint) -> dict[str, Sequence[Leaf]]:
    """What the stages of a checkpoint read, by the records that they have of it."""
    reports = load_manifest(store, target).stages
    return {stage: recorded_sources(store, report) for stage, report in reports.items()}


def check_sources(
    store: Store,
    target: Checkpoint,
    ref: str,
    leaves: Mapping[str, Sequence[Leaf]],
    reset: tuple[str, ...],
    moved: Mapping[str, StageReport] | None = None,
) -> None:
    """Raises `UserError` if a stage could not start from a checkpoint because it reads other sources now, or a Kafka
    topic that was read elsewhere before. `moved`: the queries that begin elsewhere than the checkpoint says, which have
    been checked."""
    moved = moved or {}
    reports = load_manifest(store, target).stages | dict(moved)
    for stage in sorted(leaves.keys() & reports.keys() - moved.keys()):
        try:
            refuse_other_sources(store, reports[stage], leaves[stage], stage in reset)
        except SourcesChanged as error:
            raise UserError(
                f"stage '{stage}' cannot start from epoch {target.epoch}: {error}. Nothing was changed. "
                f"{error.advice(stage, ref)}"
            ) from error
    refuse_known_topics(store, reports, leaves, target.index)


def check_moved_files(store: Store, leaves: Mapping[str, Sequence[Leaf]]) -> None:
    """Raises `UserError` if a stage that continues would read files again, because they have other paths now. Writes
    nothing. If the newest checkpoint cannot be read, this is found out when the stage starts."""
    found = {stage: read for stage, read in leaves.items() if any(leaf.absolute for leaf in read)}
    state = read_journal(store, must_exist=False).state if found else None
    if state is None or state.head is None:
        return
    try:
        reports = in_force(load_manifest(store, state.committed[state.head]), state).stages
        for stage in sorted(found.keys() & reports.keys()):
            try:
                refuse_moved_files(store, reports[stage], found[stage])
            except FilesMoved as error:
                raise UserError(
                    f"stage '{stage}' cannot continue after epoch {state.head}: {error}. Nothing was changed. "
                    f"{error.advice(stage)}"
                ) from error
    except StoreError:
        return


def whole_checkpoint(store: Store, state: JournalState, ref: str, log: Callable[[str], None]) -> Checkpoint:
    """The checkpoint that `ref` refers to, if everything that it names exists. `latest` falls back to an older one if
    the newest is damaged, and logs that. Raises `StoreError` if there is none, or if `ref` names a damaged one."""
    target = resolve(state, ref)
    candidates = [target]
    if ref == "latest":
        candidates = [target, *(c for c in reversed(timeline(state)) if c.epoch != target.epoch)]
    reports: list[str] = []
    for checkpoint in candidates:
        problems = checkpoint_problems(store, checkpoint)
        if not problems:
            if reports:
                log(f"falling back to epoch {checkpoint.epoch}: " + "; ".join(reports))
            return checkpoint
        reports.append(f"epoch {checkpoint.epoch} cannot be restored: {listed(problems)}")
    raise StoreError(
        ". ".join(reports)
        + ". Nothing was changed. Run `cutwater verify` to see which checkpoints are whole, and restore "
        "one of those"
    )


def finder(store: Store) -> Find:
    """Finds versions of the tables of a store's sinks, without the pipeline's code."""

    def find(sink: str, transaction: int) -> int | None:
        # Imported late, because it imports PySpark, which other commands do not need.
        from cutwater.sinks.registry import find_version

        return find_version(store, sink, transaction)

    return find


def historian(store: Store) -> History:
    """Reads the history of the same tables."""

    def history(sink: str, transaction: int) -> TableHistory | None:
        from cutwater.sinks.registry import read_history

        return read_history(store, sink, transaction)

    return history
