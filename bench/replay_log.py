"""The log for the catch-up benchmarks."""

from __future__ import annotations

import msgspec

from cutwater.protocol.base.chain import GENESIS, Codec, Entry


class Body(msgspec.Struct, frozen=True):
    epoch: int
    text: str


CODEC: Codec[Body] = Codec(Body)


def make_log(count: int) -> list[bytes]:
    """`count` chained entries of about 200 bytes."""
    log: list[bytes] = []
    prev = GENESIS
    for index in range(1, count + 1):
        sealed = CODEC.seal(Entry(index, prev, 0, f"n{index}", Body(index, "x" * 50)))
        log.append(sealed.data)
        prev = sealed.hash
    return log
