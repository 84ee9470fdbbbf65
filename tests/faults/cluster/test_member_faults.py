"""Faults of members at the worst moments. Each time the tables equal those of a batch job, every epoch has one fate, and
a checkpoint is committed soon after the fault has ended."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutwater.protocol.base.wire import RequestKind
from tests.faults.cluster.team import DEADLINE_S, MEMBERS, SHOP, Team

pytestmark = [pytest.mark.faults, pytest.mark.slow]

SOON_S = 120.0
"""A checkpoint must be committed this soon after a fault has ended. Most of it is for a process that has to restart, on
a machine where three Sparks share two cores."""

SLEEP_S = 8.0
"""Four times the leader timeout of these members."""


@pytest.fixture
def team(tmp_path: Path) -> Iterator[Team]:
    made = Team(tmp_path)
    yield made
    made.end_all()


def other_than(*names: str) -> str:
    return next(m for m in MEMBERS if m not in names)


def test_a_follower_killed_around_its_ack_and_its_publishing(team: Team) -> None:
    team.input.add(2)
    team.member("a")
    team.member("b")
    for place in (
        "before part",
        "after part",
        "before publish@matched",
        "after publish@matched",
        "before mark@matched",
    ):
        team.member("c", kill_at=place)
        team.input.add(1)
        team.await_killed("c")
    team.member("c")
    team.await_commit(2, SOON_S)
    team.drain()


def test_a_leader_killed_around_its_decision(team: Team) -> None:
    """Places with `:2` are reached first as a follower, after the restart, and the second time as the leader."""
    team.input.add(2)
    team.all_up()
    team.await_commit(1)
    team.kill("a")
    for place in (
        "before part:2", "after part:2", "before manifest", "before journal entry@COMMITTED",
        "after journal entry@COMMITTED", "announcement@commit", "before publish@orders:2", "after journal entry@BEGUN",
    ):  # fmt: skip
        team.until("another one leads", lambda: team.leader in ("b", "c"))
        for name in ("b", "c"):
            team.pause(name)
        team.member("a", kill_at=place)
        team.until("a leads", lambda: team.leader == "a")
        for name in ("b", "c"):
            team.resume(name)
        team.input.add(1)
        team.await_killed("a")
    team.member("a")
    team.await_commit(2, SOON_S)
    team.drain()


def test_members_paused_for_longer_than_the_leader_timeout(team: Team) -> None:
    team.input.add(2)
    team.all_up()
    team.await_commit(2)
    for _ in range(2):
        leader = team.leader
        team.pause(leader)
        team.until("another one leads", lambda leader=leader: team.leader != leader)
        team.input.add(1)
        team.resume(leader)
        team.await_commit(2, SOON_S)
        follower = other_than(team.leader)
        team.pause(follower)
        team.input.add(1)
        team.until("an epoch waits for it", lambda: bool(team.state.open))
        team.resume(follower)
        team.await_commit(2, SOON_S)
    team.drain()


def test_a_woken_follower_does_not_unseat_a_healthy_leader(team: Team) -> None:
    team.input.add(2)
    team.all_up()
    team.await_commit(2)
    term, leader = team.state.term, team.leader
    for follower in (m for m in MEMBERS if m != leader):
        team.pause(follower)
        asleep_until = time.monotonic() + SLEEP_S
        team.input.add(1)
        team.until("its pause is over", lambda until=asleep_until: time.monotonic() > until)
        team.resume(follower)
        team.await_commit(2, SOON_S)
        assert (team.state.term, team.leader) == (term, leader)
    team.drain()


def test_a_member_that_is_cut_off(team: Team) -> None:
    team.input.add(2)
    team.all_up()
    team.await_commit(2)
    leader = team.leader
    team.cut_off(leader)
    team.until("another one leads", lambda: team.leader != leader)
    team.input.add(1)
    team.reconnect(leader)
    team.await_commit(2, SOON_S)
    follower = other_than(team.leader)
    team.cut_off(follower)
    team.input.add(1)
    team.until("an epoch waits for it", lambda: bool(team.state.open))
    team.reconnect(follower)
    team.await_commit(2, SOON_S)
    team.drain()


@pytest.mark.parametrize("how", ["down", "slow"])
def test_a_store_that_fails_or_is_slow(team: Team, how: str) -> None:
    team.input.add(2)
    team.all_up()
    team.await_commit(2)
    leader = team.leader
    for name in (leader, other_than(leader)):
        team.store_fails(name, how)
        team.input.add(1)
        term = team.state.term
        team.until("it has lasted", _passed(20.0))
        team.store_is_back(name, how)
        assert team.state.term >= term
        team.await_commit(2, SOON_S)
    for name in MEMBERS:
        team.store_fails(name, how)
    team.until("it has lasted", _passed(20.0))
    for name in MEMBERS:
        team.store_is_back(name, how)
    team.await_commit(2, SOON_S)
    team.drain()


def _passed(seconds: float):  # type: ignore[no-untyped-def]
    from time import monotonic

    end = monotonic() + seconds
    return lambda: monotonic() >= end


def test_two_and_all_members_killed_at_once(team: Team) -> None:
    team.input.add(2)
    team.all_up()
    team.await_commit(2)
    team.kill("a", "c")
    team.input.add(1)
    team.member("a")
    team.member("c")
    team.await_commit(2, SOON_S)
    team.kill(*MEMBERS)
    team.input.add(1)
    team.all_up()
    team.await_commit(2, SOON_S)
    team.drain()


def test_members_with_separate_files_restore_together_while_one_is_down(team: Team) -> None:
    team.input.add(3)
    team.all_up(alone=True, wait_for=MEMBERS)  # neither a nor b reads from another member
    team.await_commit(2)
    team.ask(RequestKind.SAVEPOINT, name="good")
    team.input.amount = 10_007
    team.input.add(2)
    team.await_commit(3)
    team.input.remove(2)
    team.input.amount = 97
    team.kill("b")
    team.ask(RequestKind.RESTORE, name="good")
    team.input.add(2)
    team.member("b", alone=True)
    team.await_commit(2, SOON_S)
    team.drain()


def test_a_member_that_returns_after_five_hundred_epochs(team: Team) -> None:
    team.input.add(2)
    team.all_up()
    team.await_commit(2)
    team.kill(*MEMBERS)
    for name in ("a", "b"):
        team.member(name, every="50ms", timeout="100ms", retained=2)
    missed = team.state.next_epoch + 500
    team.until("500 epochs have failed", lambda: team.state.next_epoch >= missed, 2 * DEADLINE_S)
    team.input.add(1)
    team.kill("a", "b")
    team.all_up()
    team.await_commit(2, SOON_S)
    team.drain()


def test_clocks_that_differ_by_hours_and_a_member_started_twice(team: Team) -> None:
    team.input.add(2)
    for name, wrong_s in (("a", 0.0), ("b", 86_400.0), ("c", -7_200.0)):
        team.member(name, clock_s=wrong_s)
    team.await_commit(2)
    working = team.up["b"]
    twin = team.member("b", clock_s=-600.0, takeover=False)
    code = twin.end()
    assert code == 1, twin.said()
    assert "member 'b', is already running on this store" in twin.said()
    team.up["b"] = working
    leader = team.leader
    team.pause(leader)
    team.until("another one leads", lambda: team.leader != leader)
    team.resume(leader)
    team.input.add(1)
    team.await_commit(2, SOON_S)
    team.drain()


def test_once_over_three_members(team: Team) -> None:
    team.input.add(3)
    for name in MEMBERS:
        team.member(name, once=True)
    for name in MEMBERS:
        assert team.up[name].end() == 0, team.up[name].said()
    team.check(**SHOP)
