"""Who is let into a cluster: secrets, seals, certificates, and what strangers can do (nothing)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.zenoh_kv import ZenohKv
from cutwater.kv import ClusterKv
from cutwater.protocol.errors import UserError
from tests.cluster_helpers import OverZenoh, eventually, sees, sees_only


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
        ({"listen": ("7447",)}, "no endpoint"),
        ({"listen": ("udp/127.0.0.1:7447",)}, "no endpoint"),
        ({"listen": ("tls/127.0.0.1:7447",)}, "should begin with tcp/"),
        ({"tls_ca": "ca.pem"}, "TLS needs all of"),
        ({"tls_ca": "no.pem", "tls_cert": "no.pem", "tls_key": "no.pem"}, "there is no file"),
        ({"lease_s": 0.0}, "cannot be"),
    ],
)
def test_what_cannot_work_or_would_let_strangers_in_is_refused(
    settings: dict[str, Any], problem: str
) -> None:
    with pytest.raises(UserError, match=problem):
        ClusterConfig(**settings).check()


def test_a_secret_or_certificates_or_only_this_machine_are_enough(tmp_path: Path) -> None:
    pem = tmp_path / "some.pem"
    pem.touch()
    tls = dict.fromkeys(("tls_ca", "tls_cert", "tls_key"), str(pem))
    ClusterConfig(listen=("tcp/0.0.0.0:7447",), secret="s", multicast=True).check()
    ClusterConfig(listen=("tls/0.0.0.0:7447",), peers=("tls/b.example.org:7447",), **tls).check()  # type: ignore[arg-type]
    ClusterConfig(listen=("tcp/127.0.0.1:7447",), peers=("tcp/localhost:1", "tcp/[::1]:2")).check()


def test_the_secret_is_not_shown() -> None:
    assert "hidden" not in repr(ClusterConfig(secret="hidden"))


def test_on_one_machine_no_secret_is_needed() -> None:
    net = OverZenoh(secret="")
    try:
        net.meet(net.join("a"), net.join("b"))
    finally:
        net.close()


def insist(stranger: ClusterKv, kv: ZenohKv) -> None:
    """Has a stranger write and post until some of it has been refused."""
    before = kv.rejected

    def refused() -> bool:
        stranger.write("key", b"1")
        stranger.post(kv.name, b"mail")
        return kv.rejected >= before + 20

    eventually(refused, "what the stranger says is refused")


def test_who_has_another_secret_or_none_changes_nothing_and_is_told_of_once(net: OverZenoh) -> None:
    a, b = net.join("a"), net.join("b")
    net.meet(a, b)
    for secret in ("another", ""):
        stranger = net.join("c", boot=f"c{secret}", secret=secret)
        insist(stranger, a)
        assert a.alive() == {"a": ("1",), "b": ("1",)}
        assert stranger.alive() == {"c": (stranger.boot,)}
        assert a.read("c", "key") is None
    for kv in (a, b):
        assert len([line for line in net.told[kv.name] if "'c'" in line]) == 1


def test_another_pipeline_with_the_same_secret_is_another_cluster(net: OverZenoh) -> None:
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
    """Somebody without the secret who is connected to all, hears everything, and says anything."""

    def __init__(self, net: OverZenoh) -> None:
        self.session: Any = ClusterConfig(peers=tuple(net.endpoints)).session()
        self.heard: list[Any] = []
        self.session.declare_subscriber("cutwater/**", self.heard.append)
        eventually(
            lambda: len(list(self.session.info.peers_zid())) == len(net.endpoints), "all are connected"
        )

    def overhears(self, kv: ClusterKv) -> bool:
        """Has a member say something, and whether it is heard here: then everything it says is."""
        kv.write("probe", kv.name.encode())
        return any(sample.payload.to_bytes() == kv.name.encode() for sample in list(self.heard))

    def hear(self, value: bytes) -> Any:
        found: list[Any] = []

        def heard() -> bool:
            found[:] = [s for s in list(self.heard) if s.payload.to_bytes() == value]
            return bool(found)

        eventually(heard, f"{value!r} is overheard")
        return found[0]

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
    garbage = [None, b"", b"\xff" * 40, b"\x95\xa1b\xa11\x01\xc4\x00\xc4\x20" + b"0" * 32]
    for attachment in garbage:
        stranger.session.put("cutwater/orders/slots/b/key", b"forged", attachment=attachment)
        stranger.session.put("cutwater/orders/to/a/b/key", b"forged", attachment=attachment)
        stranger.session.put("cutwater/orders/mail/a/1/b", b"forged", attachment=attachment)
        stranger.session.put("cutwater/orders/slots/b", b"forged", attachment=attachment)
        stranger.session.delete("cutwater/orders/slots/b/key", attachment=attachment)
        asked = stranger.session.get("cutwater/orders/ask/a/1", payload=b"b", attachment=attachment)
        assert [r for r in asked if r.ok is not None] == []
    eventually(lambda: a.rejected >= 6 * len(garbage), "all of it is counted")
    assert a.read("b", "key") is None
    b.write("key", b"true")
    sees(a, "b", "key", b"true")
    assert len(net.told["a"]) == 1


def test_tokens_that_are_made_up_are_not_believed(net: OverZenoh, stranger: Stranger) -> None:
    a, b = net.members
    tokens = [
        stranger.session.liveliness().declare_token(f"cutwater/orders/alive/{name}")
        for name in ("c/1/0000", "b/2/0000", "short", "d/1/2/3/4")
    ]
    eventually(lambda: a.rejected >= len(tokens), "the tokens are refused")
    assert a.alive() == b.alive() == {"a": ("1",), "b": ("1",)}


def test_an_older_message_that_is_sent_again_changes_nothing(net: OverZenoh, stranger: Stranger) -> None:
    a, b = net.members
    b.write("key", b"old")
    old = stranger.hear(b"old")
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


def test_mail_that_is_sent_again_is_not_delivered_twice(net: OverZenoh, stranger: Stranger) -> None:
    a, b = net.members
    mail: list[bytes] = []
    a.subscribe(lambda *_: None, lambda _, data: mail.append(data))
    b.post("a", b"first")
    stranger.repeat(stranger.hear(b"first"))
    b.post("a", b"second")
    eventually(lambda: b"second" in mail, "the mail arrives")
    assert mail == [b"first", b"second"]


def test_a_member_that_has_gone_is_not_brought_back_by_its_token_or_its_messages(
    net: OverZenoh, stranger: Stranger
) -> None:
    a, b = net.members
    b.write("key", b"old")
    old = stranger.hear(b"old")
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


# --- TLS --------------------------------------------------------------------------------------------------


def make_certificates(folder: Path, authority: str) -> dict[str, str]:
    """An authority and a certificate of 127.0.0.1 that it has signed."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed, so no certificates can be made")
    folder.mkdir()
    ca, ca_key, cert, key, request = (str(folder / n) for n in ("ca", "ca.key", "cert", "key", "request"))
    extensions = folder / "extensions"
    extensions.write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    ec = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    for command in (
        ["req", "-x509", *ec, "-keyout", ca_key, "-out", ca, "-subj", f"/CN={authority}", "-days", "2"],
        ["req", *ec, "-keyout", key, "-out", request, "-subj", "/CN=member"],
        ["x509", "-req", "-in", request, "-CA", ca, "-CAkey", ca_key, "-CAcreateserial", "-out", cert,
         "-days", "2", "-extfile", str(extensions)],
    ):  # fmt: skip
        subprocess.run([openssl, *command], check=True, capture_output=True)
    return {"tls_ca": ca, "tls_cert": cert, "tls_key": key}


def test_with_tls_both_sides_need_a_certificate_of_the_same_authority(tmp_path: Path) -> None:
    ours, theirs = make_certificates(tmp_path / "ours", "ours"), make_certificates(tmp_path / "x", "theirs")
    net = OverZenoh(secret="")
    try:
        a = net.join("a", **ours)
        b = net.join("b", **ours)
        forged = net.join("x", **theirs)
        half = net.join("y", **{**theirs, "tls_ca": ours["tls_ca"]})
        c = net.join("c", **ours)
        net.meet(a, b, c)
        c.write("key", b"1")
        sees(b, "c", "key", b"1")
        assert set(a.alive()) == set(b.alive()) == {"a", "b", "c"}
        assert (set(forged.alive()), set(half.alive())) == ({"x"}, {"y"})
        assert len(list(a._session.info.peers_zid())) == 2
    finally:
        net.close()
