"""Tests of the simulator itself: it must find each planted bug, or it is blind to it."""

from __future__ import annotations

import pytest

from cutwater.sim.world import World
from tests.support.planted import BUGS

SCHEDULES = 3_000
"""A planted bug must be found within this many schedules; most are found within the first hundred."""

FIRST = {
    "a_catalog_that_fails_counts_as_a_wrong_configuration": 131,
    "a_request_that_nobody_waits_for_is_carried_out": 25,
    "a_stage_is_dropped_without_being_named": 997,
    "a_stage_that_was_idle_at_a_checkpoint_is_idle_after_its_restore": 2012,
    "a_command_restarts_a_drained_pipeline": 590,
    "a_request_is_carried_out_as_often_as_it_is_received": 316,
    "a_restore_does_not_answer_the_requests_that_it_ends": 170,
    "a_restore_does_not_revive_a_given_up_stage": 104,
    "a_stage_counts_as_quiet_while_a_batch_is_running": 110,
    "rule_8_a_zombies_older_transaction_is_not_refused": 255,
    "the_target_of_a_restore_is_not_retained": 61,
}
"""Schedules that find bugs that few others find, tried first to save minutes."""

RARE = frozenset({
    "a_candidate_uses_a_stale_term",
    "a_command_restarts_a_drained_pipeline",
    "a_request_is_carried_out_as_often_as_it_is_received",
    "a_restore_does_not_answer_the_requests_that_it_ends",
    "a_restore_does_not_revive_a_given_up_stage",
    "a_stage_counts_as_quiet_while_a_batch_is_running",
    "a_stage_is_dropped_without_being_named",
    "a_stage_that_was_idle_at_a_checkpoint_is_idle_after_its_restore",
    "once_ends_before_the_sources_of_other_members_are_done",
    "rule_8_a_zombie_trusts_a_table_that_forgot_its_transactions",
    "rule_8_a_zombies_older_transaction_is_not_refused",
    "the_target_of_a_restore_is_not_retained",
})  # fmt: skip
"""Bugs that take hundreds of schedules to find, and minutes: `make test-planted` looks for them."""


def test_at_least_twenty_bugs_are_planted_and_every_rule_is_broken_by_one() -> None:
    assert len(BUGS) >= 20
    for rule in range(1, 9):
        assert any(name.startswith(f"rule_{rule}_") for name in BUGS), f"rule {rule} is never left out"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.rare) if name in RARE else name for name in BUGS]
)
def test_the_simulator_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    seeds = (FIRST.get(name, 0), *range(SCHEDULES))
    assert any(World(seed).run().violation for seed in seeds), f"{name} was not found"
