"""Seals messages between members, so that nobody else can read, forge or repurpose them.

A message is encrypted (AES-256-GCM) and bound to its context: its kind, the slot key under which it is sent, its sender
and its number. Each process has its own encryption key, derived from the members' key and a random salt, so a counter
is enough to never reuse a nonce. A replayed message is recognized by its number (`Highest`), an answer to an earlier
question by its nonce. With certificates each message is also signed by its sender (`identity.py`): all members know
the members' key, but only the sender knows its signing key.
"""

from __future__ import annotations

import hmac
from collections import OrderedDict
from collections.abc import Hashable
from itertools import count
from secrets import token_bytes
from typing import TYPE_CHECKING

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

if TYPE_CHECKING:
    from cutwater.cluster.identity import Identity

MAX_KNOWN = 10_000
MAX_KEYS = 2_000
"""How many ciphers of processes are cached; deriving one again takes microseconds."""
SALT_BYTES = 16
TAG_BYTES = 16
MAX_ENVELOPE_BYTES = 64 << 10
"""An envelope has a few hundred bytes, or a few thousand with a certificate chain."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What a message carries in addition to its encrypted bytes. `nonce` is that of a question. `salt` selects the
    encryption key, `number` counts the messages under that key, and `tag` authenticates. `credential` and `signature`
    are set if members have certificates."""

    member: str
    boot: str
    seq: int
    nonce: bytes
    salt: bytes
    number: int
    tag: bytes
    credential: bytes = b""
    signature: bytes = b""


class Opened(msgspec.Struct, frozen=True):
    """An authenticated message."""

    member: str
    boot: str
    seq: int
    nonce: bytes
    payload: bytes


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(Envelope).decode


class Sealer:
    """Seals the messages of one process, and opens those of others."""

    def __init__(self, key: bytes, member: str, boot: str, identity: Identity | None = None) -> None:
        self.member = member
        self._key = key
        self._boot = boot
        self._identity = identity
        self._salt = token_bytes(SALT_BYTES)
        self._numbers = count(1)
        self._ciphers: OrderedDict[tuple[str, str, bytes], AESGCM] = OrderedDict()
        self._own = self._cipher((member, boot, self._salt))

    def seal(self, kind: str, key: str, seq: int, payload: bytes, nonce: bytes = b"") -> tuple[bytes, bytes]:
        """The encrypted bytes of a message, the same number as before, and its envelope."""
        head = _ENCODE(
            (kind, key, self.member, self._boot, seq, nonce)
        )  # self-delimiting: no byte can move from one field to the next
        number = next(self._numbers)
        sealed = self._own.encrypt(number.to_bytes(12), payload, head)
        data, tag = sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]
        credential = signature = b""
        if self._identity is not None:
            credential, signature = self._identity.credential, self._identity.sign(head + payload)
        envelope = Envelope(
            self.member, self._boot, seq, nonce, self._salt, number, tag, credential, signature
        )
        return data, _ENCODE(envelope)

    def open(self, kind: str, key: str, envelope: bytes | None, data: bytes) -> Opened | None:
        """The message if the sender that it names sealed it, else `None`."""
        try:
            found = _DECODE(envelope or b"")
            if len(found.salt) != SALT_BYTES or len(found.tag) != TAG_BYTES:
                return None
            head = _ENCODE((kind, key, found.member, found.boot, found.seq, found.nonce))
            process = found.member, found.boot, found.salt
            cipher = self._ciphers.get(process) or self._cipher(process)
            payload = cipher.decrypt(found.number.to_bytes(12), data + found.tag, head)
        except (msgspec.MsgspecError, ValueError, OverflowError, InvalidTag):
            return None
        self._remember(process, cipher)
        if self._identity is not None and not self._identity.signed(
            found.credential, found.signature, found.member, found.boot, head + payload
        ):
            return None
        return Opened(found.member, found.boot, found.seq, found.nonce, payload)

    def token(self, member: str, boot: str) -> str:
        """The proof that the liveliness token of this process must contain."""
        return hmac.digest(self._key, _ENCODE(("alive", member, boot)), "sha256").hex()[:32]

    def _cipher(self, process: tuple[str, str, bytes]) -> AESGCM:
        return AESGCM(hmac.digest(self._key, _ENCODE(("process", *process)), "sha256"))

    def _remember(self, process: tuple[str, str, bytes], cipher: AESGCM) -> None:
        """Caches a key that has opened a message; keys that strangers make up are not cached."""
        if process not in self._ciphers:
            self._ciphers[process] = cipher
            if len(self._ciphers) > MAX_KEYS:
                self._ciphers.popitem(last=False)


class Highest:
    """The highest number seen from each of the most recent senders."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, int] = OrderedDict()

    def is_newer(self, sender: Hashable, seq: int) -> bool:
        """Whether this number is higher than all earlier ones of the sender. Remembers it."""
        if seq <= self._seen.get(sender, 0):
            return False
        self._seen[sender] = seq
        self._seen.move_to_end(sender)
        if len(self._seen) > MAX_KNOWN:
            self._seen.popitem(last=False)
        return True
