"""The page beside a running member: `cutwater run --http`."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer

from cutwater.cli.http_options import http_token, require_web
from cutwater.protocol.base.errors import CutwaterError
from cutwater.store.opening import is_on_s3, open_store

if TYPE_CHECKING:
    from starlette.routing import BaseRoute

    from cutwater.api.pipeline import Pipeline
    from cutwater.web.server import WebServer

LOOK_S = 0.2
"""How often to look whether there is a store."""

Http = Annotated[
    str | None,
    typer.Option(
        "--http", metavar="HOST:PORT", show_default=False,
        help="Serve the page of the pipeline at this address, for example 127.0.0.1:8080.",
    ),
]  # fmt: skip


class PageBeside:
    """The page of a store, served by the process that runs one of its members. Raises `UserError` at once if the address
    cannot be used, before Spark starts."""

    def __init__(self, listen: str, token: str, names: Sequence[str] = ()) -> None:
        require_web()
        from cutwater.web.server import check_token, listen_at, parse_address

        self._listen = listen
        self._token = http_token(token)
        host, port = parse_address(listen)
        check_token(host, self._token, names)
        self._names = names
        listen_at(host, port).close()
        self._server: WebServer | None = None
        self._over = Event()

    def start(self, pipeline: Pipeline, store: str) -> str:
        """Begin to serve, before the pipeline is started: orchestrators ask for health while Spark starts. The store is
        shown as soon as there is one. Returns the address."""
        from cutwater.web.server import WebServer

        self._server = WebServer(None, self._listen, self._token, _routes(pipeline), names=self._names)
        self._server.start()
        Thread(
            target=self._show, args=(self._server, pipeline, store), name="cutwater-web-open", daemon=True
        ).start()
        return self._server.url

    def stop(self) -> None:
        self._over.set()
        if self._server is not None:
            self._server.stop()

    def _show(self, server: WebServer, pipeline: Pipeline, url: str) -> None:
        while is_on_s3(url) and pipeline.watched is None:  # Spark's settings say how to reach it
            if self._over.wait(LOOK_S):
                return
        while not self._over.is_set():
            try:
                store = open_store(url)
            except (CutwaterError, OSError):  # the pipeline creates it, or says what is wrong with it
                self._over.wait(LOOK_S)
            else:
                server.show(store)
                return


def _routes(pipeline: Pipeline) -> list[BaseRoute]:
    """What this member serves beside the page: metrics and health."""
    from cutwater.telemetry.routes import routes

    return routes(lambda: pipeline.watched)
