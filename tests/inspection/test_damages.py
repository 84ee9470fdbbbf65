"""Every kind of object of a stopped store is flipped, cut short, emptied, edited, deleted and mixed up with others of
its kind, before and after a start without a checkpoint: `cutwater verify` sees it, or it does no harm; a run and a
restore, of the newest checkpoint or the oldest, end right or say why not. `make test-damage`; a sample: `make test`."""

from __future__ import annotations

import os
from random import Random

import pytest
from pyspark.sql import SparkSession

from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.support.damages import DAMAGES, KINDS, MIX_UPS, Damage, Patient

PER_KIND = int(os.environ.get("CUTWATER_DAMAGES", "5"))
"""So many objects of each kind are damaged in each way."""

RUNS = int(os.environ.get("CUTWATER_DAMAGED_RUNS", "1"))
"""So many of those that `verify` sees, of each kind and way, are run or restored nevertheless."""


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    from cutwater.spark.session import make_session

    return Patient(tmp_path_factory.mktemp("damage"), make_session("tests", "local[2]"))


def draw(patient: Patient, seed: int, per_kind: int, again: bool = False) -> list[Damage]:
    rng = Random(seed)
    found = []
    for kind, names in patient.objects(again).items():
        for how in DAMAGES + MIX_UPS:
            if kind == "table file" and how in MIX_UPS:
                continue  # a table is not the store's: what is in its files is asked of the table
            for name in rng.sample(names, min(per_kind, len(names))):
                found.append(Damage(kind, name, how, rng.randrange(1 << 30), again))
    return found


def ways(patient: Patient) -> list[dict[str, str]]:
    """To run, and to restore the newest checkpoint and the oldest."""
    oldest = min(read_journal(open_store(str(patient.kept / "state"))).state.committed)
    return [{}, {"restore": "latest"}, {"restore": str(oldest)}]


def try_to_live(patient: Patient, damage: Damage, seen: bool, options: dict[str, str]) -> str:
    """Runs or restores with the damage; what came of it, in short."""
    patient.recover(damage.again)
    patient.suffer(damage)
    refused = patient.run(**options)
    assert refused is None or "Traceback" not in refused, refused
    if refused is None and not (seen and damage.kind == "table file"):
        patient.is_right()
    assert seen or refused is None, f"{damage}: verify sees nothing, and a run is refused: {refused}"
    how = f"restore {options['restore']}" if options else "run"
    return f"{how}: right" if refused is None else f"{how}: refused: {refused[:150]}"


def treat(patient: Patient, damages: list[Damage], runs: int) -> None:
    tried: dict[tuple[str, str, bool], int] = {}
    wrong = []
    lives = ways(patient)
    for number, damage in enumerate(damages):
        patient.recover(damage.again)
        if not patient.suffer(damage):
            continue
        well, told = patient.verify()
        key = f"{damage.kind}{damage.again}", damage.how, well
        tried[key] = tried.get(key, 0) + 1
        line = f"{'unseen' if well else 'seen'}: {damage}"
        if tried[key] <= runs or (well and damage.kind != "told"):
            try:
                line += f" -> {try_to_live(patient, damage, not well, lives[number % len(lives)])}"
            except Exception as error:
                wrong.append(f"{line}: {type(error).__name__}: {str(error)[:300]}; verify: {told[:300]}")
                line += f" -> WRONG {type(error).__name__}: {str(error)[:200]}"
        print(line, flush=True)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("again", [False, True], ids=["stopped", "started again"])
def test_nothing_is_wrong_with_a_store_that_was_not_damaged(
    patient: Patient, spark: SparkSession, again: bool
) -> None:
    patient.recover(again)
    well, told = patient.verify()
    assert well, told
    assert set(KINDS) <= patient.objects(again).keys(), (
        "some kind of object is not there, so nothing is proved of it"
    )
    assert patient.run() is None
    patient.is_right()


def test_one_damage_of_every_kind_is_seen_or_does_no_harm(patient: Patient, spark: SparkSession) -> None:
    rng = Random(11)
    drawn = draw(patient, 11, 1)
    sample = {damage.kind: damage for damage in rng.sample(drawn, len(drawn))}
    treat(patient, list(sample.values()), 1)


@pytest.mark.damage
@pytest.mark.timeout(3 * 3600)  # it makes hundreds of runs; each of them has a deadline of its own
@pytest.mark.parametrize("again", [False, True], ids=["stopped", "started again"])
def test_hundreds_of_damages_are_seen_or_do_no_harm(
    patient: Patient, spark: SparkSession, again: bool
) -> None:
    seed = int(os.environ.get("CUTWATER_SEED", "1"))
    treat(patient, draw(patient, seed, 1 if again else PER_KIND, again), RUNS)
