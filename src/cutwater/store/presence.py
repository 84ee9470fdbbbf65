"""Whether a member runs, as seen from outside: by whether what it says of itself changes while one looks.

No clock but the own monotonic one is asked: how old a status says it is tells nothing, for the clocks of two machines
may differ by hours. A running member writes its status again and again, each time with a higher `beat`, so whoever
wants to know looks for about two of its intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum

import msgspec

from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.paths import STATUS_PREFIX
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore
from cutwater.store.process_identity import exists
from cutwater.store.status import Status, decode_status

INTERVALS = 2
SLACK_S = 2.0
"""For how long a member may be silent: so many of its intervals, and what a busy machine adds."""
STUCK_S = 15.0
"""The same for one whose process is there for sure: it is busy, paused or stuck."""
LONGEST_INTERVAL_S = 60.0


class Presence(Enum):
    UNKNOWN = "unknown"
    """Not looked at for long enough."""
    RUNNING = "running"
    """Its status changed while we looked, and not long ago."""
    SILENT = "silent"
    """It has not said that it ended, and is not heard of."""
    ENDED = "ended"
    """It has said so, or its process is gone for sure."""


class Seen(msgspec.Struct, frozen=True):
    """What a member last said, whether it said so while we looked, and what that means."""

    status: Status
    presence: Presence
    is_news: bool


class Watch:
    """Observes the members of a store, from the first `look` on."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self.every_s = 0.1 if isinstance(store, LocalStore) else 0.5
        self._store = store
        self._clock = clock
        self._has_looked = False
        self._known: dict[str, tuple[bytes, float, bool]] = {}

    def look(self) -> list[Seen]:
        """The members now. Raises `UserError` for one that speaks in a way which this version does not understand."""
        names = self._store.list(STATUS_PREFIX)
        found = dict(zip(names, self._store.read_many(names), strict=True))
        now = self._clock()
        known: dict[str, tuple[bytes, float, bool]] = {}
        for name, data in found.items():
            before = self._known.get(name)
            if before is not None and before[0] == data:
                known[name] = before
            elif data is not None:
                known[name] = (data, now, self._has_looked)
        self._known, self._has_looked = known, True
        return [seen for name, what in known.items() if (seen := self._seen(name, now, *what)) is not None]

    def _seen(self, name: str, now: float, data: bytes, at: float, is_news: bool) -> Seen | None:
        status = decode_status(data)
        if status is None:
            if is_news:
                raise UserError(
                    f"{name} in {self._store.url} is written now, by another version of Cutwater: it holds no status "
                    "that this one understands. Use the version by which the pipeline is run"
                )
            return None
        return Seen(status, _presence(status, now - at, is_news), is_news)

    def running(self, tick: Callable[[], None] = lambda: None) -> Status | None:
        """A member that runs, one that leads if there is one among those heard so far; `None` when it is known that
        none does. Calls `tick` each time before it looks again."""
        while True:
            seen = self.look()
            there = [s.status for s in seen if s.presence is Presence.RUNNING]
            if there:
                return next((s for s in there if s.leads), there[0])
            if not any(s.presence is Presence.UNKNOWN for s in seen):
                return None
            tick()
            time.sleep(self.every_s)

    def settle(self, tick: Callable[[], None] = lambda: None) -> list[Seen]:
        """All members, when it is known of each whether it runs. Calls `tick` each time before it looks again."""
        while True:
            seen = self.look()
            if not any(s.presence is Presence.UNKNOWN for s in seen):
                return seen
            tick()
            time.sleep(self.every_s)


def silence_s(status: Status) -> float:
    """For how long this member may be silent before it counts as gone."""
    interval = min(max(status.report_s, 0.0), LONGEST_INTERVAL_S)
    usual = INTERVALS * interval + SLACK_S
    return max(usual, STUCK_S) if exists(status.process) else usual


def _presence(status: Status, silent_s: float, is_news: bool) -> Presence:
    if status.is_over or exists(status.process) is False:
        return Presence.ENDED
    if silent_s >= silence_s(status):
        return Presence.SILENT
    return Presence.RUNNING if is_news else Presence.UNKNOWN
