"""With `once`: whether the sources of all members are exhausted."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from cutwater.protocol.base.wire import SourcesDone


class Heard(msgspec.Struct, frozen=True):
    generation: int
    at_ms: int


class Sources:
    """What the other members have reported. A member repeats that its sources are exhausted, and each message counts only
    for `valid_ms`: its successor may have more to read, and reports by itself when it is done."""

    def __init__(self, valid_ms: int) -> None:
        self._valid_ms = valid_ms
        self._heard: dict[str, Heard] = {}

    def hear(self, message: SourcesDone, now_ms: int) -> None:
        self._heard[message.member] = Heard(message.generation, now_ms)

    def all_done(self, members: Iterable[str], generation: int, now_ms: int) -> bool:
        """Whether all these members have reported it recently in this generation: after a restore they read again."""
        heard = [self._heard.get(member) for member in members]
        return all(
            h is not None and h.generation == generation and now_ms - h.at_ms <= self._valid_ms for h in heard
        )
