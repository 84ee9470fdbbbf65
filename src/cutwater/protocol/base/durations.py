"""Parsing and formatting durations: `5s`, `100ms`, `2 minutes`, `1.5h`."""

from __future__ import annotations

import re

from cutwater.protocol.base.errors import UserError

_UNITS = {
    "ms": 0.001, "millisecond": 0.001, "milliseconds": 0.001, "s": 1, "sec": 1, "second": 1, "seconds": 1, "m": 60,
    "min": 60, "minute": 60, "minutes": 60, "h": 3600, "hour": 3600, "hours": 3600, "d": 86400, "day": 86400,
    "days": 86400,
}  # fmt: skip
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)?\s*")


def seconds(text: str | float, what: str = "duration") -> float:
    """Parses a duration to seconds; a bare number is seconds. Raises `UserError` if it is not a duration."""
    if isinstance(text, int | float):
        value = float(text)
    else:
        found = _DURATION.fullmatch(text)
        unit = _UNITS.get((found[2] or "s").lower()) if found else None
        if found is None or unit is None:
            raise UserError(f"{what} '{text}' is not a duration; write for example 500ms, 5s, 2m or 1h")
        value = float(found[1]) * unit
    if value < 0:
        raise UserError(f"{what} is {text}; it cannot be negative")
    return value


def readable(span_s: float) -> str:
    """Formats a duration: `0.34 s`, `12 s`, `4 min 10 s`, `3 h 5 min`."""
    if span_s < 1:
        return f"{span_s:.2f} s"
    if span_s < 10:
        return f"{span_s:.1f} s"
    if span_s < 60:
        return f"{span_s:.0f} s"
    minutes, rest = divmod(int(span_s), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} d {hours % 24} h"
