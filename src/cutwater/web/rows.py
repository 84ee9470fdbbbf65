"""One row of the list of epochs: a kept checkpoint, or an epoch that is open or over."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cutwater.documents.kept_checkpoints import labels_of, state_files
from cutwater.documents.timestamps import iso, iso_ms
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.records import Aborted, Begun, Checkpoint, JournalState, Manifest
from cutwater.web.history import Epoch

Sizes = Callable[[Sequence[str]], list[int | None]]


class Row(msgspec.Struct, frozen=True):
    """`is_final`: only its names, and whether it is abandoned, can still change."""

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


@dataclass(frozen=True)
class EpochFacts:
    """What the store says about one epoch. `times` and `aborted` are remembered for a while only; `before` is the
    manifest of the checkpoint before it, and `problem` says why its own cannot be read."""

    number: int
    begun: Begun | None
    aborted: Aborted | None
    checkpoint: Checkpoint | None
    times: Epoch | None
    manifest: Manifest | None
    before: Manifest | None
    problem: str
    published: dict[str, int | None]

    @property
    def flags(self) -> int:
        source = self.checkpoint or self.times or self.begun
        return source.flags if source is not None else 0

    @property
    def checkpoint_id(self) -> int | None:
        source = self.checkpoint or self.times
        return source.checkpoint_id if source is not None else None

    @property
    def committed_s(self) -> float | None:
        return self.times.committed_s if self.times is not None else None

    @property
    def took_s(self) -> float | None:
        """How long it took to commit or to abort it."""
        aborted_s = self.times.aborted_s if self.times is not None else None
        return self.committed_s if self.committed_s is not None else aborted_s

    @property
    def is_committed(self) -> bool:
        return self.checkpoint is not None or self.committed_s is not None

    @property
    def failure(self) -> tuple[str | None, str]:
        """The reason why it was aborted, with details."""
        source = self.aborted or self.times
        return (source.reason, source.detail) if source is not None else (None, "")


def row_of(
    facts: EpochFacts, state: JournalState, savepoints: tuple[str, ...], abandoned: bool, sizes: Sizes | None
) -> Row:
    """`sizes` is `None` if sizes cost too much to look up."""
    times, checkpoint, manifest = facts.times, facts.checkpoint, facts.manifest
    names = state_files(manifest) if manifest is not None else []
    lengths = None
    if manifest is not None and sizes is not None:
        lengths = dict(zip(names, sizes(names), strict=True))
    old = set(state_files(facts.before)) if facts.before is not None else set()
    flights = manifest.in_flight if manifest is not None else ()
    flying = [files for flight in flights for files in flight.batches.values() if files]
    reason, detail = facts.failure
    stages = _stages(checkpoint, state)
    is_settled = checkpoint is not None and facts.committed_s is not None and lengths is not None
    return Row(
        epoch=facts.number,
        checkpoint_id=facts.checkpoint_id,
        result=_result(facts),
        kind=_kind(facts.flags, savepoints, times.savepoint if times is not None else None),
        savepoints=savepoints,
        begun_at=times.begun_at if times is not None else None,
        took_s=facts.took_s,
        committed=facts.is_committed,
        generation=_generation(state, checkpoint, times),
        flags=(*labels_of(facts.flags, manifest), *(["damaged"] if facts.problem else [])),
        abandoned=abandoned,
        watermark=checkpoint.watermark if checkpoint is not None else None,
        stages=stages,
        stages_cut=stages if checkpoint is not None else times.stages_cut if times is not None else None,
        state_files=len(names) if manifest is not None else None,
        state_bytes=_sum(lengths, names),
        written_bytes=_sum(lengths, [n for n in names if n not in old]),
        in_flight_batches=len(flying) if manifest is not None else None,
        in_flight_files=sum(map(len, flying)) if manifest is not None else None,
        published=facts.published,
        problem=facts.problem,
        reason=reason,
        detail=detail,
        is_final=is_settled and None not in facts.published.values(),
    )


def _stages(checkpoint: Checkpoint | None, state: JournalState) -> int:
    """How many stages the epoch has to cut."""
    if checkpoint is not None:
        return len(checkpoint.cuts)
    return len(state.topology.stages) if state.topology is not None else 0


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


def _result(facts: EpochFacts) -> str:
    if facts.begun is not None:
        return "in progress"
    if facts.checkpoint is not None:
        return "committed"
    if facts.aborted is not None or (facts.times is not None and facts.times.aborted_s is not None):
        return "aborted"
    return "expired" if facts.committed_s is not None else "over"


def _kind(flags: int, savepoints: tuple[str, ...], asked: str | None) -> str:
    if savepoints or asked:
        return "savepoint"
    if flags & Flags.DRAIN:
        return "drain"
    return "full checkpoint" if flags & Flags.FULL_SNAPSHOT else "checkpoint"
