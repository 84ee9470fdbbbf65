"""Channels: what a reader may read next, as one pure function of stage logs and journal.

A channel is a view of the producing stage's log. Positions count its batches, so a barrier moves nothing.
Alignment is nothing but rule 6, the hold rule: a reader never passes a barrier whose epoch is open and for which it
has not been cut itself. An epoch that is not known to be decided counts as open. Held data stays where it is.

Outdated knowledge is always safe here: fates are final and a reader's own cuts only grow, so an outdated answer allows
less. That is why a planner may use a feed that its member filled a while ago.
"""

from __future__ import annotations

from collections.abc import Mapping

from cutwater.protocol.base.errors import InvariantBroken
from cutwater.protocol.base.records import BarrierAt, JournalState, Manifest, StageState
from cutwater.protocol.member.journal import Fate, fate

Files = tuple[str, ...]


class BatchUnknown(InvariantBroken):
    """This process does not know a requested batch: not yet, or no longer. The latter only happens to a zombie, which
    the others have left behind."""


def holds(journal: JournalState, reader: StageState, barrier: BarrierAt) -> bool:
    """Whether a barrier holds this reader back."""
    if barrier.epoch in reader.barriers:
        return False
    match fate(journal, barrier.epoch):
        case Fate.UNKNOWN:
            return True
        case Fate.OPEN:
            return journal.open[barrier.epoch].checkpoint_id == barrier.checkpoint_id
        case _:
            return False


def readable(journal: JournalState, reader: StageState, producer: StageState) -> int:
    """The batch of `producer` up to which `reader` may read now (the hold rule)."""
    limit = producer.last
    for barrier in producer.barriers.values():
        if barrier.batch < limit and holds(journal, reader, barrier):
            limit = barrier.batch
    return limit


class Channel:
    """One reader's view of one producer: batches carried over a restore, then the producer's log."""

    def __init__(self, producer: StageState, carried: Mapping[int, Files]) -> None:
        self.producer = producer
        self.carried = carried

    def between(self, after: int, upto: int) -> dict[int, Files]:
        """The files of every batch in (`after`, `upto`], including batches without rows.

        Raises `BatchUnknown` if one of them is not known here: an unknown batch is not an empty one. (A query that
        resumes a planned batch must wait until this process has read that far.)
        """
        found: dict[int, Files] = {}
        for batch in range(after + 1, upto + 1):
            entry = self.producer.batches.get(batch)
            if entry is None and batch not in self.carried:
                raise BatchUnknown(
                    f"batch {batch} is requested (up to {upto}), and neither the log, known to "
                    f"{self.producer.last}, nor the newest checkpoint has it"
                )
            found[batch] = self.carried[batch] if entry is None else entry.files
        return found

    def unread(self, after: int, upto: int) -> dict[int, Files]:
        """The batches with rows in (`after`, `upto`], which a reader at `after` has not read yet. Raises like
        `between`."""
        return {batch: files for batch, files in self.between(after, upto).items() if files}


def carried_batches(manifest: Manifest | None, reader: str, producer: str) -> dict[int, Files]:
    """What the newest checkpoint has in flight on a channel: the only source of batches from before a fork."""
    if manifest is None:
        return {}
    for flight in manifest.in_flight:
        if flight.reader == reader and flight.producer == producer:
            return dict(flight.batches)
    return {}
