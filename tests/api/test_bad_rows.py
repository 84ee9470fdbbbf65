"""Pipelines with rules for their rows: where bad rows go, and how they are counted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw
from cutwater.protocol.base.errors import UserError
from cutwater.runtime.timings import RuleRows, read_times
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.store.status import read_status
from tests.support.spark_helpers import NUMBERS, deliver, numbers, rows_of


def deliver_numbers(folder: Path, part: int) -> None:
    """Ten numbers; the amount of 0 is 0."""
    deliver(folder / "in", f"{part}", numbers(range(part * 10, part * 10 + 10)))
    aged = 1_700_000_000 + part  # Spark reads them in the order of their ages
    os.utime(folder / "in" / f"{part}.parquet", (aged, aged))


def shop(folder: Path, on_violation: Any, chain: bool = False) -> cw.Pipeline:
    """Numbers with a rule that those with an odd id violate, and the sums of those that are left."""
    pipeline = cw.Pipeline("shop")

    @pipeline.stage(chain=chain)
    def read(spark: SparkSession) -> DataFrame:
        files = spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1)
        return files.parquet(str(folder / "in"))

    @pipeline.stage(
        sinks=[cw.delta(str(folder / "clean"), name="clean")],
        expect={"positive": "amount > 0", "even": "id % 2 = 0"},
        on_violation=on_violation,
    )
    def clean(read: DataFrame) -> DataFrame:
        return read

    @pipeline.stage(
        sinks=[cw.delta(str(folder / "sums"), name="sums")],
        expect={"early": "total < 60"},
        on_violation="drop",
    )
    def sums(clean: DataFrame) -> DataFrame:
        late = clean.withWatermark("ts", "0 seconds")
        return late.groupBy(F.window("ts", "1 second")).agg(F.sum("id").alias("total"))

    return pipeline


def run(spark: SparkSession, folder: Path, on_violation: Any, chain: bool = False, **options: Any) -> Store:
    shop(folder, on_violation, chain).run(
        str(folder / "state"), every="1h", once=True, spark=spark, **options
    )
    return open_store(str(folder / "state"))


def counted(store: Store) -> dict[str, dict[str, RuleRows]]:
    """What the status shows of the newest epoch; the notes on the epoch must say the same."""
    (status,) = read_status(store)
    found = {s.name: {r.name: RuleRows(r.rows, r.total) for r in s.rules} for s in status.stages if s.rules}
    times = read_times(store, status.epoch or 0)
    assert times is not None
    assert times.violations == found
    return found


def test_bad_rows_are_in_quarantine_from_the_same_epoch_on_and_all_readers_see_good_rows_only(
    spark: SparkSession, tmp_path: Path
) -> None:
    bad = cw.quarantine(str(tmp_path / "bad"))
    deliver_numbers(tmp_path, 0)
    store = run(spark, tmp_path, bad)
    first = read_journal(store).state.head
    assert first is not None
    assert [n for (n,) in rows_of(tmp_path / "clean", "id")] == [2, 4, 6, 8]
    assert rows_of(tmp_path / "bad", "id", "violated")[:2] == [(0, ["positive"]), (1, ["even"])]
    assert counted(store)["clean"] == {"positive": RuleRows(1, 1), "even": RuleRows(5, 5)}

    deliver_numbers(tmp_path, 1)
    deliver_numbers(tmp_path, 2)
    run(spark, tmp_path, bad)
    totals = counted(store)
    assert totals["clean"] == {"positive": RuleRows(0, 1), "even": RuleRows(10, 15)}
    assert totals["sums"] == {"early": RuleRows(1, 1)}, "10 + 12 + ... + 18 = 70; the last window is open"
    assert rows_of(tmp_path / "sums", "total") == [(20,)]
    marks = {(m["epoch"], m["sink"]) for m in _marks(tmp_path)}
    assert {e for e, sink in marks if sink == "bad"} == {e for e, sink in marks if sink == "clean"}

    run(spark, tmp_path, bad, restore=str(first))
    assert counted(store) == totals, "the rows of the abandoned epoch do not count"
    assert len(rows_of(tmp_path / "bad", "id")) == 16
    assert [n for (n,) in rows_of(tmp_path / "clean", "id")] == list(range(2, 30, 2))


def _marks(folder: Path) -> list[dict[str, Any]]:
    import json

    return [json.loads(path.read_bytes()) for path in (folder / "state").glob("published/**/*.json")]


def test_a_run_whose_rows_must_be_good_ends_with_what_is_wrong_and_continues_with_a_corrected_rule(
    spark: SparkSession, tmp_path: Path
) -> None:
    deliver_numbers(tmp_path, 0)
    with pytest.raises(
        UserError, match=r"^stage 'clean' has 6 bad rows among 10 of a batch: 1 row violates"
    ) as raised:
        run(spark, tmp_path, "fail", chain=True)
    assert "5 rows violate 'even' (id % 2 = 0), for example id=1, " in str(raised.value)
    assert not (tmp_path / "clean" / "_delta_log").exists()
    incarnations = list((tmp_path / "state/stages/clean/1/spark").iterdir())
    assert len(incarnations) == 1, "it was not tried again"
    run(spark, tmp_path, "drop", chain=True)
    assert [n for (n,) in rows_of(tmp_path / "clean", "id")] == [2, 4, 6, 8]
