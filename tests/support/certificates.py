"""Certificates for tests: an authority, and valid and invalid certificates."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
KEYS: dict[str, Callable[[], PrivateKey]] = {
    "rsa": lambda: rsa.generate_private_key(65537, 2048),
    "ecdsa": lambda: ec.generate_private_key(ec.SECP256R1()),
    "ed25519": ed25519.Ed25519PrivateKey.generate,
}


class Holder:
    """A certificate, its key, and the intermediate certificates up to the root authority."""

    def __init__(
        self, cert: x509.Certificate, key: PrivateKey, above: tuple[x509.Certificate, ...] = ()
    ) -> None:
        self.cert = cert
        self.key = key
        self.above = above

    def sign(
        self, name: str, kind: str = "ecdsa", *, ca: bool = False, days: int = 2, host: str = "127.0.0.1"
    ) -> Holder:
        """A certificate signed with this one's key, whether or not this one is an authority."""
        key = KEYS[kind]()
        cert = _signed(name, key, self.cert.subject, self.key, ca=ca, days=days, host=host)
        return Holder(cert, key, (self.cert, *self.above))

    def files(self, folder: Path, name: str, ca: Holder, passphrase: bytes | None = None) -> dict[str, str]:
        """The settings of a member with this certificate that trusts this authority."""
        chain = [c for c in (self.cert, *self.above) if c != ca.cert]
        lock = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
        contents = {
            "tls_ca": ca.cert.public_bytes(Encoding.PEM),
            "tls_cert": b"".join(c.public_bytes(Encoding.PEM) for c in chain),
            "tls_key": self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, lock),
        }
        for kind, data in contents.items():
            (folder / f"{name}-{kind}.pem").write_bytes(data)
        return {kind: str(folder / f"{name}-{kind}.pem") for kind in contents}


def authority(name: str = "the authority") -> Holder:
    key = ec.generate_private_key(ec.SECP256R1())
    return Holder(_signed(name, key, _name(name), key, ca=True, days=2, host="127.0.0.1"), key)


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _signed(
    name: str, key: PrivateKey, issuer: x509.Name, signer: PrivateKey, *, ca: bool, days: int, host: str
) -> x509.Certificate:
    until = datetime.now(UTC) + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(until - timedelta(days=4))
        .not_valid_after(until)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(host))]), critical=False
        )
        .sign(signer, None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    )
