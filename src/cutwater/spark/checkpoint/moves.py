"""Plans where a query continues if it runs other stages than at the checkpoint.

A chained stage has no state, so only positions move: in the stage's own sources, with the logs of these sources, and in
channels. Spark knows a source only by its place in the plan, so its log gets the number that the new plan gives it.
(Under the old number Spark would silently read the same files again.)

An existing query keeps its state and its folder, in which the positions are replaced. The version of its state is the
number of its batch, so the state of two queries cannot be merged. A new query has no state: it begins like a stage that
is reset, at these positions, with an id of its own. (Spark stops one of two queries with the same id.)

Planning only reads. `write_move` puts the files beside the checkpoint's own, so that they are removed with it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.paths import (
    SOURCES,
    SourceLogFile,
    batch_file_name,
    batch_file_of,
    source_log_name,
    source_log_of,
    state_copies_prefix,
)
from cutwater.protocol.base.records import (
    ChainedStage,
    Checkpoint,
    Manifest,
    Offset,
    StageReport,
    StageSpec,
    Topology,
)
from cutwater.protocol.base.watermark import NONE, UNKNOWN
from cutwater.spark.checkpoint.leaves import Leaf, SourcesChanged, refuse_changed
from cutwater.spark.checkpoint.moved_files import FilesMoved, refuse_moved_files_of
from cutwater.spark.checkpoint.new_folder import files_of_report, folder_of_report
from cutwater.spark.checkpoint.offsets import moved_plan, position_of, starting_commit
from cutwater.spark.checkpoint.parallel import in_parallel
from cutwater.spark.checkpoint.state_files import split_name
from cutwater.spark.checkpoint.topics import KAFKA
from cutwater.store.contract import Store

METADATA = "metadata"
"""Spark's file with the id of a query."""


class Move(msgspec.Struct, frozen=True):
    """A query's new folder: the files to copy (sources by name), and those to write. `is_fresh`: it begins without
    state. `report`: its part of the checkpoint, without the names of its files."""

    report: StageReport
    is_fresh: bool
    copied: dict[str, str]
    written: dict[str, bytes]


class _Query:
    """A query of the checkpoint: what its stages had read."""

    def __init__(self, store: Store, report: StageReport, manifest: Manifest) -> None:
        self.report = report
        self.chained = {name: manifest.chained[name] for name in manifest.chain(report.stage)}
        self.files = files_of_report(report)
        self.folder = folder_of_report(store, report)
        self.positions = self.folder.done_positions()
        recorded = self.folder.recorded_leaves()
        found = [(leaf, _stage_of(leaf, self.chained)) for leaf in recorded or ()]
        known = [msgspec.structs.replace(leaf, stage=stage or "") for leaf, stage in found]
        self.leaves = known if recorded is not None else None
        self.unknown = [leaf for leaf, stage in found if stage is None]
        """Those of which an older record does not say which stage reads them."""
        self.keeps_state = any(split_name(name) is not None for name in self.files)
        self.last = max(self.folder.commits, default=None)

    def native(self, stage: str) -> list[tuple[Leaf, str | None]]:
        """The sources of one of its stages, in the order of that stage's plan, with the positions in them."""
        found = zip(self.leaves or (), self.positions or (), strict=True)
        own = "" if stage == self.report.stage else stage
        return [(leaf, position) for leaf, position in found if leaf.channel is None and leaf.stage == own]

    def log_of(self, number: int) -> dict[SourceLogFile, str]:
        """The files of a source's log."""
        logs = {of: source for name, source in self.files.items() if (of := source_log_of(name)) is not None}
        return {of: source for of, source in logs.items() if of.source == number}


def _stage_of(leaf: Leaf, chained: Mapping[str, ChainedStage]) -> str | None:
    """The chained stage that reads a recorded leaf, empty if it is the query's own; `None` if an older record does not
    say (see `Leaf.by_border`). `chained`: the stages that ran in the query."""
    if leaf.by_border or leaf.stage in chained:
        return leaf.stage
    if leaf.channel is None:
        return None if leaf.stage and chained else ""
    readers = [name for name, stage in chained.items() if leaf.channel in stage.inputs]
    return None if len(readers) > 1 else next(iter(readers), "")


