"""A batch of a stage with rules: each row is in one place, and is counted for each rule that it violates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import DataFrame, SparkSession

from cutwater.protocol.base.paths import Attempt, attempt_prefix, channel_file_of
from cutwater.sinks import Sink, delta, foreach_epoch, parquet
from cutwater.sinks.quarantine import Quarantine, quarantine
from cutwater.spark.micro_batch import BatchWriter, Output
from cutwater.spark.plan import row_schema
from cutwater.spark.rules import MASK, Rules, define_rules
from cutwater.spark.split import JUDGED, RulesViolated
from cutwater.store.contract import Store
from cutwater.store.opening import open_store

DRAWN = "select id, id % 2 kind, rand() drawn, if(id % 5 = 0, null, id) amount from range(100)"
"""Each time that this is computed other values come of it."""


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store"), create=True)


class Batch:
    """A batch of a stage with rules, in a folder."""

    def __init__(
        self, folder: Path, store: Store, rows: DataFrame, *sinks: Sink, has_readers: bool = True
    ) -> None:
        self.folder, self.store, self.rows, self.sinks = folder, store, rows, sinks
        self.has_readers = has_readers

    def write(self, on_violation: Any, **expect: str) -> Output:
        rules = define_rules("s", expect, on_violation)
        assert rules is not None
        sinks = [*self.sinks, *([on_violation] if isinstance(on_violation, Sink) else [])]
        schema = row_schema(self.rows.schema)
        for sink in sinks:
            columns = sink.columns_for(schema) if isinstance(sink, Quarantine) else schema
            sink.bind(self.store, sink.name, columns.json())
        writer = BatchWriter(
            self.store,
            "s",
            1,
            1,
            -1,
            schema,
            (),
            sinks,
            self.has_readers,
            False,
            lambda batch: None,
            rules=rules,
        )
        return writer._write(self.rows, Attempt(1, 0, "a"))

    def read(self, output: Output, sink: str) -> list[dict[str, Any]]:
        return _rows(self.folder / sink, [file.name for file in output.staged.get(sink, ())])

    def channel(self, output: Output) -> list[dict[str, Any]]:
        return _rows(self.folder / "store", output.files)


def _rows(folder: Path, names: Any) -> list[dict[str, Any]]:
    found = [row for name in names for row in pq.ParquetFile(folder / name).read().to_pylist()]
    return sorted(found, key=lambda row: int(row["id"]))


@pytest.mark.parametrize("has_readers", [True, False], ids=["with readers", "only sinks"])
def test_every_row_is_in_one_place_although_its_plan_and_a_rule_are_random(
    tmp_path: Path, store: Store, spark: SparkSession, has_readers: bool
) -> None:
    sinks = [delta(str(tmp_path / "plain")), parquet(str(tmp_path / "parts"), partition_by="kind")]
    batch = Batch(tmp_path, store, spark.sql(DRAWN), *sinks, has_readers=has_readers)
    output = batch.write(quarantine(str(tmp_path / "bad")), low="drawn < 0.5", lucky="rand() < 0.5")
    good, bad = batch.read(output, "plain"), batch.read(output, "bad")
    assert 0 < len(good) < 100
    assert sorted(row["id"] for row in [*good, *bad]) == list(range(100))
    assert {row["id"]: row["drawn"] for row in batch.read(output, "parts")} == {
        r["id"]: r["drawn"] for r in good
    }
    assert all(row["drawn"] < 0.5 for row in good)
    assert all(("low" in row["violated"]) == (row["drawn"] >= 0.5) for row in bad)
    assert output.violations == {n: sum(n in r["violated"] for r in bad) for n in ("low", "lucky")}
    assert output.rows == len(good)
    if has_readers:
        assert batch.channel(output) == good
        assert {name.count("/") for name in output.files} == {5}, (
            "files of a channel are in the attempt's folder"
        )
    assert not [name for name in store.list("stages/") if "_judged" in name]


def test_a_rule_that_is_null_is_violated_and_a_row_is_quarantined_once_with_all_rules_that_it_violates(
    tmp_path: Path, store: Store, spark: SparkSession
) -> None:
    batch = Batch(tmp_path, store, spark.sql("select id, if(id % 5 = 0, null, id) amount from range(20)"))
    output = batch.write(
        quarantine(str(tmp_path / "bad"), column="why"), low="amount < 12", odd="amount % 2 = 1"
    )
    assert {row["id"]: row["why"] for row in batch.read(output, "bad") if row["id"] % 5 == 0} == {
        n: ["low", "odd"] for n in (0, 5, 10, 15)
    }
    assert [row["id"] for row in batch.channel(output)] == [1, 3, 7, 9, 11]
    assert output.violations == {"low": 4 + 7, "odd": 4 + 8}
    assert (output.rows, len(batch.read(output, "bad"))) == (5, 15)


def test_only_good_or_only_bad_rows_leave_no_files_of_the_others(
    tmp_path: Path, store: Store, spark: SparkSession
) -> None:
    batch = Batch(tmp_path, store, spark.range(5), delta(str(tmp_path / "out")))
    fine = batch.write(quarantine(str(tmp_path / "bad")), fine="id >= 0")
    assert (fine.violations, fine.rows, set(fine.staged)) == ({}, 5, {"out"})
    none = batch.write(quarantine(str(tmp_path / "worse")), none="id < 0")
    assert (none.violations, none.rows, set(none.staged), none.files) == ({"none": 5}, 0, {"worse"}, ())
    dropped = batch.write("drop", none="id < 0")
    assert (dropped.violations, dropped.rows, dropped.staged) == ({"none": 5}, 0, {})


def test_in_complete_mode_a_result_of_bad_rows_only_is_an_empty_result(
    tmp_path: Path, store: Store, spark: SparkSession
) -> None:
    sink = foreach_epoch(lambda rows, epoch: None, name="f")
    sink.output_mode = "complete"
    output = Batch(tmp_path, store, spark.range(5), sink, has_readers=False).write("drop", none="id < 0")
    assert len(output.staged["f"]) == 1


def test_a_batch_that_must_not_have_bad_rows_leaves_nothing_and_says_what_is_wrong(
    tmp_path: Path, store: Store, spark: SparkSession
) -> None:
    rows = spark.sql("select id, id amount, repeat('x', 500) note from range(3)")
    batch = Batch(tmp_path, store, rows, delta(str(tmp_path / "out")))
    with pytest.raises(RulesViolated) as raised:
        batch.write("fail", positive="amount > 0", small="amount < 2", any="true")
    said = str(raised.value)
    assert said.startswith(
        "stage 's' has 2 bad rows among 3 of a batch: 1 row violates 'positive' (amount > 0), "
    )
    assert "for example amount=0, id=0, note=xxx" in said
    assert "1 row violates 'small' (amount < 2), for example amount=2, id=2, " in said
    assert "'any'" not in said
    assert "\n" not in said
    assert len(said) < 1000
    assert store.list("stages/") == []


def test_what_a_failed_attempt_leaves_behind_is_recognized_as_its_own() -> None:
    found = channel_file_of(f"{attempt_prefix('s', 1, Attempt(2, 3, 'a'))}{JUDGED}{MASK}=5/part-0.parquet")
    assert found is not None
    assert (found.stage, found.attempt) == ("s", Attempt(2, 3, "a"))


def test_the_counts_of_rules_are_those_of_the_rows_by_mask() -> None:
    rules = define_rules("s", {"a": "x", "b": "y", "c": "z"}, "drop")
    assert isinstance(rules, Rules)
    assert rules.counts({1: 5, 3: 2}) == {"a": 7, "b": 2}
    assert rules.violated(6) == ["b", "c"]
