"""The settings of Zenoh with which a member joins its cluster. Each is a promise: who gets in, and how much of this
process strangers can take."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import Any

import pytest
import zenoh

from cutwater.cluster import config as module
from cutwater.cluster.config import MAX_FILES, ClusterConfig
from cutwater.cluster.keys import derive
from cutwater.protocol.base.errors import UserError

SECRET = "a9f3Kd82ls0QmZx7TzP4"


class Opened:
    """The settings of the sessions that were opened, and the passwords that Zenoh would have read."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.settings: dict[str, Any] = {}
        self.passwords = ""
        self.limits: list[Any] = []
        patch.setattr(zenoh, "Config", lambda: self)
        patch.setattr(zenoh, "open", self._open)
        patch.setattr(resource, "setrlimit", lambda which, limits: self.limits.append(limits))
        patch.setattr(resource, "getrlimit", lambda which: (1_000, 10 * MAX_FILES))

    def insert_json5(self, key: str, value: str) -> None:
        self.settings[key] = json.loads(value)

    def _open(self, config: Any) -> str:
        file = self.settings.get("transport/auth/usrpwd/dictionary_file")
        self.passwords = Path(file).read_text() if file is not None else ""
        return "session"


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


def test_a_member_joins_as_a_peer_and_waits_for_nobody(opened: Opened) -> None:
    config = ClusterConfig(listen=("tcp/127.0.0.1:7",), peers=("tcp/127.0.0.1:8",), lease_s=2.5)
    assert config.session("orders") == "session"
    found = opened.settings
    assert found["mode"] == "peer"
    assert (found["listen/endpoints"], found["connect/endpoints"]) == (
        ["tcp/127.0.0.1:7"],
        ["tcp/127.0.0.1:8"],
    )
    assert found["listen/exit_on_failure"] is True, "a port in use is an error"
    assert found["connect/exit_on_failure"] is False, "a peer may come later"
    assert found["connect/timeout_ms"] == -1
    assert found["open/return_conditions"] == {"connect_scouted": False, "declares": False}
    assert found["transport/link/tx/lease"] == 2_500
    assert found["transport/link/protocols"] == ["tcp"]
    assert found["transport/shared_memory/enabled"] is False
    assert (found["scouting/multicast/enabled"], found["scouting/gossip/enabled"]) == (False, True)
    assert "transport/link/tls" not in found
    assert not any("usrpwd" in key for key in found)


def test_what_strangers_can_take_is_limited(opened: Opened) -> None:
    ClusterConfig().session("orders")
    found = opened.settings
    assert found["transport/link/rx/max_message_size"] == 128 << 20
    assert found["transport/unicast/max_sessions"] == 1_000
    assert found["transport/unicast/max_links"] == 1
    assert found["transport/unicast/accept_pending"] == 100
    assert found["transport/unicast/accept_timeout"] == 5_000


def test_with_a_secret_every_connection_needs_the_password(opened: Opened) -> None:
    ClusterConfig(secret=SECRET).session("orders")
    user, password = (opened.settings[f"transport/auth/usrpwd/{key}"] for key in ("user", "password"))
    assert opened.passwords == f"{user}:{password}\n"
    assert SECRET not in json.dumps(opened.settings)
    ClusterConfig(secret=SECRET).session("other")
    assert opened.settings["transport/auth/usrpwd/password"] != password


def test_with_certificates_both_sides_must_have_one(opened: Opened, tmp_path: Path) -> None:
    ca, cert, key = (str(tmp_path / name) for name in ("ca", "cert", "key"))
    for path in (ca, cert, key):
        Path(path).touch()
    ClusterConfig(tls_ca=ca, tls_cert=cert, tls_key=key).session("orders")
    assert opened.settings["transport/link/protocols"] == ["tls"]
    assert opened.settings["transport/link/tls"] == {
        "root_ca_certificate": ca, "enable_mtls": True, "listen_certificate": cert, "listen_private_key": key,
        "connect_certificate": cert, "connect_private_key": key,
    }  # fmt: skip


def test_of_two_members_that_find_each_other_the_one_that_does_not_listen_connects() -> None:
    """The one with the greater id, by either end of it."""
    listens, other = ClusterConfig(listen=("tcp/127.0.0.1:7",))._id(), ClusterConfig()._id()
    assert listens < other
    assert listens[::-1] < other[::-1]
    assert len(listens) == len(other) == 32
    assert ClusterConfig()._id() != other


def test_retries_are_not_in_step() -> None:
    found = [module._retry() for _ in range(50)]
    assert len({retry["period_init_ms"] for retry in found}) > 5
    for retry in found:
        assert 60 <= retry["period_init_ms"] <= 160
        assert retry["period_max_ms"] == 8 * retry["period_init_ms"]
        assert retry["period_increase_factor"] == 2


@pytest.mark.parametrize(
    ("soft", "hard", "limits"),
    [
        (1_000, 10 * MAX_FILES, [(MAX_FILES, 10 * MAX_FILES)]),
        (1_000, 4_000, [(4_000, 4_000)]),
        (1_000, resource.RLIM_INFINITY, [(MAX_FILES, resource.RLIM_INFINITY)]),
        (MAX_FILES, 10 * MAX_FILES, []),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, []),
    ],
)
def test_a_member_that_listens_may_open_many_files(
    opened: Opened, monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, limits: list[Any]
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda which: (soft, hard))
    ClusterConfig().session("orders")
    assert opened.limits == []
    ClusterConfig(listen=("tcp/127.0.0.1:7",)).session("orders")
    assert opened.limits == limits


def test_a_system_that_refuses_more_files_is_no_reason_to_stop(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise OSError("not permitted")

    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert ClusterConfig(listen=("tcp/127.0.0.1:7",)).session("orders") == "session"


@pytest.mark.parametrize(("lease_s", "grace_s"), [(0.09, 1.0), (1.0, -0.1)])
def test_impossible_times_are_refused(lease_s: float, grace_s: float) -> None:
    with pytest.raises(UserError, match="the lease must be at least"):
        ClusterConfig(lease_s=lease_s, grace_s=grace_s).check()
    ClusterConfig(lease_s=0.1, grace_s=0.0).check()


def test_addresses_that_others_can_reach() -> None:
    config = ClusterConfig(listen=("tcp/0.0.0.0:1", "tcp/[::]:1", "tcp/host:1"))
    assert config.reachable == ("tcp/host:1",)


def test_members_of_other_versions_derive_the_same_keys() -> None:
    """Another way to derive them would separate the members that are upgraded from those that are not yet."""
    keys = derive(SECRET, "orders")
    assert (keys.password[:16], keys.seal.hex()[:16]) == ("0ebe5eaa504f157e", "42ff8d41e5b461c5")
    public = derive("", "orders")
    assert (public.password[:16], public.seal.hex()[:16]) == ("791598b709b2cb9d", "6726712322a0f930")
