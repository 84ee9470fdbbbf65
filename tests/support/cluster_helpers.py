"""Members of real and modelled clusters for tests. Everything that joined is closed afterwards."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.kv import ClusterKv, MemoryCluster
from cutwater.cluster.zenoh_kv import ZenohKv

SECRET = "a secret that all members know"
GRACE_S = 0.3
LEASE_S = 0.6
DEADLINE_S = 30.0


def eventually(condition: Callable[[], Any], what: str, seconds: float = DEADLINE_S) -> None:
    """Waits until a condition holds; fails the test after a timeout."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.002)


def free_endpoint(protocol: str = "tcp") -> str:
    """An unused endpoint on this machine."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"{protocol}/127.0.0.1:{probe.getsockname()[1]}"


def knows(kv: ClusterKv, processes: set[tuple[str, str]], what: str) -> None:
    """Waits until a member sees at least these processes."""
    eventually(
        lambda: processes <= {(name, boot) for name, boots in kv.alive().items() for boot in boots}, what
    )


def sees_only(kv: ClusterKv, *names: str) -> None:
    """Waits until a member sees exactly these members."""
    eventually(lambda: set(kv.alive()) == set(names), f"{kv.name} sees {', '.join(names)} only")


def sees(reader: ClusterKv, owner: str, key: str, value: bytes | None) -> None:
    """Waits until a member reads this value in a slot."""
    eventually(lambda: reader.read(owner, key) == value, f"{reader.name} reads {value!r} in {owner}'s {key}")


class Cluster(Protocol):
    """Members of one pipeline, in one process or over the network."""

    def join(self, name: str, boot: str = "1") -> ClusterKv: ...
    def meet(self, *members: ClusterKv) -> None: ...
    def close(self) -> None: ...


class InMemory:
    """A `MemoryCluster`, in which all members know each other immediately."""

    def __init__(self) -> None:
        self._cluster = MemoryCluster(grace_s=GRACE_S)

    def join(self, name: str, boot: str = "1") -> ClusterKv:
        return self._cluster.member(name, boot)

    def meet(self, *members: ClusterKv) -> None:
        pass

    def close(self) -> None:
        pass


class OverZenoh:
    """Zenoh sessions on the loopback interface; each later member knows the first."""

    def __init__(self, secret: str = SECRET, pipeline: str = "orders") -> None:
        self.endpoints: list[str] = []
        self.log_lines: dict[str, list[str]] = {}
        self._secret = secret
        self._pipeline = pipeline
        self.members: list[ZenohKv] = []

    def join(self, name: str, boot: str = "1", **settings: Any) -> ZenohKv:
        endpoint = free_endpoint("tls" if "tls_ca" in settings else "tcp")
        fields: dict[str, Any] = {
            "listen": (endpoint,),
            "peers": tuple(self.endpoints[:1]),
            "secret": self._secret,
            "grace_s": GRACE_S,
            "lease_s": LEASE_S,
        }
        config = ClusterConfig(**{**fields, **settings})
        member = ZenohKv(config, self._pipeline, name, boot, self.log_lines.setdefault(name, []).append)
        self.endpoints.append(endpoint)
        self.members.append(member)
        return member

    def meet(self, *members: ClusterKv) -> None:
        """Waits until these members know each other."""
        names = ", ".join(m.name for m in members)
        for member in members:
            knows(member, {(m.name, m.boot) for m in members}, f"{member.name} knows {names}")

    def close(self) -> None:
        for member in self.members:
            member.close()


CHILD = """
import json, sys, time
from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.zenoh_kv import ZenohKv

kv = ZenohKv(ClusterConfig(**json.loads(sys.argv[1])), "orders", sys.argv[2], "1")
kv.write("said", b"here")
kv.subscribe(lambda owner, key, value: kv.write("echo", value) if key == "say" else None)
sys.stdin.read()
"""


def start_child(name: str, **config: Any) -> subprocess.Popen[bytes]:
    """A member in its own process. It ends when its input is closed, and echoes the slot `say`."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps(config), name],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
