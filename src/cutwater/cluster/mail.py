"""Mail to single members, delivered in order. Large mail is sent by a separate thread, because a slow reader would
otherwise delay everybody else. Small mail is sent immediately, unless large mail is queued before it."""

from __future__ import annotations

import time
from collections import deque
from queue import Empty, Full, Queue
from threading import Lock, Thread
from typing import Any

import zenoh

from cutwater.cluster.config import MAX_VALUE_BYTES
from cutwater.cluster.seal import Sealer

MAX_QUEUED = 100
MAX_HELD = 100
HELD_S = 10.0
SMALL_BYTES = 4_096
Mail = tuple[str, str, bytes]
"""The member, the boot of its process, and the data."""
QOS = {
    "congestion_control": zenoh.CongestionControl.BLOCK,
    "priority": zenoh.Priority.DATA_LOW,
    "express": True,
    "allowed_destination": zenoh.Locality.REMOTE,
}


class Outbox:
    """Sends mail below the key `root`. Mail for an absent member is held for a short while."""

    def __init__(self, session: Any, sealer: Sealer, root: str) -> None:
        self._session = session
        self._sealer = sealer
        self._root = root
        self._member = sealer.member
        self._queue: Queue[Mail | None] = Queue(MAX_QUEUED)
        self._held: dict[str, deque[tuple[float, bytes]]] = {}
        self._lock = Lock()
        self._pending = 0
        self._seq = 0
        self._thread = Thread(target=self._work, name="cutwater-mail", daemon=True)
        self._thread.start()

    def post(self, to: str, data: bytes, boots: list[str]) -> None:
        """Posts to these processes of a member, or later if one appears. Drops data that is too large to send: the
        member will find it in the store."""
        if len(data) > MAX_VALUE_BYTES:
            return
        with self._lock:
            if not boots:
                self._held.setdefault(to, deque(maxlen=MAX_HELD)).append((time.monotonic(), data))
            for boot in boots:
                self._put((to, boot, data))

    def release(self, to: str, boot: str) -> None:
        """Sends the mail that was held for a member that has now joined."""
        with self._lock:
            since_s = time.monotonic() - HELD_S
            for posted_s, data in self._held.pop(to, ()):
                if posted_s >= since_s:
                    self._put((to, boot, data))

    def close(self) -> None:
        """Drops unsent mail."""
        while True:
            try:
                self._queue.put_nowait(None)
                break
            except Full:
                try:
                    self._queue.get_nowait()
                except Empty:
                    continue
        self._thread.join(timeout=1.0)

    def _put(self, mail: Mail) -> None:
        if not self._pending and len(mail[2]) <= SMALL_BYTES:
            self._send(mail)
            return
        try:
            self._queue.put_nowait(mail)
            self._pending += 1
        except Full:
            return  # mail may be lost; the reader asks again

    def _work(self) -> None:
        while (mail := self._queue.get()) is not None and self._send(mail):
            with self._lock:
                self._pending -= 1

    def _send(self, mail: Mail) -> bool:
        """Returns whether the session is still open."""
        to, boot, data = mail
        self._seq += 1
        where = f"{self._root}/{to}/{boot}/{self._member}"
        sealed, seal = self._sealer.seal("mail", where, self._seq, data)
        try:
            self._session.put(where, sealed, attachment=seal, **QOS)
        except zenoh.ZError:
            return False
        return True
