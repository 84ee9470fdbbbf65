"""What is told of messages that were not accepted."""

from __future__ import annotations

from collections.abc import Callable

MAX_TOLD = 100


class Complaints:
    """Counts what was not accepted, and tells it once per peer and not once per message."""

    def __init__(self, tell: Callable[[str], None], advice: str) -> None:
        self.count = 0
        self._tell = tell
        self._advice = advice
        self._told: set[str] = set()

    def add(self, peer: str | None, what: str) -> None:
        """`peer`: whose it says it is, if it says that."""
        self.count += 1
        whose = (
            f"that names member '{peer[:60]}' as its sender" if peer is not None else "of nobody knows whom"
        )
        if whose not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(whose)
            self._tell(f"{what} {whose} was ignored, as will be more of that kind: {self._advice}")
