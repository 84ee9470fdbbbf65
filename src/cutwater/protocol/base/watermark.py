"""The pipeline-wide watermark: which event time is closed everywhere.

A stage reports one of four things for the batch at which it was cut. `known`: Spark's own watermark.
`idle`: its plan has one, but its inputs are silent and it holds nobody back, even if it never had a row.
`unknown`: it has event time but has seen nothing yet; until it has, or is idle, the pipeline's watermark must
not move ("not yet" is not infinity). `none`: its plan has no watermark at all, which is known from the start.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import msgspec


class WatermarkKind(Enum):
    KNOWN = "known"
    IDLE = "idle"
    UNKNOWN = "unknown"
    NONE = "none"


class Watermark(msgspec.Struct, frozen=True):
    """What one stage, or one member for all its stages, says about event time at a cut."""

    kind: WatermarkKind
    ms: int | None = None


NONE = Watermark(WatermarkKind.NONE)
UNKNOWN = Watermark(WatermarkKind.UNKNOWN)


def known(ms: int) -> Watermark:
    """A watermark that has reached `ms`."""
    return Watermark(WatermarkKind.KNOWN, ms)


def idle(ms: int | None = None) -> Watermark:
    """A silent stage, which last stood at `ms`, or nowhere yet."""
    return Watermark(WatermarkKind.IDLE, ms)


def lowest(reports: Iterable[Watermark]) -> Watermark:
    """One watermark for several: unknown if any is, else the lowest known, else the lowest idle, else
    none."""
    found: dict[WatermarkKind, list[int | None]] = {}
    for report in reports:
        if report.kind is WatermarkKind.UNKNOWN:
            return UNKNOWN
        found.setdefault(report.kind, []).append(report.ms)
    for kind in (WatermarkKind.KNOWN, WatermarkKind.IDLE):
        if kind in found:
            times = [ms for ms in found[kind] if ms is not None]
            return Watermark(kind, min(times) if times else None)
    return NONE


def advance(current: int | None, reports: Iterable[Watermark]) -> int | None:
    """The pipeline-wide watermark after a cut with these reports, given where it stood before.

    It moves only to a value that no known report lies below, and never back. (A stage that was idle and
    wakes up behind the watermark cannot pull it back; it just keeps it from moving on.) If all are idle, as
    at a drain, it moves to the lowest of them: what that one has closed is closed everywhere.
    """
    low = lowest(reports)
    if low.ms is None:
        return current
    return low.ms if current is None else max(current, low.ms)
