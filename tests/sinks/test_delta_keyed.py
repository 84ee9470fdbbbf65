"""Delta tables with keys: their options, and the commits around the join, which is played by `PythonMerge` here."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from cutwater.protocol.base.effects import TableHead, TableHistory
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.member.upsert import output_of
from cutwater.sinks.contract import SinkFailed
from cutwater.sinks.delta.log import commit_name
from cutwater.sinks.delta.making import delta
from cutwater.sinks.registry import open_sink
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.keyed_helpers import (
    CHANGES,
    Change,
    Fold,
    KeyedTable,
    PythonMerge,
    in_files,
    random_changes,
)
from tests.support.sink_helpers import at_once, publish, schema, store

__all__ = ["store"]


@pytest.fixture
def merging(monkeypatch: pytest.MonkeyPatch) -> PythonMerge:
    played = PythonMerge()
    played.install(monkeypatch)
    return played


@pytest.fixture
def table(tmp_path: Path, store: Store, merging: PythonMerge) -> KeyedTable:
    return KeyedTable(str(tmp_path / "table"), store)


class Crash(BaseException):
    """The process ends here."""


def crash() -> None:
    raise Crash


def outputs(table: KeyedTable) -> set[str]:
    return {name for name in table.outputs() if output_of(name) is not None}


# --- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"keys": ["id", "id"]}, "names a column twice"),
        ({"keys": ["nr"]}, "keys with 'nr', which its rows do not have"),
        ({"keys": ["weight"]}, "keys with 'weight', which is of type double.*cast it to a decimal"),
        ({"keys": ["id", "tags"]}, "keys with 'tags', which is of type array"),
        ({"sequence_by": "nr"}, "sequence_by with 'nr', which its rows do not have"),
        ({"sequence_by": "weight"}, "sequence_by with 'weight', which is of type double"),
        ({"except_columns": ["nr"]}, "except_columns with 'nr', which its rows do not have"),
        ({"except_columns": ["op", "ts"]}, "the table needs 'ts', which is in sequence_by"),
        ({"except_columns": "id"}, "the table needs 'id', which is in keys"),
        ({"except_columns": "op", "partition_by": "op"}, "the table needs 'op', which is in partition_by"),
        ({"sequence_by": None, "final_by": "at"}, "name the column that orders them with sequence_by"),
        ({"keys": None}, "sequence_by='ts' says how rows with equal keys replace each other"),
        ({"keys": None, "sequence_by": None}, "delete_when=.*the sink has no keys"),
        ({"existing": "append"}, "existing='append'; give existing='upsert' to change the rows of a table"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, store: Store, options: dict[str, Any], why: str
) -> None:
    rows = schema(id="long", region="string", ts="long", op="string", weight="double", at="timestamp")
    tags = '{"name": "tags", "type": {"type": "array", "elementType": "long", "containsNull": true}, '
    rows = rows.replace('"fields": [', f'"fields": [{tags}"nullable": true, "metadata": {{}}}}, ')
    given = {
        "keys": ["id"],
        "sequence_by": "ts",
        "delete_when": "op = 'd'",
        "except_columns": "op",
        **options,
    }
    with pytest.raises(UserError, match=why):
        delta(str(tmp_path / "table"), **given).bind(store, "table", rows)
    assert not Path(tmp_path, "table", "_delta_log").exists()


def test_complete_mode_and_hidden_columns_are_refused(tmp_path: Path, store: Store) -> None:
    sink = delta(str(tmp_path / "table"), keys="id")
    sink.output_mode = "complete"
    with pytest.raises(UserError, match="use output_mode='update'"):
        sink.bind(store, "table", CHANGES)
    with pytest.raises(UserError, match="gets a column '_metadata'"):
        delta(str(tmp_path / "table"), keys="id").bind(store, "table", schema(id="long", _metadata="long"))


@pytest.mark.parametrize("options", [{"keys": ["id", "region"]}, {"sequence_by": None}, {"keys": ["region"]}])
def test_a_table_keeps_its_keys_and_its_sequence(table: KeyedTable, options: dict[str, Any]) -> None:
    table.publish(table.sink(), 5, [Change(1, 1, "a")])
    table.store.put("published/table/000000000005.json", b"{}")
    with pytest.raises(
        UserError, match=r"has published with keys=\['id'\] and sequence_by='ts'.*--drop table"
    ):
        table.sink(**options)
    with pytest.raises(UserError, match="has no keys, but has published with keys"):
        delta(table.path).bind(table.store, "table", CHANGES)
    table.sink(delete_when="op = 'x'")


def test_a_sink_that_was_opened_from_the_store_alone_knows_its_keys(table: KeyedTable) -> None:
    sink = table.sink()
    table.publish(sink, 5, [Change(1, 5, "a"), Change(2, 5, op="d")])
    opened = open_sink(table.store, "table")
    assert (opened.head(), opened.find(5), opened.find(4)) == (TableHead(0, 5), 0, -1)
    (run,) = (folder for folder in Path(table.path, "_cutwater").glob("*/*/tombstones/*"))
    run.unlink()
    assert open_sink(table.store, "table").find(5) is None, "its tombstones are gone"
    assert any("tombstones" in problem for problem in opened.problems(()))


# --- staging --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("column", "option"), [("id", "keys"), ("ts", "sequence_by")])
def test_a_null_key_or_sequence_fails_the_batch(table: KeyedTable, column: str, option: str) -> None:
    sink = table.sink()
    given: Any = {column: None}
    null = Change(1, 1, "a")._replace(**given)
    with pytest.raises(
        UserError, match=f"{column}, which is in {option}, is null in a row.*Leave such rows out"
    ):
        table.stage(sink, [Change(1, 1, "a")], [Change(2, 2), null])


def test_an_empty_text_is_not_a_key_where_it_would_be_null(
    tmp_path: Path, store: Store, merging: PythonMerge
) -> None:
    table = KeyedTable(str(tmp_path / "table"), store, keys=["id", "region"], partition_by="region")
    with pytest.raises(UserError, match="region, which is in keys and in partition_by, is an empty string"):
        table.stage(table.sink(), [Change(1, 1, "a", region="x"), Change(1, 1, "a", region="")])


def test_changes_are_linked_from_a_channel_only_if_they_are_the_same(tmp_path: Path) -> None:
    def of(**options: Any) -> bool:
        return delta(str(tmp_path), keys="id", **options).stages_unchanged

    assert of()
    assert of(partition_by="region"), "the changes are not in the layout of the table"
    assert not of(except_columns="op")
    assert not of(delete_when="op = 'd'")
    assert not of(final_by="at", sequence_by="ts")


# --- publishing: the table is a fold of the changes -----------------------------------------------------------


@pytest.mark.parametrize("seed", range(5))
def test_every_version_is_the_fold_of_the_changes_up_to_its_epoch(table: KeyedTable, seed: int) -> None:
    draw, sink, fold = random.Random(seed), table.sink(), Fold()
    folds: dict[int, Fold] = {}
    version: int | None
    for transaction in range(1, 25):
        if folds and draw.random() < 0.2:
            target = draw.choice(list(folds))
            version = sink.rewind(sink.head().version, transaction, target)
            fold = folds[target].copy()
        else:
            changes = random_changes(draw, draw.randint(1, 8))
            fold.add(changes)
            version = table.publish(draw.choice([sink, table.sink()]), transaction, *in_files(draw, changes))
        assert version is not None
        folds[version] = fold.copy()
        assert table.rows() == fold.shown
    assert all(table.rows(version) == known.shown for version, known in folds.items())


def test_a_change_that_comes_too_late_changes_nothing_but_is_done(table: KeyedTable) -> None:
    sink = table.sink()
    table.publish(sink, 5, [Change(1, 9, "new"), Change(2, 9, op="d")])
    assert table.publish(sink, 6, [Change(1, 8, "old"), Change(2, 8, "old"), Change(1, 7, op="d")]) == 1
    assert (table.rows(), sink.head()) == ([Change(1, 9, "new").row], TableHead(1, 6))


def test_a_key_is_used_again_and_a_tie_goes_to_the_later_change(table: KeyedTable) -> None:
    sink = table.sink()
    table.publish(sink, 5, [Change(1, 1, "a")])
    table.publish(sink, 6, [Change(1, 2, op="d")], [Change(1, 2, "same time, and later")])
    assert table.rows() == [Change(1, 2, "same time, and later").row]
    table.publish(sink, 7, [Change(1, 3, op="d")])
    assert table.rows() == []
    table.publish(sink, 8, [Change(1, 3, "again")])
    assert table.rows() == [Change(1, 3, "again").row]


def test_a_rewind_takes_tombstones_back(table: KeyedTable) -> None:
    sink = table.sink()
    table.publish(sink, 5, [Change(1, 1, "a")])
    table.publish(sink, 6, [Change(1, 9, op="d")])
    assert sink.rewind(1, 7, 0) == 2
    table.publish(sink, 8, [Change(1, 5, "b")])
    assert table.rows() == [Change(1, 5, "b").row], "the delete did not happen on this timeline"
    assert sink.rewind(3, 9, 1) == 4
    table.publish(sink, 10, [Change(1, 6, "c")])
    assert table.rows() == [], "and on this one it did"
    assert sink.rewind(5, 11, -1) == 6
    table.publish(sink, 12, [Change(1, 1, "d")])
    assert table.rows() == [Change(1, 1, "d").row]


def test_a_rewind_that_changes_no_rows_keeps_the_tombstones(table: KeyedTable) -> None:
    sink = table.sink()
    table.publish(sink, 5, [Change(1, 9, op="d")])
    assert sink.rewind(0, 7, 0) == 1
    table.publish(sink, 8, [Change(1, 5, "late")])
    assert table.rows() == []


def test_the_log_says_how_many_files_of_changes_a_version_has_applied(table: KeyedTable) -> None:
    """A mark says how many files its epoch had, and a commit with fewer would be somebody else's."""
    sink = table.sink()
    table.publish(sink, 5, [Change(1, 1, "a")], [Change(1, 2, "b")], [Change(1, 3, "c")])
    assert sink.history(5) == TableHistory(5, 3)


