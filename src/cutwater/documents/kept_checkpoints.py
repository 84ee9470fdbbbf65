"""Everything known about the kept checkpoints of a store, from the journal, manifests, marks and timings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec

from cutwater.api.tables import sinks_of, versions_of
from cutwater.documents.timestamps import iso, iso_ms
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.records import Checkpoint, JournalState, Manifest
from cutwater.protocol.member.journal import timeline
from cutwater.runtime.timings import EpochTimes, read_times
from cutwater.store.at_rest import load_manifest
from cutwater.store.contract import Store

PARALLEL_READS = 16
FLAG_NAMES = {Flags.FULL_SNAPSHOT: "full", Flags.DRAIN: "drain", Flags.UNALIGNED: "unaligned"}


class KeptCheckpoint(msgspec.Struct, frozen=True):
    """A kept checkpoint. `problem` says why there is no manifest; `state_bytes` is the size of its state files, `None`
    if some are missing; `published` has the table version per sink, `None` where it is not published."""

    checkpoint: Checkpoint
    manifest: Manifest | None
    problem: str
    times: EpochTimes | None
    savepoints: tuple[str, ...]
    abandoned: bool
    state_files: int
    state_bytes: int | None
    published: dict[str, int | None]

    @property
    def committed_at(self) -> float | None:
        return self.times.begun_at + (self.times.committed_s or 0.0) if self.times is not None else None

    @property
    def took_s(self) -> float | None:
        return self.times.committed_s if self.times is not None else None

    def labels(self) -> list[str]:
        """How it was taken, and whether it is still good."""
        labels = labels_of(self.checkpoint.flags, self.manifest)
        if self.abandoned:
            labels.append("abandoned")
        if self.manifest is None:
            labels.append("damaged")
        return labels

    def document(self) -> dict[str, Any]:
        """One element of the list of checkpoints."""
        return {
            "epoch": self.checkpoint.epoch,
            "checkpoint_id": self.checkpoint.checkpoint_id,
            "savepoints": self.savepoints,
            "committed_at": iso(self.committed_at),
            "took_s": self.took_s,
            "generation": self.checkpoint.generation,
            "flags": self.labels(),
            "watermark": iso_ms(self.checkpoint.watermark),
            "state_files": self.state_files,
            "state_bytes": self.state_bytes,
            "published": self.published,
            "problem": self.problem or None,
        }


def labels_of(flags: int, manifest: Manifest | None) -> list[str]:
    """How an epoch was taken: its flags, and whether a stage was cut unaligned without being asked to."""
    labels = [name for flag, name in FLAG_NAMES.items() if flags & flag]
    if manifest is not None and any(s.unaligned for s in manifest.stages.values()):
        labels += ["unaligned"] if "unaligned" not in labels else []
    return labels


def kept_checkpoints(store: Store, state: JournalState) -> list[KeptCheckpoint]:
    """All kept checkpoints, oldest first."""
    return [kept(store, state, c) for c in sorted(state.committed.values(), key=lambda c: c.index)]


def checkpoint_at(store: Store, state: JournalState, at: str) -> Checkpoint:
    """The newest kept checkpoint that was committed at or before a time, by the clock of the leader that took it. Raises
    `UserError` if there is none."""
    moment = parse_time(at)
    known: list[tuple[float, Checkpoint]] = []
    unknown: list[str] = []
    for checkpoint in sorted(state.committed.values(), key=lambda c: c.index):
        times = read_times(store, checkpoint.epoch)
        if times is None or times.committed_s is None:
            unknown.append(str(checkpoint.epoch))
        else:
            known.append((times.begun_at + times.committed_s, checkpoint))
    before = [(committed_at, c) for committed_at, c in known if committed_at <= moment.timestamp()]
    if before:
        return max(before, key=lambda of: (of[0], of[1].index))[1]
    said = f"no kept checkpoint was committed at or before {_told(moment)}"
    if known:
        committed_at, oldest = min(known, key=lambda of: of[0])
        first = datetime.fromtimestamp(committed_at).astimezone(moment.tzinfo)
        said += f"; the oldest, epoch {oldest.epoch}, was committed at {_told(first)}"
    if unknown:
        said += f"; the time of epoch {', '.join(unknown)} is unknown: restore it by number"
    raise UserError(said)


def parse_time(text: str) -> datetime:
    """A date and time of day as people write it, in local time unless it names an offset. Raises `UserError`."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError as error:
        raise UserError(
            f"'{text}' is not a time; write 2026-11-16 12:00 or 2026-11-16 12:00:30 (local time), or add the offset: "
            "2026-11-16 12:00+01:00, 2026-11-16 12:00Z"
        ) from error
    try:
        moment = found if found.tzinfo is not None else found.astimezone()
        moment.timestamp()
        moment.astimezone(UTC)
    except (ValueError, OverflowError, OSError) as error:  # at the ends of the calendar
        raise UserError(
            f"'{text}' is too long ago, or too far ahead, to be compared with other times"
        ) from error
    return moment


def _told(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d %H:%M:%S %Z")


def kept(store: Store, state: JournalState, checkpoint: Checkpoint) -> KeptCheckpoint:
    """Collect what is known about one checkpoint."""
    manifest, problem = None, ""
    try:
        manifest = load_manifest(store, checkpoint)
    except StoreError as error:
        problem = str(error)
    names = state_files(manifest) if manifest is not None else []
    sizes = sizes_of(store, names)
    return KeptCheckpoint(
        checkpoint=checkpoint,
        manifest=manifest,
        problem=problem,
        times=read_times(store, checkpoint.epoch),
        savepoints=tuple(sorted(n for n, e in state.savepoints.items() if e == checkpoint.epoch)),
        abandoned=checkpoint not in timeline(state),
        state_files=len(names),
        state_bytes=None if None in sizes or manifest is None else sum(s or 0 for s in sizes),
        published=versions_of(store, checkpoint, sinks_of(state)),
    )


def state_files(manifest: Manifest) -> list[str]:
    return sorted({name for report in manifest.stages.values() for name in report.state})


def sizes_of(store: Store, names: list[str]) -> list[int | None]:
    """The size of each object, `None` if it is missing."""
    with ThreadPoolExecutor(PARALLEL_READS) as pool:
        return list(pool.map(store.size, names))
