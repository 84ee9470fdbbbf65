"""Watches the store while a page is open or requests arrive, and pushes what changes."""

from __future__ import annotations

import time
from threading import Event, Thread

import msgspec

from cutwater.protocol.base.errors import CutwaterError
from cutwater.web.answers import unreadable
from cutwater.web.hub import Hub
from cutwater.web.reader import StoreReader

LOCAL_S = 0.5
REMOTE_S = 5.0
INTEREST_S = 30.0
"""How long after the last request the store is still watched."""
PREPARE_AFTER_S = 1.0
"""How long after the first look the reader is prepared: that takes CPU time, and the first page comes first."""


class StoreWatcher:
    """A thread that looks at the store at an interval, while pages are open or after a request."""

    def __init__(self, reader: StoreReader, hub: Hub) -> None:
        self.every_s = LOCAL_S if reader.is_local else REMOTE_S
        self._reader = reader
        self._hub = hub
        self._wake = Event()
        self._stopped = False
        self._asked_at = float("-inf")
        self._seen: bytes = b""
        self._index = -1
        self._history = -1
        self._problem = ""
        self._thread = Thread(target=self._run, name="cutwater-web-look", daemon=True)

    def start(self) -> None:
        self._asked_at = time.monotonic()  # the first page finds everything read
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def touch(self) -> None:
        """Somebody looks."""
        self._asked_at = time.monotonic()
        self._wake.set()

    def nudge(self) -> None:
        """Something has happened: look at once. Never waits."""
        self._wake.set()

    def _run(self) -> None:
        is_prepared = False
        began_s = time.monotonic()
        while not self._stopped:
            if self._is_wanted():
                self._look()
                if not is_prepared and time.monotonic() - began_s >= PREPARE_AFTER_S:
                    is_prepared = True
                    self._reader.prepare()
                    self._index = -1  # tell pages to ask again
                    continue
            self._wake.clear()
            self._wake.wait(self.every_s if self._is_wanted() else 60.0)
            if self._is_wanted() and not self._stopped:
                time.sleep(0.05)  # several nudges are one look

    def _is_wanted(self) -> bool:
        return self._hub.clients > 0 or time.monotonic() - self._asked_at < INTEREST_S

    def _look(self) -> None:
        try:
            view = self._reader.look()
            document = msgspec.json.encode(self._reader.pipeline(view))
            self._report_problem("")
        except (CutwaterError, OSError) as error:
            if not self._problem:
                self._report_problem(unreadable(error))
            return
        if document != self._seen:
            self._seen = document
            self._hub.publish("pipeline", document, keep=True)
        if (view.index, self._reader.history.version) != (self._index, self._history):
            self._index, self._history = view.index, self._reader.history.version
            self._hub.publish("journal", msgspec.json.encode({"index": view.index}), keep=True)

    def _report_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            self._hub.publish("store", msgspec.json.encode({"problem": problem or None}), keep=True)
