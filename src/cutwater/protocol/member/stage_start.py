"""How an incarnation of a stage begins (rule 7): its starting point, its OPEN entry, its Spark folder."""

from __future__ import annotations

from typing import Protocol

from cutwater.protocol.base.effects import ListFolders, MakeFolder, Procedure, insist
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import AppendPhase, append, follow
from cutwater.protocol.base.records import Manifest, Open, StageReport, StageSpec, position_of
from cutwater.protocol.base.watermark import UNKNOWN
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.stage_log import StageLog


class Opener(Protocol):
    """The member that opens a stage."""

    journal: Journal

    def nonce(self) -> str: ...
    def head_manifest(self) -> Procedure[Manifest | None]: ...


def starting_report(
    member: Opener, spec: StageSpec, generation: int
) -> Procedure[tuple[StageReport | None, bool]]:
    """What a generation starts from: the stage's part of the newest checkpoint, if there is one; and whether the
    stage starts without its state. A stage that is reset keeps its positions, on its inputs and on its own sources:
    its tables show what it has read. An input that is new to a stage is read from the cut on."""
    manifest = yield from member.head_manifest()
    if manifest is None:
        return None, False
    report = manifest.stages.get(spec.name)
    ours = member.journal.state.generations.get(generation)  # gone, if it expired meanwhile
    forked = manifest.generation != generation
    reset = forked and ours is not None and spec.name in ours.reset
    if report is not None and not reset:
        return report, False
    cuts = {s: manifest.stages[s].batch if s in manifest.stages else -1 for s in spec.inputs}
    if report is None:
        new = StageReport(spec.name, 0, -1, False, {}, consumed=cuts, offsets={}, watermark=UNKNOWN)
        return new, True
    consumed = {s: report.consumed.get(s, cut) for s, cut in cuts.items()}
    kept = position_of(report) | {"consumed": consumed, "watermark": UNKNOWN}
    return StageReport(spec.name, 0, report.batch, False, report.state, **kept), True


def append_open(member: Opener, spec: StageSpec, log: StageLog, report: StageReport | None) -> Procedure[int]:
    """Appends OPEN, and returns the number of the new incarnation, which is the place of the entry."""
    while True:
        sealed = log.view.seal(_open_entry(spec, log, report), member.nonce())
        if (yield from append(log.view, sealed)) is AppendPhase.MINE:
            return sealed.entry.index
        yield from follow(log.view)


def _open_entry(spec: StageSpec, log: StageLog, report: StageReport | None) -> Open:
    place = log.view.last + 1
    if log.state.incarnation or report is None:
        start = dict.fromkeys(spec.inputs, -1)
        return Open(place, -1, consumed=start, offsets={}, watermark=UNKNOWN)
    return Open(place, report.batch, **position_of(report))


def learn_fates(member: Opener) -> Procedure[None]:
    """Reads the journal after OPEN, so that this incarnation knows at least the fates that the one before it knew. That
    one may have passed the barriers of an epoch that was over; who took that epoch for open would cut it too late."""
    yield from follow(member.journal.view)


def make_folder(log: StageLog, incarnation: int, report: StageReport | None, reset: bool) -> Procedure[None]:
    """Makes the incarnation's Spark folder from the newest one before it, or from `report` if there is none. Makes none
    if another incarnation is open by now. Raises `StoreError` if the log or the folders have been lost."""
    name, generation = log.stage, log.generation
    folders = yield from insist(ListFolders(name, generation))
    if max(folders, default=0) >= incarnation:
        yield from follow(log.view)
        if log.state.incarnation != incarnation:
            return
        raise StoreError(
            f"stage {name} has a Spark folder of incarnation {max(folders)}, which its log does not have: "
            "the newest entries of the log were lost. Recover them from a copy, or restore the newest checkpoint"
        )
    source = max((i for i in folders if i < incarnation), default=None)
    state = log.state
    if source is None and state.last != (report.batch if report is not None else -1):
        raise StoreError(
            f"the Spark folders of stage {name} are missing, and its log has batches up to "
            f"{state.last} that the newest checkpoint does not have: starting without them "
            "would lose rows. Restore the newest checkpoint"
        )
    yield from insist(
        MakeFolder(name, generation, incarnation, source, report, state.last, state.commit, reset)
    )
