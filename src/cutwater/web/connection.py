"""A connection to the web server, bounded: in number, and in how long it may take to send a request.

Every connection holds a file descriptor of the process, which may be the one that runs the pipeline. When all are in use,
a new one takes the place of the one that has waited longest without a request that is being answered; so a client that
only opens connections cannot keep others, such as a liveness probe, from being answered.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 200
HEAD_S = 10.0
"""How long the head of a request may take, from when the connection is opened or from the first byte of a further
request."""


class Connection(H11Protocol):
    _head_timer: asyncio.TimerHandle | None = None
    _idle_since: float = 0.0

    @property
    def is_idle(self) -> bool:
        """Whether no request of it is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        open_now = [one for one in self.connections if isinstance(one, Connection)]
        super().connection_made(transport)
        self._idle_since = self.loop.time()
        self._await_head()
        if len(open_now) >= MAX_CONNECTIONS:
            idle = [one for one in open_now if one.is_idle]
            min(idle, key=lambda one: one._idle_since, default=self)._drop()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.is_idle:
            self._forget_head()
        elif not self.transport.is_closing():
            self._await_head()

    def on_response_complete(self) -> None:
        self._idle_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

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
