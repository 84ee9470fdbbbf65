"""Objects of every kind in a stopped store are flipped, truncated, emptied, edited, deleted and swapped with others of
their kind, before and after a start without a checkpoint. `cutwater verify` detects it, or it does no harm. A run, and
a restore of the newest or the oldest checkpoint, succeed or say why not. `make test-damage`; a sample: `make test`."""

from __future__ import annotations

import os
from random import Random

import pytest
from pyspark.sql import SparkSession

from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.support.damages import DAMAGES, KINDS, MIX_UPS, Damage, StoppedPipeline

PER_KIND = int(os.environ.get("CUTWATER_DAMAGES", "5"))
"""How many objects of each kind are damaged in each way."""

RUNS = int(os.environ.get("CUTWATER_DAMAGED_RUNS", "1"))
"""How many of the damages that `verify` detects, of each kind and way, are run or restored nevertheless."""


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> StoppedPipeline:
    from cutwater.spark.session import set_up_session

    return StoppedPipeline(tmp_path_factory.mktemp("damage"), set_up_session("tests", "local[2]"))


def draw(stopped: StoppedPipeline, seed: int, per_kind: int, again: bool = False) -> list[Damage]:
    rng = Random(seed)
    found = []
    for kind, names in stopped.objects(again).items():
        for how in DAMAGES + MIX_UPS:
            if kind == "table file" and how in MIX_UPS:
                continue  # tables are not part of the store; the table checks its own files
            for name in rng.sample(names, min(per_kind, len(names))):
                found.append(Damage(kind, name, how, rng.randrange(1 << 30), again))
    return found


def run_options(stopped: StoppedPipeline) -> list[dict[str, str]]:
    """The options for a run, and for a restore of the newest and of the oldest checkpoint."""
    oldest = min(read_journal(open_store(str(stopped.kept / "state"))).state.committed)
    return [{}, {"restore": "latest"}, {"restore": str(oldest)}]


def run_damaged(stopped: StoppedPipeline, damage: Damage, seen: bool, options: dict[str, str]) -> str:
    """Runs or restores with the damage, and returns a short summary."""
    stopped.reset(damage.again)
    stopped.apply(damage)
    refused = stopped.run(**options)
    assert refused is None or "Traceback" not in refused, refused
    if refused is None and not (seen and damage.kind == "table file"):
        stopped.check_tables()
    assert seen or refused is None, f"{damage}: verify detects nothing, but a run is refused: {refused}"
    how = f"restore {options['restore']}" if options else "run"
    return f"{how}: right" if refused is None else f"{how}: refused: {refused[:150]}"


def check_damages(stopped: StoppedPipeline, damages: list[Damage], runs: int) -> None:
    tried: dict[tuple[str, str, bool], int] = {}
    wrong = []
    variants = run_options(stopped)
    for number, damage in enumerate(damages):
        stopped.reset(damage.again)
        if not stopped.apply(damage):
            continue
        is_clean, output = stopped.verify()
        key = f"{damage.kind}{damage.again}", damage.how, is_clean
        tried[key] = tried.get(key, 0) + 1
        line = f"{'unseen' if is_clean else 'seen'}: {damage}"
        if tried[key] <= runs or (is_clean and damage.kind != "telemetry"):
            try:
                line += f" -> {run_damaged(stopped, damage, not is_clean, variants[number % len(variants)])}"
            except Exception as error:
                wrong.append(f"{line}: {type(error).__name__}: {str(error)[:300]}; verify: {output[:300]}")
                line += f" -> WRONG {type(error).__name__}: {str(error)[:200]}"
        print(line, flush=True)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("again", [False, True], ids=["stopped", "started again"])
def test_an_undamaged_store_has_no_problems(
    stopped: StoppedPipeline, spark: SparkSession, again: bool
) -> None:
    stopped.reset(again)
    is_clean, output = stopped.verify()
    assert is_clean, output
    assert set(KINDS) <= stopped.objects(again).keys(), (
        "some kind of object is missing, so nothing is proved about it"
    )
    assert stopped.run() is None
    stopped.check_tables()


def test_one_damage_of_every_kind_is_detected_or_harmless(
    stopped: StoppedPipeline, spark: SparkSession
) -> None:
    rng = Random(11)
    drawn = draw(stopped, 11, 1)
    sample = {damage.kind: damage for damage in rng.sample(drawn, len(drawn))}
    check_damages(stopped, list(sample.values()), 1)


@pytest.mark.damage
@pytest.mark.timeout(3 * 3600)  # it makes hundreds of runs, each with its own deadline
@pytest.mark.parametrize("again", [False, True], ids=["stopped", "started again"])
def test_hundreds_of_damages_are_detected_or_harmless(
    stopped: StoppedPipeline, spark: SparkSession, again: bool
) -> None:
    seed = int(os.environ.get("CUTWATER_SEED", "1"))
    check_damages(stopped, draw(stopped, seed, 1 if again else PER_KIND, again), RUNS)
