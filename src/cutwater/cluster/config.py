"""How a member joins its cluster: where it listens, which peers it knows, and how it keeps strangers out."""

from __future__ import annotations

import ipaddress
import json
import os
import random
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from cutwater.cluster.identity import Identity
from cutwater.cluster.keys import check_secret, derive
from cutwater.protocol.base.errors import UserError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
MAX_NAME = 100
ENDPOINT = re.compile(r"(?P<protocol>tcp|tls)/(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:/#?]+):(?P<port>\d+)")
USER = "cutwater"
ONE_SIDE = {"peer": {"to_router": "always", "to_peer": "greater-zid"}}
MAX_PEERS = 1_000
"""Processes that may be connected at the same time."""
MAX_MESSAGE_BYTES = 128 << 20
"""Enough for all slots of one process, with two acks of a member that has a hundred thousand state files."""
MAX_VALUE_BYTES = MAX_MESSAGE_BYTES // 4
"""The limit for one slot or one piece of mail."""
MAX_ACCEPTING = 100
"""Connections that have not proved yet that they know the secret."""
ACCEPT_MS = 5_000
MAX_FILES = 65_536


def _doc(description: str) -> Meta:
    return Meta(description=description)


class ClusterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a member's connection to its cluster."""

    listen: Annotated[
        tuple[str, ...],
        _doc("Where other members reach this one. Endpoints: `tcp/HOST:PORT`, or `tls/HOST:PORT`."),
    ] = ()
    peers: Annotated[
        tuple[str, ...],
        _doc(
            "A member to connect to; one is enough to find all others. After a broken connection, only peers that are "
            "named here are retried forever."
        ),
    ] = ()
    secret: Annotated[
        str,
        _doc(
            "The shared secret of all members. Processes that do not know it cannot join, and can neither read nor forge "
            "messages."
        ),
    ] = ""
    tls_ca: Annotated[
        str | None,
        _doc(
            "TLS: the authority's certificate, a PEM file. With TLS every connection is encrypted, both sides present a "
            "certificate, and only the holder of the certificate with a member's name can speak for that member."
        ),
    ] = None
    tls_cert: Annotated[str | None, _doc("TLS: this member's certificate, a PEM file.")] = None
    tls_key: Annotated[str | None, _doc("TLS: the key of the certificate, a PEM file.")] = None
    multicast: Annotated[bool, _doc("Also look for members on the local network.")] = False
    gossip: Annotated[bool, _doc("Let members tell each other about the members that they know.")] = True
    lease_s: Annotated[float, _doc("Silence, in seconds, after which a connection counts as broken.")] = 10.0
    grace_s: Annotated[float, _doc("How long, in seconds, the slots of a departed member are kept.")] = 30.0

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__struct_fields__ if name != "secret"}
        return f"ClusterConfig({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted and both sides are authenticated by certificates."""
        return self.tls_ca is not None

    @property
    def reachable(self) -> tuple[str, ...]:
        """The endpoints of `listen` that others can connect to, which excludes wildcard addresses."""
        return tuple(e for e in self.listen if "/0.0.0.0:" not in e and "/[::]:" not in e)

    def check(self) -> None:
        """Raises `UserError` for settings that cannot work or would let strangers in."""
        self._check_tls()
        for endpoint in (*self.listen, *self.peers):
            self._check_endpoint(endpoint)
        if self.lease_s < 0.1 or self.grace_s < 0:
            raise UserError(
                f"a lease of {self.lease_s:g} s and a grace of {self.grace_s:g} s are invalid; the lease must be at "
                "least 0.1 s, and the grace must not be negative"
            )
        if self.secret:
            check_secret(self.secret)
        if self.secret or self.tls:
            return
        outside = [e for e in (*self.listen, *self.peers) if not is_loopback(e)]
        if outside or self.multicast:
            where = outside[0] if outside else "the local network"
            raise UserError(
                f"without a secret anyone who can reach {where} could control this pipeline: give all members the "
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
            raise UserError(f"'{endpoint}' is not an endpoint: write tcp/HOST:PORT or tls/HOST:PORT")
        wanted = "tls" if self.tls else "tcp"
        if found["protocol"] != wanted:
            why = "TLS certificates are given" if self.tls else "there are no TLS certificates (tls_ca, ...)"
            raise UserError(f"'{endpoint}' must begin with {wanted}/, because {why}")

    def identity(self, pipeline: str, member: str, boot: str) -> Identity | None:
        """The identity that a process signs with, if TLS is configured. Raises `UserError` if its files are unusable."""
        if self.tls_ca is None or self.tls_cert is None or self.tls_key is None:
            return None
        return Identity(self.tls_ca, self.tls_cert, self.tls_key, pipeline, member, boot)

    def session(self, pipeline: str) -> Any:
        """Opens a Zenoh session, which connects to peers in the background. Raises `UserError` if it cannot listen."""
        import zenoh

        self.check()
        if self.listen:
            _allow_files()
        config = zenoh.Config()
        with self._login(pipeline) as login:
            for key, value in {**self._settings(), **login}.items():
                config.insert_json5(key, json.dumps(value))
            try:
                return zenoh.open(config)
            except zenoh.ZError as error:
                reason = str(error).split(" at /")[0]
                raise UserError(
                    f"cannot join the cluster (listening on {', '.join(self.listen) or 'nothing'}): {reason}; "
                    "choose another port, or stop the process that uses it"
                ) from error

    @contextmanager
    def _login(self, pipeline: str) -> Iterator[dict[str, Any]]:
        """The settings with which Zenoh refuses a connection, before it carries any data, unless the other side knows
        the password derived from the secret. Zenoh reads the accepted passwords from a file, once, when it opens a
        session. It gets a pipe, so that the password is never written to disk."""
        if not self.secret:
            yield {}
            return
        password = derive(self.secret, pipeline).password
        reading, writing = os.pipe()
        try:
            with open(writing, "w") as pipe:
                pipe.write(f"{USER}:{password}\n")
            yield {
                "transport/auth/usrpwd/user": USER,
                "transport/auth/usrpwd/password": password,
                "transport/auth/usrpwd/dictionary_file": f"/dev/fd/{reading}",
            }
        finally:
            os.close(reading)

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = {
            "mode": "peer",
            "id": self._id(),
            "listen/endpoints": self.listen,
            "listen/exit_on_failure": True,
            "connect/endpoints": self.peers,
            "connect/timeout_ms": -1,
            "connect/exit_on_failure": False,
            "connect/retry": _retry(),
            "scouting/multicast/enabled": self.multicast,
            "scouting/multicast/autoconnect_strategy": ONE_SIDE,
            "scouting/gossip/enabled": self.gossip,
            "scouting/gossip/autoconnect_strategy": ONE_SIDE,
            "open/return_conditions": {"connect_scouted": False, "declares": False},
            "transport/link/protocols": ["tls" if self.tls else "tcp"],
            "transport/link/tx/lease": round(self.lease_s * 1000),
            "transport/link/rx/max_message_size": MAX_MESSAGE_BYTES,
            "transport/unicast/max_sessions": MAX_PEERS,
            "transport/unicast/max_links": 1,
            "transport/unicast/accept_pending": MAX_ACCEPTING,
            "transport/unicast/accept_timeout": ACCEPT_MS,
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

    def _id(self) -> str:
        """When two members discover each other, the one with the greater id connects. That must be the one that does
        not listen, so its ids begin with a greater byte."""
        edge = "7f" if self.listen else "ff"
        return f"{edge}{secrets.token_hex(14)}{edge}"


def _retry() -> dict[str, float]:
    """Random intervals: with a password, two members that connect to each other at the same moment both fail, so
    their retries must not be in step."""
    first_ms = random.randint(60, 160)
    return {"period_init_ms": first_ms, "period_max_ms": 8 * first_ms, "period_increase_factor": 2}


def _allow_files() -> None:
    """Raises the limit of open files. Each connection is an open file, even one that will be refused, and strangers
    who connect often must not prevent this process from opening its own files."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, MAX_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_loopback(endpoint: str) -> bool:
    """Whether an endpoint is reachable only from this machine."""
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
    if NAME.fullmatch(name) is None or len(name) > MAX_NAME:
        raise UserError(
            f"'{name[:MAX_NAME]}' cannot name a {what}: use letters, digits, '_', '-' and '.', and begin with a letter, "
            f"a digit or '_'; {MAX_NAME} characters at most"
        )
