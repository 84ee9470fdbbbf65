"""The barrier: the marker in a stream between one epoch and the next.

A barrier has a checkpoint id, an epoch and flags. Two barriers belong to the same checkpoint if epoch *and*
id are equal; the flags say how the checkpoint is taken, not which one it is.
"""

from __future__ import annotations

import struct
from enum import STRICT, IntFlag
from functools import lru_cache

import msgspec

from cutwater.protocol.base.errors import PeerError, UserError

_PACKED = struct.Struct("<QQQ")
_U64_MAX = 2**64 - 1


class Flags(IntFlag, boundary=STRICT):
    """How a checkpoint is taken. Unknown bits are refused."""

    NONE = 0
    FULL_SNAPSHOT = 1
    """A self-contained copy of all state: a savepoint."""
    DRAIN = 2
    """Each stage cuts only when it has processed all its input, and pauses after this barrier."""
    CANCEL = 4
    """The checkpoint with this id is cancelled."""
    UNALIGNED = 8
    """Stages cut at once; the rows then in flight in the channels are part of the checkpoint."""

    def has(self, flags: Flags) -> bool:
        """Whether one of `flags` is set; many times as fast as `&`, which makes new `Flags`."""
        return int.__and__(self, flags) != 0


_KNOWN = int(~Flags.NONE)


class Barrier(msgspec.Struct, frozen=True):
    """One barrier. Raises `UserError` if id or epoch does not fit 64 bits, or if a flag is unknown."""

    checkpoint_id: int
    epoch: int
    flags: Flags = Flags.NONE

    def __post_init__(self) -> None:
        if 0 <= self.checkpoint_id <= _U64_MAX and 0 <= self.epoch <= _U64_MAX and 0 <= self.flags <= _KNOWN:
            return
        for field, most in (("checkpoint_id", _U64_MAX), ("epoch", _U64_MAX), ("flags", _KNOWN)):
            value = getattr(self, field)
            if not 0 <= value <= most:
                raise UserError(f"a barrier's {field} must lie between 0 and {most}, not {value}")

    def same_checkpoint(self, other: Barrier) -> bool:
        """Whether both belong to the same checkpoint."""
        return self.epoch == other.epoch and self.checkpoint_id == other.checkpoint_id

    def pack(self) -> bytes:
        """The 24 bytes: checkpoint id, epoch, flags, each an unsigned 64-bit little-endian integer."""
        return _PACKED.pack(self.checkpoint_id, self.epoch, self.flags)

    @staticmethod
    def unpack(data: bytes) -> Barrier:
        """Decodes 24 bytes. Raises `PeerError` on a wrong length or unknown flags."""
        return _unpack(data)


@lru_cache(maxsize=64)
def _unpack(data: bytes) -> Barrier:
    if len(data) != _PACKED.size:
        raise PeerError(f"a packed barrier has {_PACKED.size} bytes, not {len(data)}; it is ignored")
    checkpoint_id, epoch, bits = _PACKED.unpack(data)
    return Barrier(checkpoint_id, epoch, known_flags(bits))


def known_flags(bits: int) -> Flags:
    """Converts bits to flags. Raises `PeerError` if any bit is unknown."""
    # The range is checked first because an enum reads a negative number as "all flags except".
    if not 0 <= bits <= _KNOWN:
        raise PeerError(
            f"unknown barrier flags {bits:#x} (known: {_KNOWN:#x}); "
            "do all members run the same version of Cutwater?"
        )
    return Flags(bits)