def plan_move(
    store: Store,
    manifest: Manifest,
    graph: Topology,
    query: str,
    leaves: Sequence[Leaf],
    reset: Collection[str] = (),
) -> Move:
    """Where a query of this graph begins. `leaves`: what its plan reads. `reset`: the stages that may read other stages
    than at the checkpoint. Raises `UserError` if positions or state cannot be moved, and names what."""
    stages = (*graph.chain(query), query)
    queries = {
        q: _Query(store, manifest.stages[q], manifest)
        for s in stages
        if (q := manifest.query_of(s)) is not None
    }
    _refuse(manifest, query, stages, queries)
    for stage in sorted({*stages} - {*reset}):
        _refuse_other_inputs(manifest, query, stage, graph.written()[stage])
    own = queries[query] if query in manifest.stages else None
    if own is not None and own.keeps_state and query not in reset:
        _refuse_other_order(manifest, graph, own, leaves)
    reading = _plan_reading(manifest, graph, stages, queries, leaves)
    report = _report(manifest, query, own, reading)
    sources = {SOURCES: msgspec.json.encode(reading.leaves)}
    if own is not None and own.last is not None:
        written = sources | _plans(store, own, reading.positions)
        return Move(report, False, reading.logs | _kept(own), written)
    model = next((found for found in queries.values() if found.last is not None), None)
    if model is None:
        return Move(report, True, {}, {})  # nothing has run yet
    return Move(report, True, reading.logs, sources | _first_files(store, model, reading.positions))


class _Reading(msgspec.Struct):
    """What a query reads, and how far: its leaves with the positions in them, the batches up to which it has consumed
    channels, and the files of its sources' logs (sources by name)."""

    leaves: list[Leaf] = []
    positions: list[str | None] = []
    consumed: dict[str, int] = {}
    logs: dict[str, str] = {}

    @property
    def offsets(self) -> dict[str, Offset]:
        """The positions in its own sources, as a report has them."""
        found = enumerate(zip(self.leaves, self.positions, strict=True))
        return {str(n): text for n, (leaf, text) in found if leaf.channel is None and text is not None}


def _plan_reading(
    manifest: Manifest,
    graph: Topology,
    stages: Sequence[str],
    queries: Mapping[str, _Query],
    leaves: Sequence[Leaf],
) -> _Reading:
    """What a query with these stages reads, the last of which it is named after."""
    query, written = stages[-1], graph.written()
    batches = {name: report.batch for name, report in manifest.stages.items()}
    batches |= {s: batches[q] for s in manifest.chained if (q := manifest.query_of(s)) is not None}
    reading = _Reading()
    shared: dict[int, tuple[str | None, dict[SourceLogFile, str]]] = {}
    seen: dict[str, int] = {}
    for leaf in leaves:
        if leaf.channel is not None:
            at = _consumed(manifest, written, stages, leaf.channel, batches)
            reading.consumed[leaf.channel] = at
            reading.leaves.append(leaf)
            reading.positions.append(position_of(leaf.channel, at))
            continue
        stage = leaf.stage or query
        number = seen.get(stage, 0)
        seen[stage] = number + 1
        before, position, log = _source(queries, manifest, stage, number, leaf, query)
        now = msgspec.structs.replace(before, stage=leaf.stage, log=leaf.log, by_border=leaf.by_border)
        reading.leaves.append(now)
        reading.positions.append(position)
        assert leaf.log is not None
        if shared.setdefault(leaf.log, (position, log)) != (position, log):
            raise _cannot(
                query,
                f"stage '{stage}' and another one share {leaf} in one query, and have read it with two queries so far. "
                "Give one of them chain=False",
            )
        reading.logs |= {source_log_name(leaf.log, of.entry, of.compact): name for of, name in log.items()}
    try:
        refuse_changed(reading.leaves, reading.positions, leaves)
    except SourcesChanged as error:
        raise _cannot(query, str(error)) from error
    if any(position is not None for position in reading.positions):
        for leaf, position in zip(reading.leaves, reading.positions, strict=True):
            if position is None and leaf.format == KAFKA:
                raise _cannot(
                    query,
                    f"it has read nothing of {leaf} yet, and Spark would decide again where to begin. Try again after "
                    "its first records",
                )
    return reading


