"""The web server: one Starlette application, served by uvicorn in a thread of its own.

No part of a pipeline waits for it: it reads the store by itself, even in the process of a member.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections.abc import Sequence
from threading import Event, Thread
from typing import Any

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from cutwater.protocol.base.errors import UserError
from cutwater.store.contract import Store
from cutwater.web.answers import failed
from cutwater.web.api import Api
from cutwater.web.connection import Connection
from cutwater.web.guard import Guard, is_loopback
from cutwater.web.hub import Hub
from cutwater.web.page_files import PageFiles
from cutwater.web.reader import Statuses, StoreReader
from cutwater.web.requests import Requests
from cutwater.web.store_watcher import StoreWatcher

MIN_TOKEN = 16
BACKLOG = 64
"""Connections that are accepted at once, before any of them is closed again."""
STOP_S = 5.0
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")
STARTING = "the pipeline is starting: its store is not there yet, or does not answer yet"


class WebServer:
    """Serves the page and REST of one store. Without a store, it serves everything else, and says that the pipeline is
    starting, until `show` gives it one. `routes` are further ones, such as metrics and health: they are guarded like
    REST. `statuses` asks members for their status, if they can be reached. Raises `UserError` if it may not listen at
    this address without a token. `names` are those of a proxy in front of it, through which others reach it: then all
    data needs the token."""

    def __init__(
        self,
        store: Store | None,
        listen: str,
        token: str | None = None,
        routes: Sequence[BaseRoute] = (),
        statuses: Statuses | None = None,
        names: Sequence[str] = (),
    ) -> None:
        self._host, self._port = parse_address(listen)
        check_token(self._host, token, names)
        self._names = names
        self._token = token
        self._statuses = statuses
        self._shown: _Shown | None = None
        self.app = self._make_app(routes)
        self._server: uvicorn.Server | None = None
        self._thread: Thread | None = None
        self._ended = Event()
        if store is not None:
            self.show(store)

    def show(self, store: Store) -> None:
        """Serve this store from now on. At most once, from any thread."""
        shown = _Shown(store, self._statuses, self._token is not None)
        if self._server is not None:
            shown.watcher.start()
        self._shown = shown

    @property
    def reader(self) -> StoreReader:
        """What reads the store, once there is one."""
        assert self._shown is not None
        return self._shown.reader

    def _make_app(self, routes: Sequence[BaseRoute]) -> ASGIApp:
        page = PageFiles()
        app = Starlette(
            routes=[Mount("/api/v1", app=self._answer_rest), *routes, *page.routes()],
            exception_handlers={HTTPException: _on_http_error, Exception: _on_error},
        )
        app.router.redirect_slashes = False
        squeezed = GZipMiddleware(app, minimum_size=2_000, compresslevel=1)
        return Guard(squeezed, host=self._host, token=self._token, files=page.paths, names=self._names)

    async def _answer_rest(self, scope: Scope, receive: Receive, send: Send) -> None:
        shown = self._shown
        answer: ASGIApp = shown.rest if shown is not None else failed(503, STARTING)
        await answer(scope, receive, send)

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self._port}"

    def start(self) -> None:
        """Begin to serve, in threads of its own. Raises `UserError` if the address is taken."""
        listener = listen_at(self._host, self._port)
        self._port = listener.getsockname()[1]
        config = uvicorn.Config(
            self.app, log_config=None, access_log=False, lifespan="off", server_header=False, ws="none",
            backlog=BACKLOG, timeout_keep_alive=15, timeout_graceful_shutdown=1,
            h11_max_incomplete_event_size=64 * 1024, http=Connection, loop="asyncio",
        )  # fmt: skip
        logging.getLogger("uvicorn").setLevel(logging.ERROR)
        self._server = uvicorn.Server(config)
        if self._shown is not None:
            self._shown.watcher.start()
        self._thread = Thread(target=self._run, args=(listener,), name="cutwater-web", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End all connections. Returns after a few seconds at most."""
        if self._shown is not None:
            self._shown.close()
        if self._server is not None and self._thread is not None:
            self._server.should_exit = True
            self._thread.join(STOP_S)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the server has ended."""
        return self._ended.wait(timeout_s)

    def _run(self, listener: socket.socket) -> None:
        assert self._server is not None
        try:
            asyncio.run(self._server.serve(sockets=[listener]))
        except BaseException:
            logging.getLogger("cutwater").exception("the web server has ended")
        finally:
            self._ended.set()
            listener.close()


class _Shown:
    """A store, and what serves it."""

    def __init__(self, store: Store, statuses: Statuses | None, may_steer: bool) -> None:
        self.reader = StoreReader(store, statuses)
        self._hub = Hub()
        self.watcher = StoreWatcher(self.reader, self._hub)
        self._requests = Requests(store, self._on_request)
        api = Api(self.reader, self.watcher, self._hub, self._requests, may_steer)
        self.rest = Router(api.routes(), redirect_slashes=False)

    def close(self) -> None:
        self._hub.close()
        self.watcher.stop()
        self._requests.close()

    def _on_request(self, document: dict[str, Any]) -> None:
        self._hub.publish("request", msgspec.json.encode(document))
        self.watcher.nudge()


def listen_at(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises `UserError` if the address is taken, or not of this machine."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port}: {error.strerror}; give another address, for example 127.0.0.1:0 for any "
            "free port"
        ) from error


def parse_address(listen: str) -> tuple[str, int]:
    """The host and the port of `HOST:PORT`. Raises `UserError`."""
    host, colon, port = listen.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not (port.isascii() and port.isdigit() and int(port) < 65_536):
        raise UserError(f"'{listen}' is not an address; write HOST:PORT, for example 127.0.0.1:8080")
    return host, int(port)


def check_token(host: str, token: str | None, names: Sequence[str] = ()) -> None:
    """Raises `UserError` if a token is missing or too short, or cannot be sent in a header, or if one of the public
    `names` is no host name."""
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            raise UserError(
                f"'{name}' is not the name of a host: give --http-name the name alone, as it is between :// and the next "
                "colon or slash of the page's address, for example cutwater.example.com"
            )
    if token is not None and not re.fullmatch("[!-~]+", token):
        raise UserError(
            "the token of the web server contains a space, a newline or a letter that is not ASCII, which no header can "
            "carry; use for example the output of `openssl rand -hex 16`"
        )
    if token is None and names:
        raise UserError(
            f"others can reach this server as {names[0]}, so it needs a token: write one to a file that only you can "
            "read and pass its name (--http-token @FILE), or set CUTWATER_HTTP_TOKEN"
        )
    if token is None and not is_loopback(host):
        raise UserError(
            f"others can reach {host}, so the server needs a token: write one to a file that only you can read and pass "
            "its name (--http-token @FILE), or set CUTWATER_HTTP_TOKEN; or listen on 127.0.0.1"
        )
    if token is not None and len(token) < MIN_TOKEN:
        raise UserError(
            f"the token of the web server has {len(token)} characters; use {MIN_TOKEN} or more, for example the output "
            "of `openssl rand -hex 16`"
        )


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {404: "there is nothing here", 405: "this path does not support this method"}
    answer = failed(error.status_code, said.get(error.status_code, error.detail))
    for name, value in (error.headers or {}).items():
        answer.headers[name] = value
    return answer


async def _on_error(request: Request, error: Exception) -> Response:
    logging.getLogger("cutwater").error(
        "the web server could not answer %s", request.url.path, exc_info=error
    )
    return failed(500, "this failed unexpectedly; the log of the server says why")
