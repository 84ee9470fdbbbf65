"""The configuration of a coordinator and the actions that it asks of the leader.

The leader's duties towards these actions are in `coordinator.py`.
"""

from __future__ import annotations

import msgspec

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.wire import Ack


class CoordinatorConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How checkpoints are taken. All fields are options of a run: `RunConfig` has their defaults. Raises `UserError` for
    values that cannot work.

    `interval_ms` is the time between the starts of two periodic checkpoints, `min_pause_ms` the shortest time between
    the end of one and the start of the next. Members have `timeout_ms` to answer. After `alignment_timeout_ms` a
    checkpoint turns unaligned (`None`: never). Up to `max_concurrent` are in flight at a time; they are decided
    in the order in which they began. `retained` committed ones are kept. Every `full_every`-th is
    full (`None`: on request).
    """

    interval_ms: int
    min_pause_ms: int
    timeout_ms: int
    alignment_timeout_ms: int | None
    max_concurrent: int
    retained: int
    full_every: int | None

    def __post_init__(self) -> None:
        floors = dict.fromkeys(("interval_ms", "timeout_ms", "max_concurrent", "retained", "full_every"), 1)
        floors |= dict.fromkeys(("min_pause_ms", "alignment_timeout_ms"), 0)
        for name, floor in floors.items():
            value = getattr(self, name)
            if value is not None and value < floor:
                raise UserError(f"{name} is {value}; give {floor} or more")
        if self.alignment_timeout_ms is not None and self.alignment_timeout_ms >= self.timeout_ms:
            raise UserError(
                f"alignment_timeout_ms is {self.alignment_timeout_ms}, timeout_ms is {self.timeout_ms}: a"
                " checkpoint would be aborted before it turns unaligned; give less than timeout_ms"
            )


class Begin(msgspec.Struct, frozen=True):
    """Begin a checkpoint with these flags, with a name if it is a savepoint, for these requests."""

    flags: Flags
    savepoint: str | None = None
    requests: tuple[str, ...] = ()


class TurnUnaligned(msgspec.Struct, frozen=True):
    """Alignment takes too long: announce PREPARE again, with UNALIGNED."""

    epoch: int
    checkpoint_id: int


class Decide(msgspec.Struct, frozen=True):
    """All have cut, and every earlier checkpoint is decided: check this one's cut and commit it."""

    epoch: int
    checkpoint_id: int
    acks: dict[str, Ack]


class Abort(msgspec.Struct, frozen=True):
    """Abort a checkpoint, and announce it with `flags`: the checkpoint's, and CANCEL for a cancellation, whose request
    is `request`. `late` are the members that missed its deadline."""

    epoch: int
    checkpoint_id: int
    reason: FailureReason
    detail: str
    flags: Flags = Flags.NONE
    request: str = ""
    late: tuple[str, ...] = ()


class Refuse(msgspec.Struct, frozen=True):
    """Refuse a request: no checkpoint begins for it."""

    request_id: str
    reason: FailureReason
    detail: str


Action = Begin | TurnUnaligned | Decide | Abort | Refuse
