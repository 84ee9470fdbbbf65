"""Detects from outside whether a member is running: its status changes while we watch.

Only the local monotonic clock is used. The timestamps in a status prove nothing, because the clocks of two machines may
differ by hours. A running member rewrites its status at an interval, each time with a higher `beat`, so watching for
about two intervals is enough.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import Enum

import msgspec

from cutwater.protocol.base.durations import readable
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.paths import STATUS_PREFIX
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore
from cutwater.store.process_identity import exists
from cutwater.store.status import Status, decode_status

INTERVALS = 2
SLACK_S = 2.0
"""A member may be silent for this many of its intervals, plus some slack for a busy machine."""
STUCK_S = 15.0
"""The minimum if its process is known to exist: it is busy, paused or stuck."""
LONGEST_INTERVAL_S = 60.0
UNABLE = "is paused or stuck, or cannot write to the store, whose disk may be full"
"""What may be wrong with a process that exists and does not report."""


class Presence(Enum):
    UNKNOWN = "unknown"
    """Not watched for long enough."""
    RUNNING = "running"
    """Its status changed recently, while we watched."""
    SILENT = "silent"
    """It has not reported its end, and its status no longer changes."""
    ENDED = "ended"
    """It reported its end, or its process is known to be gone."""


class Seen(msgspec.Struct, frozen=True):
    """A member's last status, whether it changed while we watched, and what follows from that."""

    status: Status
    presence: Presence
    is_news: bool


class Watch:
    """Watches the members of a store, starting with the first `look`."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self.every_s = 0.1 if isinstance(store, LocalStore) else 0.5
        self._store = store
        self._clock = clock
        self._has_looked = False
        self._known: dict[str, tuple[bytes, float, bool]] = {}

    def look(self) -> list[Seen]:
        """The members' current state. Raises `UserError` if a running member writes an unknown kind of status."""
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
                    f"{name} in {self._store.url} is being written by another version of Cutwater, in a form that this "
                    "version does not understand. Use the version that runs the pipeline"
                )
            return None
        return Seen(status, _presence(status, now - at, is_news), is_news)

    def running(self, tick: Callable[[], None] = lambda: None) -> Status | None:
        """Waits until some member is known to run, and returns it, preferably the leader; `None` if none runs. Calls
        `tick` before each further look."""
        while True:
            seen = self.look()
            there = [s.status for s in seen if s.presence is Presence.RUNNING]
            if there:
                return next((s for s in there if s.leads), there[0])
            if not any(s.presence is Presence.UNKNOWN for s in seen):
                return None
            tick()
            time.sleep(self.every_s)

    def absence(self) -> str:
        """Why nobody answers a request, after `running` has found nobody."""
        stuck = [s.status for s in self.look() if s.presence is Presence.SILENT and exists(s.status.process)]
        if not stuck:
            return f"no pipeline is running on {self._store.url} (one that is still starting does not answer yet)"
        process = f"process {stuck[0].pid} on {stuck[0].host}"
        return (
            f"{process} runs a pipeline on {self._store.url}, but has not reported for {readable(silence_s(stuck[0]))}: "
            f"it {UNABLE}"
        )

    def settle(self, tick: Callable[[], None] = lambda: None) -> list[Seen]:
        """Waits until it is known for each member whether it runs. Calls `tick` before each further look."""
        while True:
            seen = self.look()
            if not any(s.presence is Presence.UNKNOWN for s in seen):
                return seen
            tick()
            time.sleep(self.every_s)


def silence_s(status: Status) -> float:
    """How long this member may be silent before it counts as gone."""
    interval = min(max(status.report_s, 0.0), LONGEST_INTERVAL_S)
    usual = INTERVALS * interval + SLACK_S
    return max(usual, STUCK_S) if exists(status.process) else usual


def _presence(status: Status, silent_s: float, is_news: bool) -> Presence:
    if status.is_over or exists(status.process) is False:
        return Presence.ENDED
    if silent_s >= silence_s(status):
        return Presence.SILENT
    return Presence.RUNNING if is_news else Presence.UNKNOWN
