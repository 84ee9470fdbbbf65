"""Simulated clusters are followed while everything goes wrong: each epoch is given once, in order, or a gap is told."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cutwater.protocol.base.effects import List, Procedure, ReadMany, insist
from cutwater.protocol.base.paths import mark_name
from cutwater.protocol.base.records import decode_mark
from cutwater.protocol.follower.followed import Followed, Position
from cutwater.protocol.follower.follower import Follower
from cutwater.protocol.follower.steps import Step
from tests.support.follow_world import play

pytestmark = pytest.mark.slow
KILLS = 200


def test_every_epoch_is_given_once_and_in_order_over_two_hundred_kills() -> None:
    """Of the follower; members and leaders are killed, paused and cut off as well, and users restore."""
    kills = given = rewinds = gaps = faults = seed = 0
    while kills < KILLS:
        world, problems = play(seed)
        assert problems == [], f"seed {seed}"
        taken = world.consumer.taken
        kills, faults, seed = kills + world.kills, faults + world.fault_count, seed + 1
        given += len(taken)
        rewinds += sum(one.rewound for one in taken)
        gaps += sum(one.after_gap for one in taken)
    assert given > 2 * kills
    assert rewinds > 20
    assert gaps > 20
    assert faults > 10 * kills


# --- the schedules find what is wrong ------------------------------------------------------------------------


class DoesNotWaitForAllTables(Follower):
    """Gives an epoch when the first sink has published it."""

    def _is_behind(self, step: Step) -> bool:
        sinks = self._sinks_of(step)
        return bool(sinks) and all(self._settled.get(sink, 0) < step.index for sink in sinks)


class ForgetsItsPosition(Follower):
    """Keeps nothing of what was dealt with."""

    def _keep(self, position: Position) -> Procedure[str | None]:
        return None
        yield


class KeepsThePositionTooEarly(Follower):
    """Keeps the position before the consumer has the epoch."""

    def next(self) -> Procedure[Followed]:
        found = yield from super().next()
        yield from self.acknowledge()
        yield from insist(List("somewhere/"))  # any time in which it may be killed
        return found


class TellsNoGap(Follower):
    """Does not say that epochs are missing."""

    def next(self) -> Procedure[Followed]:
        self.journal._jumps.clear()
        return (yield from super().next())


class MixesUpMarks(Follower):
    """Takes the newest mark of a sink for that of the epoch."""

    def _versions(self, step: Step) -> Procedure[dict[str, int | None] | None]:
        names = [mark_name(self._settled[sink], sink) for sink in self._sinks_of(step)]
        found = yield from insist(ReadMany(tuple(names)))
        versions = [
            decode_mark(n, d).version if d is not None else None for n, d in zip(names, found, strict=True)
        ]
        return dict(zip(self._sinks_of(step), versions, strict=True))


PLANTED: list[tuple[Callable[..., Follower], int]] = [
    (DoesNotWaitForAllTables, 4),
    (ForgetsItsPosition, 3),
    (KeepsThePositionTooEarly, 12),
    (TellsNoGap, 1),
    (MixesUpMarks, 1),
]
"""Each with a schedule that finds it; if the protocol changes, another one may."""


@pytest.mark.parametrize(("planted", "seed"), PLANTED, ids=[kind.__name__ for kind, _ in PLANTED])
def test_a_planted_bug_is_found(planted: Callable[..., Follower], seed: int) -> None:
    assert any(play(tried, planted)[1] for tried in range(seed, seed + 20))
