"""One row of the list of epochs: a kept checkpoint, or an epoch that is open or over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from cutwater.documents.kept_checkpoints import FLAG_NAMES, state_files
from cutwater.documents.timestamps import iso, iso_ms
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.records import Checkpoint, JournalState, Manifest
from cutwater.web.history import Epoch

Sizes = Callable[[Sequence[str]], list[int | None]]


class Row(msgspec.Struct, frozen=True):
    """`is_final`: nothing of it can change any more, except its names and whether it is abandoned."""

    epoch: int
    checkpoint_id: int | None
    result: str
    kind: str
    savepoints: tuple[str, ...]
    begun_at: float | None
    took_s: float | None
    committed: bool
    generation: int | None
    flags: tuple[str, ...]
    abandoned: bool
    watermark: int | None
    stages: int
    stages_cut: int | None
    state_files: int | None
    state_bytes: int | None
    written_bytes: int | None
    in_flight_batches: int | None
    in_flight_files: int | None
    published: dict[str, int | None]
    problem: str
    reason: str | None
    detail: str
    is_final: bool

    def document(self) -> dict[str, Any]:
        """The fields of `cutwater checkpoints --json`, and more."""
        ended = self.begun_at + self.took_s if self.begun_at is not None and self.took_s is not None else None
        return {
            "epoch": self.epoch,
            "checkpoint_id": self.checkpoint_id,
            "result": self.result,
            "kind": self.kind,
            "savepoints": list(self.savepoints),
            "begun_at": iso(self.begun_at),
            "committed_at": iso(ended) if self.committed else None,
            "took_s": self.took_s,
            "generation": self.generation,
            "flags": [*self.flags, *(["abandoned"] if self.abandoned else [])],
            "watermark": iso_ms(self.watermark),
            "stages": self.stages,
            "stages_cut": self.stages_cut,
            "state_files": self.state_files,
            "state_bytes": self.state_bytes,
            "written_bytes": self.written_bytes,
            "in_flight": None
            if self.in_flight_batches is None
            else {"batches": self.in_flight_batches, "files": self.in_flight_files},
            "published": self.published,
            "problem": self.problem or None,
            "reason": self.reason,
            "detail": self.detail,
        }


def row_of(
    number: int,
    state: JournalState,
    checkpoint: Checkpoint | None,
    epoch: Epoch | None,
    manifest: Manifest | None,
    before: Manifest | None,
    problem: str,
    savepoints: tuple[str, ...],
    abandoned: bool,
    published: dict[str, int | None],
    sizes: Sizes | None,
) -> Row:
    """`before` is the manifest of the checkpoint before it; `sizes` is `None` if sizes cost too much to look up."""
    begun = state.open.get(number)
    failed = next((a for a in state.aborted if a.epoch == number), None)
    flags = (
        checkpoint.flags
        if checkpoint is not None
        else epoch.flags
        if epoch is not None
        else begun.flags
        if begun
        else 0
    )
    result = _result(checkpoint, epoch, begun is not None, failed is not None)
    names = state_files(manifest) if manifest is not None else []
    lengths = (
        dict(zip(names, sizes(names), strict=True)) if sizes is not None and manifest is not None else None
    )
    old = set(state_files(before)) if before is not None else set()
    of_all = (
        len(checkpoint.cuts)
        if checkpoint is not None
        else len(state.topology.stages)
        if state.topology
        else 0
    )
    took = (
        epoch.committed_s
        if epoch is not None and epoch.committed_s is not None
        else epoch.aborted_s
        if epoch
        else None
    )
    shown = [name for flag, name in FLAG_NAMES.items() if flags & flag]
    if (
        manifest is not None
        and "unaligned" not in shown
        and any(s.unaligned for s in manifest.stages.values())
    ):
        shown.append("unaligned")
    settled = (
        checkpoint is not None
        and manifest is not None
        and epoch is not None
        and epoch.committed_s is not None
    )
    flights = manifest.in_flight if manifest is not None else ()
    flying = [files for flight in flights for files in flight.batches.values() if files]
    return Row(
        epoch=number,
        checkpoint_id=checkpoint.checkpoint_id if checkpoint is not None else epoch.checkpoint_id if epoch else None,
        result=result,
        kind=_kind(flags, savepoints, epoch.savepoint if epoch is not None else None),
        savepoints=savepoints,
        begun_at=epoch.begun_at if epoch is not None else None,
        took_s=took,
        committed=checkpoint is not None or (epoch is not None and epoch.committed_s is not None),
        generation=_generation(state, checkpoint, epoch),
        flags=(*shown, *(["damaged"] if problem else [])),
        abandoned=abandoned,
        watermark=checkpoint.watermark if checkpoint is not None else None,
        stages=of_all,
        stages_cut=of_all if checkpoint is not None else epoch.stages_cut if epoch is not None else None,
        state_files=len(names) if manifest is not None else None,
        state_bytes=_sum(lengths, names),
        written_bytes=_sum(lengths, [n for n in names if n not in old]),
        in_flight_batches=len(flying) if manifest is not None else None,
        in_flight_files=sum(map(len, flying)) if manifest is not None else None,
        published=published,
        problem=problem,
        reason=failed.reason if failed is not None else epoch.reason if epoch is not None else None,
        detail=failed.detail if failed is not None else epoch.detail if epoch is not None else "",
        is_final=settled and lengths is not None and None not in published.values(),
    )  # fmt: skip


def _generation(state: JournalState, checkpoint: Checkpoint | None, epoch: Epoch | None) -> int | None:
    if checkpoint is not None:
        return checkpoint.generation
    return generation_at(state, epoch.checkpoint_id) if epoch is not None else None


def generation_at(state: JournalState, index: int) -> int | None:
    """The generation to which an entry of the journal belongs; `None` if it is not remembered any more."""
    began = [g for g in state.generations.values() if g.index < index]
    return max(began, key=lambda g: g.index).number if began else None


def _sum(lengths: dict[str, int | None] | None, names: Sequence[str]) -> int | None:
    if lengths is None or any(lengths[name] is None for name in names):
        return None
    return sum(lengths[name] or 0 for name in names)


def _result(checkpoint: Checkpoint | None, epoch: Epoch | None, is_open: bool, has_failed: bool) -> str:
    if is_open:
        return "in progress"
    if checkpoint is not None:
        return "committed"
    if has_failed or (epoch is not None and epoch.aborted_s is not None):
        return "aborted"
    return "expired" if epoch is not None and epoch.committed_s is not None else "over"


def _kind(flags: int, savepoints: tuple[str, ...], asked: str | None) -> str:
    if savepoints or asked:
        return "savepoint"
    if flags & Flags.DRAIN:
        return "drain"
    return "full checkpoint" if flags & Flags.FULL_SNAPSHOT else "checkpoint"
