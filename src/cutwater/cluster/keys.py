"""Derives from the members' shared secret a password for connections and a key for messages.

The secret itself is used for nothing else. It is stretched (scrypt, with the pipeline's name as salt), so that each
guess costs 32 MiB and a tenth of a second, and so that the keys of one pipeline are useless for another.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache

import msgspec

from cutwater.protocol.base.errors import UserError

MIN_LENGTH = 16
MIN_VARIETY = 8
MIN_STEPS = 9
ROWS = ("abcdefghijklmnopqrstuvwxyz", "0123456789", "qwertyuiop", "asdfghjkl", "zxcvbnm")
SCRYPT_N, SCRYPT_R, SCRYPT_P = 2**15, 8, 1
SCRYPT_MEMORY = 64 << 20
"""The most memory that OpenSSL may use; these parameters need a little more than 32 MiB."""
GENERATE_COMMAND = "python -c 'import secrets; print(secrets.token_urlsafe(32))'"


class Keys(msgspec.Struct, frozen=True):
    """`password` is for Zenoh's handshake, `seal` for messages."""

    password: str
    seal: bytes

    def __repr__(self) -> str:
        return "Keys(...)"


def check_secret(secret: str) -> None:
    """Raises `UserError` for a secret that is easy to guess. The message does not contain the secret."""
    problem = ""
    if len(secret) < MIN_LENGTH:
        problem = f"it has {len(secret)} characters, but needs at least {MIN_LENGTH}"
    elif len(set(secret)) < MIN_VARIETY:
        problem = f"it has only {len(set(secret))} different characters, but needs at least {MIN_VARIETY}"
    elif len(_steps(secret)) < MIN_STEPS:
        problem = "it repeats itself, or follows the alphabet or the keyboard"
    if problem:
        raise UserError(
            f"the members' secret is easy to guess: {problem}; generate a better one, for example with "
            f"`openssl rand -base64 32` or `{GENERATE_COMMAND}`, and give it to all members"
        )


def _steps(secret: str) -> set[str]:
    """The distinct pairs of adjacent characters, without sequences of the alphabet or the keyboard: 12, yx, as."""
    plain = secret.lower()
    pairs = {plain[at : at + 2] for at in range(len(plain) - 1)}
    return {pair for pair in pairs if not any(pair in row or pair[::-1] in row for row in ROWS)}


@lru_cache(maxsize=16)
def derive(secret: str, pipeline: str) -> Keys:
    """The keys of a pipeline's members. Without a secret anyone can derive them, and they protect only against
    accidents."""
    salt = b"cutwater members\0" + pipeline.encode()
    if secret:
        master = hashlib.scrypt(
            secret.encode(), salt=salt, n=SCRYPT_N, r=SCRYPT_R, p=SCRYPT_P, maxmem=SCRYPT_MEMORY, dklen=32
        )
    else:
        master = hashlib.sha256(salt).digest()
    return Keys(hmac.digest(master, b"connect", "sha256").hex(), hmac.digest(master, b"seal", "sha256"))
