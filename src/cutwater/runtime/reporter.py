"""Sends the status of a running member to the other members, and writes it to the store, at an interval."""

from __future__ import annotations

import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from threading import Event, Thread

import msgspec

from cutwater.cluster.links import Links
from cutwater.protocol.base.events import Observe
from cutwater.protocol.base.paths import status_name
from cutwater.runtime.member_status import About, Report
from cutwater.runtime.troubles import Troubles
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore
from cutwater.store.process_identity import this_process
from cutwater.store.status import REPORT_REMOTE_S, REPORT_S, Status, decode_status

Look = Callable[[Callable[[], Status]], Status]
REPORTING = "reporting the status"


class Reporter:
    """Reports the status of a member at an interval. `build` makes it, in `look`, between two turns; `measures` ask
    Spark about the queries, by stage, which may take long, so they have a thread of their own."""

    def __init__(
        self,
        member: str,
        boot: str,
        store: Store,
        links: Links,
        look: Look,
        build: Callable[[Report], Status],
        measures: Mapping[str, Callable[[], None]],
        emit: Observe,
        about: About | None = None,
        troubles: Troubles | None = None,
    ) -> None:
        self._member = member
        self._boot = boot
        self._store = store
        self._links = links
        self._look = look
        self._build = build
        self._measures = measures
        self._troubles = troubles or Troubles(emit)
        self._about = about or About()
        self._started_at = time.time()
        self._stopped = Event()
        self.every_s = REPORT_S if isinstance(store, LocalStore) else REPORT_REMOTE_S
        self._process = this_process()
        self._beats = itertools.count(1)
        self.latest: tuple[Status | None, float] = None, 0.0
        """The status that was last reported, and when, in seconds of `time.monotonic`."""
        self._threads = (
            Thread(target=self._report, name="cutwater-status", daemon=True),
            Thread(target=self._measure_queries, name="cutwater-look", daemon=True),
        )

    def start(self) -> None:
        self.put(self.status("starting"))
        for thread in self._threads:
            thread.start()

    def stop(self, state: str) -> None:
        """Stops reporting; the last status has this state."""
        self._stopped.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=10)
        if not self._has_successor():
            with suppress(TimeoutError):  # a turn that never ends must not keep the process from ending
                self.put(self.status(state))

    def _has_successor(self) -> bool:
        """Whether another process of this member reports its status: this one must not overwrite it when it ends."""
        try:
            data = self._store.read(status_name(self._member))
        except OSError:
            return False
        found = decode_status(data) if data is not None else None
        return found is not None and found.boot != self._boot and not found.is_over

    def _report(self) -> None:
        """Reports without waiting for Spark: a member whose status does not change counts as gone."""
        self._repeat(lambda: self.put(self.status()))

    def _measure_queries(self) -> None:
        while not self._stopped.wait(self.every_s):
            self._measure_each()

    def _measure_each(self) -> None:
        for stage, measure in self._measures.items():
            asking = f"asking Spark about stage '{stage}'"
            try:
                measure()
                self._troubles.worked(asking)
            except Exception as error:
                self._troubles.failed(asking, f"{type(error).__name__}: {error}")

    def _repeat(self, task: Callable[[], None]) -> None:
        while not self._stopped.wait(self.every_s):
            try:
                task()
                self._troubles.worked(REPORTING)
            except Exception as error:
                self._troubles.failed(REPORTING, f"{type(error).__name__}: {error}")

    def put(self, status: Status) -> None:
        self.latest = status, time.monotonic()
        data = msgspec.json.encode(status)
        self._links.show("status", data)
        try:
            self._store.put(status_name(status.member), data)
        except OSError:
            return

    def status(self, state: str | None = None) -> Status:
        """The status of this member at one moment, between two turns of the shell."""
        return self._look(lambda: self._build(self._next_report(state)))

    def _next_report(self, state: str | None) -> Report:
        return Report(
            state=state,
            beat=next(self._beats),
            host=socket.gethostname(),
            pid=os.getpid(),
            process=self._process,
            started_at=self._started_at,
            updated_at=time.time(),
            report_s=self.every_s,
            ignored=self._links.ignored,
            about=self._about,
        )
