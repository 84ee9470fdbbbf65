"""Whether a requester is still waiting for the answer to a request in the store, as far as one process can tell.

A request that a process did not see arrive, because it was there at the start or had been renewed before it was first
read, may have been left by a command that was killed. If the process sees it renewed, its requester is waiting; if it is
not renewed for a while, nobody is. No clock of another machine is needed for that.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

FORSAKEN_S = 60.0
"""A request that this process did not see arrive is removed if it is not renewed for this long."""
LOOKED_AWAY_S = 10.0
"""After a longer pause between two looks at the store, that time starts over."""


class Waiting(Enum):
    """Whether a requester is waiting for the answer to a request."""

    SURE = "sure"
    DOUBTFUL = "doubtful"
    FORSAKEN = "forsaken"


class Arrivals:
    """The requests that one process has seen in the store, by name."""

    def __init__(self) -> None:
        self._at_start: set[str] | None = None
        self.doubtful: dict[str, tuple[int, float]] = {}
        """Per request that this process did not see arrive: how often it was renewed, and since when nobody has renewed
        it."""
        self.looked_s = 0.0
        """When it last looked."""

    @property
    def is_ready(self) -> bool:
        """Whether it is known which requests were there at the start."""
        return self._at_start is not None

    def look_first(self, names: Collection[str]) -> None:
        """These requests were in the store when the process started."""
        self._at_start = set(names)

    def look(self, names: Collection[str], now_s: float) -> None:
        """These requests are in the store now."""
        looked_away = now_s - self.looked_s > LOOKED_AWAY_S
        self.looked_s = now_s
        self.doubtful = {
            name: (renewed, now_s if looked_away else since)
            for name, (renewed, since) in self.doubtful.items()
            if name in names
        }

    def judge(self, name: str, renewals: int, now_s: float) -> Waiting:
        """Whether a requester is waiting for this request, given how often it was renewed."""
        assert self._at_start is not None
        if name not in self._at_start and renewals == 0:
            return Waiting.SURE
        before, since = self.doubtful.setdefault(name, (renewals, now_s))
        if renewals != before:
            self._at_start.discard(name)
            del self.doubtful[name]
            return Waiting.SURE
        return Waiting.FORSAKEN if now_s - since >= FORSAKEN_S else Waiting.DOUBTFUL
