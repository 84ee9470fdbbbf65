"""Warnings about messages that were rejected."""

from __future__ import annotations

from collections.abc import Callable

MAX_WARNINGS = 100


class Rejections:
    """Counts rejected messages, and warns once per peer rather than once per message."""

    def __init__(self, notify: Callable[[str], None], advice: str) -> None:
        self.count = 0
        self._notify = notify
        self._advice = advice
        self._warned: set[str] = set()

    def add(self, peer: str | None, what: str) -> None:
        """`peer` is the sender that the message names, if any."""
        self.count += 1
        origin = f"that names member '{peer[:60]}' as its sender" if peer is not None else "of unknown origin"
        if origin not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(origin)
            self._notify(f"{what} {origin} was ignored, as will be any others like it: {self._advice}")
