"""Every kind of object of a stopped store is flipped, cut short, emptied, edited and deleted: `cutwater verify` sees
it, or it does no harm; a run and a restore end right or say why not. `make test-damage`; `make test` has a sample."""

from __future__ import annotations

import os
from random import Random

import pytest
from pyspark.sql import SparkSession

from tests.damages import DAMAGES, KINDS, Damage, Patient

PER_KIND = int(os.environ.get("CUTWATER_DAMAGES", "5"))
"""So many objects of each kind are damaged in each way."""

RUNS = int(os.environ.get("CUTWATER_DAMAGED_RUNS", "1"))
"""So many of those that `verify` sees, of each kind and way, are run or restored nevertheless."""


@pytest.fixture(scope="module")
def patient(tmp_path_factory: pytest.TempPathFactory) -> Patient:
    from cutwater.spark.session import make_session

    return Patient(tmp_path_factory.mktemp("damage"), make_session("tests", "local[2]"))


def draw(
    patient: Patient, seed: int, per_kind: int, kinds: dict[str, list[str]] | None = None
) -> list[Damage]:
    rng = Random(seed)
    found = []
    for kind, names in (kinds or patient.objects()).items():
        for how in DAMAGES:
            for name in rng.sample(names, min(per_kind, len(names))):
                found.append(Damage(kind, name, how, rng.randrange(1 << 30)))
    return found


WAYS: tuple[dict[str, str], ...] = ({}, {"restore": "latest"})


def try_to_live(patient: Patient, damage: Damage, seen: bool, number: int) -> str:
    """Runs with the damage and restores with it, or one of both if it is seen; what came of it, in short."""
    said = []
    for options in (WAYS[number % 2],) if seen else WAYS:
        patient.recover()
        patient.suffer(damage)
        refused = patient.run(**options)
        assert refused is None or "Traceback" not in refused, refused
        if refused is None and not (seen and damage.kind == "table file"):
            patient.is_right()
        assert seen or refused is None, f"{damage}: verify sees nothing, and a run is refused: {refused}"
        said.append("right" if refused is None else f"refused: {refused[:150]}")
    return "; ".join(said)


def treat(patient: Patient, damages: list[Damage], runs: int) -> None:
    tried: dict[tuple[str, str, bool], int] = {}
    wrong = []
    for number, damage in enumerate(damages):
        patient.recover()
        if not patient.suffer(damage):
            continue
        well, told = patient.verify()
        key = damage.kind, damage.how, well
        tried[key] = tried.get(key, 0) + 1
        line = f"{'unseen' if well else 'seen'}: {damage}"
        if tried[key] <= runs or (well and damage.kind != "told"):
            try:
                line += f" -> {try_to_live(patient, damage, not well, number)}"
            except Exception as error:
                wrong.append(f"{line}: {type(error).__name__}: {str(error)[:300]}; verify: {told[:300]}")
                line += f" -> WRONG {type(error).__name__}: {str(error)[:200]}"
        print(line, flush=True)
    assert not wrong, "\n".join(wrong)


def test_nothing_is_wrong_with_a_store_that_was_not_damaged(patient: Patient, spark: SparkSession) -> None:
    patient.recover()
    well, told = patient.verify()
    assert well, told
    assert set(KINDS) <= patient.objects().keys(), (
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
def test_hundreds_of_damages_are_seen_or_do_no_harm(patient: Patient, spark: SparkSession) -> None:
    treat(patient, draw(patient, int(os.environ.get("CUTWATER_SEED", "1")), PER_KIND), RUNS)
