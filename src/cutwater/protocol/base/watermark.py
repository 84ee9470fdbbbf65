"""The pipeline-wide watermark: the event time up to which all stages are complete.

A stage reports one of four kinds for the batch at which it was cut. `known`: Spark's own watermark.
`idle`: its plan has one, but its inputs are silent and it does not hold back the others, even if it never had
a row. `unknown`: it has event time but has seen no row yet; until it has, or is idle, the pipeline-wide
watermark must not move ("not yet" does not mean infinity). `none`: its plan has no watermark.
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
    """The event time of one stage, or of all stages of one member, at a cut."""

    kind: WatermarkKind
    ms: int | None = None


NONE = Watermark(WatermarkKind.NONE)
UNKNOWN = Watermark(WatermarkKind.UNKNOWN)


def known(ms: int) -> Watermark:
    """A watermark that has reached `ms`."""
    return Watermark(WatermarkKind.KNOWN, ms)


def idle(ms: int | None = None) -> Watermark:
    """An idle stage whose last watermark was `ms`, if it had one."""
    return Watermark(WatermarkKind.IDLE, ms)


def lowest(reports: Iterable[Watermark]) -> Watermark:
    """The combined watermark: unknown if any is, else the lowest known, else the lowest idle, else none."""
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
    """The pipeline-wide watermark after a cut with these reports, given its current value.

    It never passes a known report, and never goes back. (A stage that was idle and becomes active behind the
    watermark cannot pull it back; it only stops it.) If all are idle, as at a drain, it moves to the lowest of
    them.
    """
    low = lowest(reports)
    if low.ms is None:
        return current
    return low.ms if current is None else max(current, low.ms)
