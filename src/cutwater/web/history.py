"""What is remembered of every epoch: the timings in the store, reduced to what a list and its statistics need.

The store keeps the timings of the newest epochs and of kept checkpoints. A server that has seen more remembers more, up
to `LIMIT` epochs.
"""

from __future__ import annotations

import statistics
from collections.abc import Set
from typing import Any

import msgspec

from cutwater.protocol.base.paths import EXPLAIN_PREFIX, notes_of, notes_prefix
from cutwater.protocol.base.records import JournalState
from cutwater.runtime.timings import EpochTimes
from cutwater.store.contract import Store

LIMIT = 20_000
SETTLED_AFTER = 60
"""How many epochs later the timings of an epoch no longer change."""
_CHUNK = 500
CHARTED = 120
"""How many epochs the chart of durations has."""


class Epoch(msgspec.Struct):
    """One epoch. Times are in seconds after it began."""

    epoch: int
    checkpoint_id: int
    begun_at: float
    flags: int
    savepoint: str | None
    stages_cut: int
    committed_s: float | None
    aborted_s: float | None
    reason: str | None
    detail: str
    published: frozenset[str]


class _Derived(msgspec.Struct, frozen=True):
    """What follows from the epochs of one version."""

    version: int
    figures: dict[str, Any]
    aborted: frozenset[int]
    committed: frozenset[int]
    durations: list[dict[str, Any]]


class History:
    """All epochs that are known. One thread calls `refresh`; any thread may read."""

    def __init__(self, store: Store, version: int = 0) -> None:
        self._store = store
        self._start = 0
        self.epochs: dict[int, Epoch] = {}
        self.version = version
        """Changes when anything here does."""
        self._derived = _Derived(-1, {}, frozenset(), frozenset(), [])

    def refresh(self, state: JournalState) -> None:
        """Read what is new in the store."""
        names = self._store.list(EXPLAIN_PREFIX, notes_prefix(self._start) if self._start else "")
        found: dict[int, Epoch] = {}
        for start in range(0, len(names), _CHUNK):
            chunk = names[start : start + _CHUNK]
            for name, data in zip(chunk, self._store.read_many(chunk), strict=True):
                notes = notes_of(name)
                if data is None or notes is None:
                    continue
                try:
                    times = msgspec.json.decode(data, type=EpochTimes)
                except (ValueError, RecursionError):
                    continue
                found[notes.epoch] = _merged(found.get(notes.epoch), times)
        if any(self.epochs.get(number) != epoch for number, epoch in found.items()):
            self.epochs = {**self.epochs, **found}
            self.version += 1
        self._start = max(0, state.next_epoch - SETTLED_AFTER)
        if len(self.epochs) > LIMIT:
            self.epochs = dict(sorted(self.epochs.items())[-LIMIT:])

    @property
    def aborted(self) -> Set[int]:
        """The epochs that were aborted."""
        return self._derive().aborted

    @property
    def committed(self) -> Set[int]:
        """The epochs that were committed."""
        return self._derive().committed

    def durations(self) -> list[dict[str, Any]]:
        """How long the newest epochs took, oldest first."""
        return self._derive().durations

    def figures(self) -> dict[str, Any]:
        """Statistics over all known epochs."""
        return self._derive().figures

    def _derive(self) -> _Derived:
        found = self._derived
        if found.version != self.version:
            found = self._derived = _derived(self.version, self.epochs)
        return found


def _merged(known: Epoch | None, times: EpochTimes) -> Epoch:
    """The notes of several members on one epoch; those of the leader come first."""
    found = Epoch(
        times.epoch, times.checkpoint_id, times.begun_at, times.flags, times.savepoint, len(times.stages),
        times.committed_s, times.aborted_s, times.reason, times.detail, frozenset(times.published_s),
    )  # fmt: skip
    if known is None:
        return found
    return msgspec.structs.replace(
        known,
        stages_cut=known.stages_cut + found.stages_cut,
        committed_s=known.committed_s if known.committed_s is not None else found.committed_s,
        aborted_s=known.aborted_s if known.aborted_s is not None else found.aborted_s,
        reason=known.reason or found.reason,
        detail=known.detail or found.detail,
        published=known.published | found.published,
    )


def _derived(version: int, epochs: dict[int, Epoch]) -> _Derived:
    took = sorted(e.committed_s for e in epochs.values() if e.committed_s is not None)
    aborted = {number: e.reason or "unknown" for number, e in epochs.items() if e.aborted_s is not None}
    reasons: dict[str, int] = {}
    for reason in aborted.values():
        reasons[reason] = reasons.get(reason, 0) + 1
    committed = frozenset(number for number, e in epochs.items() if e.committed_s is not None)
    figures = {
        "aborted_by_reason": dict(sorted(reasons.items())),
        "took_s": {
            "min": took[0],
            "median": round(statistics.median(took), 3),
            "p99": took[min(len(took) - 1, int(len(took) * 0.99))],
            "max": took[-1],
        }
        if took
        else None,
    }
    durations = [_duration(epochs[number]) for number in sorted(epochs)[-CHARTED:]]
    return _Derived(version, figures, frozenset(aborted), committed, durations)


def _duration(epoch: Epoch) -> dict[str, Any]:
    if epoch.aborted_s is not None:
        return {"epoch": epoch.epoch, "took_s": epoch.aborted_s, "result": "aborted"}
    result = "committed" if epoch.committed_s is not None else "in progress"
    return {"epoch": epoch.epoch, "took_s": epoch.committed_s, "result": result}
