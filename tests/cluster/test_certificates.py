"""Members with certificates: who may join, and that a certificate speaks only for the member that it names."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from cutwater.cluster import zenoh_kv
from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.identity import Credential, Identity, _sign
from cutwater.cluster.keys import derive
from cutwater.cluster.seal import Envelope, Sealer
from cutwater.cluster.zenoh_kv import ZenohKv
from cutwater.protocol.base.errors import UserError
from tests.support.certificates import Holder, authority
from tests.support.cluster_helpers import SECRET, OverZenoh, eventually, sees

FAR = 1 << 40
"""A number higher than any member has used."""


@pytest.fixture
def net() -> Iterator[OverZenoh]:
    made = OverZenoh(secret="")
    yield made
    made.close()


@pytest.fixture
def ca() -> Holder:
    return authority()


def test_both_sides_need_a_certificate_of_the_same_authority(
    net: OverZenoh, ca: Holder, tmp_path: Path
) -> None:
    theirs = authority("another")
    a, b = (net.join(n, **ca.sign(n).files(tmp_path, n, ca)) for n in ("a", "b"))
    forged = net.join("x", **theirs.sign("x").files(tmp_path, "x", theirs))
    with pytest.raises(UserError, match="other members would not accept the certificate"):
        net.join("y", **theirs.sign("y").files(tmp_path, "y", ca))
    c = net.join("c", **ca.sign("c").files(tmp_path, "c", ca))
    net.meet(a, b, c)
    c.write("key", b"1")
    sees(b, "c", "key", b"1")
    assert set(a.alive()) == set(b.alive()) == {"a", "b", "c"}
    assert set(forged.alive()) == {"x"}
    assert len(list(a._session.info.peers_zid())) == 2


def test_certificates_with_all_kinds_of_keys_and_through_an_intermediate_authority_are_accepted(
    net: OverZenoh, ca: Holder, tmp_path: Path
) -> None:
    office = ca.sign("intermediate authority", ca=True)
    holders = {
        "a": ca.sign("a", "rsa"),
        "b": ca.sign("b", "ed25519"),
        "c": office.sign("c"),
        "d": office.sign("d", "rsa"),
    }
    members = [net.join(name, **holder.files(tmp_path, name, ca)) for name, holder in holders.items()]
    net.meet(*members)
    for kv in members:
        kv.write("key", kv.name.encode())
    for kv in members:
        for name in holders:
            sees(kv, name, "key", name.encode())


def test_certificates_made_by_openssl_are_accepted(net: OverZenoh, tmp_path: Path) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\n")

    def run(*command: str) -> None:
        subprocess.run([openssl, *command], check=True, capture_output=True, cwd=tmp_path)

    ec = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    run("req", "-x509", *ec, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=shop", "-days", "2")
    members = []
    for name in ("a", "b"):
        run("req", *ec, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/O=shop/CN={name}")
        run("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
            "-out", f"{name}.pem", "-days", "2", "-extfile", "names")  # fmt: skip
        files = {"tls_ca": "ca.pem", "tls_cert": f"{name}.pem", "tls_key": f"{name}.key"}
        members.append(net.join(name, **{kind: str(tmp_path / file) for kind, file in files.items()}))
    net.meet(*members)


def test_a_member_with_an_unusable_certificate_fails_before_it_starts(
    net: OverZenoh, ca: Holder, tmp_path: Path
) -> None:
    def refused(holder: Holder, problem: str, **other: str) -> None:
        with pytest.raises(UserError, match=problem):
            net.join("billing", **{**holder.files(tmp_path, "it", ca), **other})

    good = ca.sign("billing")
    refused(ca.sign("ingest"), "is for 'ingest', but this member is 'billing'.*CN=billing")
    refused(ca.sign("billing", days=-1), "other members would not accept")
    refused(authority("another").sign("billing"), "other members would not accept")
    refused(good, "is not the key of", tls_key=ca.sign("billing").files(tmp_path, "other", ca)["tls_key"])
    refused(good, "without a passphrase", tls_key=good.files(tmp_path, "locked", ca, b"pw")["tls_key"])
    (tmp_path / "junk").write_text("junk")
    for kind, problem in (("tls_ca", "certificate"), ("tls_cert", "certificate"), ("tls_key", "private key")):
        refused(
            good,
            f"junk cannot be read as a {problem}: it must be a PEM file",
            **{kind: str(tmp_path / "junk")},
        )


class Impostor:
    """A process with a valid certificate for the member `c` that is connected to all and sends messages in the name of
    `b`."""

    def __init__(self, net: OverZenoh, files: dict[str, str]) -> None:
        config = ClusterConfig(peers=tuple(net.endpoints), **files)  # type: ignore[arg-type]
        self.session: Any = config.session("orders")
        self.heard: list[Any] = []
        self.session.declare_subscriber("cutwater/**", self.heard.append)
        eventually(lambda: len(list(self.session.info.peers_zid())) == 2, "it is connected to both")

    def overhears(self, kv: ZenohKv) -> Envelope | None:
        """The envelope of a member's messages."""
        kv.write("probe", b"")
        found = [s for s in list(self.heard) if str(s.key_expr).endswith(f"slots/{kv.name}/probe")]
        return msgspec.msgpack.decode(found[0].attachment.to_bytes(), type=Envelope) if found else None

    def say(self, identity: Identity | None, boot: str = "1") -> None:
        """Sends every kind of message in the name of b, sealed as well as possible."""
        sealer = Sealer(derive("", "orders").seal, "b", boot, identity)
        for kind, where in (("put", "slots/b/key"), ("put", "to/a/b/key"), ("mail", "mail/a/1/b")):
            data, seal = sealer.seal(kind, f"cutwater/orders/{where}", FAR, b"forged")
            self.session.put(f"cutwater/orders/{where}", data, attachment=seal)
        _, seal = sealer.seal("delete", "cutwater/orders/slots/b/true", FAR + 1, b"")
        self.session.delete("cutwater/orders/slots/b/true", attachment=seal)


