"""Delta tables with keys: the join that Spark does, against a fold in Python, and what readers see."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import UserError
from cutwater.sinks.delta.making import delta
from cutwater.sinks.delta.sink import DeltaSink
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.keyed_helpers import Change, Fold, KeyedTable, in_files, random_changes
from tests.support.sink_helpers import schema, store, write_with_spark

__all__ = ["store"]


class ByRegion(Fold):
    """The fold of a table whose keys are `id` and `region`."""

    def add(self, changes: Any) -> None:
        super().add(change._replace(id=(change.id, change.region)) for change in changes)

    @property
    def shown(self) -> Any:
        return sorted((key[0], *rest) for key, *rest in self.rows.values())  # type: ignore[index]


def test_every_version_is_the_fold_of_the_changes(tmp_path: Path, store: Store, spark: SparkSession) -> None:
    check_stream(
        KeyedTable(str(tmp_path / "table"), store, spark, partition_by="region"), Fold(), seed=1, epochs=4
    )


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("options", "fold"),
    [
        ({}, Fold),
        ({"partition_by": "region"}, Fold),
        ({"partition_by": "region", "keys": ["id", "region"]}, ByRegion),
    ],
    ids=["one folder", "partitions", "keys with partitions"],
)
def test_every_version_is_the_fold_of_many_changes(
    tmp_path: Path, store: Store, spark: SparkSession, options: dict[str, Any], fold: type[Fold], seed: int
) -> None:
    table = KeyedTable(str(tmp_path / "table"), store, spark, **options)
    check_stream(table, fold(), seed, epochs=20, foreign=True)


def check_stream(table: KeyedTable, fold: Fold, seed: int, epochs: int, foreign: bool = False) -> None:
    """Publishes random changes, goes back at random, and compares every version with the fold."""
    draw = random.Random(seed)
    sink: DeltaSink = table.sink()
    folds: dict[int, Fold] = {}
    for transaction in range(1, epochs + 1):
        if folds and draw.random() < 0.2:
            target = draw.choice(list(folds))
            version = sink.rewind(sink.head().version, transaction, target)
            fold = _copy(folds[target])
        else:
            changes = random_changes(draw, draw.randint(1, 25))
            fold.add(changes)
            version = table.publish(sink, transaction, *in_files(draw, changes))
        assert version is not None
        assert table.rows() == fold.shown, f"seed {seed}, epoch {transaction}"
        folds[version] = _copy(fold)
        if foreign and draw.random() < 0.2:
            DeltaTable(table.path).optimize.compact()
            sink = table.sink()
    for version, known in folds.items():
        assert table.rows(version) == known.shown, f"seed {seed}, version {version}"


def _copy(fold: Fold) -> Fold:
    other = type(fold)()
    other.rows, other.highest = dict(fold.rows), dict(fold.highest)
    return other


def test_spark_stages_changes_and_readers_see_the_table(
    tmp_path: Path, store: Store, spark: SparkSession
) -> None:
    """All types, values that are nested, a key of two columns, and `delete_when` that is null."""
    rows = spark.sql(
        """
        SELECT CAST(id AS DECIMAL(9, 2)) AS id, concat('k', id % 2, '/ %') AS `key 2`, op, ts,
            named_struct('a', id, 'b', array(id, null)) AS nested, map('x', id) AS m, current_date() AS day,
            CAST(CAST(id AS STRING) AS BINARY) AS bin, CAST(ts AS TIMESTAMP_NTZ) AS ntz, id > 1 AS flag
        FROM VALUES (1, 'i', TIMESTAMP '2026-01-01'), (2, 'i', TIMESTAMP '2026-01-01'), (3, 'i', TIMESTAMP '2026-01-01'),
            (1, null, TIMESTAMP '2026-01-02'), (2, 'd', TIMESTAMP '2026-01-02'), (3, 'd', TIMESTAMP '2025-01-01')
            AS t(id, op, ts)
        """
    ).withColumnRenamed("key 2", "key2")
    sink = delta(
        str(tmp_path / "table"),
        keys=["id", "key2"],
        sequence_by="ts",
        delete_when="op = 'd'",
        except_columns="op",
    )
    sink.bind(store, "table", rows.schema.json())
    sink.attach(spark)
    sink.check_rows(rows)
    for transaction, chosen in enumerate(("ts = '2026-01-01'", "ts <> '2026-01-01'"), 1):
        staged = write_with_spark(sink, f"a{transaction}", rows.where(chosen))
        names = tuple(file.name for file in staged)
        assert sink.publish(sink.head().version, transaction, names, epoch=transaction) == transaction - 1
    found = DeltaTable(str(tmp_path / "table")).to_pyarrow_table().sort_by("id")
    assert [(int(row["id"]), row["nested"]) for row in found.to_pylist()] == [
        (1, {"a": 1, "b": [1, None]}), (3, {"a": 3, "b": [3, None]}),
    ]  # fmt: skip
    assert "op" not in found.column_names
    files = DeltaTable(str(tmp_path / "table")).file_uris()
    assert duckdb.execute("SELECT count(*) FROM read_parquet(?)", [files]).fetchall() == [(2,)]
    assert sink.frame(spark, 0).count() == 3
    assert sink.problems(()) == []
    with pytest.raises(UserError, match=r"delete_when='nr = 1', which Spark refuses"):
        delta("x", keys="id", delete_when="nr = 1").check_rows(rows)
    with pytest.raises(UserError, match="delete_when='op', which is of type string"):
        delta("x", keys="id", delete_when="op").check_rows(rows)


def test_without_a_sequence_the_last_change_wins_and_a_batch_has_one_of_each_key(
    tmp_path: Path, store: Store, spark: SparkSession
) -> None:
    table = KeyedTable(
        str(tmp_path / "table"), store, spark, sequence_by=None, delete_when=None, except_columns=["op"]
    )
    sink = table.sink()
    first = table.stage(sink, [Change(1, 9, "a")], [Change(2, 9, "a")])
    second = table.stage(sink, [Change(1, 1, "b")])
    assert sink.publish(-1, 5, (*first, *second), epoch=1) == 0
    assert table.rows() == [Change(1, 1, "b").row, Change(2, 9, "a").row]
    with pytest.raises(UserError, match="a batch has two changes with the same id"):
        table.stage(sink, [Change(1, 1, "a")], [Change(2, 1, "b"), Change(1, 2, "c")])


def test_rows_that_others_have_written_twice_become_one(
    tmp_path: Path, store: Store, spark: SparkSession
) -> None:
    table = KeyedTable(str(tmp_path / "table"), store, spark, existing="upsert")
    appending = delta(table.path, name="theirs")
    appending.bind(store, "theirs", schema(id="long", region="string", value="string", ts="long"))
    other = KeyedTable(table.path, store, delete_when=None)
    for transaction, ts in enumerate((1, 2), 1):
        files = other.stage(appending, [Change(1, ts, "twice"), Change(ts + 5, ts, "once")])
        appending.publish(appending.head().version, transaction, files, epoch=transaction)
    own = open_own(table, tmp_path)
    assert table.publish(own, 1, [Change(1, 2, "now"), Change(6, 0, "late"), Change(8, 1, "new")]) == 2
    assert table.rows() == [
        Change(1, 2, "now").row, Change(6, 1, "once").row, Change(7, 2, "once").row, Change(8, 1, "new").row,
    ]  # fmt: skip


def open_own(table: KeyedTable, folder: Path) -> DeltaSink:
    """The sink of another pipeline, to which the table is one of others."""
    table.store = open_store(str(folder / "own"), create=True)
    return table.sink()
