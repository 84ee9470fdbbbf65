"""What a stage's log means: its state, derived by applying its entries in order.

A log belongs to one stage and one generation. The newest OPEN says which incarnation may write; what another
incarnation writes after it is void. A channel is a view of this log: its batches, in order, and the barriers between
them.
"""

from __future__ import annotations

from collections.abc import Container
from typing import assert_never

import msgspec

from cutwater.protocol.base.chain import Sealed
from cutwater.protocol.base.log import LogView
from cutwater.protocol.base.paths import stage_log_prefix
from cutwater.protocol.base.records import (
    STAGE,
    BarrierAt,
    Batch,
    Open,
    Position,
    StageBody,
    StageSnapshot,
    StageState,
    position_of,
)


def is_void(state: StageState, body: StageBody, index: int) -> bool:
    """Whether an entry at `index` has no effect, given the state before it."""
    if isinstance(body, Batch):
        return body.incarnation != state.incarnation or body.batch != state.last + 1
    if isinstance(body, Open):
        return body.incarnation != index
    if body.incarnation != state.incarnation:
        return True
    if isinstance(body, BarrierAt):
        return body.epoch in state.barriers or body.batch != state.last
    if isinstance(body, StageSnapshot):
        return False
    assert_never(body)


def apply(state: StageState, body: StageBody, index: int) -> None:
    """Applies the entry at `index` to the state, unless it is void."""
    if is_void(state, body, index):
        return
    match body:
        case Batch():
            state.batches[body.batch] = body
            state.last = body.batch
            state.commit = body.commit
            _stand_at(state, body)
        case BarrierAt():
            state.barriers[body.epoch] = body
        case Open():
            if state.incarnation == 0:
                state.last = body.batch
                _stand_at(state, body)
            state.incarnation = body.incarnation
        case StageSnapshot():
            pass
        case _:
            assert_never(body)


def _stand_at(state: StageState, position: Position) -> None:
    state.consumed, state.offsets, state.watermark = position.consumed, position.offsets, position.watermark


def trimmed(state: StageState, floor: int, epochs: Container[int]) -> StageState:
    """What a SNAPSHOT holds: the state without the batches up to `floor` (the last batch stays), and with the barriers
    of `epochs` only, which are not over."""
    return StageState(
        incarnation=state.incarnation,
        last=state.last,
        **position_of(state),
        commit=state.commit,
        batches={b: v for b, v in state.batches.items() if b > floor or b == state.last},
        barriers={e: v for e, v in state.barriers.items() if e in epochs},
    )


class StageLog:
    """The log of one stage in one generation, as one process knows it."""

    def __init__(self, stage: str, generation: int) -> None:
        self.stage = stage
        self.generation = generation
        self.state = StageState()
        self.view: LogView[StageBody] = LogView(
            stage_log_prefix(stage, generation), STAGE, StageSnapshot, self._on_entry
        )

    def _on_entry(self, sealed: Sealed[StageBody], jumped: bool) -> None:
        entry = sealed.entry
        body = entry.body
        if type(body) is StageSnapshot and (jumped or not is_void(self.state, body, entry.index)):
            self.state = msgspec.json.decode(msgspec.json.encode(body.state), type=StageState)
        else:
            apply(self.state, body, entry.index)
