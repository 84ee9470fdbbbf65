"""Moments as text."""

from __future__ import annotations

from datetime import UTC, datetime

_FIRST = datetime.min.replace(tzinfo=UTC).timestamp()
_LAST = datetime.max.replace(tzinfo=UTC, microsecond=0).timestamp()


def moment(at_s: float) -> datetime:
    """The moment `at_s` seconds after 1970, in UTC. Event times come from users' rows and may lie anywhere: one that
    Python cannot express becomes the first or the last that it can (in the year 1 or 9999)."""
    return datetime.fromtimestamp(min(max(at_s, _FIRST), _LAST), UTC)
