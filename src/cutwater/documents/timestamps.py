"""Timestamps for programs."""

from __future__ import annotations

from cutwater.store.timestamps import moment


def iso(at_s: float | None) -> str | None:
    return None if at_s is None else moment(at_s).isoformat(timespec="milliseconds")


def iso_ms(at_ms: int | None) -> str | None:
    return None if at_ms is None else iso(at_ms / 1000)
