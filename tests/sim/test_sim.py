"""The simulator: no schedule violates an invariant, and the same seed gives the same run."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from cutwater.sim import __main__ as command
from cutwater.sim.world import EPOCHS, World
from tests.support.planted import BUGS


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 20, 10))
def test_a_few_schedules_satisfy_every_invariant(start: int) -> None:
    check(range(start, start + 10))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(100_000, 100_400, 50))
def test_hundreds_of_schedules_satisfy_every_invariant(start: int) -> None:
    check(range(start, start + 50))


def check(seeds: range) -> None:
    for seed in seeds:
        result = World(seed).run()
        assert result.violation is None, f"seed {seed}: {result.violation}"
        assert result.epochs >= EPOCHS, f"seed {seed} committed only {result.epochs} epochs"


@pytest.mark.parametrize("members", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 8))])
def test_any_number_of_members_works(members: int) -> None:
    for seed in range(5):
        result = World(seed, members).run()
        assert result.violation is None, f"seed {seed}: {result.violation}"


def trace(seed: int, hash_seed: int) -> str:
    """The whole trace of a schedule, from a separate process with a different iteration order of sets."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed)}
    shown = subprocess.run(
        [sys.executable, "-m", "cutwater.sim", "--trace", str(seed)],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return shown.stdout


@pytest.mark.slow
@pytest.mark.parametrize("seed", [7, 11])
def test_the_same_seed_gives_the_same_run_in_every_process(seed: int) -> None:
    first, second = trace(seed, 1), trace(seed, 2)
    assert first == second
    assert len(first.splitlines()) > 200


@pytest.mark.slow
def test_different_seeds_give_different_runs() -> None:
    assert trace(7, 1) != trace(8, 1)


def test_a_trace_shows_the_whole_cluster_on_every_line() -> None:
    lines = trace(7, 1).splitlines()
    assert all(re.match(r" *\d+ .* \| E\d+ \| .*m\d#\d+", line) for line in lines[:50])
    assert re.fullmatch(r"seed 7: no violation, \d+ epochs, \d+ faults", lines[-1])


def test_the_command_prints_its_counts_last_and_exits_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.run(seeds=3, start=50, members=3, processes=1) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"3 schedules, 0 violations, \d+ epochs committed, \d+ faults injected", last)


def test_the_command_names_the_seed_of_a_violation_and_exits_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    BUGS["rule_6_a_reader_passes_an_open_barrier"](monkeypatch)
    assert command.run(seeds=2, start=0, members=None, processes=1) == 1
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("seed 0: ")
    assert "--trace 0" in out[-2]
    assert out[-1].startswith("2 schedules, 2 violations, ")
