"""Which table versions belong to one epoch.

Tables of a pipeline are published one after the other. To join them consistently, read each by time travel at the
version that the same epoch became.
"""

from __future__ import annotations

from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.paths import MARK_PREFIX, mark_name
from cutwater.protocol.base.records import Checkpoint, JournalState, decode_mark, settled
from cutwater.protocol.member.journal import timeline
from cutwater.store.at_rest import read_journal, resolve
from cutwater.store.contract import Store
from cutwater.store.opening import open_store


def tables(store: str | Store, epoch: int | str | None = None) -> dict[str, int]:
    """The version of each table (by its sink's name) at an epoch, by default the newest that is published everywhere. A
    table without rows has version -1. Raises `UserError` if there is no such epoch, or if a sink has no version for
    it."""
    where = open_store(store) if isinstance(store, str) else store
    return versions_at(where, read_journal(where).state, epoch)[1]


def versions_at(
    store: Store, state: JournalState, epoch: int | str | None = None
) -> tuple[int, dict[str, int]]:
    """The epoch, and the versions that belong to it."""
    marks = store.list(MARK_PREFIX)
    sinks = sinks_of(state)
    if epoch is None:
        published = [c for c in timeline(state) if all(mark_name(c.index, s) in marks for s in sinks)]
        if not published:
            raise UserError(f"no epoch of {store.url} is published in every table yet")
        checkpoint = published[-1]
    else:
        checkpoint = resolve(state, str(epoch))
        _refuse_unmarked(checkpoint, sinks, marks)
    return checkpoint.epoch, {s: v for s, v in versions_of(store, checkpoint, sinks).items() if v is not None}


def versions_of(store: Store, checkpoint: Checkpoint, sinks: list[str]) -> dict[str, int | None]:
    """Per sink the version that its mark of this checkpoint names, `None` if there is no mark."""
    names = [mark_name(checkpoint.index, sink) for sink in sinks]
    found = store.read_many(names)
    return {
        sink: decode_mark(name, data).version if data is not None else None
        for sink, name, data in zip(sinks, names, found, strict=True)
    }


def sinks_of(state: JournalState) -> list[str]:
    return sorted(state.topology.sinks()) if state.topology is not None else []


def _refuse_unmarked(checkpoint: Checkpoint, sinks: list[str], marks: list[str]) -> None:
    highest = settled(marks)
    for sink in sinks:
        if mark_name(checkpoint.index, sink) in marks:
            continue
        if highest.get(sink, 0) > checkpoint.index:
            raise UserError(
                f"sink '{sink}' is past epoch {checkpoint.epoch} and has no mark of it: a restore abandoned the epoch "
                "before it was published, or the mark is gone; choose another epoch"
            )
        raise UserError(
            f"sink '{sink}' has not published epoch {checkpoint.epoch} yet: wait until it has (`cutwater "
            "status`), or leave the epoch out to get the newest that is published everywhere"
        )
