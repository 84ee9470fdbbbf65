"""`cutwater verify`: checks that everything a run or a restore needs exists and is intact."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from cutwater.cli.output import AsJson, StoreUrl, command, show, waiting
from cutwater.protocol.base.errors import VERIFY_FIRST, CutwaterError, StoreError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.paths import GRAPH_PREFIX, MARK_PREFIX, SINK_PREFIX
from cutwater.protocol.base.records import JournalState, Manifest, StageReport, StageSpec, settled
from cutwater.protocol.base.watermark import UNKNOWN
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.protocol.leader.steering import refusal_of_restore
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.publish import begin, newest_mark
from cutwater.runtime.restore import finder, historian
from cutwater.store.at_rest import drive, load_manifest, read_journal, resolve
from cutwater.store.checkpoint_objects import damaged_objects, needed
from cutwater.store.contract import Store
from cutwater.store.figures import plural
from cutwater.store.format import FormatDamaged
from cutwater.store.opening import open_store

SHOWN = 5


@command
def verify(
    ref: Annotated[
        str | None, typer.Argument(help="Only this checkpoint: an epoch, a savepoint's name, or latest.")
    ] = None,
    store: StoreUrl = "./state",
    tables: Annotated[
        bool,
        typer.Option(
            "--tables",
            help="Also check the sinks: staged, held back and published files, and whether they can be rolled back.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Check everything that a run or a restore will read: the journal, logs, marks, Spark's newest folders, rows in
    channels, and every object of the kept checkpoints. With --tables, also what the sinks have staged and published."""
    try:
        where = open_store(store)
    except FormatDamaged as error:
        show(as_json, {"damaged": True, "format": str(error)}, Text(f"format  {error}", style="red"))
        raise typer.Exit(1) from None
    with waiting("reading the journal and the logs", as_json) as update:
        try:
            found = _check(where, ref, tables, update)
            if found.is_damaged:
                update("checking again what seems damaged")
                found = found.confirmed_by(_check(where, ref, tables, update))
        except JournalDamaged as error:
            show(as_json, {"damaged": True, "journal": str(error)}, Text(f"journal  {error}", style="red"))
            raise typer.Exit(1) from None
    document = {
        "damaged": found.is_damaged,
        "journal": "whole",
        "damage": found.damage,
        "checkpoints": {str(e): {"restorable": not p, "problems": p} for e, p in found.problems.items()},
    }
    show(as_json, document, *_text(found))
    if found.is_damaged:
        raise typer.Exit(1)


class JournalDamaged(CutwaterError):
    """The journal cannot be read, so nothing else can be checked."""


@dataclass(frozen=True)
class Findings:
    """What one pass has found: `damage` by what is damaged, `problems` by epoch."""

    state: JournalState
    damage: dict[str, str]
    problems: dict[int, list[str]]
    manifests: dict[int, Manifest]

    @property
    def is_damaged(self) -> bool:
        return bool(self.damage) or any(self.problems.values())

    def confirmed_by(self, later: Findings) -> Findings:
        """What a later pass has found too. A running pipeline expires checkpoints and replaces folders, so an object
        that one pass misses may have been removed in the meantime."""
        damage = {what: why for what, why in later.damage.items() if what in self.damage}
        problems = {
            epoch: found if self.problems.get(epoch) else [] for epoch, found in later.problems.items()
        }
        return Findings(later.state, damage, problems, later.manifests)


def _check(where: Store, ref: str | None, tables: bool, update: Callable[[str], None]) -> Findings:
    """Check everything once. Raises `JournalDamaged`."""
    from cutwater.inspection.integrity import (
        NextRun,
        folder_problems,
        graph_problems,
        journal_problems,
        mark_problems,
    )
    from cutwater.plan.assemble import part_kind  # imported here: these need pyspark
    from cutwater.plan.known_sources import source_problems
    from cutwater.sinks.records import kind_of, record_problems

    try:
        journal = read_journal(where)
    except StoreError as error:
        raise JournalDamaged(_without_verify(str(error))) from error
    state = journal.state
    damage = journal_problems(where, journal) | mark_problems(where, state)
    damage |= graph_problems(where, {GRAPH_PREFIX: part_kind, SINK_PREFIX: kind_of})
    damage |= source_problems(where)
    damage |= record_problems(where, state.topology.sinks() if state.topology is not None else ())
    wanted = (
        [resolve(state, ref)] if ref is not None else sorted(state.committed.values(), key=lambda c: c.index)
    )
    manifests: dict[int, Manifest] = {}
    problems: dict[int, list[str]] = {}
    for checkpoint in wanted:
        problems[checkpoint.epoch] = []
        try:
            manifests[checkpoint.epoch] = load_manifest(where, checkpoint)
        except StoreError as error:
            problems[checkpoint.epoch].append(str(error))
    damage |= folder_problems(where, manifests.values())
    wrong = damaged_objects(where, manifests.values(), update)
    damage |= NextRun(where, state, _newest(where, state, manifests)).check(update)
    if tables and state.topology is not None:
        for sink in sorted(state.topology.sinks()):
            update(f"checking the table of sink {sink}")
            damage |= _table_problems(where, journal, sink, manifests.values())
        for epoch, manifest in manifests.items():
            update(f"checking that the tables can be rolled back to epoch {epoch}")
            problems[epoch] += _refusals(where, journal, manifest)
    for epoch, manifest in manifests.items():
        problems[epoch] += [wrong[name] for name in needed(manifest) if name in wrong]
    return Findings(
        state,
        {what: _without_verify(why) for what, why in damage.items()},
        {epoch: [_without_verify(why) for why in found] for epoch, found in problems.items()},
        manifests,
    )


