"""Whether a restore's checkpoint and graph fit together: stages, inputs, rows in flight."""

from __future__ import annotations

from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.records import Checkpoint, JournalState, Manifest, Topology, columns
from cutwater.protocol.base.wire import Request
from cutwater.protocol.leader.refusal import Refusal


def target_of(state: JournalState, request: Request) -> Checkpoint:
    """The checkpoint to go back to. Raises `Refusal` if it is not kept."""
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


def graph_after(state: JournalState, request: Request) -> Topology:
    """The graph after the restore: the requested one, or the current one without the dropped stages."""
    assert state.topology is not None  # a checkpoint is committed, so there is a graph
    graph = request.topology
    if graph is None:
        now = state.topology
        stages = {n: s for n, s in now.stages.items() if n not in request.drop}
        graph = Topology(
            stages,
            {n: s for n, s in now.chained.items() if n not in request.drop and now.query_of(n) in stages},
        )
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


def check_stages(state: JournalState, request: Request, graph: Topology, manifest: Manifest) -> None:
    """Raises `Refusal` if a stage of the checkpoint, or of the current graph, would be lost without being named."""
    assert state.topology is not None
    before = state.topology
    stages = {*manifest.stages, *manifest.chained, *before.stages, *before.chained}
    known = stages | manifest.release.keys() | state.topology.sinks().keys()
    present = graph.stages.keys() | graph.chained.keys()
    gone = sorted(stages - present - set(request.drop) - named_before(state, manifest))
    if gone:
        raise Refusal(
            FailureReason.STAGE_GONE,
            f"the pipeline or the checkpoint has stages that are not in this code: {', '.join(gone)}. To remove them "
            f"with their state, add {' '.join(f'--drop {s}' for s in gone)}",
        )
    for name in request.drop:
        if name in present or (name in graph.sinks() and name not in stages):
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
        if name not in present:  # a chained stage has no state, so there is nothing to do
            raise Refusal(
                FailureReason.NO_SUCH_STAGE,
                f"--reset {name}: there is no such stage; there are {', '.join(sorted(graph.stages))}",
            )


def named_before(state: JournalState, manifest: Manifest) -> set[str]:
    """The stages and sinks that the checkpoint has and the current graph does not, if the current generation began at
    that checkpoint and nothing was committed since: the request for that restore has named them."""
    assert state.topology is not None
    if not state.head == manifest.epoch == state.generations[state.generation].epoch:
        return set()
    stages = state.topology.stages.keys() | state.topology.chained.keys()
    return (manifest.stages.keys() | manifest.chained.keys()) - stages | (
        manifest.release.keys() - state.topology.sinks().keys()
    )


def check_chaining(request: Request, graph: Topology, manifest: Manifest) -> None:
    """Raises `Refusal` if stages run in other queries than at the checkpoint, and the request does not say where those
    queries begin; or if there are rows in flight to or from such a query."""
    moved = manifest.moved_queries(graph)
    if set(moved) != request.moved.keys():
        raise Refusal(
            FailureReason.CHAINING_CHANGED,
            f"at epoch {manifest.epoch} other stages were chained into the query of {', '.join(moved) or 'none'}",
        )
    before = {
        q for name in moved for s in (name, *graph.chain(name)) if (q := manifest.query_of(s)) is not None
    }
    for flight in manifest.in_flight:
        if any(flight.batches.values()) and {flight.producer, flight.reader} & before:
            raise Refusal(
                FailureReason.ROWS_IN_FLIGHT,
                f"epoch {manifest.epoch} has rows in flight from '{flight.producer}' to '{flight.reader}', and other "
                "stages run in one of these queries now. Restore an aligned checkpoint, or drain the pipeline with the "
                "code that it had",
            )


def check_inputs(request: Request, graph: Topology, manifest: Manifest) -> None:
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


def check_in_flight(state: JournalState, request: Request, graph: Topology, manifest: Manifest) -> None:
    """Raises `Refusal` if there are rows in flight that nobody would read, which `force` allows, or rows of a stage whose
    columns have changed since."""
    assert state.topology is not None
    for flight in manifest.in_flight:
        if not any(flight.batches.values()):
            continue
        now = graph.stages.get(flight.producer)
        reader = graph.stages.get(flight.reader)
        if now is None or reader is None or flight.producer not in reader.inputs:
            if request.force or flight.reader in named_before(state, manifest):
                continue
            raise Refusal(
                FailureReason.ROWS_IN_FLIGHT,
                f"epoch {manifest.epoch} has rows in flight from '{flight.producer}' to '{flight.reader}', and "
                f"'{flight.reader}' would no longer read them: they would be lost. Drain the pipeline with the code that "
                "it had, or restore an aligned checkpoint; --force gives the rows up",
            )
        in_force = state.topology.stages.get(flight.producer)
        before = flight.columns
        if before is None and in_force is not None:  # a manifest from before it kept the columns
            before = columns(in_force.schema)
        if before is not None and before != columns(now.schema):
            raise Refusal(
                FailureReason.ROWS_IN_FLIGHT,
                f"the checkpoint has rows in flight from '{flight.producer}' to '{flight.reader}', and the columns of "
                f"'{flight.producer}' have changed since",
            )
