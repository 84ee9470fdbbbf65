"""Pushes events to the pages that are open, as server-sent events.

Every client has a short queue of its own. One that does not read is dropped when its queue is full, or when a write to
it takes too long; if it is alive, it reconnects by itself. Publishing never waits.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from threading import Lock

from starlette.types import Receive, Scope, Send

from cutwater.web.answers import failed

MAX_CLIENTS = 64
MAX_WAITING = 32
"""How many events may wait for one client."""
HEARTBEAT_S = 5.0
"""How often to send a heartbeat to a client if nothing else is sent."""
SEND_S = 10.0
"""A client that does not accept an event for this long is dropped."""
_START = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
)


class _Client:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.queue: asyncio.Queue[bytes] = asyncio.Queue(MAX_WAITING)
        self.over = asyncio.Event()

    def offer(self, data: bytes) -> None:
        try:
            self.queue.put_nowait(data)
        except asyncio.QueueFull:
            self.over.set()


class Hub:
    """All clients. `publish` may be called from any thread."""

    def __init__(self) -> None:
        self._clients: set[_Client] = set()
        self._lock = Lock()
        self._newest: dict[str, bytes] = {}
        self._is_closed = False

    @property
    def clients(self) -> int:
        return len(self._clients)

    def publish(self, event: str, data: bytes, *, keep: bool = False) -> None:
        """Send an event to all clients. With `keep`, those that come later get it first."""
        message = b"event: " + event.encode() + b"\ndata: " + data + b"\n\n"
        with self._lock:
            if keep:
                self._newest[event] = message
            clients = list(self._clients)
        for client in clients:
            with suppress(RuntimeError):  # its loop is closed: the server ends
                client.loop.call_soon_threadsafe(client.offer, message)

    def close(self) -> None:
        """End all streams."""
        with self._lock:
            self._is_closed = True
            clients = list(self._clients)
        for client in clients:
            with suppress(RuntimeError):
                client.loop.call_soon_threadsafe(client.over.set)

    def _join(self) -> _Client | None:
        client = _Client(asyncio.get_running_loop())
        with self._lock:
            if self._is_closed or len(self._clients) >= MAX_CLIENTS:
                return None
            self._clients.add(client)
            for message in self._newest.values():
                client.offer(message)
        return client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The stream of one client: a hub is an ASGI application."""
        client = self._join()
        if client is None:
            await failed(503, f"{MAX_CLIENTS} pages are open already; close one")(scope, receive, send)
            return
        gone = asyncio.ensure_future(_disconnected(receive))
        over = asyncio.ensure_future(client.over.wait())
        try:
            await send({"type": "http.response.start", "status": 200, "headers": list(_START)})
            if scope["method"] == "HEAD":
                await send({"type": "http.response.body", "body": b""})
                return
            await _write(send, b"retry: 1000\n\n")
            while not (gone.done() or over.done()):
                waiting = asyncio.ensure_future(client.queue.get())
                await asyncio.wait(
                    {waiting, gone, over}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED
                )
                if waiting.done():
                    await _write(send, waiting.result())
                else:
                    waiting.cancel()
                    if not (gone.done() or over.done()):
                        await _write(send, b"event: alive\ndata: {}\n\n")
            if over.done() and not gone.done():
                await asyncio.wait_for(send({"type": "http.response.body", "body": b""}), SEND_S)
        except (TimeoutError, OSError):
            return  # a client that does not read
        finally:
            with self._lock:
                self._clients.discard(client)
            gone.cancel()
            over.cancel()


async def _write(send: Send, data: bytes) -> None:
    await asyncio.wait_for(send({"type": "http.response.body", "body": data, "more_body": True}), SEND_S)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
