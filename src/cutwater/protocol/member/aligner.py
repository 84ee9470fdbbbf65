"""The aligner: when one stage may cut for one checkpoint.

Theory of operation. A channel's batches are numbered by the stage that produces them. A reader's position
is the last batch that it has consumed, -1 before the first; a barrier comes *after* a batch. So a stage
is aligned when its position on every input has reached that input's barrier: no row from before a barrier
is missing from its state, and no row from after a barrier is in it. A batch without rows is never read by
Spark and holds up nothing.

Nothing is buffered here. A reader stops at the barrier, and later batches stay in the durable channel.

An aligner serves the one checkpoint that it was made for: the barrier that it was given is the canonical
one, and a barrier of any other checkpoint has no effect on it. It serves one attempt, too: the stage makes a new
one from the logs each time (`Inputs.aligner`), so a later attempt knows later positions, and an abort leaves no
state. It waits for alignment until the leader orders otherwise (the coordinator has the alignment timeout), and then
cuts unaligned: the batches between each position and its barrier are in flight, and belong to the checkpoint.
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
    """How an aligner handled a barrier."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    """The same barrier at the same place again. Harmless."""
    LATE = "late"
    """Of an older epoch, or of this checkpoint after it was cut here."""
    OTHER = "other"
    """Of another checkpoint: a newer epoch, or another attempt at the same one."""


class Cut(msgspec.Struct, frozen=True):
    """Where the stage was cut. `positions`: the last batch consumed of each input. `in_flight`: the inputs
    with batches (`after`, `upto`] that belong to the checkpoint but were not consumed; `upto` is `None` if that
    input's barrier had not arrived yet; the place where it will be is then the upper end."""

    aligned: bool
    positions: dict[str, int]
    in_flight: dict[str, tuple[int, int | None]]


RowsBetween = Callable[[str, int, int], bool]
"""Whether any batch of this input in (`after`, `upto`] has rows."""


class Aligner:
    """The alignment of one stage's `inputs` for the checkpoint of `barrier`.

    `positions` has the stage's position on each input. It is unaligned from the start if the barrier says UNALIGNED.
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
        """Handles a barrier after `batch` of the input `name`; returns how.

        Raises, and changes nothing: `UserError` if there is no such input; `InvariantBroken` if this
        checkpoint's barrier is already at another place of it, or if the stage has consumed past it.
        """
        position = self._position(name)
        if not barrier.same_checkpoint(self.barrier):
            return Outcome.LATE if barrier.epoch < self.barrier.epoch else Outcome.OTHER
        before = self._barriers.get(name)
        if before is not None and before != batch:
            raise InvariantBroken(
                f"{self._describe()}: its barrier on input '{name}' is both after batch {before} and after "
                f"batch {batch}; a log has one barrier per epoch, so report this with that stage's log"
            )
        if self.phase is AlignerPhase.CUT:
            return Outcome.LATE
        if before is not None:
            return Outcome.DUPLICATE
        if position > batch:
            raise InvariantBroken(
                f"{self._describe()}: batch {position} of input '{name}' was consumed before the cut, and the "
                f"barrier is after batch {batch}; report this with both stages' logs"
            )
        self._barriers[name] = batch
        return Outcome.ACCEPTED

    def turn_unaligned(self) -> None:
        """Stops waiting for alignment. All stages get this order, so it changes nothing for one that is already
        unaligned or cut."""
        if ALIGNER.allows(self.phase, "turn_unaligned"):
            self.phase = ALIGNER.next(self.phase, "turn_unaligned")

    def cut(self) -> Cut | None:
        """Cuts, if the stage may: `None` while it has to wait, else the cut, and the machine is final.

        A stage that turned unaligned but has nothing in flight counts as cut aligned. Raises `IllegalStep` if
        it was already cut.
        """
        after = ALIGNER.next(self.phase, "cut")
        behind = self._behind()
        if behind and self.phase is AlignerPhase.ALIGNING:
            return None
        self.phase = after
        in_flight = {name: (self._positions[name], self._barriers.get(name)) for name in behind}
        return Cut(not in_flight, dict(self._positions), in_flight)

    @property
    def has_begun(self) -> bool:
        """Whether the first barrier has arrived; a stage without inputs waits for none."""
        return bool(self._barriers) or not self._positions

    def waiting_for(self) -> tuple[str, ...]:
        """The inputs that the stage is waiting for, in the order of its inputs."""
        return self._behind() if self.phase is AlignerPhase.ALIGNING else ()

    def _behind(self) -> tuple[str, ...]:
        """The inputs whose barrier has not arrived, or is not reached yet."""
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
                f"{self._describe()}: the stage has no input '{name}'; its inputs: {known}"
            ) from None

    def _describe(self) -> str:
        return f"epoch {self.barrier.epoch}, checkpoint {self.barrier.checkpoint_id} ({self.phase.value})"
