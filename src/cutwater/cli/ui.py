"""`cutwater ui`: serves the page of a store."""

from __future__ import annotations

import signal
from contextlib import ExitStack
from threading import Event
from typing import TYPE_CHECKING, Annotated

import typer

from cutwater.cli.cluster_options import Peer, Secret, peer_config
from cutwater.cli.http_options import HttpName, HttpToken, http_token, require_web
from cutwater.cli.output import AsJson, StoreUrl, command, show
from cutwater.protocol.base.errors import UserError
from cutwater.store.opening import open_store
from cutwater.store.status import read_status

if TYPE_CHECKING:
    from cutwater.store.contract import Store


@command
def ui(
    store: StoreUrl = "./state",
    listen: Annotated[
        str, typer.Option("--listen", metavar="HOST:PORT", help="The address to serve at.")
    ] = "127.0.0.1:8080",
    token: HttpToken = "",
    http_name: HttpName = None,
    peer: Peer = None,
    secret: Secret = "",
    as_json: AsJson = False,
) -> None:
    """Serve a page that shows the pipeline and its checkpoints, whether or not it is running. Needs only the store. With
    --peer, the page shows what the members say of themselves."""
    require_web()
    from cutwater.web.server import WebServer

    where = open_store(store)
    with ExitStack() as opened:
        cluster = peer_config(peer, secret)
        statuses = None
        if cluster is not None:
            from cutwater.cluster.observer import Observer

            found = opened.enter_context(Observer(cluster, _pipeline(where), lambda line: None))
            statuses = found.statuses
        server = WebServer(where, listen, http_token(token), statuses=statuses, names=http_name or ())
        over = Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: over.set())
        server.start()
        opened.callback(server.stop)
        show(
            as_json,
            {"url": server.url, "store": where.url},
            f"{where.url} is shown at {server.url} (Ctrl-C ends this)",
        )
        while not over.wait(0.2):
            if server.wait(0):
                raise UserError("the web server has ended unexpectedly; the log says why")


def _pipeline(store: Store) -> str:
    known = read_status(store)
    if not known:
        raise UserError(f"no member has reported a status on {store.url} yet, so there is nobody to ask")
    return known[0].pipeline