def _report(manifest: Manifest, query: str, own: _Query | None, reading: _Reading) -> StageReport:
    """A query's part of the checkpoint, without the names of its files. `own`: the query of that name there."""
    if own is not None:
        batch = own.report.batch
        watermark = own.report.watermark if own.last is not None else UNKNOWN
    else:
        before = manifest.query_of(query)
        batch, watermark = manifest.stages[before].batch if before is not None else -1, NONE
    return StageReport(
        query, 0, batch, False, {}, consumed=reading.consumed, offsets=reading.offsets, watermark=watermark
    )


def _first_files(store: Store, model: _Query, positions: Sequence[str | None]) -> dict[str, bytes]:
    """The first files of a query that is new. `model`: one that has run, for the settings with which it begins."""
    assert model.last is not None
    plan = store.read(model.files[batch_file_name("offsets", model.last)])
    commit = model.folder.commit(model.last)
    if plan is None or commit is None:
        raise StoreError(
            f"the positions of stage '{model.report.stage}' are gone; restore another checkpoint"
        )
    first = batch_file_name("offsets", 0)
    return {
        METADATA: msgspec.json.encode({"id": str(uuid.uuid4())}),
        first: moved_plan(first, plan, positions),
        batch_file_name("commits", 0): starting_commit(commit),
    }


def write_move(store: Store, target: Checkpoint, move: Move) -> StageReport:
    """Writes the files of a move beside those of its checkpoint, and returns the query's part of it, with their names."""
    stage = f"{move.report.stage}.{uuid.uuid4().hex[:8]}"
    prefix = state_copies_prefix(target.epoch, target.checkpoint_id, stage)

    def copy(name: str) -> None:
        store.copy(move.copied[name], prefix + name)

    in_parallel(copy, sorted(move.copied.keys() - move.written.keys()))
    for name, data in move.written.items():
        store.create(prefix + name, data)
    names = [prefix + name for name in sorted({*move.copied, *move.written})]
    state: dict[str, str] = {}
    for name, checksum in zip(names, store.checksum_many(names), strict=True):
        if checksum is None:
            raise StoreError(f"{name} was just written, but is gone")
        state[name] = checksum
    return msgspec.structs.replace(move.report, state=state)


def _cannot(query: str, why: str) -> UserError:
    return UserError(
        f"the query of stage '{query}' cannot begin with other stages chained into it than at the checkpoint: {why}. "
        "Nothing was changed"
    )


def _refuse(manifest: Manifest, query: str, stages: Iterable[str], queries: Mapping[str, _Query]) -> None:
    """Raises `UserError` if state would have to move, or what a checkpoint does not say."""
    for stage in stages:
        before = manifest.query_of(stage)
        if before is None:
            raise _cannot(
                query,
                f"stage '{stage}' is new, and has no position in what it reads. Give the stages that it reads or is read "
                "by chain=False",
            )
        if stage == before and stage != query and queries[before].keeps_state:
            raise _cannot(
                query,
                f"stage '{stage}' has state, and the state of a query cannot move into another one. Start once with "
                f"--restore latest --reset {stage}, and rechain after a checkpoint",
            )
    for name, found in queries.items():
        if found.last is not None and found.leaves is None:
            raise _cannot(query, f"an older version wrote no record of what stage '{name}' reads")
        if (leaf := next((leaf for leaf in found.unknown if leaf.channel is None), None)) is not None:
            raise _cannot(
                query,
                f"an older version recorded '{leaf.stage}', which the code observes, as the stage that reads "
                f"{msgspec.structs.replace(leaf, stage='')}. Leave the chains as they are, or drop and rename the stages",
            )
    if query not in manifest.stages and any(
        found.keeps_state and name in stages for name, found in queries.items()
    ):
        raise _cannot(query, f"stage '{query}' would take over the state of another one")


def _refuse_other_inputs(manifest: Manifest, query: str, stage: str, spec: StageSpec) -> None:
    """Raises `UserError` if a stage reads other stages than at the checkpoint: it has no position on a new one."""
    chained = manifest.chained.get(stage)
    if chained is not None:
        before = {*chained.inputs}
    else:
        inside = {s.name for s in manifest.chained.values() if s.reader == stage}
        before = inside or {*manifest.stages[stage].consumed}
    if before != {*spec.inputs}:
        raise _cannot(
            query,
            f"stage '{stage}' reads {', '.join(sorted(spec.inputs)) or 'no other stage'}, and read "
            f"{', '.join(sorted(before)) or 'no other stage'} at epoch {manifest.epoch}. To start it there at the end of "
            f"what it reads, add --reset {stage}",
        )


