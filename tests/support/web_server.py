"""A web server in this process, for tests of routes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Thread

import uvicorn
from starlette.applications import Starlette
from starlette.routing import BaseRoute

from tests.support.spark_helpers import await_that


@contextmanager
def serving(routes: Sequence[BaseRoute]) -> Iterator[str]:
    """Serves these routes; yields `host:port`."""
    config = uvicorn.Config(Starlette(routes=list(routes)), host="127.0.0.1", port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = Thread(target=server.run, daemon=True)
    thread.start()
    try:
        await_that("the server listens", lambda: server.started, 10)
        (listening,) = server.servers[0].sockets
        yield f"127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
