"""Per-epoch timings, and counts of bad rows, shown by `explain`.

The protocol has no clock, so its records contain no timings. Timings are stored next to the records, as
`explain/<epoch>.json` by the leader and `explain/<epoch>-<member>.json` by every other member for its own stages
and sinks. Losing them loses nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from cutwater.protocol.base import events as ev
from cutwater.protocol.base.paths import EXPLAIN_PREFIX, notes_name, notes_of, notes_prefix
from cutwater.store.contract import Store

KEPT = 50
"""How many of the newest epochs keep their timings, besides those of kept checkpoints. The journal remembers for longer
why an epoch was aborted."""
SURPLUS = 10
"""How many more may remain, so that not every epoch has to delete one."""


class StageTime(msgspec.Struct):
    """When a stage was cut, in seconds after the epoch was begun, and where. `barrier_s`: when it had seen the first
    barrier (without inputs, the order to cut); `None` in timings of versions that did not record it."""

    cut_s: float
    batch: int
    unaligned: bool
    barrier_s: float | None = None


class RuleRows(msgspec.Struct, frozen=True):
    """How many rows violate a rule, of an epoch and of all epochs up to it."""

    rows: int
    total: int


EpochViolations = dict[str, dict[str, RuleRows]]
"""By stage and rule."""


class EpochTimes(msgspec.Struct):
    """One epoch. Times are in seconds after it was begun; `begun_at` is wall-clock time."""

    epoch: int
    checkpoint_id: int
    begun_at: float
    flags: int
    savepoint: str | None = None
    stages: dict[str, StageTime] = {}
    captured_s: float | None = None
    manifest_s: float | None = None
    committed_s: float | None = None
    aborted_s: float | None = None
    reason: str | None = None
    detail: str = ""
    published_s: dict[str, float] = {}
    violations: EpochViolations = {}


def read_times(store: Store, epoch: int) -> EpochTimes | None:
    """The timings of an epoch from all members; `None` if there are none."""
    found: list[EpochTimes] = []
    names = [n for n in store.list(notes_prefix(epoch)) if (of := notes_of(n)) and of.epoch == epoch]
    for data in store.read_many(sorted(names, key=len)):
        try:
            if data is not None:
                found.append(msgspec.json.decode(data, type=EpochTimes))
        except ValueError:
            continue
    if not found:
        return None
    whole = found[0]
    for other in found[1:]:
        whole.stages = {**other.stages, **whole.stages}
        whole.published_s = {**other.published_s, **whole.published_s}
        whole.violations = {**other.violations, **whole.violations}
    return whole


class Timings:
    """Observes the latest epochs, and writes their timings to the store. It may wait for a slow store: observers may."""

    def __init__(
        self,
        store: Store,
        member: str,
        kept: Callable[[], Collection[int]] = tuple,
        violations: Callable[[int], EpochViolations] = lambda epoch: {},
    ) -> None:
        """`kept` returns the epochs whose checkpoints are kept; `violations` how many rows of an epoch violate rules."""
        self._store = store
        self._member = member
        self._kept = kept
        self._violations = violations
        self._epochs: dict[int, _Epoch] = {}
        self._files: list[str] | None = None

    def __call__(self, at_s: float, event: ev.Event) -> None:
        match event:
            case ev.EpochBegun():
                self._begin(event, at_s)
            case ev.AlignmentBegun():
                if (known := self._epochs.get(event.epoch)) is not None:
                    known.barriers.setdefault(event.stage, known.after(at_s))
            case ev.StageCut():
                if (known := self._epochs.get(event.epoch)) is not None:
                    barrier_s = known.barriers.get(event.stage)
                    cut = StageTime(known.after(at_s), event.batch, event.unaligned, barrier_s)
                    known.times.stages[event.stage] = cut
            case ev.EpochCaptured():
                if (known := self._epochs.get(event.epoch)) is not None:
                    known.times.captured_s = known.after(at_s)
            case ev.ManifestWritten():
                if (known := self._epochs.get(event.epoch)) is not None:
                    known.times.manifest_s = known.after(at_s)
            case ev.EpochCommitted():
                if (known := self._epochs.get(event.epoch)) is not None:
                    known.times.committed_s = known.after(at_s)
                    known.times.violations = self._violations(event.epoch)
                    self._save(known)
            case ev.EpochAborted():
                if event.is_void:
                    self._epochs.pop(event.epoch, None)
                elif (known := self._epochs.get(event.epoch)) is not None:
                    known.times.aborted_s = known.after(at_s)
                    known.times.reason, known.times.detail = event.reason, event.detail
                    self._save(known)
            case ev.TablePublished():
                if (known := self._epochs.get(event.epoch)) is not None:
                    known.times.published_s[event.sink] = known.after(at_s)
                    self._save(known)
            case ev.CaughtUp() | ev.LeaderChanged() | ev.LeadershipLost() | ev.PipelineRestored():
                pass
            case ev.StageStarted() | ev.StageFailed() | ev.StageGivenUp() | ev.BatchLogged():
                pass
            case ev.TableRewound() | ev.SinkNotRewound() | ev.ManifestUnreadable() | ev.RequestsRefused():
                pass
            case (
                ev.CatchingUp()
                | ev.OperationFailed()
                | ev.ObjectRejected()
                | ev.RequestForsaken()
                | ev.SecondProcess()
            ):
                pass
            case _:
                assert_never(event)

    def _begin(self, event: ev.EpochBegun, at_s: float) -> None:
        begun_at = time.time() - (time.monotonic() - at_s)
        times = EpochTimes(event.epoch, event.checkpoint_id, begun_at, event.flags, event.savepoint)
        name = notes_name(event.epoch, None if event.leader == self._member else self._member)
        self._epochs[event.epoch] = _Epoch(times, at_s, name)
        for old in [epoch for epoch in self._epochs if epoch < event.epoch - KEPT]:
            del self._epochs[old]

    def _save(self, known: _Epoch) -> None:
        """Best effort: these are notes for people."""
        try:
            if self._files is None:
                self._files = self._store.list(EXPLAIN_PREFIX)
            self._store.put(known.name, msgspec.json.encode(known.times))
            if known.name not in self._files:
                self._files.append(known.name)
            oldest = known.times.epoch - KEPT
            kept = self._kept()
            old = [
                n
                for n in self._files
                if (of := notes_of(n)) is not None and of.epoch < oldest and of.epoch not in kept
            ]
            if len(old) > SURPLUS:
                self._store.delete(old)
                self._files = [name for name in self._files if name not in old]
        except OSError:
            pass


@dataclass
class _Epoch:
    """An epoch, when it was begun by the monotonic clock, and under which name its timings are stored. `barriers`: when
    each stage saw the first barrier."""

    times: EpochTimes
    begun_s: float
    name: str
    barriers: dict[str, float] = field(default_factory=dict)

    def after(self, at_s: float) -> float:
        """Seconds since it was begun."""
        return round(at_s - self.begun_s, 3)
