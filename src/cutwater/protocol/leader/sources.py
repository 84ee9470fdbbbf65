"""With `once`: whether the sources of all members have given everything that was there."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cutwater.protocol.base.wire import SourcesDone


class Heard(msgspec.Struct, frozen=True):
    generation: int
    at_ms: int


class Sources:
    """What a leader has heard from the others. A member repeats that its sources are done, so that its word counts only
    for `valid_ms`: a successor of it may have more to read, and says so itself when it is done."""

    def __init__(self, valid_ms: int) -> None:
        self._valid_ms = valid_ms
        self._heard: dict[str, Heard] = {}

    def hear(self, message: SourcesDone, now_ms: int) -> None:
        self._heard[message.member] = Heard(message.generation, now_ms)

    def all_done(self, members: Iterable[str], generation: int, now_ms: int) -> bool:
        """Whether all these members have said so, lately, in this generation: a restore has them read again."""
        heard = [self._heard.get(member) for member in members]
        return all(
            h is not None and h.generation == generation and now_ms - h.at_ms <= self._valid_ms for h in heard
        )