def identity(files: dict[str, str], member: str, boot: str = "1", pipeline: str = "orders") -> Identity:
    return Identity(files["tls_ca"], files["tls_cert"], files["tls_key"], pipeline, member, boot)


class Stolen(Identity):
    """Presents a stolen or forged credential, and signs with its own key."""

    def __init__(self, files: dict[str, str], credential: bytes) -> None:
        super().__init__(files["tls_ca"], files["tls_cert"], files["tls_key"], "orders", "c", "1")
        self.credential = credential


def own_key_under(files: dict[str, str], holder: Holder) -> Identity:
    """Presents a certificate that must not be accepted, with its key, as `Identity` would for b."""
    made = identity(files, "c")
    shown = msgspec.msgpack.decode(made.credential, type=Credential)
    chain = [c.public_bytes(Encoding.DER) for c in (holder.cert, *holder.above)]
    proof = _sign(holder.key, made._statement("b", "1", shown.key))
    made.credential = msgspec.msgpack.encode(Credential(chain, shown.key, proof))
    return made


def test_a_certificate_speaks_only_for_the_member_that_it_names(
    net: OverZenoh, ca: Holder, tmp_path: Path
) -> None:
    holders = {name: ca.sign(name) for name in ("a", "b", "c")}
    files = {name: holder.files(tmp_path, name, ca) for name, holder in holders.items()}
    a, b = net.join("a", **files["a"]), net.join("b", **files["b"])
    net.meet(a, b)
    mail: list[bytes] = []
    a.subscribe(lambda *_: None, lambda _, data: mail.append(data))
    b.write("true", b"1")
    sees(a, "b", "true", b"1")
    impostor = Impostor(net, files["c"])
    try:
        eventually(lambda: impostor.overhears(b), "b is overheard")
        overheard = impostor.overhears(b)
        assert overheard is not None
        foreign = authority("another").sign("b")
        attempts: list[tuple[str, Identity | None]] = [
            ("no certificate", None),
            ("its own certificate", identity(files["c"], "c")),
            ("its own certificate, under a proof for b", own_key_under(files["c"], holders["c"])),
            ("b's credential, overheard", Stolen(files["c"], overheard.credential)),
            ("a certificate for b of another authority", own_key_under(files["c"], foreign)),
            ("a certificate for b that c has signed", own_key_under(files["c"], holders["c"].sign("b"))),
            (
                "one that c has signed as an authority",
                own_key_under(files["c"], holders["c"].sign("b", ca=True)),
            ),
            ("one that has expired", own_key_under(files["c"], ca.sign("b", days=-1))),
            ("b's certificate, of another pipeline", identity(files["b"], "b", "1", "bills")),
            ("b's certificate, of another process", identity(files["b"], "b", "0", "orders")),
            ("garbage", Stolen(files["c"], b"\x93\x91\xc4\x01x\xc4\x00\xc4\x00")),
            ("an empty chain", Stolen(files["c"], b"\x93\x90\xc4\x00\xc4\x00")),
        ]
        for what, shown in attempts:
            rejected = a.rejected
            impostor.say(shown)
            eventually(lambda: a.rejected >= rejected + 4, f"{what} is refused")  # noqa: B023
            assert (a.read("b", "key"), a.read("b", "true"), mail) == (None, b"1", []), what
        impostor.say(identity(files["b"], "b"))
        sees(
            a, "b", "key", b"forged"
        )  # with b's own key it works, so nothing else was wrong with the messages
        sees(a, "b", "true", None)
        assert mail == [b"forged"]
    finally:
        impostor.session.close()


