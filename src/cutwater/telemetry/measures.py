"""Counts and times what a member's events say: the part of its metrics that no status holds."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import defaultdict
from threading import Lock
from typing import assert_never

import msgspec

from cutwater.protocol.base import events as ev
from cutwater.telemetry import definitions as d
from cutwater.telemetry.definitions import Metric

Labels = tuple[str, ...]
"""The values of a metric's own labels, in their order."""

REMEMBERED = 100
"""For how many epochs the beginning is remembered, until they are decided or published."""


class Histogram(msgspec.Struct):
    """How many durations are at most as long as each bucket's bound, and longer than the bound before."""

    counts: list[int] = msgspec.field(default_factory=lambda: [0] * (len(d.DURATION_BUCKETS_S) + 1))
    total: float = 0.0

    def add(self, duration_s: float) -> None:
        self.counts[bisect_left(d.DURATION_BUCKETS_S, duration_s)] += 1
        self.total += duration_s


class Measures:
    """Observes the events of one member. Values may be read from any thread."""

    def __init__(self) -> None:
        self.read_s: float | None = None
        """When the metrics were last read, in seconds of `time.monotonic`."""
        self._lock = Lock()
        self._values: dict[str, dict[Labels, float]] = defaultdict(dict)
        self._durations = Histogram()
        self._begun_s: dict[int, float] = {}
        self._committed_s: dict[int, float] = {}
        self._barriers_s: dict[tuple[int, str], float] = {}
        for result in ("committed", "aborted", "void"):
            self._count(d.CHECKPOINTS, result, by=0)
        for metric in (d.RESTORES, d.REJECTED, d.UNREADABLE):
            self._count(metric, by=0)

    def values(self) -> tuple[dict[str, dict[Labels, float]], Histogram]:
        """The values of all metrics by name and labels, and the histogram of durations, at one moment."""
        with self._lock:
            found = {name: dict(values) for name, values in self._values.items()}
            return found, Histogram(list(self._durations.counts), self._durations.total)

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        with self._lock:
            self._values[metric.name][labels] = value

    def __call__(self, at_s: float, event: ev.Event) -> None:
        with self._lock:
            self._take(at_s, event)

    def _take(self, at_s: float, event: ev.Event) -> None:
        match event:
            case ev.EpochBegun():
                self._begun_s[event.epoch] = at_s
                self._forget(event.epoch - REMEMBERED)
            case ev.EpochCommitted():
                self._commit(event.epoch, at_s)
            case ev.EpochAborted():
                self._begun_s.pop(event.epoch, None)
                self._count(d.CHECKPOINTS, "void" if event.is_void else "aborted")
                if not event.is_void:
                    self._count(d.FAILURES, event.reason)
            case ev.PipelineRestored():
                self._count(d.RESTORES)
            case ev.StageStarted():
                for metric in (d.STAGE_ROWS, d.STAGE_BATCHES, d.STAGE_RESTARTS, d.UNALIGNED):
                    self._count(metric, event.stage, by=0)
            case ev.StageFailed():
                self._count(d.STAGE_RESTARTS, event.stage)
            case ev.BatchLogged():
                self._count(d.STAGE_BATCHES, event.stage)
                self._count(d.STAGE_ROWS, event.stage, by=event.rows)
            case ev.AlignmentBegun():
                self._barriers_s.setdefault((event.epoch, event.stage), at_s)
            case ev.StageCut():
                self._cut(event, at_s)
            case ev.TablePublished():
                self._count(d.PUBLISHED, event.sink)
                if (committed_s := self._committed_s.get(event.epoch)) is not None:
                    self._set(d.PUBLISH_DELAY, max(0.0, at_s - committed_s), event.sink)
            case ev.TableRewound():
                self._count(d.REWINDS, event.sink)
            case ev.OperationFailed():
                self._count(d.ERRORS, event.operation)
            case ev.ObjectRejected():
                self._count(d.REJECTED)
            case ev.ManifestUnreadable():
                self._count(d.UNREADABLE)
            case ev.CaughtUp() | ev.CatchingUp() | ev.LeaderChanged() | ev.LeadershipLost():
                pass
            case ev.StageGivenUp() | ev.SinkNotRewound() | ev.EpochCaptured() | ev.ManifestWritten():
                pass
            case ev.RequestsRefused() | ev.RequestForsaken() | ev.SecondProcess():
                pass
            case _:
                assert_never(event)

    def _commit(self, epoch: int, at_s: float) -> None:
        self._count(d.CHECKPOINTS, "committed")
        self._set(d.LAST_COMPLETED, time.time() - (time.monotonic() - at_s))
        self._committed_s[epoch] = at_s
        begun_s = self._begun_s.pop(epoch, None)
        if begun_s is not None:
            self._set(d.LAST_DURATION, at_s - begun_s)
            self._durations.add(at_s - begun_s)

    def _cut(self, event: ev.StageCut, at_s: float) -> None:
        if event.unaligned:
            self._count(d.UNALIGNED, event.stage)
        barrier_s = self._barriers_s.pop((event.epoch, event.stage), None)
        if barrier_s is not None:
            self._set(d.ALIGNMENT, max(0.0, at_s - barrier_s), event.stage)
            if (begun_s := self._begun_s.get(event.epoch)) is not None:
                self._set(d.START_DELAY, max(0.0, barrier_s - begun_s), event.stage)

    def _forget(self, upto: int) -> None:
        for of_epochs in (self._begun_s, self._committed_s):
            for epoch in [epoch for epoch in of_epochs if epoch <= upto]:
                del of_epochs[epoch]
        for key in [key for key in self._barriers_s if key[0] <= upto]:
            del self._barriers_s[key]

    def _count(self, metric: Metric, *labels: str, by: float = 1) -> None:
        values = self._values[metric.name]
        values[labels] = values.get(labels, 0.0) + by

    def _set(self, metric: Metric, value: float, *labels: str) -> None:
        self._values[metric.name][labels] = value