def test_only_files_that_may_have_a_key_are_looked_at(table: KeyedTable, merging: PythonMerge) -> None:
    sink = table.sink()
    for transaction, first in enumerate((0, 100, 200), 1):
        table.publish(sink, transaction, [Change(first + n, 1, "a") for n in range(10)])
    merging.looked_at.clear()
    table.publish(sink, 5, [Change(105, 2, "b"), Change(108, 2, "b")])
    table.publish(sink, 6, [Change(5, 2, "b"), Change(105, 3, "b")])
    table.publish(sink, 7, [Change(150, 2, "b")])
    assert merging.looked_at == [1, 2, 0]
    assert len(table.rows()) == 31


# --- crashes, other publishers, zombies -------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["before", "during"])
def test_a_crash_before_the_commit_changes_nothing_and_leaves_nothing(
    table: KeyedTable, merging: PythonMerge, place: str
) -> None:
    sink = table.sink()
    table.publish(sink, 5, [Change(1, 1, "a")])
    files = table.stage(sink, [Change(1, 2, op="d"), Change(2, 2, "b")])
    setattr(merging, place, crash)
    with pytest.raises(Crash):
        sink.publish(0, 6, files, epoch=6)
    setattr(merging, place, lambda: None)
    left = outputs(table)
    successor = table.sink()
    successor.discard(keep=set())
    assert outputs(table) == left, "nobody knows that the process is dead"
    files = table.stage(successor, [Change(1, 2, op="d"), Change(2, 2, "b")])
    assert successor.publish(0, 6, files, epoch=6) == 1
    successor.discard(keep=set())
    assert len(outputs(table)) == 2, "those of the two versions"
    assert (table.rows(0), table.rows()) == ([Change(1, 1, "a").row], [Change(2, 2, "b").row])


