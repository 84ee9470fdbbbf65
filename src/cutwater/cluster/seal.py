"""What makes a message believable: a seal that only those who know the secret can make.

A seal covers everything that a message means: what kind it is, the key under which it travels, whose it is,
its number, and its bytes. Whoever lacks the secret can neither make one up nor turn one into another. A
message that is sent again is known by its number (`Highest`), an answer to an earlier question by its nonce.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import OrderedDict
from collections.abc import Callable, Hashable

import msgspec

MAX_TOLD = 100
MAX_KNOWN = 10_000


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """What a message carries beside its bytes: whose it is, its number, its seal."""

    member: str
    boot: str
    seq: int
    nonce: bytes
    mac: bytes


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(Envelope).decode


class Sealer:
    """Seals for one process of a member, and checks the seals of others."""

    def __init__(self, secret: str, member: str, boot: str) -> None:
        self._key = hashlib.sha256(b"cutwater members\0" + secret.encode()).digest()
        self.member = member
        self._boot = boot

    def seal(self, kind: str, key: str, seq: int, payload: bytes, nonce: bytes = b"") -> bytes:
        """The envelope of a message, as bytes."""
        mac = self._mac(kind, key, self.member, self._boot, seq, nonce, payload)
        return _ENCODE(Envelope(self.member, self._boot, seq, nonce, mac))

    def open(self, kind: str, key: str, envelope: bytes | None, payload: bytes) -> Envelope | None:
        """The envelope if its seal is right, else `None`."""
        try:
            found = _DECODE(envelope or b"")
            mac = self._mac(kind, key, found.member, found.boot, found.seq, found.nonce, payload)
        except (msgspec.MsgspecError, ValueError, OverflowError):
            return None
        return found if hmac.compare_digest(mac, found.mac) else None

    def token(self, member: str, boot: str) -> str:
        """What a liveliness token of this process of a member must carry."""
        return self._mac("alive", "", member, boot, 0, b"", b"").hex()[:32]

    def _mac(
        self, kind: str, key: str, member: str, boot: str, seq: int, nonce: bytes, payload: bytes
    ) -> bytes:
        head = _ENCODE((kind, key, member, boot, seq, nonce))  # self-delimiting, so nothing can be shifted
        return hmac.digest(self._key, head + payload, "sha256")


class Highest:
    """The highest number seen of each sender, of the senders heard of last."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Hashable, int] = OrderedDict()

    def is_newer(self, sender: Hashable, seq: int) -> bool:
        """Whether this number is higher than all before; it is remembered."""
        if seq <= self._seen.get(sender, 0):
            return False
        self._seen[sender] = seq
        self._seen.move_to_end(sender)
        if len(self._seen) > MAX_KNOWN:
            self._seen.popitem(last=False)
        return True


class Complaints:
    """Counts what was not accepted, and tells it once per peer and not once per message."""

    def __init__(self, tell: Callable[[str], None], advice: str) -> None:
        self.count = 0
        self._tell = tell
        self._advice = advice
        self._told: set[str] = set()

    def add(self, peer: str, what: str) -> None:
        self.count += 1
        if peer not in self._told and len(self._told) < MAX_TOLD:
            self._told.add(peer)
            self._tell(f"{what} that names member '{peer[:60]}' as its sender was ignored, as will be more of "
                       f"that kind: {self._advice}")  # fmt: skip
