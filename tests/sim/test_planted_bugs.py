"""The simulator is tested itself: each planted bug must be found, or it is blind to it."""

from __future__ import annotations

import pytest

from cutwater.sim.world import World
from tests.support.planted import BUGS

SCHEDULES = 3_000
"""Within so many schedules a planted bug must be found; most are within the first hundred."""

FIRST = {
    "rule_8_a_zombies_older_transaction_is_not_refused": 100,
    "a_stage_that_was_idle_at_a_checkpoint_is_idle_after_its_restore": 948,
}
"""Schedules that find what few others do, tried first to save minutes."""


def test_at_least_twenty_bugs_are_planted_and_every_rule_is_among_them() -> None:
    assert len(BUGS) >= 20
    for rule in range(1, 9):
        assert any(name.startswith(f"rule_{rule}_") for name in BUGS), f"rule {rule} is never left out"


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_the_simulator_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    seeds = (FIRST.get(name, 0), *range(SCHEDULES))
    assert any(World(seed).run().violation for seed in seeds), f"{name} was not found"
