"""When a member is alive, and when it is ready."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from cutwater.telemetry.health import FLOOR_S, readiness_problems, turn_problem
from tests.telemetry.test_status_values import STATUS, stage

NOW = 1_000.0


def problems(age_s: float = 0.5, intervals: float = 10, **what: Any) -> list[str]:
    return readiness_problems(msgspec.structs.replace(STATUS, **what), age_s, NOW, intervals)


def test_a_member_that_runs_and_commits_is_ready() -> None:
    assert problems() == []
    assert problems(stages=(stage(), stage("t", "idle"), stage("u", "resting"))) == []


def test_a_chained_stage_is_as_ready_as_the_stage_that_it_runs_in() -> None:
    chained = stage("raw", "chained", runs_in="s")
    assert problems(stages=(chained, stage())) == []
    assert problems(stages=(chained, stage("s", "failed"))) == ["1 of 2 stages: failed"]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ({"state": "starting"}, "the member is starting"),
        ({"state": "failed"}, "has ended: failed"),
        ({"stages": (stage(), stage("t", "failed", error="boom"))}, "1 of 2 stages: failed"),
        ({"stages": (stage("t", "opening"),)}, "1 of 1 stages: opening"),
        ({"epoch_at": NOW - FLOOR_S - 1}, "no checkpoint was committed for"),
        ({"epoch_at": None}, "no checkpoint was committed for 15 min"),
        ({"age_s": 26.0}, "not reported its status for 26"),
    ],
)
def test_the_answer_says_why_a_member_is_not_ready(what: dict[str, Any], said: str) -> None:
    (problem,) = problems(**what)
    assert said in problem
    assert "boom" not in problem  # what errors say is for those who have the token
    assert "'t'" not in problem  # and so are names


def test_a_member_without_a_status_is_starting() -> None:
    assert readiness_problems(None, 0.0, NOW) == ["the member is starting"]


def test_how_old_a_commit_may_be_follows_from_the_interval() -> None:
    assert problems(epoch_at=NOW - 99, every_s=10.0) == []
    assert len(problems(epoch_at=NOW - 101, every_s=10.0)) == 1
    assert problems(epoch_at=NOW - 101, every_s=10.0, intervals=20) == []
    assert problems(epoch_at=NOW - FLOOR_S + 1, every_s=0.1) == []


def test_a_start_is_given_the_same_time_for_its_first_commit() -> None:
    assert problems(epoch_at=None, started_at=NOW - FLOOR_S + 1) == []


def test_a_turn_that_takes_too_long_is_a_problem() -> None:
    assert asyncio.run(turn_problem(lambda task: task())) is None
    stuck = asyncio.run(turn_problem(lambda task: None, 0.01))
    assert stuck is not None
    assert "restart the process" in stuck
