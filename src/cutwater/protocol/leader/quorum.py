"""One checkpoint as the leader sees it: its phase, and who has answered for it.

The quorum is all expected members. An answer counts once, and only if member, epoch, checkpoint id and term are as
expected. One refusal fails the checkpoint at once. There is no time here: the owner of the deadline calls `timed_out()`
to learn who is missing.

Each answer costs a few dictionary look-ups, independent of the number of members; only methods that list names take
time in proportion to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

import msgspec

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.transitions import Table
from cutwater.protocol.base.watermark import Watermark, lowest
from cutwater.protocol.base.wire import Ack

MAX_NAMED = 8
"""How many members one message names; it is written to the journal."""


class AckOutcome(Enum):
    """How one ack was handled."""

    COUNTED = "counted"
    REFUSED = "refused"
    """It says ok=false: the checkpoint fails."""
    DUPLICATE = "duplicate"
    """That member has answered before; its first answer counts."""
    STRANGER = "stranger"
    """That member is not expected, so it can neither complete the checkpoint nor fail it."""
    OTHER_CHECKPOINT = "other_checkpoint"
    """Its epoch, checkpoint id or term is not this one's."""
    LATE = "late"
    """The checkpoint is already being aborted."""


class Waiting(msgspec.Struct, frozen=True):
    """Some members have not answered, and none has refused."""

    missing: tuple[str, ...]


class Reached(msgspec.Struct, frozen=True):
    """All members have cut. `acks` are in the order of the members' names, `watermark` is the lowest."""

    acks: dict[str, Ack]
    watermark: Watermark


class Refused(msgspec.Struct, frozen=True):
    """The first member that refused, and why."""

    member: str
    error: str


class TimedOut(msgspec.Struct, frozen=True):
    """Which members had cut when the deadline passed, and which had not answered; both by name."""

    got: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def blame(self) -> str:
        """A description, with the names of the first few missing members."""
        names = ", ".join(self.missing[:MAX_NAMED])
        more = f" and {len(self.missing) - MAX_NAMED} more" if len(self.missing) > MAX_NAMED else ""
        total = len(self.got) + len(self.missing)
        return f"{len(self.missing)} of {total} members did not answer: {names}{more}"


class Quorum:
    """Collects the answers for one checkpoint. Raises `UserError` if nobody is expected."""

    def __init__(self, expected: Iterable[str], epoch: int, checkpoint_id: int, term: int) -> None:
        # A dictionary and not a list: a name that is given twice is one member and answers once.
        self._missing = dict.fromkeys(sorted(expected))
        if not self._missing:
            raise UserError(
                "no members are expected, so no checkpoint can be taken; name at least one member"
            )
        self._identity = (epoch, checkpoint_id, term)
        self._acks: dict[str, Ack] = {}
        self.refused: Refused | None = None
        self._closed = False

    def on_ack(self, ack: Ack) -> AckOutcome:
        """Handles one ack, and returns how. An ack that is neither counted nor a refusal changes nothing."""
        if (ack.epoch, ack.checkpoint_id, ack.term) != self._identity:
            return AckOutcome.OTHER_CHECKPOINT
        if ack.member not in self._missing:
            known = ack.member in self._acks or (self.refused and ack.member == self.refused.member)
            return AckOutcome.DUPLICATE if known else AckOutcome.STRANGER
        if self._closed:
            return AckOutcome.LATE
        del self._missing[ack.member]
        if not ack.ok:
            self.refused = Refused(ack.member, ack.error or "it gave no reason")
            self.close()
            return AckOutcome.REFUSED
        self._acks[ack.member] = ack
        return AckOutcome.COUNTED

    def close(self) -> None:
        """Counts no further answers: the checkpoint is being aborted."""
        self._closed = True

    @property
    def reached(self) -> bool:
        """Whether all have cut, that is whether `outcome` is `Reached`, without listing any names."""
        return not self._missing and self.refused is None

    def outcome(self) -> Waiting | Reached | Refused:
        """The current outcome."""
        if self.refused:
            return self.refused
        if self._missing:
            return Waiting(self.missing)
        return Reached(self.acks, lowest(ack.watermark for ack in self._acks.values()))

    def timed_out(self) -> TimedOut:
        """Which members had cut and which had not, for a deadline that has passed."""
        return TimedOut(self.acked, self.missing)

    @property
    def acks(self) -> dict[str, Ack]:
        """The acks of the members that have cut, in the order of their names."""
        return {member: self._acks[member] for member in sorted(self._acks)}

    @property
    def acked(self) -> tuple[str, ...]:
        """The members that have cut, by name."""
        return tuple(sorted(self._acks))

    @property
    def missing(self) -> tuple[str, ...]:
        """The members that have not answered, by name."""
        return tuple(self._missing)


class CheckpointPhase(Enum):
    BEGINNING = "beginning"
    COLLECTING = "collecting"
    CAPTURED = "captured"
    DECIDING = "deciding"
    ABORTING = "aborting"
    COMMITTED = "committed"
    ABORTED = "aborted"


_P = CheckpointPhase
CHECKPOINT = Table(
    "checkpoint",
    "One checkpoint, as the leader sees it",
    _P.BEGINNING,
    {
        (_P.BEGINNING, "begun"): _P.COLLECTING,
        (_P.COLLECTING, "all acked"): _P.CAPTURED,
        (_P.COLLECTING, "abort"): _P.ABORTING,
        (_P.COLLECTING, "aborted"): _P.ABORTED,
        (_P.CAPTURED, "decide"): _P.DECIDING,
        (_P.CAPTURED, "abort"): _P.ABORTING,
        (_P.CAPTURED, "aborted"): _P.ABORTED,
        (_P.DECIDING, "committed"): _P.COMMITTED,
        (_P.DECIDING, "aborted"): _P.ABORTED,
        (_P.ABORTING, "aborted"): _P.ABORTED,
    },
)
"""`abort` and `decide` are what the coordinator asks for; `aborted` and `committed` are in the journal. A
checkpoint that is being decided is not asked to abort: its commit may be durable already."""


@dataclass(slots=True, eq=False)
class CheckpointProgress:
    """The progress of one checkpoint, or its result. `times_ms` says when it entered each of its phases.

    Epoch and checkpoint id are 0, and there is no quorum, until BEGUN is in the journal.
    """

    flags: Flags
    savepoint: str | None
    requests: tuple[str, ...]
    times_ms: dict[CheckpointPhase, int]
    phase: CheckpointPhase = CHECKPOINT.start
    epoch: int = 0
    checkpoint_id: int = 0
    quorum: Quorum | None = None
    reason: FailureReason | None = None
    detail: str = ""

    def step(self, event: str, now_ms: int) -> None:
        """Goes to the next phase. Raises `IllegalStep`, and changes nothing, if the table has no such step."""
        self.phase = CHECKPOINT.next(self.phase, event)
        self.times_ms[self.phase] = now_ms

    @property
    def votes(self) -> Quorum:
        """The quorum of a checkpoint that has begun."""
        assert self.quorum is not None, "it has not begun"
        return self.quorum

    @property
    def since_ms(self) -> int:
        """When it entered its phase."""
        return self.times_ms[self.phase]

    @property
    def acked(self) -> tuple[str, ...]:
        """The members that have cut, by name."""
        return self.quorum.acked if self.quorum else ()

    @property
    def missing(self) -> tuple[str, ...]:
        """The members that have not answered, by name."""
        return self.quorum.missing if self.quorum else ()
