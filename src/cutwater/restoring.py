"""Starting from a checkpoint, with the code as it was or with changed code."""

from __future__ import annotations

from collections.abc import Callable

from cutwater.offline import Steering, manifest_of, missing_objects, read_journal, resolve
from cutwater.protocol.chain import digest
from cutwater.protocol.errors import StoreError, UserError
from cutwater.protocol.journal import timeline
from cutwater.protocol.records import Checkpoint, JournalState, Topology, encode
from cutwater.stores import Store

FORCED = "forced/"


def check_topology(store: Store, topology: Topology) -> None:
    """Raises `UserError` if the store's pipeline has another graph than this one."""
    state = read_journal(store, must_exist=False).state
    if state.topology is None or state.topology_hash == digest(encode(topology)):
        return
    before, now = set(state.topology.members()), set(topology.members())
    if before < now:
        absent = " and ".join(f"member '{name}'" for name in sorted(now - before))
        raise UserError(
            f"the pipeline in {store.url} has begun without {absent}, with "
            f"{', '.join(sorted(before))}. To join it at its newest checkpoint, start with --restore latest "
            "(start(restore='latest')); members that are to begin together each name the others with --wait-for"
        )
    changes = "; ".join(differences(state.topology, topology)) or "its description differs"
    raise UserError(
        f"the pipeline in {store.url} is not the one in this code: {changes}. To go on with the changed code from the "
        "newest checkpoint, start with --restore latest (start(restore='latest')); add --drop STAGE for a stage that "
        "is gone, --reset STAGE for one that has to start without its state"
    )


def differences(before: Topology, after: Topology) -> list[str]:
    """How one graph differs from another, in words."""
    said = [f"stage '{s}' is new" for s in sorted(after.stages.keys() - before.stages.keys())]
    said += [f"stage '{s}' is gone" for s in sorted(before.stages.keys() - after.stages.keys())]
    for name in sorted(before.stages.keys() & after.stages.keys()):
        old, new = before.stages[name], after.stages[name]
        if old.inputs != new.inputs:
            said.append(f"stage '{name}' reads {list(new.inputs)} and read {list(old.inputs)}")
        if old.sinks != new.sinks:
            said.append(
                f"the sinks of stage '{name}' are {[s.name for s in new.sinks]}, not {[s.name for s in old.sinks]}"
            )
        if old.member != new.member:
            said.append(f"stage '{name}' moved from member '{old.member}' to '{new.member}'")
        if old.schema != new.schema:
            said.append(f"the columns that stage '{name}' gives to its readers differ")
    return said


def restore_before_start(
    store: Store,
    topology: Topology | None,
    ref: str,
    drop: tuple[str, ...],
    reset: tuple[str, ...],
    tell: Callable[[str], None],
) -> int:
    """Starts a new generation at a checkpoint, while no member runs or against the one that does; its
    epoch. `topology` is the graph from now on, if it may have changed. Nothing is written before it is
    known that the checkpoint is whole."""
    journal = read_journal(store)
    state = journal.state
    target = whole_checkpoint(store, state, ref, tell)
    manifest = manifest_of(store, target)
    graph = topology if topology is not None else state.topology
    assert graph is not None
    gone = sorted(manifest.stages.keys() - graph.stages.keys() - set(drop))
    if gone:
        raise UserError(
            f"the checkpoint has stages that this code does not: {', '.join(gone)}. If they are meant to go, and their "
            f"state with them, say so: {' '.join(f'--drop {s}' for s in gone)}"
        )
    for name in drop:
        if name in graph.stages:
            raise UserError(f"--drop {name}: the code still has that stage; remove it there, or --reset it")
        if name not in manifest.stages:
            raise UserError(
                f"--drop {name}: the checkpoint has no such stage; it has {', '.join(manifest.stages)}"
            )
    for name in reset:
        if name not in graph.stages:
            raise UserError(f"--reset {name}: there is no such stage; there are {', '.join(graph.stages)}")
    _refuse_changed_channels(state, graph, manifest.in_flight, reset)
    Steering(store, journal).restore(target, reset, topology)
    tell(f"restored epoch {target.epoch}: generation {state.generation} begins there")
    for name in sorted(graph.stages.keys() - manifest.stages.keys()):
        tell(f"stage '{name}' is new and starts at the cut of epoch {target.epoch}")
    return target.epoch


def allow_force(store: Store, generation: int) -> None:
    """The tables go back when the next run starts; this lets it undo what others did to them since."""
    store.put(f"{FORCED}{generation}", b"")


def is_forced(store: Store) -> bool:
    """Whether the restore that began the current generation was to be forced."""
    generation = read_journal(store, must_exist=False).state.generation
    return store.exists(f"{FORCED}{generation}")


def whole_checkpoint(store: Store, state: JournalState, ref: str, tell: Callable[[str], None]) -> Checkpoint:
    """The checkpoint that `ref` means, if everything that it names is there. `latest` goes back past
    damaged ones, and says so; any other is refused if it is damaged."""
    target = resolve(state, ref)
    candidates = [target]
    if ref == "latest":
        candidates = [target, *(c for c in reversed(timeline(state)) if c.epoch != target.epoch)]
    reports: list[str] = []
    for checkpoint in candidates:
        problems = problems_of(store, checkpoint)
        if not problems:
            if reports:
                tell(f"falling back to epoch {checkpoint.epoch}: " + "; ".join(reports))
            return checkpoint
        shown = "; ".join(problems[:5]) + (f"; and {len(problems) - 5} more" if len(problems) > 5 else "")
        reports.append(f"epoch {checkpoint.epoch} cannot be restored: {shown}")
    raise StoreError(
        ". ".join(reports)
        + ". Nothing was changed. Run `cutwater verify` to see which checkpoints are whole, and restore "
        "one of those"
    )


def problems_of(store: Store, checkpoint: Checkpoint) -> list[str]:
    """What is wrong with a checkpoint; empty if it can be restored."""
    try:
        manifest = manifest_of(store, checkpoint)
    except StoreError as error:
        return [str(error)]
    return missing_objects(store, manifest, checksums=True)


def _refuse_changed_channels(
    state: JournalState, graph: Topology, in_flight: object, reset: tuple[str, ...]
) -> None:
    """Rows in flight were written with the old columns; the new code cannot read them as others."""
    before = state.topology
    if before is None:
        return
    for flight in in_flight:  # type: ignore[attr-defined]
        old, new = before.stages.get(flight.producer), graph.stages.get(flight.producer)
        has_rows = any(flight.batches.values())
        if old and new and has_rows and old.schema != new.schema and flight.reader in graph.stages:
            raise UserError(
                f"the checkpoint has rows in flight from '{flight.producer}' to '{flight.reader}', and the columns of "
                f"'{flight.producer}' have changed since: restore an aligned checkpoint (a savepoint, for one) instead"
            )