def test_no_process_can_answer_for_another_member(net: OverZenoh, ca: Holder, tmp_path: Path) -> None:
    """Anyone who may join can forge a token. The process behind it is asked, and must answer as that member."""
    files = {name: ca.sign(name).files(tmp_path, name, ca) for name in ("a", "d", "c")}
    a, d = net.join("a", **files["a"]), net.join("d", **files["d"])
    net.meet(a, d)
    impostor = Impostor(net, files["c"])
    sealer = Sealer(derive("", "orders").seal, "b", "1", identity(files["c"], "c"))

    def answer(query: Any) -> None:
        with query:
            asked = msgspec.msgpack.decode(query.attachment.to_bytes(), type=Envelope)
            data, seal = sealer.seal("answer", str(query.key_expr), 0, b"\x92\x00\x80", asked.nonce)
            query.reply(query.key_expr, data, attachment=seal)

    try:
        answering = impostor.session.declare_queryable("cutwater/orders/ask/b/1", answer)
        token = f"cutwater/orders/alive/b/1/{sealer.token('b', '1')}"
        present = impostor.session.liveliness().declare_token(token)
        eventually(lambda: a.rejected >= 3 and d.rejected >= 3, "its answers are refused")
        assert set(a.alive()) == set(d.alive()) == {"a", "d"}
        del answering, present
    finally:
        impostor.session.close()


def test_a_command_needs_some_certificate_of_the_authority(
    net: OverZenoh, ca: Holder, tmp_path: Path
) -> None:
    a = net.join("a", **ca.sign("a").files(tmp_path, "a", ca))
    command = net.join("command_1", listen=(), **ca.sign("an operator").files(tmp_path, "op", ca))
    net.meet(a, command)


def test_with_certificates_and_a_secret_both_are_needed(
    ca: Holder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zenoh_kv, "WARN_AFTER_S", 0.5)
    net = OverZenoh(secret=SECRET)
    try:
        a, b = (net.join(n, **ca.sign(n).files(tmp_path, n, ca)) for n in ("a", "b"))
        net.meet(a, b)
        tcp = [endpoint.replace("tls", "tcp") for endpoint in net.endpoints]
        net.join("c", **ca.sign("c").files(tmp_path, "c", ca), secret="")
        net.join("d", peers=tcp)
        for name in ("c", "d"):
            eventually(partial(net.log_lines.get, name), f"{name} is told that nobody answers")
        assert [len(list(kv._session.info.peers_zid())) for kv in net.members] == [1, 1, 0, 0]
    finally:
        net.close()
