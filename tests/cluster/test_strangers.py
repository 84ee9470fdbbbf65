"""A stranger who can reach the port of a member but does not know the secret has no effect."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec
import pytest
import zenoh
from bench.members import Config
from bench.ports import free_endpoints

from cutwater.cluster.config import MAX_ACCEPTING
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.support.cluster_helpers import SECRET, OverZenoh, eventually, free_endpoint

ROOT = Path(__file__).parents[2]

MEMBER = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.zenoh_kv import ZenohKv

kv = ZenohKv(ClusterConfig(**json.loads(sys.argv[1])), "orders", "a", "1", print)
kv.subscribe(lambda owner, key, value: kv.write("opened", value) if open("/proc/self/status").readline() else None)
print("up", flush=True)
sys.stdin.read()
"""
KNOWN: dict[str, Callable[[Any, bytes], Any]] = {
    "put": lambda session, data: session.put("cutwater/orders/slots/b/key", data),
    "mail": lambda session, data: session.put("cutwater/orders/mail/a/1/b", data),
    "question": lambda session, data: session.get("cutwater/orders/ask/a/1", payload=data, timeout=0.1),
}


class Victim:
    """A member in a separate process."""

    def __init__(self, process: subprocess.Popen[str], endpoint: str) -> None:
        self.endpoint = endpoint
        self._process = process

    @property
    def megabytes(self) -> int:
        """Its memory usage."""
        for line in Path(f"/proc/{self._process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) >> 10
        raise AssertionError("the member is gone")

    @property
    def connections(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))


@pytest.fixture
def victim() -> Iterator[Victim]:
    endpoint = free_endpoint()
    config = json.dumps({"listen": [endpoint], "secret": SECRET})
    process = subprocess.Popen(
        [sys.executable, "-c", MEMBER, config], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        yield Victim(process, endpoint)
    finally:
        process.kill()
        process.communicate()


def stranger(endpoints: list[str], mode: str = "peer", settings: dict[str, Any] | None = None) -> Any:
    """A session of a stranger without the secret, or with a different one."""
    config = zenoh.Config()
    chosen = {
        "mode": mode,
        "connect/endpoints": endpoints,
        "connect/timeout_ms": 1_000,
        "connect/exit_on_failure": False,
        "scouting/multicast/enabled": False,
        **(settings or {}),
    }
    for key, value in chosen.items():
        config.insert_json5(key, json.dumps(value))
    return zenoh.open(config)


@pytest.mark.parametrize("credentials", [{}, {"user": "cutwater", "password": "guessed"}])
def test_a_stranger_without_the_secret_cannot_make_a_member_accept_a_single_byte(
    victim: Victim, credentials: dict[str, str]
) -> None:
    before = victim.megabytes
    settings = {f"transport/auth/usrpwd/{key}": value for key, value in credentials.items()}
    with pytest.raises(zenoh.ZError, match="Unable to connect"):
        stranger([victim.endpoint], "client", settings)
    session = stranger([victim.endpoint], "peer", settings)
    big = secrets.token_bytes(100 << 20)
    for say in KNOWN.values():
        say(session, big)
    assert list(session.info.peers_zid()) == []
    session.close()
    net = OverZenoh()
    try:
        net.endpoints.append(victim.endpoint)
        member = net.join("b")
        member.write("key", b"1")
        eventually(lambda: "a" in member.alive(), "the member lets in who knows the secret")
    finally:
        net.close()
    assert victim.megabytes < before + 30


@pytest.mark.slow
def test_many_silent_connections_do_not_use_up_a_members_files_or_peers(victim: Victim) -> None:
    host, port = victim.endpoint.removeprefix("tcp/").split(":")
    net = OverZenoh()
    net.endpoints.append(victim.endpoint)
    sockets: list[socket.socket] = []
    try:
        member = net.join("b", lease_s=5.0)
        eventually(lambda: "a" in member.alive(), "the two are connected")
        before = victim.megabytes
        for _ in range(8 * MAX_ACCEPTING):
            made = socket.socket()
            made.setblocking(False)
            with suppress(BlockingIOError):
                made.connect((host, int(port)))
            sockets.append(made)
        for number in range(200):
            member.write("key", b"%d" % number)
            eventually(
                lambda: member.read("a", "opened") == b"%d" % number,  # noqa: B023
                "the member hears its peer and opens a file",
            )
        assert "a" in member.alive()
        newcomer = net.join("c", lease_s=5.0)
        eventually(lambda: "a" in newcomer.alive(), "a new member is let in, while they all still wait", 60.0)
        eventually(lambda: victim.connections < 3 * MAX_ACCEPTING, "those who said nothing are gone", 60.0)
        assert victim.megabytes < before + 50
    finally:
        for made in sockets:
            made.close()
        net.close()


class Flood:
    """Sends messages of 1 MB, and bytes that are not messages, to all these endpoints as fast as possible."""

    def __init__(self, endpoints: list[str]) -> None:
        self.sent = 0
        self._endpoints = endpoints
        self._over = Event()
        self._junk = secrets.token_bytes(1 << 20)
        self._session = stranger(endpoints)
        self._threads = [Thread(target=work, daemon=True) for work in (self._puts, self._bytes)]

    def __enter__(self) -> Flood:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._session.close()

    @property
    def let_in(self) -> bool:
        return bool(list(self._session.info.peers_zid()))

    def _puts(self) -> None:
        while not self._over.wait(0.001):
            for key in ("slots/m00/heartbeat", "slots/m01/heartbeat", "mail/m02/1/m00"):
                self._session.put(f"cutwater/bench/{key}", self._junk, attachment=self._junk[:200])
                self.sent += 1

    def _bytes(self) -> None:
        """In a Zenoh frame of the maximum size, and without a frame."""
        while not self._over.wait(0.001):
            for endpoint in self._endpoints:
                host, port = endpoint.removeprefix("tcp/").split(":")
                with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0) as made:
                    made.sendall(b"\xff\xff" + self._junk)
                    self.sent += 1


@pytest.fixture
def members(tmp_path: Path) -> Iterator[tuple[list[str], Path]]:
    """Three members that take checkpoints, without Spark, each in its own process; and their store."""
    names, endpoints, store = ["m00", "m01", "m02"], free_endpoints(3), tmp_path / "store"
    open_store(str(store), create=True)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name, endpoint in zip(names, endpoints, strict=True):
            config = Config(name, names, str(store), endpoint, endpoints[0] if processes else None, 100)
            command = [sys.executable, "-m", "bench.members", msgspec.json.encode(config).decode()]
            processes.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, cwd=ROOT)
            )
        yield endpoints, store
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


@pytest.mark.slow
def test_a_flood_does_not_unseat_a_leader(members: tuple[list[str], Path]) -> None:
    endpoints, store = members

    def head() -> int:
        return read_journal(open_store(str(store)), must_exist=False).state.head or 0

    eventually(lambda: head() >= 3, "three epochs are committed", 60.0)
    before = read_journal(open_store(str(store))).state
    with Flood(endpoints) as flood:
        eventually(
            lambda: flood.sent >= 300 and head() >= (before.head or 0) + 20, "20 epochs in the flood", 90.0
        )
        assert not flood.let_in
    after = read_journal(open_store(str(store))).state
    assert (after.term, after.leader) == (before.term, before.leader)
