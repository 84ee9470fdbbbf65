"""Publishing: what an epoch of a sink consists of, and what a sink has still to do. Rule 8.

Both are functions of the records, so whoever hosts the stage now can do it, any number of times. A table
carries one transaction id per sink for ever, whose version is the journal index of what it did last;
indexes only grow, so nothing is skipped and nothing is done twice. An epoch without rows makes no table
commit, just its mark: the table at an epoch is the version with the highest transaction up to its index.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cutwater.protocol.chain import digest
from cutwater.protocol.effects import (
    FAILED,
    Effect,
    FindTableVersion,
    List,
    Procedure,
    PublishTable,
    Read,
    ReadTable,
    RewindTable,
    Sleep,
    TableHead,
    backoff_ms,
    insist,
    put,
)
from cutwater.protocol.errors import StoreError
from cutwater.protocol.journal import timeline
from cutwater.protocol.records import (
    MARK_PREFIX,
    Batch,
    Checkpoint,
    JournalState,
    Manifest,
    Published,
    StagedFile,
    decode,
    manifest_name,
    mark_name,
    seal,
)


def contents(
    batches: Iterable[Batch], sink: str, held: tuple[StagedFile, ...], watermark: int | None
) -> tuple[tuple[str, ...], tuple[StagedFile, ...]]:
    """What an epoch publishes to a sink, and what it still holds back.

    `batches` are those after the previous committed cut up to this one, in order; `held` is what the
    previous one held back. A file without an end is published; one with an end only when the
    pipeline-wide watermark has reached that end.
    """
    released: list[str] = []
    kept: list[StagedFile] = []
    staged = [*held, *(file for batch in batches for file in batch.sinks.get(sink, ()))]
    for file in staged:
        if file.end is None or (watermark is not None and file.end <= watermark):
            released.append(file.name)
        else:
            kept.append(file)
    return tuple(released), tuple(kept)


class CommitPermit(msgspec.Struct, frozen=True):
    """The right to publish one epoch. Only a committed entry in the journal hands it out."""

    epoch: int
    index: int
    checkpoint: Checkpoint


class RewindOrder(msgspec.Struct, frozen=True):
    """The duty to bring a sink back to what it was at an epoch."""

    epoch: int
    index: int
    transaction: int


Duty = CommitPermit | RewindOrder


def duties(state: JournalState, transaction: int) -> list[Duty]:
    """What a sink whose table carries `transaction` has still to do, in order.

    It follows the timeline that the present grew out of: each generation's rewind, then its commits.
    Commits of abandoned timelines are passed over.
    """
    line = timeline(state)
    found: list[Duty] = [CommitPermit(c.epoch, c.index, c) for c in line if c.index > transaction]
    number: int | None = state.generation
    while number is not None and number in state.generations:
        generation = state.generations[number]
        if generation.epoch is not None and generation.index > transaction:
            found.append(RewindOrder(generation.epoch, generation.index, generation.transaction))
        number = generation.parent
    return sorted(found, key=lambda duty: duty.index)


def perform(sink: str, duty: Duty) -> Procedure[None]:
    """Does one duty on a table, once, and leaves its mark.

    If the table already carries this transaction (our own from before a crash, or that of a zombie), only
    the mark is written; if it carries a later one, a successor has gone on and nothing is.
    """
    attempt = 0
    missing = False
    while True:
        head: TableHead = yield from insist(ReadTable(sink))
        if head.transaction > duty.index:
            return
        if head.transaction == duty.index:
            # Others may have committed to the table right behind us: the head need not be our version.
            version = yield from insist(FindTableVersion(sink, duty.index))
            mark = Published(duty.epoch, sink, duty.index, head.version if version is None else version)
            yield from put(mark_name(duty.index, sink), seal(mark))
            return
        effect = yield from _table_commit(sink, duty, head)
        if effect is None:
            if (yield from insist(List(f"{MARK_PREFIX}{sink}/", mark_name(duty.index - 1, sink)))):
                return  # it had no rows, and somebody has marked it, or a later one
            if missing:  # and the table has been asked again since: nobody has settled the epoch
                raise StoreError(
                    f"the manifest of epoch {duty.epoch} is missing, and sink {sink} has not published it; "
                    "run `cutwater verify`, then restore an older checkpoint"
                )
            missing = True
        elif isinstance(effect, PublishTable) and not effect.files:
            mark = Published(duty.epoch, sink, duty.index, head.version)
            yield from put(mark_name(duty.index, sink), seal(mark))
            return
        elif (yield effect) is FAILED:
            yield Sleep(backoff_ms(attempt))
            attempt += 1


def _table_commit(sink: str, duty: Duty, head: TableHead) -> Procedure[Effect | None]:
    """The table commit that does the duty, on top of `head`; `None` if the manifest is not there: unless
    it is lost, somebody has settled the epoch meanwhile, and the table will tell."""
    if isinstance(duty, CommitPermit):
        manifest = yield from read_manifest(duty.checkpoint)
        if manifest is None:
            return None
        return PublishTable(sink, head.version, duty.index, manifest.release.get(sink, ()))
    version = yield from insist(FindTableVersion(sink, duty.transaction))
    if version is None:
        raise StoreError(
            f"sink {sink} has no version for epoch {duty.epoch}, so it cannot go back to it: its history "
            "was removed. Restore the table by hand, or restore with `--reset` for its stage"
        )
    return RewindTable(sink, head.version, duty.index, version)


def read_manifest(checkpoint: Checkpoint) -> Procedure[Manifest | None]:
    """The manifest of a committed epoch, checked against the hash in the journal; `None` if it is gone."""
    name = manifest_name(checkpoint.epoch, checkpoint.checkpoint_id)
    data = yield from insist(Read(name))
    if data is None:
        return None
    if digest(data) != checkpoint.manifest:
        raise StoreError(
            f"{name} is not the manifest that epoch {checkpoint.epoch} was committed with (its hash "
            "differs); run `cutwater verify`, then restore an older checkpoint"
        )
    return decode(name, data, Manifest)
