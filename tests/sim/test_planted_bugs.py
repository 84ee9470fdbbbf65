"""Tests of the simulator itself: it must find each planted bug, or it is blind to it."""

from __future__ import annotations

import pytest

from cutwater.sim.world import World
from tests.support.planted import BUGS

SCHEDULES = 3_000
"""A planted bug must be found within this many schedules; most are found within the first hundred."""

FIRST = {
    "rule_8_a_zombies_older_transaction_is_not_refused": 100,
    "a_stage_that_was_idle_at_a_checkpoint_is_idle_after_its_restore": 948,
    "a_candidate_uses_a_stale_term": 1_500,
    "a_command_restarts_a_drained_pipeline": 582,
    "a_stage_is_dropped_without_being_named": 315,
    "a_sent_entry_is_assumed_to_be_in_the_journal": 339,
    "rule_8_a_zombie_trusts_a_table_that_forgot_its_transactions": 330,
    "the_target_of_a_restore_is_not_retained": 365,
}
"""Schedules that find bugs that few others find, tried first to save minutes."""


def test_at_least_twenty_bugs_are_planted_and_every_rule_is_broken_by_one() -> None:
    assert len(BUGS) >= 20
    for rule in range(1, 9):
        assert any(name.startswith(f"rule_{rule}_") for name in BUGS), f"rule {rule} is never left out"


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_the_simulator_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    seeds = (FIRST.get(name, 0), *range(SCHEDULES))
    assert any(World(seed).run().violation for seed in seeds), f"{name} was not found"