def test_after_a_crash_right_after_the_commit_the_epoch_is_not_published_again(
    table: KeyedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink()
    files = table.stage(sink, [Change(1, 1, "a")])
    monkeypatch.setattr(sink, "_committed", lambda version: crash())
    with pytest.raises(Crash):
        sink.publish(-1, 5, files, epoch=5)
    successor = table.sink()
    assert successor.head() == TableHead(0, 5)
    assert successor.publish(-1, 5, files, epoch=5) is None
    assert successor.publish(0, 5, files, epoch=5) is None
    assert table.rows() == [Change(1, 1, "a").row]


def test_of_several_processes_that_publish_the_same_epoch_one_succeeds(table: KeyedTable) -> None:
    sinks = [table.sink() for _ in range(4)]
    table.publish(sinks[0], 4, [Change(1, 1, "a")])
    files = table.stage(sinks[0], [Change(1, 2, op="d"), Change(2, 2, "b")])
    answers = at_once(*(lambda s=s: s.publish(0, 5, files, epoch=5) for s in sinks))
    assert sorted(answers, key=str) == [1, None, None, None]
    assert table.rows() == [Change(2, 2, "b").row]
    sinks[1].discard(keep=set())
    assert len(outputs(table)) == 2


def test_a_zombie_whose_output_is_complete_cannot_commit_it_and_nothing_it_has_is_discarded_before(
    table: KeyedTable, merging: PythonMerge
) -> None:
    """The successor tidies up between the zombie's join and its commit: once before and once after it has published."""
    zombie, successor = table.sink(), table.sink()
    table.publish(zombie, 5, [Change(1, 1, "a")])
    files = table.stage(zombie, [Change(1, 2, "b")])
    seen: list[set[str]] = []

    def meanwhile() -> None:
        merging.during = lambda: None
        successor.discard(keep={file.split("/")[2] for file in files})
        seen.append(outputs(table))
        assert successor.publish(0, 6, files, epoch=6) == 1
        successor.discard(keep=set())
        seen.append(outputs(table))

    merging.during = meanwhile
    assert zombie.publish(0, 6, files, epoch=6) is None
    assert [len(found) for found in seen] == [2, 2]
    assert seen[0] != seen[1], "the zombie's was there, and then the successor's"
    assert table.rows() == [Change(1, 2, "b").row]
    assert zombie.problems(()) == []


def test_a_zombie_that_wakes_up_again_and_tidies_up_removes_nothing_that_is_shown(
    table: KeyedTable, merging: PythonMerge
) -> None:
    zombie, successor = table.sink(), table.sink()
    zombie.head()
    for transaction in range(1, 6):
        table.publish(
            successor, transaction, [Change(transaction, transaction, "a"), Change(9, transaction, op="d")]
        )
    files = table.stage(successor, [Change(1, 9, "b")])
    merging.during = lambda: zombie.discard(keep=set())
    assert successor.publish(4, 6, files, epoch=6) == 5
    zombie.discard(keep=set())
    assert successor.problems(()) == []
    assert all(table.rows(version) is not None for version in range(6))
    assert successor.rewind(5, 7, 2) == 6


def test_a_zombie_that_finds_its_files_gone_does_not_fail(table: KeyedTable, merging: PythonMerge) -> None:
    zombie, successor = table.sink(), table.sink()
    files = table.stage(zombie, [Change(1, 1, "a")])

    def overtaken() -> None:
        merging.before = lambda: None
        assert successor.publish(-1, 5, files, epoch=5) == 0
        successor.discard(keep=set())

    merging.before = overtaken
    assert zombie.publish(-1, 5, files, epoch=5) is None
    assert table.rows() == [Change(1, 1, "a").row]


def test_changes_are_discarded_once_no_checkpoint_needs_them_and_outputs_stay(table: KeyedTable) -> None:
    sink = table.sink()
    table.publish(sink, 5, [Change(1, 1, "a")])
    table.publish(sink, 6, [Change(1, 2, op="d")])
    sink.discard(keep={"attempt-2"})
    assert {name for name in table.outputs() if output_of(name) is None} == {"attempt-2"}
    assert len(outputs(table)) == 2, "the second has tombstones only"


def test_an_error_in_spark_is_retried_and_says_what_failed(table: KeyedTable, merging: PythonMerge) -> None:
    sink = table.sink()
    files = table.stage(sink, [Change(1, 1, "a")])

    def fail() -> None:
        raise RuntimeError("no executors\n\tat org.apache.spark")

    merging.before = fail
    with pytest.raises(SinkFailed, match=r"join the changes of epoch 3 .*: RuntimeError: no executors$"):
        sink.publish(-1, 5, files, epoch=3)


# --- others ----------------------------------------------------------------------------------------------------


def test_others_may_optimize_and_delete_between_epochs(table: KeyedTable) -> None:
    sink = table.sink()
    for transaction in range(1, 4):
        table.publish(sink, transaction, [Change(transaction, 5, "a")])
    table.publish(sink, 4, [Change(3, 7, op="d")])
    DeltaTable(table.path).optimize.compact()
    DeltaTable(table.path).delete("id = 1")
    head = sink.head().version
    assert table.sink().publish(3, 5, table.stage(sink, [Change(2, 6, "b")]), epoch=5) is None
    version = table.publish(table.sink(), 6, [Change(2, 6, "b"), Change(3, 6, "late"), Change(1, 4, "back")])
    assert version == head + 1
    assert table.rows() == [Change(1, 4, "back").row, Change(2, 6, "b").row]
    with pytest.raises(UserError, match=r"\(DELETE\).*--force"):
        sink.rewind(version, 7, 1)
    assert sink.rewind(version, 7, 1, force=True) == version + 1
    assert table.rows() == [Change(1, 5, "a").row, Change(2, 5, "a").row]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"delta.appendOnly": "true"}, "the property delta.appendOnly"),
        ({"delta.enableChangeDataFeed": "true"}, "the property delta.enableChangeDataFeed"),
    ],
)
def test_tables_whose_rows_cannot_be_replaced_are_refused_whenever_that_begins(
    table: KeyedTable, change: dict[str, str], why: str
) -> None:
    sink = table.sink()
    table.publish(sink, 5, [Change(1, 1, "a")])
    DeltaTable(table.path).alter.set_table_properties(change)
    with pytest.raises(UserError, match=why):
        table.publish(sink, 6, [Change(1, 2, "b")])
    with pytest.raises(UserError, match=why):
        table.sink()


