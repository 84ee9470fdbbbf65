"""Members that are killed, paused and cut off: a sample of `make test-faults`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cluster.team import Team

pytestmark = pytest.mark.slow


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    made = Team(tmp_path)
    yield made
    made.end_all()


def test_one_pipeline_in_three_processes(team: Team) -> None:
    team.input.add(3)
    team.all_up()
    team.await_commit(2)
    team.kill("c")
    team.input.add(2)
    team.member("c")
    team.await_commit(2)
    leader = team.leader
    team.pause(leader)
    team.until("another one leads", lambda: team.leader != leader)
    team.input.add(2)
    team.resume(leader)
    team.await_commit(2)
    team.drain()