def _without_verify(why: str) -> str:
    """An error without the advice to run this command."""
    return why.replace(VERIFY_FIRST, "")


def _newest(store: Store, state: JournalState, known: dict[int, Manifest]) -> Manifest | None:
    """The manifest that a run would start from. Damage to it is reported elsewhere."""
    if state.head is None or state.head in known:
        return known.get(state.head or 0)
    with suppress(StoreError):
        return load_manifest(store, state.committed[state.head])
    return None


def _refusals(store: Store, journal: Journal, manifest: Manifest) -> list[str]:
    """Why a restore would be refused because of a table. Changes that others made to it are not damage. Stages and
    sinks that the graph no longer has would be dropped, and chains split or merged."""
    graph = journal.state.topology
    assert graph is not None
    present = graph.stages.keys() | graph.chained.keys()
    gone = (manifest.stages.keys() | manifest.chained.keys()) - present
    gone |= manifest.release.keys() - graph.sinks().keys()
    moved = {name: _anywhere(graph.stages[name]) for name in manifest.moved_queries(graph)}
    request = Request(
        RequestKind.RESTORE, "verify", None, manifest.epoch, drop=tuple(sorted(gone)), force=True, topology=graph,
        moved=moved,
    )  # fmt: skip
    reply = drive(store, refusal_of_restore(journal, request), finder(store), history=historian(store))
    reasons = (FailureReason.TABLE_HISTORY_GONE.value, FailureReason.TABLE_UNAVAILABLE.value)
    return [reply.detail] if reply is not None and reply.reason in reasons else []


def _anywhere(query: StageSpec) -> StageReport:
    """A part of a checkpoint, for a query that begins somewhere: tables do not depend on where."""
    consumed = dict.fromkeys(query.inputs, -1)
    return StageReport(query.name, 0, -1, False, {}, consumed=consumed, offsets={}, watermark=UNKNOWN)


def _table_problems(
    store: Store, journal: Journal, sink: str, manifests: Iterable[Manifest]
) -> dict[str, str]:
    """What is wrong with the files that a sink holds back, has yet to publish, or has published, and with its marks."""
    from cutwater.sinks.registry import open_sink

    state = journal.state
    marks = settled(store.list(MARK_PREFIX))
    files: list[str] = []
    found: list[str] = []
    for manifest in manifests:
        files += [file.name for file in manifest.held.get(sink, ())]
        if state.committed[manifest.epoch].index > marks.get(sink, 0):
            files += manifest.release.get(sink, ())
    try:
        opened = open_sink(store, sink)
        found = opened.problems(sorted(set(files)))
        newest, mark = drive(store, newest_mark(sink))
        # A damaged newest mark is reported with the marks. A run would rewrite it; this command must not write.
        if newest == (mark.index if mark is not None else 0):
            drive(store, begin(sink, journal), history=historian(store), head=opened.head)
    except (CutwaterError, OSError) as error:
        found = [*found, str(error)]
    return {f"sink '{sink}' ({number})": why for number, why in enumerate(dict.fromkeys(found), 1)}


def _text(findings: Findings) -> list[Any]:
    state, damage, problems = findings.state, findings.damage, findings.problems
    stages = len(state.topology.stages) if state.topology is not None else 0
    lines: list[Any] = [
        f"journal intact; read {plural(stages, 'stage log')} of generation {state.generation}"
    ]
    lines += [Text(f"{what}: {why}", style="red") for what, why in damage.items()]
    for epoch, found in problems.items():
        names = [n for n, e in state.savepoints.items() if e == epoch]
        label = f"epoch {epoch}" + "".join(f" (savepoint '{n}')" for n in names)
        if not found:
            count = plural(len(needed(findings.manifests[epoch])), "object")
            lines.append(Text.assemble(f"{label}  ", ("can be restored", "green"), f"  {count} checked"))
            continue
        lines.append(Text.assemble(f"{label}  ", ("cannot be restored", "red")))
        lines += [Text(f"    {why}") for why in found[:SHOWN]]
        if len(found) > SHOWN:
            lines.append(f"    and {len(found) - SHOWN} more (--json lists them all)")
    if not problems:
        lines.append("no checkpoint has been committed yet")
    return lines
