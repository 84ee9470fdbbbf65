"""Command-line options for joining a cluster."""

from __future__ import annotations

import os
import stat
from typing import Annotated, Any

import typer

from cutwater.api.config import MEMBERS, options_of
from cutwater.cluster.config import ClusterConfig
from cutwater.protocol.base.errors import UserError

MAX_SECRET = 4_096
_OPTIONS = options_of(ClusterConfig)


def _flag(flag: str, name: str, metavar: str | None = None, envvar: str | None = None) -> Any:
    """The flag of an option of `ClusterConfig`."""
    return typer.Option(
        flag, metavar=metavar, envvar=envvar, help=_OPTIONS[name].summary, rich_help_panel=MEMBERS
    )


Listen = Annotated[list[str] | None, _flag("--listen", "listen", "tcp/HOST:PORT")]
Peer = Annotated[list[str] | None, _flag("--peer", "peers", "tcp/HOST:PORT")]
Secret = Annotated[
    str,
    typer.Option(
        "--secret", metavar="@FILE", rich_help_panel=MEMBERS,
        help="A file with the secret that all members share; or set CUTWATER_SECRET to the secret or to @FILE.",
    ),
]  # fmt: skip
TlsCa = Annotated[str | None, _flag("--tls-ca", "tls_ca", "FILE", "CUTWATER_TLS_CA")]
TlsCert = Annotated[str | None, _flag("--tls-cert", "tls_cert", "FILE", "CUTWATER_TLS_CERT")]
TlsKey = Annotated[str | None, _flag("--tls-key", "tls_key", "FILE", "CUTWATER_TLS_KEY")]
Multicast = Annotated[bool, _flag("--multicast", "multicast")]


def peer_config(peer: list[str] | None, secret: str) -> ClusterConfig | None:
    """The cluster options of a command that only observes: certificates come from the environment."""
    ca, cert, key = (os.environ.get(f"CUTWATER_TLS_{name}") for name in ("CA", "CERT", "KEY"))
    return cluster_config(None, peer, secret, ca, cert, key, multicast=False)


def cluster_config(
    listen: list[str] | None,
    peer: list[str] | None,
    secret: str,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
    multicast: bool,
) -> ClusterConfig | None:
    """The cluster that these options describe, `None` if they describe none. Raises `UserError` if they are invalid."""
    _refuse_visible_secret(secret)
    if not (listen or peer or multicast):
        return None
    config = ClusterConfig(
        listen=tuple(listen or ()), peers=tuple(peer or ()), secret=_secret(secret), tls_ca=tls_ca, tls_cert=tls_cert,
        tls_key=tls_key, multicast=multicast,
    )  # fmt: skip
    config.check()
    return config


def _refuse_visible_secret(given: str) -> None:
    """Every user of a machine can see the command lines of its processes."""
    if given and not given.startswith("@"):
        raise UserError(
            "a secret on the command line is visible to every user of this machine in the list of processes: write it "
            "to a file that only you can read and pass the file's name (--secret @FILE), or set CUTWATER_SECRET; if "
            "anybody else uses this machine, choose a new secret"
        )


def _secret(given: str) -> str:
    where = given or os.environ.get("CUTWATER_SECRET", "")
    return secret_file(where[1:]) if where.startswith("@") else where


def secret_file(name: str) -> str:
    """The secret in a file. Raises `UserError` if it cannot be read, or is empty."""
    try:
        with open(name) as file:
            mode = os.fstat(file.fileno()).st_mode
            secret = file.read(MAX_SECRET).strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UserError(f"the secret file {name} cannot be read: {why}") from error
    if not secret:
        raise UserError(f"the secret file {name} is empty")
    if mode & (stat.S_IRGRP | stat.S_IROTH):
        typer.echo(
            f"warning: users other than its owner can read the secret file {name}; run `chmod 600 {name}`",
            err=True,
        )
    return secret