def _refuse_other_order(manifest: Manifest, graph: Topology, own: _Query, leaves: Sequence[Leaf]) -> None:
    """Raises `UserError` if a query with state reads its inputs in another order: the state of a join knows its sides
    by their places."""
    query = own.report.stage
    if own.unknown:
        raise _cannot(
            query,
            f"it has state, and an older version wrote no record of which stage reads {own.unknown[0]} first. Leave the "
            f"chains as they are, or add --reset {query}, which drops the state",
        )
    chained = {name: graph.chained[name] for name in graph.chain(query)}
    old, new = _input_order(own.leaves or (), query, own.chained), _input_order(leaves, query, chained)
    if old != new:
        raise _cannot(
            query,
            f"it reads its inputs in the order {', '.join(new)}, and read them in the order {', '.join(old)} at epoch "
            f"{manifest.epoch}, to which its state belongs. Bring that order back, or add --reset {query}, which drops "
            "the state",
        )


def _input_order(leaves: Sequence[Leaf], query: str, chained: Mapping[str, ChainedStage]) -> list[str]:
    """The inputs of a query's stage, in the order in which its plan has what is below them; `query` stands for sources
    of its own. `chained`: the stages that run in the query."""
    order: list[str] = []
    for leaf in leaves:
        stage = leaf.stage or leaf.channel or query
        while stage in chained and chained[stage].reader != query:
            stage = chained[stage].reader
        if order[-1:] != [stage]:
            order.append(stage)
    return order


def _source(
    queries: Mapping[str, _Query], manifest: Manifest, stage: str, number: int, leaf: Leaf, query: str
) -> tuple[Leaf, str | None, dict[SourceLogFile, str]]:
    """The record of a stage's source, the position in it, and the files of its log."""
    before = queries[manifest.query_of(stage) or ""]
    if before.last is None:
        return leaf, None, {}
    known = before.native(stage)
    if number >= len(known):
        raise _cannot(query, f"stage '{stage}' reads {leaf}, in which the checkpoint has no position")
    found, position = known[number]
    if found.log is not None:
        try:
            same_stage = msgspec.structs.replace(found, stage=leaf.stage)
            refuse_moved_files_of(before.folder, leaf, same_stage, found.log)
        except FilesMoved as error:
            raise UserError(
                f"stage '{stage}' cannot start from epoch {manifest.epoch}: {error}. Nothing was changed. "
                f"{error.advice(stage)}"
            ) from error
    return found, position, before.log_of(found.log) if found.log is not None else {}


def _consumed(
    manifest: Manifest,
    written: Mapping[str, StageSpec],
    stages: Sequence[str],
    channel: str,
    batches: Mapping[str, int],
) -> int:
    """How far a query has read a channel: as far as the query of the stage that reads it, or to the end if the channel
    is new between two stages that ran in one query."""
    readers = [s for s in stages if channel in written[s].inputs]
    found = [manifest.query_of(reader) for reader in readers]
    at = {
        manifest.stages[q].consumed[channel]
        for q in found
        if q is not None and channel in manifest.stages[q].consumed
    }
    if len(at) > 1:
        raise _cannot(stages[-1], f"its stages have read '{channel}' up to different batches")
    return at.pop() if at else batches.get(channel, -1)


def _kept(own: _Query) -> dict[str, str]:
    """The files of a query that stay as they are: all but those that say what it reads and how far."""
    return {
        name: source for name, source in own.files.items() if source_log_of(name) is None and name != SOURCES
    }


def _plans(store: Store, own: _Query, positions: Sequence[str | None]) -> dict[str, bytes]:
    """The plans of the last batches, at other positions. (The last one has read nothing then; Spark asks for its rows
    again, and does not use them.)"""
    found: dict[str, bytes] = {}
    for name, source in own.files.items():
        of = batch_file_of(name)
        if of is not None and of.kind == "offsets":
            data = store.read(source)
            if data is None:
                raise StoreError(f"{source} is gone; restore another checkpoint")
            found[name] = moved_plan(source, data, positions)
    return found
