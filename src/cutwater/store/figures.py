"""Figures as people read them."""

from __future__ import annotations


def count(number: int) -> str:
    """A number, abbreviated if it is large."""
    if number < 10_000:
        return f"{number:,}"
    return f"{number / 1e3:,.0f}k" if number < 10_000_000 else f"{number / 1e6:,.0f}M"


def size(length: int | None) -> str:
    """A number of bytes with a unit."""
    if length is None:
        return "-"
    value = float(length)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def plural(number: int, thing: str) -> str:
    """`1 file`, `2 files`."""
    return (
        f"{number:,} {thing}" if number == 1 else f"{number:,} {thing}{'es' if thing.endswith('ch') else 's'}"
    )
