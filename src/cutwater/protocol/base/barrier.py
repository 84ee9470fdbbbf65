"""The barrier: what stands in a stream where one epoch ends and the next begins.

A barrier is its checkpoint id, its epoch and its flags. Two barriers belong to the same checkpoint if
epoch *and* id are equal; the flags say how the checkpoint is taken, not which one it is.
"""

from __future__ import annotations

import struct
from enum import STRICT, IntFlag

import msgspec

from cutwater.protocol.base.errors import PeerError, UserError

_PACKED = struct.Struct("<QQQ")
_U64_MAX = 2**64 - 1


class Flags(IntFlag, boundary=STRICT):
    """How a checkpoint is taken. Bits that have no name here are refused, never carried along."""

    NONE = 0
    FULL_SNAPSHOT = 1
    """A self-contained copy of all state: a savepoint."""
    DRAIN = 2
    """Each stage cuts only when it has no more to do, and rests behind this barrier."""
    CANCEL = 4
    """The checkpoint with this id is called off."""
    UNALIGNED = 8
    """Stages cut at once; what is then under way in the channels belongs to the checkpoint."""


_KNOWN = int(~Flags.NONE)


class Barrier(msgspec.Struct, frozen=True):
    """One barrier. Raises `UserError` if id or epoch does not fit 64 bits, or if a flag is unknown."""

    checkpoint_id: int
    epoch: int
    flags: Flags = Flags.NONE

    def __post_init__(self) -> None:
        for field, most in (("checkpoint_id", _U64_MAX), ("epoch", _U64_MAX), ("flags", _KNOWN)):
            value = getattr(self, field)
            if not 0 <= value <= most:
                raise UserError(f"a barrier's {field} must lie between 0 and {most}, and {value} does not")

    def same_checkpoint(self, other: Barrier) -> bool:
        """Whether both belong to one checkpoint."""
        return self.epoch == other.epoch and self.checkpoint_id == other.checkpoint_id

    def pack(self) -> bytes:
        """The 24 bytes: checkpoint id, epoch, flags, each an unsigned 64-bit little-endian integer."""
        return _PACKED.pack(self.checkpoint_id, self.epoch, self.flags)

    @classmethod
    def unpack(cls, data: bytes) -> Barrier:
        """The barrier that these bytes are. Raises `PeerError` on a wrong length or unknown flags."""
        if len(data) != _PACKED.size:
            raise PeerError(f"a packed barrier has {_PACKED.size} bytes, not {len(data)}; it is ignored")
        checkpoint_id, epoch, bits = _PACKED.unpack(data)
        return cls(checkpoint_id, epoch, known_flags(bits))


def known_flags(bits: int) -> Flags:
    """The flags that `bits` stand for. Raises `PeerError` if any of them is unknown."""
    # The range is looked at first because an enum reads a negative number as "all flags but".
    if not 0 <= bits <= _KNOWN:
        raise PeerError(
            f"unknown barrier flags {bits:#x} (known: {_KNOWN:#x}); "
            "do all members run the same version of Cutwater?"
        )
    return Flags(bits)
