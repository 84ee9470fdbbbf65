"""Options of commands that serve the page."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from cutwater.cli.cluster_options import secret_file
from cutwater.protocol.base.errors import UserError

HttpToken = Annotated[
    str,
    typer.Option(
        "--http-token", metavar="@FILE",
        help="A file with the token that lets the page control the pipeline; or set CUTWATER_HTTP_TOKEN to the "
        "token or to @FILE. Without one the page only shows. Needed if other machines can reach the address.",
    ),
]  # fmt: skip
HttpName = Annotated[
    list[str] | None,
    typer.Option(
        "--http-name", metavar="NAME", show_default=False,
        help="The host name of a proxy in front of the page, for example one that adds TLS. May be repeated. Everything "
        "then needs the token.",
    ),
]  # fmt: skip
MISSING = "the web server needs the extra `web`: pip install 'cutwater[web]'"


def http_token(given: str) -> str | None:
    """The token that the options or the environment name, `None` if there is none. Raises `UserError`."""
    if given and not given.startswith("@"):
        raise UserError(
            "a token on the command line is visible to every user of this machine in the list of processes: write it to "
            "a file that only you can read and pass the file's name (--http-token @FILE), or set CUTWATER_HTTP_TOKEN"
        )
    where = given or os.environ.get("CUTWATER_HTTP_TOKEN", "")
    if where.startswith("@"):
        return secret_file(where[1:])
    return where.strip() or None  # a secret that was made from a file ends with a newline


def require_web() -> None:
    """Raises `UserError` if the web server is not installed."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise UserError(MISSING) from error
