"""The injector: a stage's appender learns from it, at the cost of one load, that a checkpoint wants a barrier.

A request is one 64-bit word: the checkpoint id in the high half, the flags in the low half, 0 when nothing is pending.
Triggering swaps a word in; polling takes it out, and exactly one poller gets it. A newer request supersedes one that
nobody has claimed yet, because only the latest checkpoint matters. This is counted, so that at any time triggered ==
claimed + superseded + (1 if one is pending).

This module does not say where the word is stored (see `cutwater.runtime.local_word`).
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from cutwater.protocol.base.barrier import Barrier, Flags, known_flags
from cutwater.protocol.base.errors import PeerError, UserError

_U32_MAX = 2**32 - 1


class BarrierRequest(msgspec.Struct, frozen=True):
    """What one word asks for."""

    checkpoint_id: int
    flags: Flags

    def pack(self) -> int:
        return self.checkpoint_id << 32 | int(self.flags)

    @classmethod
    def unpack(cls, word: int) -> BarrierRequest | None:
        """What `word` asks for, `None` if it is 0. Raises `PeerError` if it has unknown flags."""
        return cls(word >> 32, known_flags(word & _U32_MAX)) if word else None


class Counters(msgspec.Struct, frozen=True):
    """What happened to all requests of a word, at one moment."""

    triggered: int
    superseded: int
    pending: BarrierRequest | None
    last_superseded: BarrierRequest | None

    @property
    def claimed(self) -> int:
        """How many requests some handle has claimed."""
        return self.triggered - self.superseded - (self.pending is not None)


class Cell(Protocol):
    """Something whose element 0 is the word."""

    def __getitem__(self, index: int, /) -> int: ...


class Word(Protocol):
    """A 64-bit word that threads, or processes, share. Each method is atomic towards all others."""

    @property
    def cell(self) -> Cell:
        """Where to read the word without a lock. The value may be stale or torn: it is a hint, `take` decides."""

    def swap(self, value: int) -> int:
        """Puts `value` in and counts it; returns what it superseded, 0 if nothing."""

    def take(self, expected: int) -> bool:
        """Clears the word if it is still `expected`; returns whether it was."""

    def counters(self) -> Counters:
        """All counters at one moment."""


class BarrierInjector:
    """The triggering side of a word."""

    def __init__(self, word: Word) -> None:
        self._word = word

    def trigger(self, checkpoint_id: int, flags: int = Flags.NONE) -> BarrierRequest | None:
        """Asks for a barrier; returns the unclaimed request that this one supersedes, if there was one.

        Raises `UserError`, and changes nothing, if the id is 0 or does not fit 32 bits, or if the flags
        do not fit 32 bits or are unknown.
        """
        if not 0 < checkpoint_id <= _U32_MAX:
            raise UserError(
                f"checkpoint id {checkpoint_id} cannot be triggered: give one from 1 to 2**32 - 1"
            )
        try:
            request = BarrierRequest(checkpoint_id, known_flags(flags))
        except PeerError as error:
            raise UserError(f"checkpoint {checkpoint_id} cannot be triggered: {error}") from error
        return BarrierRequest.unpack(self._word.swap(request.pack()))

    def counters(self) -> Counters:
        """What happened to everything that was triggered on this word, in any process."""
        return self._word.counters()

    def handle(self) -> PollHandle:
        """A new handle; any number of handles may poll one word."""
        return PollHandle(self._word)


class PollHandle:
    """The polling side of a word."""

    __slots__ = ("_cell", "_word")

    def __init__(self, word: Word) -> None:
        self._cell = word.cell
        self._word = word

    def poll(self, epoch: int) -> Barrier | None:
        """The pending barrier, for `epoch`, if this call claims it; else `None`.

        Raises `UserError`, and claims nothing, if a request is pending and `epoch` does not fit 64 bits.
        """
        if self._cell[0]:
            return self._claim(epoch)
        return None

    def _claim(self, epoch: int) -> Barrier | None:
        word = self._cell[0]
        request = BarrierRequest.unpack(word)
        if request is None:
            return None
        # Made before the claim: if that fails, the request stays for the next poll.
        barrier = Barrier(request.checkpoint_id, epoch, request.flags)
        return barrier if self._word.take(word) else None
