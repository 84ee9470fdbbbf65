"""A connection to the web server, bounded: in number, in how long it may take to send a request, and in how long it may
leave an answer unread.

Every connection holds a file descriptor of the process, which may be the one that runs the pipeline. When all are in
use, a new one takes the place of the one that has waited longest without a request that is being answered, else of one
that has not read its answer; so a client that only opens connections, or never reads, cannot keep others, such as a
liveness probe, from being answered. A client that sends further requests before it has its answer (no browser does)
gets that one answer, and the connection is closed: otherwise it would never be idle.
"""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 200
HEAD_S = 10.0
"""How long the head of a request may take, from when the connection is opened or from the first byte of a further
request."""
STALL_S = 10.0
"""A connection is aborted when its client has read nothing for this long (at most twice as long) of what waits for it."""
GRACE_S = 0.5
"""How long requests may go on when the server ends."""


class Connection(H11Protocol):
    _head_timer: asyncio.TimerHandle | None = None
    _idle_since: float = 0.0
    _unread: int = 0
    """The bytes that waited for the client when `_check_reading` last looked."""
    _reading_timer: asyncio.TimerHandle | None = None
    _answering: asyncio.Task[Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._served: ASGIApp = self.app
        self.app = self._answer

    @property
    def is_idle(self) -> bool:
        """Whether no request of it is being answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_unread(self) -> bool:
        """Whether the client has not yet read all that was sent to it."""
        return self.transport.get_write_buffer_size() > 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        open_now = [one for one in self.connections if isinstance(one, Connection)]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._await_head()
        self._reading_timer = self.loop.call_later(STALL_S, self._check_reading)
        if len(open_now) >= MAX_CONNECTIONS:
            waiting = [one for one in open_now if one.is_idle] or [one for one in open_now if one.is_unread]
            min(waiting, key=lambda one: one._idle_since, default=self)._drop()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_idle:
            self._forget_head()
        elif not self.transport.is_closing():
            self._await_head()

    def handle_events(self) -> None:
        super().handle_events()
        if not self.is_idle and self.conn.trailing_data[0]:
            self.cycle.keep_alive = False  # a further request waits behind the one that is being answered

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        if self._reading_timer is not None:
            self._reading_timer.cancel()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        super().shutdown()
        self.loop.call_later(GRACE_S, self._end)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._answering, cycle = asyncio.current_task(), self.cycle
        try:
            await self._served(scope, receive, send)
        except asyncio.CancelledError:
            if not self.transport.is_closing():
                raise
        finally:
            self._answering = None
        if not cycle.response_complete:  # given up: to close it would wait for a client that does not read
            cycle.disconnected = True
            self._drop()

    def _end(self) -> None:
        """The server ends: nobody gets an answer any more."""
        self._drop()
        if self._answering is not None:
            self._answering.cancel()

    def _check_reading(self) -> None:
        before, self._unread = self._unread, self.transport.get_write_buffer_size()
        if 0 < before <= self._unread:
            self._drop()
        else:
            self._reading_timer = self.loop.call_later(STALL_S, self._check_reading)

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._drop)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _drop(self) -> None:
        self.connections.discard(self)
        self.transport.abort()
