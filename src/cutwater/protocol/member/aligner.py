"""The aligner: when one stage may cut for one checkpoint.

Theory of operation. A channel's batches are numbered by the stage that produces them. A reader's position
is the last batch that it has consumed, -1 before the first; a barrier stands *behind* a batch. So a stage
is aligned when its position on every input has reached that input's barrier: nothing that belongs before
the barrier is missing from its state, and nothing from behind a barrier is in it. A batch without rows is
never read by Spark and holds nobody up.

Nothing is buffered here. A reader stops at the barrier, and what lies behind stays in the durable channel.

An aligner serves the one checkpoint that it was made for: the barrier that it was given is the canonical
one, and a barrier of any other checkpoint has no effect on it. It serves one attempt, too: the stage makes it
again from the logs each time (`Inputs.aligner`), so a later attempt knows later positions, and an abort leaves nothing
behind. It waits for alignment until the leader orders otherwise (the coordinator has the alignment timeout), and then
cuts unaligned: what lies between each position and its barrier is in flight, and belongs to the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum

import msgspec

from cutwater.protocol.base.barrier import Barrier, Flags
from cutwater.protocol.base.errors import InvariantBroken, UserError
from cutwater.protocol.base.transitions import Table


class AlignerPhase(Enum):
    ALIGNING = "aligning"
    UNALIGNED = "unaligned"
    CUT = "cut"


ALIGNER = Table(
    "aligner",
    "One stage's alignment for one checkpoint",
    AlignerPhase.ALIGNING,
    {
        (AlignerPhase.ALIGNING, "turn_unaligned"): AlignerPhase.UNALIGNED,
        (AlignerPhase.ALIGNING, "cut"): AlignerPhase.CUT,
        (AlignerPhase.UNALIGNED, "cut"): AlignerPhase.CUT,
    },
)


class Outcome(Enum):
    """What a barrier meant to the aligner that it came to."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """The same barrier at the same place again. Harmless."""
    LATE = "late"
    """Of an older epoch, or of this checkpoint after it was cut here."""
    OTHER = "other"
    """Of another checkpoint: a newer epoch, or another attempt at the same one."""


class Cut(msgspec.Struct, frozen=True):
    """Where the stage was cut. `positions`: what it had consumed of each input. `in_flight`: the inputs
    with batches (`after`, `upto`] that belong to the checkpoint without having been consumed; `upto` is
    `None` if that input's barrier had not come yet, and is then where it will stand."""

    aligned: bool
    positions: dict[str, int]
    in_flight: dict[str, tuple[int, int | None]]


RowsBetween = Callable[[str, int, int], bool]
"""Whether any batch of this input in (`after`, `upto`] has rows."""


class Aligner:
    """The alignment of one stage's `inputs` for the checkpoint of `barrier`.

    `positions` says where the stage stands on each input. It is unaligned from the start if the barrier says UNALIGNED.
    Raises `UserError` if an input is named twice, or if `positions` does not name exactly the inputs.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        barrier: Barrier,
        positions: Mapping[str, int],
        rows_between: RowsBetween,
    ) -> None:
        if len(set(inputs)) != len(inputs) or set(inputs) != set(positions):
            raise UserError(
                f"inputs {list(inputs)} and positions {dict(positions)} do not match: "
                "name every input once, and give one position for each"
            )
        self.barrier = barrier
        self.phase = ALIGNER.start
        self._positions = {name: positions[name] for name in inputs}
        self._barriers: dict[str, int] = {}
        self._rows_between = rows_between
        if barrier.flags.has(Flags.UNALIGNED):
            self.turn_unaligned()

    def on_barrier(self, name: str, barrier: Barrier, batch: int) -> Outcome:
        """A barrier stands behind `batch` of the input `name`; says what it means here.

        Raises, and changes nothing: `UserError` if there is no such input; `InvariantBroken` if this
        checkpoint's barrier already stands elsewhere on it, or if the stage has consumed past it.
        """
        position = self._position(name)
        if not barrier.same_checkpoint(self.barrier):
            return Outcome.LATE if barrier.epoch < self.barrier.epoch else Outcome.OTHER
        before = self._barriers.get(name)
        if before is not None and before != batch:
            raise InvariantBroken(
                f"{self._story()}: its barrier on input '{name}' stands behind batch {before} and behind "
                f"batch {batch}; a log has one barrier per epoch, so report this with that stage's log"
            )
        if self.phase is AlignerPhase.CUT:
            return Outcome.LATE
        if before is not None:
            return Outcome.DUPLICATE
        if position > batch:
            raise InvariantBroken(
                f"{self._story()}: batch {position} of input '{name}' was consumed before the cut, and the "
                f"barrier stands behind batch {batch}; report this with both stages' logs"
            )
        self._barriers[name] = batch
        return Outcome.ACCEPTED

    def turn_unaligned(self) -> None:
        """Stop waiting for alignment. The order goes to all stages alike, so it changes nothing for one
        that is unaligned or cut already."""
        if ALIGNER.allows(self.phase, "turn_unaligned"):
            self.phase = ALIGNER.next(self.phase, "turn_unaligned")

    def cut(self) -> Cut | None:
        """Cuts, if the stage may: `None` while it has to wait, else the cut, and the machine is final.

        An unaligned stage that has nothing in flight after all was cut aligned. Raises `IllegalStep` if
        it was cut before.
        """
        after = ALIGNER.next(self.phase, "cut")
        behind = self._behind()
        if behind and self.phase is AlignerPhase.ALIGNING:
            return None
        self.phase = after
        in_flight = {name: (self._positions[name], self._barriers.get(name)) for name in behind}
        return Cut(not in_flight, dict(self._positions), in_flight)

    def waiting_for(self) -> tuple[str, ...]:
        """The inputs that keep the stage from cutting, in the order of the stage's inputs."""
        return self._behind() if self.phase is AlignerPhase.ALIGNING else ()

    def _behind(self) -> tuple[str, ...]:
        """The inputs whose barrier has not come, or has and is not reached."""
        return tuple(
            name
            for name, position in self._positions.items()
            if name not in self._barriers or self._rows_between(name, position, self._barriers[name])
        )

    def _position(self, name: str) -> int:
        try:
            return self._positions[name]
        except KeyError:
            known = ", ".join(self._positions) or "none: it is a root"
            raise UserError(
                f"{self._story()}: the stage has no input '{name}'; its inputs: {known}"
            ) from None

    def _story(self) -> str:
        return f"epoch {self.barrier.epoch}, checkpoint {self.barrier.checkpoint_id} ({self.phase.value})"