def test_a_table_with_deletion_vectors_is_refused(table: KeyedTable) -> None:
    sink = table.sink()
    table.publish(sink, 5, [Change(1, 1, "a")])
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
    features = {kind: ["deletionVectors"] for kind in ("readerFeatures", "writerFeatures")}
    Path(table.path, commit_name(1)).write_text(json.dumps({"protocol": protocol | features}))
    with pytest.raises(UserError, match=r"has deletion vectors.*DROP FEATURE"):
        table.publish(sink, 6, [Change(1, 2, "b")])


def test_a_log_that_others_have_cut_off_is_not_a_table_without_deleted_keys(table: KeyedTable) -> None:
    sink = table.sink()
    table.publish(sink, 5, [Change(1, 9, op="d"), Change(2, 1, "a")])
    DeltaTable(table.path).optimize.compact()
    DeltaTable(table.path).alter.set_table_properties({"delta.logRetentionDuration": "interval 30 days"})
    DeltaTable(table.path).create_checkpoint()
    Path(table.path, commit_name(0)).unlink()
    with pytest.raises(StoreError, match="cleaned up by somebody else"):
        table.publish(table.sink(), 6, [Change(1, 5, "late")])


def test_a_table_of_others_is_taken_if_that_is_wanted(table: KeyedTable, store: Store) -> None:
    theirs = delta(table.path, name="theirs")
    theirs.bind(store, "theirs", schema(id="long", city="string"))
    publish(theirs, 1, [1, 2])
    with pytest.raises(UserError, match="To change the rows of it, write existing='upsert'"):
        delta(table.path, keys="id", name="t").bind(
            store_of(table, "other"), "t", schema(id="long", city="string")
        )
    delta(table.path, keys="id", name="t", existing="upsert").bind(
        store_of(table, "other"), "t", schema(id="long", city="string")
    )


def store_of(table: KeyedTable, name: str) -> Store:
    return open_store(f"{Path(table.path).parent}/{name}", create=True)
