"""The identity of a process when members have certificates: a certificate speaks for the member that it names.

TLS admits anyone with a certificate of the authority, and Zenoh does not say over which connection a message arrived.
So each process generates its own key. The certificate's key signs the statement that this key belongs to this process
of this member (the *credential*), and the process signs its messages with its own key. Receivers check the certificate
against the authority, its common name against the member's name, and the signature. So the holder of a certificate
with another name cannot speak for that member.
"""

from __future__ import annotations

from collections import OrderedDict
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from cutwater.cluster.kv import COMMAND
from cutwater.protocol.base.errors import UserError

MAX_CREDENTIALS = 2_000
MAX_CHAIN = 8
_PSS = padding.PSS(padding.MGF1(hashes.SHA256()), padding.PSS.DIGEST_LENGTH)
_ENCODE = msgspec.msgpack.Encoder().encode


class Credential(msgspec.Struct, frozen=True, array_like=True):
    """`chain`: the certificates, the member's own first. `key`: the process's public key. `proof`: the signature by
    the certificate's key of the statement that `key` belongs to this process."""

    chain: list[bytes]
    key: bytes
    proof: bytes


_DECODE = msgspec.msgpack.Decoder(Credential).decode


class Identity:
    """Signs with the certificate of this process, and checks the signatures of others. Raises `UserError` if the files
    are unusable, or belong to another member."""

    def __init__(
        self, ca_file: str, cert_file: str, key_file: str, pipeline: str, member: str, boot: str
    ) -> None:
        self._pipeline = pipeline
        self._authorities = _certificates(ca_file)
        self._known: OrderedDict[tuple[bytes, str, str], ed25519.Ed25519PublicKey] = OrderedDict()
        chain = _certificates(cert_file)
        certified = _private_key(key_file)
        if certified.public_key() != chain[0].public_key():
            raise UserError(f"{key_file} is not the key of the certificate {cert_file}: pass a matching pair")
        self._check_own(cert_file, chain, member)
        self._key = ed25519.Ed25519PrivateKey.generate()
        public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        proof = _sign(certified, self._statement(member, boot, public))
        self.credential = _ENCODE(Credential([c.public_bytes(Encoding.DER) for c in chain], public, proof))

    def _check_own(self, cert_file: str, chain: list[x509.Certificate], member: str) -> None:
        names = _names(chain[0])
        if not _speaks_for(names, member):
            found = f"is for '{names[0]}'" if names else "has no common name"
            raise UserError(
                f"the certificate {cert_file} {found}, but this member is '{member}': give each member its own "
                f"certificate, with the member's name as the common name (subject CN={member})"
            )
        try:
            self._check_chain(chain)
        except VerificationError as error:
            raise UserError(
                f"other members would not accept the certificate {cert_file}: {error}; have the authority of tls_ca sign "
                "a new one"
            ) from error

    def sign(self, data: bytes) -> bytes:
        return self._key.sign(data)

    def signed(self, credential: bytes, signature: bytes, member: str, boot: str, data: bytes) -> bool:
        """Whether this process of this member signed the data."""
        key = self._known.get((credential, member, boot)) or self._accept(credential, member, boot)
        if key is None:
            return False
        try:
            key.verify(signature, data)
        except InvalidSignature:
            return False
        return True

    def _accept(self, credential: bytes, member: str, boot: str) -> ed25519.Ed25519PublicKey | None:
        try:
            found = _DECODE(credential)
            if not 0 < len(found.chain) <= MAX_CHAIN:
                return None
            chain = [x509.load_der_x509_certificate(c) for c in found.chain]
            if not _speaks_for(_names(chain[0]), member):
                return None
            self._check_chain(chain)
            _verify(chain[0], found.proof, self._statement(member, boot, found.key))
            key = ed25519.Ed25519PublicKey.from_public_bytes(found.key)
        except (msgspec.MsgspecError, ValueError, VerificationError, InvalidSignature, UnsupportedAlgorithm):
            return None
        self._known[credential, member, boot] = key
        if len(self._known) > MAX_CREDENTIALS:
            self._known.popitem(last=False)
        return key

    def _check_chain(self, chain: list[x509.Certificate]) -> None:
        """Checks the chain as TLS does, and requires nothing that TLS does not."""
        policy = (
            PolicyBuilder()
            .store(Store(self._authorities))
            .time(datetime.now(UTC))
            .extension_policies(ca_policy=_CA_POLICY, ee_policy=ExtensionPolicy.permit_all())
        )
        policy.build_client_verifier().verify(chain[0], chain[1:])

    def _statement(self, member: str, boot: str, key: bytes) -> bytes:
        return _ENCODE(("cutwater process", self._pipeline, member, boot, key))


_CA_POLICY = ExtensionPolicy.permit_all().require_present(x509.BasicConstraints, Criticality.AGNOSTIC, None)


def _speaks_for(names: list[str], member: str) -> bool:
    """Any certificate of the authority is valid for a command, which is not a member."""
    return member in names or member.startswith(COMMAND)


def _names(cert: x509.Certificate) -> list[str]:
    return [str(name.value) for name in cert.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]


def _certificates(path: str) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(Path(path).read_bytes())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it must be a PEM file"
        raise UserError(f"{path} cannot be read as a certificate: {why}") from error


def _private_key(path: str) -> _PrivateKey:
    try:
        key = load_pem_private_key(Path(path).read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = error.strerror if isinstance(error, OSError) else "it must be a PEM file without a passphrase"
        raise UserError(f"{path} cannot be read as a private key: {why}") from error
    if not isinstance(key, _PrivateKey):
        raise UserError(f"{path} is a {type(key).__name__}: use an RSA, ECDSA or Ed25519 key")
    return key


_PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey


def _sign(key: _PrivateKey, data: bytes) -> bytes:
    match key:
        case rsa.RSAPrivateKey():
            return key.sign(data, _PSS, hashes.SHA256())
        case ec.EllipticCurvePrivateKey():
            return key.sign(data, ec.ECDSA(hashes.SHA256()))
        case _:
            return key.sign(data)


def _verify(cert: x509.Certificate, signature: bytes, data: bytes) -> None:
    """Raises `InvalidSignature`, or `ValueError` for an unsupported kind of key."""
    match key := cert.public_key():
        case rsa.RSAPublicKey():
            key.verify(signature, data, _PSS, hashes.SHA256())
        case ec.EllipticCurvePublicKey():
            key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        case ed25519.Ed25519PublicKey():
            key.verify(signature, data)
        case _:
            raise ValueError(f"{type(key).__name__} is not supported for signatures")
