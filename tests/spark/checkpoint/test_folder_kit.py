"""The model of Spark folders matches the real Spark: the same script, step by step, gives the same files, and the product
treats them the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cutwater.store.opening import open_store
from tests.support.folder_kit import Life, modelled, real
from tests.support.folder_queries import Outputs, check, make_session, use_provider

pytestmark = pytest.mark.slow

Step = tuple[Any, ...]

CLEAN_RESTARTS: list[Step] = [
    ("setting_is", 2), ("run", 5), ("restart",), ("run", 6), ("restart",), ("run", 1), ("keep",), ("restart",),
    ("collect",), ("restore", 0), ("run", 2),
]  # fmt: skip
"""A log that was copied with only its last `.compact` file failed here, at the second restart."""

OLD_STORE: list[Step] = [
    ("setting_is", 6), ("run", 9), ("keep", True), ("setting_is", 2), ("restart",), ("run", 2), ("keep",), ("collect",),
    ("restart",), ("restore", 0), ("run", 2),
]  # fmt: skip
"""One `.compact` file, from which Spark derives another interval than that of the rest."""


def long_script(seed: int, batches: int) -> list[Step]:
    """Restarts, restores and cleanups at any time; short and long intervals."""
    rng, count = Random(seed), 0
    script: list[Step] = [("setting_is", rng.choice([2, 3, 10]))]
    while count < batches:
        some = rng.choice([1, 2, 5, 12, 30])
        count += some
        script.append(("run", some))
        for _ in range(rng.randint(1, 3)):
            between: list[Step] = [
                ("restart",), ("restart",), ("keep",), ("keep", True), ("collect",), ("restore", rng.randint(0, 9)),
                ("setting_is", rng.choice([1, 2, 3, 7, 10, 40])), ("forget_the_compact_file_before_the_last",),
            ]  # fmt: skip
            script.append(rng.choice(between))
    return [*script, ("restart",), ("run", 1)]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = make_session()
    session.conf.set("spark.sql.streaming.stateStore.minDeltasForSnapshot", "1000000")
    yield session
    session.stop()  # other modules need other settings


@pytest.mark.parametrize(
    ("script", "query", "provider"),
    [
        pytest.param(CLEAN_RESTARTS, "plain", "hdfs", id="clean restarts"),
        pytest.param(OLD_STORE, "dedup", "rocksdb", id="an old store"),
        *(
            pytest.param(
                long_script(seed, 250 if query == "plain" else 60), query, provider,
                id=f"{seed}-{query}-{provider}", marks=pytest.mark.faults,
            )
            for seed, query, provider in (
                (1, "plain", "hdfs"), (2, "plain", "hdfs"), (3, "dedup", "rocksdb"), (4, "dedup", "hdfs"),
            )
        ),
    ],
)  # fmt: skip
def test_the_model_and_spark_write_the_same_folders(
    spark: SparkSession, tmp_path: Path, script: list[Step], query: str, provider: str
) -> None:
    use_provider(spark, provider)
    outputs: Outputs = {}
    true = Life(
        open_store(str(tmp_path / "real"), create=True), query, real(spark, query, tmp_path / "in", outputs)
    )
    model = Life(
        open_store(str(tmp_path / "modelled"), create=True),
        query,
        modelled(query, stateful=query != "plain", rocksdb=provider == "rocksdb"),
    )
    for number, (name, *arguments) in enumerate(script):
        for life in (true, model):
            getattr(life, name)(*arguments)
        assert true.there() == model.there(), (number, name, arguments)
        assert true.named() == model.named(), (number, name, arguments)
    true.check()
    check(spark, query, tmp_path / "in", outputs)
