"""The options by which a member joins its cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cutwater.protocol.errors import UserError

if TYPE_CHECKING:
    from cutwater.cluster.config import ClusterConfig

PANEL = "Several members"
Listen = Annotated[
    list[str] | None,
    typer.Option(
        "--listen", metavar="tcp/HOST:PORT", help="Where other members reach this one.", rich_help_panel=PANEL
    ),
]
Peer = Annotated[
    list[str] | None,
    typer.Option(
        "--peer",
        metavar="tcp/HOST:PORT",
        help="A member that it knows; one leads to all.",
        rich_help_panel=PANEL,
    ),
]
Secret = Annotated[
    str,
    typer.Option(
        "--secret", envvar="CUTWATER_SECRET", help="The same for all members; @FILE reads it from a file.",
        show_envvar=True, rich_help_panel=PANEL,
    ),
]  # fmt: skip


def _file(name: str, help: str) -> Any:
    """The option for one of the files of TLS."""
    envvar = f"CUTWATER_TLS_{name.upper()}"
    return typer.Option(f"--tls-{name}", envvar=envvar, metavar="FILE", help=help, rich_help_panel=PANEL)


TlsCa = Annotated[str | None, _file("ca", "TLS: the authority.")]
TlsCert = Annotated[str | None, _file("cert", "TLS: its certificate.")]
TlsKey = Annotated[str | None, _file("key", "TLS: the key to it.")]
Multicast = Annotated[
    bool,
    typer.Option("--multicast", help="Also look for members in the local network.", rich_help_panel=PANEL),
]


def peer_config(peer: list[str] | None, secret: str) -> ClusterConfig | None:
    """The same for a command that only looks in: certificates are taken from the environment."""
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
    """What these options say; `None` if nothing of a cluster. Raises `UserError` for what cannot be."""
    if not (listen or peer or multicast):
        return None
    from cutwater.cluster.config import ClusterConfig

    if secret.startswith("@"):
        try:
            secret = Path(secret[1:]).read_text().strip()
        except OSError as error:
            raise UserError(f"--secret {secret}: {error.strerror}") from error
        if not secret:
            raise UserError("the file that --secret names is empty")
    config = ClusterConfig(
        listen=tuple(listen or ()), peers=tuple(peer or ()), secret=secret, tls_ca=tls_ca, tls_cert=tls_cert,
        tls_key=tls_key, multicast=multicast,
    )  # fmt: skip
    config.check()
    return config
