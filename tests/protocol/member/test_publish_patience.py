"""How long a sink may fail: forever while the pipeline runs, but not when only publishing is left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import PublishingFailed
from cutwater.protocol.member.publish import Patience, perform
from tests.support.builders import Desk
from tests.support.publish_helpers import permit

Answers = Callable[[Any], bool]


def slept(desk: Desk, patience: Patience, fails: Answers, tries: int = 30) -> list[int]:
    """Publishes an epoch to a table that fails the operations that `fails` chooses, at most so often. Returns how long it
    has waited each time."""
    waits: list[int] = []
    procedure = perform("out", permit(desk, 1, "f"), patience)
    answer: Any = None
    while True:
        try:
            effect = procedure.send(answer)
        except StopIteration:
            return waits
        if isinstance(effect, fx.Sleep):
            waits.append(effect.ms)
            answer = None
        elif len(waits) < tries and fails(effect):
            answer = fx.FAILED
        else:
            answer = desk.perform(effect)


def publishing(effect: Any) -> bool:
    return isinstance(effect, fx.PublishTable)


def reading(effect: Any) -> bool:
    return isinstance(effect, fx.ReadTable)


@pytest.mark.parametrize("fails", [publishing, reading])
def test_a_sink_that_fails_while_the_pipeline_runs_is_retried_forever(fails: Answers) -> None:
    waits = slept(Desk("out"), Patience(lambda: False, 2, 1_000), fails)
    assert len(waits) == 30
    assert max(waits) == fx.RETRY_MAX_MS


@pytest.mark.parametrize("fails", [publishing, reading])
def test_a_sink_that_keeps_failing_ends_a_run_when_only_publishing_is_left(fails: Answers) -> None:
    desk = Desk("out")
    with pytest.raises(
        PublishingFailed, match="sink 'out' could not publish the last epochs: 3 tries"
    ) as raised:
        slept(desk, Patience(lambda: True, 2, 1_000), fails)
    assert raised.value.sink == "out"
    assert desk.shown("out") == ()


def test_the_tries_of_a_run_that_is_over_come_after_longer_and_longer_pauses() -> None:
    assert slept(Desk("out"), Patience(lambda: True, 5, 1_000), publishing, 5) == [
        1_000,
        2_000,
        4_000,
        8_000,
        16_000,
    ]


def test_failures_before_the_drain_do_not_count() -> None:
    waits: list[int] = []

    def is_over() -> bool:
        waits.append(1)
        return len(waits) > 10

    assert slept(Desk("out"), Patience(is_over, 3, 1_000), publishing, 13)[8:] == [
        640,
        640,
        1_000,
        2_000,
        4_000,
    ]


def test_without_a_limit_it_is_retried_forever() -> None:
    assert len(slept(Desk("out"), Patience(lambda: True, None, 1_000), publishing)) == 30
