"""How a member joins its cluster: where it listens, whom it knows, and what keeps strangers out."""

from __future__ import annotations

import ipaddress
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from cutwater.protocol.errors import UserError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
ENDPOINT = re.compile(r"(?P<protocol>tcp|tls)/(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/#?]+):(?P<port>\d+)")
RETRY = {"period_init_ms": 100, "period_max_ms": 1_000, "period_increase_factor": 2}


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How a member joins its cluster.

    `listen` and `peers` are endpoints, `tcp/HOST:PORT` or `tls/HOST:PORT`. One peer is enough to find all
    others, but only peers that are named are tried again for ever after a broken connection. `secret` is
    the same for all members. `tls_ca`, `tls_cert` and `tls_key` are PEM files; with them every connection
    is encrypted and both sides show a certificate. `multicast`: also look for members in the local network. `gossip`:
    let members tell each other of those that they know.
    `lease_s`: silence after which a connection counts as broken. `grace_s`: how long the slots of a member
    that has gone are kept.
    """

    listen: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    secret: str = ""
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    multicast: bool = False
    gossip: bool = True
    lease_s: float = 10.0
    grace_s: float = 30.0

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "secret"}
        return f"ClusterConfig({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted and both sides are authenticated by certificates."""
        return self.tls_ca is not None

    @property
    def reachable(self) -> tuple[str, ...]:
        """The endpoints of `listen` that others can connect to: not those that mean every address."""
        return tuple(e for e in self.listen if "/0.0.0.0:" not in e and "/[::]:" not in e)

    def check(self) -> None:
        """Raises `UserError` for what cannot work, and for what would let strangers in."""
        self._check_tls()
        for endpoint in (*self.listen, *self.peers):
            self._check_endpoint(endpoint)
        if self.lease_s < 0.1 or self.grace_s < 0:
            raise UserError(
                f"a lease of {self.lease_s:g} s and a grace of {self.grace_s:g} s cannot be; give the lease at "
                "least 0.1 s and the grace none or more"
            )
        if self.secret or self.tls:
            return
        outside = [e for e in (*self.listen, *self.peers) if not is_loopback(e)]
        if outside or self.multicast:
            where = outside[0] if outside else "the local network"
            raise UserError(
                f"without a secret anyone who reaches {where} could steer this pipeline: give all members the "
                "same secret, or TLS certificates, or use only 127.0.0.1"
            )

    def _check_tls(self) -> None:
        files = {"tls_ca": self.tls_ca, "tls_cert": self.tls_cert, "tls_key": self.tls_key}
        missing = [name for name, path in files.items() if path is None]
        if missing and len(missing) < len(files):
            raise UserError(f"TLS needs all of {', '.join(files)}; {', '.join(missing)} is missing")
        for name, path in files.items():
            if path is not None and not Path(path).is_file():
                raise UserError(f"{name}: there is no file {path}")

    def _check_endpoint(self, endpoint: str) -> None:
        found = ENDPOINT.fullmatch(endpoint)
        if found is None:
            raise UserError(f"'{endpoint}' is no endpoint: write tcp/HOST:PORT, or tls/HOST:PORT")
        wanted = "tls" if self.tls else "tcp"
        if found["protocol"] != wanted:
            why = "TLS certificates are given" if self.tls else "there are no TLS certificates (tls_ca, ...)"
            raise UserError(f"'{endpoint}' should begin with {wanted}/, because {why}")

    def session(self) -> Any:
        """A new Zenoh session. Peers that are not there yet are waited for in the background. Raises
        `UserError` if it cannot listen."""
        import zenoh

        self.check()
        config = zenoh.Config()
        for key, value in self._settings().items():
            config.insert_json5(key, json.dumps(value))
        try:
            return zenoh.open(config)
        except zenoh.ZError as error:
            reason = str(error).split(" at /")[0]
            raise UserError(
                f"cannot join the cluster (listening on {', '.join(self.listen) or 'nothing'}): {reason}; "
                "choose another port, or end what uses it"
            ) from error

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "mode": "peer",
            "listen/endpoints": self.listen,
            "listen/exit_on_failure": True,
            "connect/endpoints": self.peers,
            "connect/timeout_ms": -1,
            "connect/exit_on_failure": False,
            "connect/retry": RETRY,
            "scouting/multicast/enabled": self.multicast,
            "scouting/gossip/enabled": self.gossip,
            "open/return_conditions": {"connect_scouted": False, "declares": False},
            "transport/link/protocols": ["tls" if self.tls else "tcp"],
            "transport/link/tx/lease": round(self.lease_s * 1000),
            "transport/shared_memory/enabled": False,  # a killed process would leave its segments behind
        }
        if self.tls:
            settings["transport/link/tls"] = {
                "root_ca_certificate": self.tls_ca,
                "enable_mtls": True,
                "listen_certificate": self.tls_cert,
                "listen_private_key": self.tls_key,
                "connect_certificate": self.tls_cert,
                "connect_private_key": self.tls_key,
            }
        return settings


def is_loopback(endpoint: str) -> bool:
    """Whether an endpoint can be reached from this machine only."""
    found = ENDPOINT.fullmatch(endpoint)
    host = found["host"].strip("[]") if found is not None else ""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_name(what: str, name: str) -> None:
    """Raises `UserError` for a name that cannot be part of a key."""
    if NAME.fullmatch(name) is None:
        raise UserError(
            f"'{name}' cannot name a {what}: use letters, digits, '_', '-' and '.', and begin with a letter, "
            "a digit or '_'"
        )
