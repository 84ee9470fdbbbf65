"""Who may join a cluster with its secret, and that whoever is connected without knowing it can do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zenoh

from cutwater.cluster import keys, zenoh_kv
from cutwater.cluster.config import MAX_VALUE_BYTES, ClusterConfig
from cutwater.cluster.keys import derive
from cutwater.cluster.kv import ClusterKv
from cutwater.cluster.peers import MAX_SLOT_BYTES, MAX_WAITING, MAX_WAITING_BYTES, BoundedQueue, Peer
from cutwater.cluster.seal import Sealer
from cutwater.protocol.base.errors import UserError
from tests.support.cluster_helpers import SECRET, OverZenoh, eventually, free_endpoint, sees, sees_only


@pytest.fixture
def net() -> Iterator[OverZenoh]:
    made = OverZenoh()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"listen": ("tcp/10.0.0.1:7447",)}, "without a secret"),
        ({"peers": ("tcp/example.org:7447",)}, "without a secret"),
        ({"listen": ("tcp/[::]:7447",)}, "without a secret"),
        ({"multicast": True}, "without a secret"),
        ({"listen": ("7447",)}, "not an endpoint"),
        ({"listen": ("udp/127.0.0.1:7447",)}, "not an endpoint"),
        ({"listen": ("tls/127.0.0.1:7447",)}, "must begin with tcp/"),
        ({"tls_ca": "ca.pem"}, "TLS needs all of"),
        ({"tls_ca": "no.pem", "tls_cert": "no.pem", "tls_key": "no.pem"}, "there is no file"),
        ({"lease_s": 0.0}, "are invalid"),
        ({"secret": "short"}, "has 5 characters.*openssl rand"),
        ({"secret": "abcabcabcabcabcabcabc"}, "only 3 different characters.*token_urlsafe"),
        ({"secret": "1234567812345678"}, "it repeats itself, or follows the alphabet or the keyboard"),
        ({"secret": "passwordpassword1"}, "it repeats itself"),
        ({"secret": "qwertyuiopasdfgh"}, "the keyboard"),
    ],
)
def test_settings_that_cannot_work_or_would_let_strangers_in_are_refused(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        ClusterConfig(**settings).check()


def test_a_secret_or_certificates_or_loopback_are_sufficient(tmp_path: Path) -> None:
    pem = tmp_path / "some.pem"
    pem.touch()
    tls = dict.fromkeys(("tls_ca", "tls_cert", "tls_key"), str(pem))
    ClusterConfig(listen=("tcp/0.0.0.0:7447",), secret=SECRET, multicast=True).check()
    ClusterConfig(listen=("tls/0.0.0.0:7447",), peers=("tls/b.example.org:7447",), **tls).check()  # type: ignore[arg-type]
    ClusterConfig(listen=("tcp/127.0.0.1:7447",), peers=("tcp/localhost:1", "tcp/[::1]:2")).check()


def test_the_secret_and_the_keys_derived_from_it_are_not_shown() -> None:
    assert "hidden" not in repr(ClusterConfig(secret="hidden"))
    assert derive(SECRET, "orders").password not in repr(derive(SECRET, "orders"))
    with pytest.raises(UserError) as refused:
        ClusterConfig(secret="hidden").check()
    assert "hidden" not in str(refused.value)


def test_each_pipeline_and_each_secret_has_its_own_keys_and_members_agree_on_them() -> None:
    made = [derive(secret, name) for secret in (SECRET, SECRET + "!", "") for name in ("orders", "bills")]
    everything = {key for k in made for key in (k.password.encode(), bytes.fromhex(k.password), k.seal)}
    assert len(everything) == 3 * len(made)
    keys.derive.cache_clear()
    assert derive(SECRET, "orders") == made[0]


def test_deriving_keys_from_a_guess_is_expensive() -> None:
    assert keys.SCRYPT_N * keys.SCRYPT_R * 128 >= 32 << 20


def test_on_one_machine_no_secret_is_needed() -> None:
    net = OverZenoh(secret="")
    try:
        net.meet(net.join("a"), net.join("b"))
    finally:
        net.close()


def test_a_process_with_a_wrong_secret_or_none_is_not_connected_and_is_warned(
    net: OverZenoh, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zenoh_kv, "WARN_AFTER_S", 0.5)
    a, b = net.join("a"), net.join("b")
    net.meet(a, b)
    for number, secret in enumerate((SECRET + "!", "")):
        stranger = net.join(f"c{number}", secret=secret)
        stranger.write("key", b"1")
        eventually(partial(net.log_lines.get, stranger.name), "the stranger is told")
        assert "the same secret" in net.log_lines[stranger.name][0]
        assert stranger.alive() == {stranger.name: ("1",)}
        assert list(stranger._session.info.peers_zid()) == []
    for kv in (a, b):
        assert len(list(kv._session.info.peers_zid())) == 1
        assert kv.alive() == {"a": ("1",), "b": ("1",)}
        assert (kv.rejected, net.log_lines[kv.name]) == (0, [])


def test_two_members_that_connect_to_each_other_at_once_succeed(net: OverZenoh) -> None:
    ends = [free_endpoint() for _ in range(4)]
    with ThreadPoolExecutor() as pool:
        joining = [pool.submit(net.join, f"m{i}", listen=(end,), peers=[e for e in ends if e != end])
                   for i, end in enumerate(ends)]  # fmt: skip
        net.meet(*[member.result() for member in joining])


def test_a_member_that_does_not_listen_finds_all_others_through_one_peer(net: OverZenoh) -> None:
    members = [net.join(name) for name in ("a", "b", "c", "d")]
    onlookers = [net.join(f"command_{i}", listen=()) for i in range(4)]
    for onlooker in onlookers:
        net.meet(*members, onlooker)


def test_another_pipeline_with_the_same_secret_is_a_separate_cluster(net: OverZenoh) -> None:
    a, b = net.join("a"), net.join("b")
    other = OverZenoh(pipeline="other")
    try:
        c = other.join("c", peers=tuple(net.endpoints))
        d = other.join("d")
        other.meet(c, d)
        net.meet(a, b)
        d.write("key", b"1")
        sees(c, "d", "key", b"1")
        assert set(a.alive()) == {"a", "b"}
        assert set(c.alive()) == {"c", "d"}
        assert (a.read("d", "key"), a.rejected) == (None, 0)
    finally:
        other.close()


class Stranger:
    """A process that is connected to all without knowing the secret, like a man in the middle that has taken over a
    connection: it receives everything, and can send anything."""

    def __init__(self, net: OverZenoh) -> None:
        self.session: Any = ClusterConfig(peers=tuple(net.endpoints), secret=SECRET).session("orders")
        self.heard: list[Any] = []
        self.session.declare_subscriber("cutwater/**", self.heard.append)
        eventually(
            lambda: len(list(self.session.info.peers_zid())) == len(net.endpoints), "all are connected"
        )

    def overhears(self, kv: ClusterKv) -> bool:
        """Makes a member send something, and returns whether it arrives here: then everything does."""
        kv.write(f"probe_{kv.name}", b"")
        return self._find(f"probe_{kv.name}") is not None

    def hear(self, key: str, number: int = 0) -> Any:
        """The message with this index among those whose key ends in `key`."""
        eventually(lambda: self._find(key, number) is not None, f"{key} is overheard")
        return self._find(key, number)

    def _find(self, key: str, number: int = 0) -> Any:
        found = [sample for sample in list(self.heard) if str(sample.key_expr).endswith(key)]
        return found[number] if len(found) > number else None

    def repeat(self, sample: Any, key: str | None = None) -> None:
        where = key or str(sample.key_expr)
        self.session.put(where, sample.payload, attachment=sample.attachment)


@pytest.fixture
def stranger(net: OverZenoh) -> Iterator[Stranger]:
    net.meet(net.join("a"), net.join("b"))
    made = Stranger(net)
    for kv in net.members:
        eventually(partial(made.overhears, kv), f"{kv.name} is overheard")
    yield made
    made.session.close()


def test_garbage_changes_nothing_and_is_counted(net: OverZenoh, stranger: Stranger) -> None:
    a, b = net.members
    wrong_key = Sealer(derive("", "orders").seal, "b", "1").seal(
        "put", "cutwater/orders/slots/b/key", 9, b"forged"
    )
    garbage = [None, b"", b"\xff" * 40, b"\xff" * 100_000, wrong_key[1]]
    sure: Any = {
        "congestion_control": zenoh.CongestionControl.BLOCK
    }  # a busy machine drops messages otherwise
    for attachment in garbage:
        stranger.session.put("cutwater/orders/slots/b/key", b"forged", attachment=attachment, **sure)
        stranger.session.put("cutwater/orders/to/a/b/key", b"forged", attachment=attachment, **sure)
        stranger.session.put("cutwater/orders/mail/a/1/b", b"forged", attachment=attachment, **sure)
        stranger.session.put("cutwater/orders/slots/b", b"forged", attachment=attachment, **sure)
        stranger.session.delete("cutwater/orders/slots/b/key", attachment=attachment, **sure)
        asked = stranger.session.get("cutwater/orders/ask/a/1", payload=b"b", attachment=attachment)
        assert [r for r in asked if r.ok is not None] == []
    eventually(lambda: a.rejected >= 6 * len(garbage), "all of it is counted")
    assert a.read("b", "key") is None
    b.write("key", b"true")
    sees(a, "b", "key", b"true")
    # questions do not name their sender; which of the two comes first is chance
    assert sorted("'b'" in line for line in net.log_lines["a"]) == [False, True]


def test_messages_cannot_be_read_without_the_secret(net: OverZenoh, stranger: Stranger) -> None:
    a, b = net.members
    mail: list[bytes] = []
    a.subscribe(lambda *_: None, lambda _, data: mail.append(data))
    said = [b"said to all", b"said to one", b"posted", b"small ", b"in an answer"]
    b.write("all", said[0])
    b.write("one", said[1], to="a")
    b.post("a", said[2])
    b.post("a", said[3] * 2_000)
    b.write("late", said[4])
    net.meet(a, b, net.join("c"))
    eventually(lambda: len(mail) == 2, "the mail arrives")
    sees(a, "b", "one", said[1])
    for key in ("slots/b/all", "to/a/b/one", "mail/a/1/b"):
        stranger.hear(key)
    for sample in list(stranger.heard):
        carried = sample.payload.to_bytes() + (sample.attachment.to_bytes() if sample.attachment else b"")
        assert not [text for text in said if text in carried]


def test_no_two_messages_are_encrypted_alike(net: OverZenoh, stranger: Stranger) -> None:
    a, b = net.members
    for kv in (a, b):
        for _ in range(2):
            kv.write("same", b"the same text every time")
    heard = [stranger.hear(f"slots/{kv.name}/same", number) for kv in (a, b) for number in (0, 1)]
    assert len({sample.payload.to_bytes() for sample in heard}) == 4


def test_forged_tokens_are_rejected(net: OverZenoh, stranger: Stranger) -> None:
    a, b = net.members
    tokens = [
        stranger.session.liveliness().declare_token(f"cutwater/orders/alive/{name}")
        for name in ("c/1/0000", "b/2/0000", "short", "d/1/2/3/4")
    ]
    eventually(lambda: a.rejected >= len(tokens), "the tokens are refused")
    assert a.alive() == b.alive() == {"a": ("1",), "b": ("1",)}


def test_a_replayed_message_changes_nothing(net: OverZenoh, stranger: Stranger) -> None:
    a, b = net.members
    b.write("key", b"old")
    old = stranger.hear("slots/b/key")
    b.write("key", b"new")
    sees(a, "b", "key", b"new")
    stranger.repeat(old)
    stranger.repeat(old, "cutwater/orders/slots/b/other")
    eventually(lambda: a.rejected >= 1, "the one under another key is refused")
    assert (a.read("b", "key"), a.read("b", "other")) == (b"new", None)
    c = net.join("c")
    net.meet(a, b, c)
    stranger.repeat(old)
    stranger.repeat(old, "cutwater/orders/slots/b/other")
    eventually(lambda: c.rejected >= 1, "it is refused by who came late too")
    assert c.read("b", "key") == b"new"


def test_replayed_mail_is_not_delivered_twice(net: OverZenoh, stranger: Stranger) -> None:
    a, b = net.members
    mail: list[bytes] = []
    a.subscribe(lambda *_: None, lambda _, data: mail.append(data))
    b.post("a", b"first")
    stranger.repeat(stranger.hear("mail/a/1/b"))
    b.post("a", b"second")
    eventually(lambda: b"second" in mail, "the mail arrives")
    assert mail == [b"first", b"second"]


def test_a_departed_member_is_not_brought_back_by_its_token_or_its_messages(
    net: OverZenoh, stranger: Stranger
) -> None:
    a, b = net.members
    b.write("key", b"old")
    old = stranger.hear("slots/b/key")
    found = stranger.session.liveliness().get("cutwater/orders/alive/b/**")
    token = next(str(reply.ok.key_expr) for reply in found if reply.ok is not None)
    b.close()
    sees_only(a, "a")
    sees(a, "b", "key", None)
    answers = stranger.session.declare_queryable(
        "cutwater/orders/ask/b/1", lambda query: query.reply(query.key_expr, b"\x92\x00\x80")
    )
    kept = stranger.session.liveliness().declare_token(token)
    rejected = a.rejected
    eventually(lambda: a.rejected > rejected, "what the stranger answers in b's name is refused")
    stranger.repeat(old)
    c = net.join("c")
    net.meet(a, c)
    for kv in (a, c):
        assert set(kv.alive()) == {"a", "c"}
        assert kv.read("b", "key") is None
    del answers, kept


# --- bounds -----------------------------------------------------------------------------------------------


def test_a_message_that_is_too_large_is_reported_and_not_sent(net: OverZenoh) -> None:
    a, b = net.join("a"), net.join("b")
    net.meet(a, b)
    a.write("ack/1", bytes(MAX_VALUE_BYTES + 1))
    a.post("b", bytes(MAX_VALUE_BYTES + 1))
    a.write("key", b"after")
    sees(b, "a", "key", b"after")
    assert b.read("a", "ack/1") is None
    assert ["ack/1" in line and "too large" in line for line in net.log_lines["a"]] == [True]


def test_two_acks_of_a_hundred_thousand_state_files_reach_present_and_late_members(
    net: OverZenoh,
) -> None:
    ack = b"".join(b'"stages/orders/12/state/0/%05d/%d.delta":"%064x",' % (i, i, i) for i in range(100_000))
    assert 10 << 20 < len(ack) < MAX_VALUE_BYTES
    a, b = net.join("a", lease_s=5.0), net.join("b", lease_s=5.0)
    net.meet(a, b)
    for number in (1, 2):
        a.write(f"ack/{number}", ack)
        sees(b, "a", f"ack/{number}", ack)
    late = net.join("late", lease_s=5.0)
    net.meet(a, late)
    assert late.read("a", "ack/1") == late.read("a", "ack/2") == ack


def test_what_is_kept_from_one_process_is_bounded() -> None:
    peer, big = Peer("b", "1"), bytes(MAX_SLOT_BYTES // 4)
    peer.appear()
    for number in range(1, 10):
        peer.push("slots", number, f"key{number}", big)
    kept = peer._slots
    assert len(kept) == 4
    peer.push("slots", 10, "key1", b"")
    peer.push("slots", 11, "key9", big)
    assert len(kept) == 5


def test_undelivered_mail_is_bounded_by_count_and_size() -> None:
    for size, room in ((1, MAX_WAITING), (MAX_WAITING_BYTES // 4, 4)):
        waiting: BoundedQueue[int] = BoundedQueue()
        for number in range(2 * MAX_WAITING):
            waiting.add(number, size)
        taken = []
        while waiting:
            taken.append(waiting.take())
        assert taken == list(range(room))
        waiting.add(1, MAX_WAITING_BYTES)
        assert waiting.take() == 1
