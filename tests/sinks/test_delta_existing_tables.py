"""Delta tables that existed before the sink, and rows that do or do not fit them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from cutwater.protocol.base.effects import TableHead
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.sinks import SinkFailed
from cutwater.sinks.delta import reading
from cutwater.sinks.delta.history import is_elsewhere
from cutwater.sinks.delta.making import delta
from cutwater.sinks.delta.sink import DeltaSink
from cutwater.sinks.schemas import misfit
from cutwater.store.contract import Store
from tests.support.delta_helpers import Make, append, ids, make, table
from tests.support.sink_helpers import (
    ROWS,
    publish,
    schema,
    stage,
    store,
)

__all__ = ["make", "store", "table"]


def test_an_existing_table_keeps_its_rows(make: Make, table: str) -> None:
    append(table, 1)
    append(table, 2)
    sink = make()
    assert sink.head() == TableHead(1, 0)
    assert publish(sink, 5, [3]) == 2
    assert [sink.find(t) for t in (4, 5)] == [1, 2]
    assert sink.rewind(2, 9, 1) == 3
    assert ids(table) == [1, 2]


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (schema(id="long", city="string", more="string"), "no column more"),
        (schema(id="integer", city="string"), "id is integer, but long in the table"),
        (schema(id="long", city="date"), "city is date"),
    ],
)
def test_rows_that_do_not_fit_an_existing_table_are_refused(
    make: Make, table: str, rows: str, why: str
) -> None:
    append(table, 1)
    with pytest.raises(UserError, match=why):
        make(rows)


def strict_sink(table: str, store: Store, column: str = "id", **options: Any) -> DeltaSink:
    """A sink on a table in which a column must not be null, as it is before `bind`."""
    names = {"id": pa.int64(), "city": pa.string()}
    strict = pa.schema([pa.field(name, kind, nullable=name != column) for name, kind in names.items()])
    DeltaTable.create(table, strict, partition_by=options.get("partition_by"))
    return delta(table, existing="append", **options)


def test_columns_that_may_be_null_do_not_fit_a_table_without_nulls(table: str, store: Store) -> None:
    sink = strict_sink(table, store)
    sink.never_null = frozenset({"city"})
    with pytest.raises(UserError, match=r"id may be null.* coalesce\(\).*ALTER COLUMN id DROP NOT NULL"):
        sink.bind(store, "table", ROWS)


def test_columns_that_are_never_null_according_to_the_plan_fit_a_table_without_nulls(
    table: str, store: Store
) -> None:
    sink = strict_sink(table, store)
    sink.never_null = frozenset({"id"})
    sink.bind(store, "table", ROWS)
    publish(sink, 5, [2, 3])
    assert ids(table) == [2, 3]


def with_null(sink: DeltaSink) -> tuple[str, ...]:
    """Stages rows of which one has no id."""
    folder = Path(sink.staging("a").removeprefix("file://"))
    folder.mkdir(parents=True)
    rows = pa.table({"id": pa.array([None, 2], pa.int64()), "city": ["a", "b"]})
    pq.write_table(rows, folder / "part-0.parquet", row_group_size=1)
    return tuple(file.name for file in sink.staged("a"))


def test_a_null_that_a_plan_has_denied_is_not_published_until_the_table_allows_it(
    table: str, store: Store
) -> None:
    sink = strict_sink(table, store)
    sink.never_null = frozenset({"id"})
    sink.bind(store, "table", ROWS)
    files = with_null(sink)
    with pytest.raises(UserError, match=r"id is null in .*part-0.*ALTER COLUMN id DROP NOT NULL; then"):
        sink.publish(sink.head().version, 5, files)
    assert ids(table) == []
    commit = Path(table, "_delta_log", f"{0:020d}.json").read_text()
    (defined,) = [line for line in commit.splitlines() if "metaData" in line]
    allowed = defined.replace('\\"nullable\\":false', '\\"nullable\\":true')
    assert allowed != defined
    Path(table, "_delta_log", f"{1:020d}.json").write_text(allowed)
    assert sink.publish(sink.head().version, 5, files) == 2
    assert DeltaTable(table).to_pyarrow_table().column("id").to_pylist() == [None, 2]


def test_an_empty_text_in_a_partition_column_is_a_null(table: str, store: Store) -> None:
    sink = strict_sink(table, store, "city", partition_by="city")
    sink.never_null = frozenset({"city"})
    sink.bind(store, "table", ROWS)
    publish(sink, 5, [1])
    folder = Path(sink.staging("a").removeprefix("file://"), "city=__HIVE_DEFAULT_PARTITION__")
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [2]}), folder / "part-0.parquet")
    with pytest.raises(UserError, match="city is null or an empty string"):
        sink.publish(sink.head().version, 6, tuple(file.name for file in sink.staged("a")))
    assert ids(table) == [1]


def test_columns_that_only_the_table_has_are_null(make: Make, table: str) -> None:
    write_deltalake(table, pa.table({"id": [1], "city": ["x"], "more": [True]}))
    publish(make(), 5, [2])
    assert DeltaTable(table).to_pyarrow_table().sort_by("id").column("more").to_pylist() == [True, None]


def test_a_table_with_constraints_is_refused(make: Make, table: str) -> None:
    append(table, 1)
    DeltaTable(table).alter.add_constraint({"positive": "id > 0"})
    with pytest.raises(UserError, match=r"delta\.constraints\.positive"):
        make()


def test_other_partition_columns_are_refused(make: Make, table: str) -> None:
    append(table, 1)
    with pytest.raises(UserError, match="partitioned by"):
        make(partition_by="city")


def test_a_schema_change_under_a_running_sink_is_detected(make: Make, table: str) -> None:
    sink = make()
    publish(sink, 5, [1])
    files = stage(sink, "a", [2])
    assert sink.head() == TableHead(0, 5)
    write_deltalake(table, pa.table({"id": ["text"]}), mode="overwrite", schema_mode="overwrite")
    with pytest.raises(UserError, match="id is long, but string in the table"):
        sink.publish(sink.head().version, 7, files)


@pytest.mark.parametrize(
    ("rows", "options", "why"),
    [
        (schema(id="variant"), {}, "variant"),
        (schema(**{"a b": "long"}), {}, "rename"),
        (schema(id="long", at="timestamp"), {"partition_by": ["at"]}, "to_date"),
        (schema(id="long", price="decimal(9,2)"), {"partition_by": ["price"]}, "use another column"),
        (schema(id="long"), {"partition_by": ["day"]}, "they have id"),
    ],
)
def test_rows_that_no_delta_table_can_hold_are_refused(
    make: Make, rows: str, options: dict[str, Any], why: str
) -> None:
    with pytest.raises(UserError, match=why):
        make(rows, **options)


LIST = {"type": "array", "elementType": "long", "containsNull": False}
MAP = {"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": False}


@pytest.mark.parametrize(
    ("table", "rows", "why"),
    [
        (LIST, LIST, None),
        (LIST, LIST | {"containsNull": True}, "c may contain nulls, but the table does not allow them there"),
        (LIST | {"containsNull": True}, LIST, None),
        (LIST, LIST | {"elementType": "string"}, "c.element is string, but long in the table"),
        (MAP, MAP, None),
        (
            MAP,
            MAP | {"valueContainsNull": True},
            "c may contain nulls, but the table does not allow them there",
        ),
        (MAP, MAP | {"keyType": "long"}, "c.key is long, but string in the table"),
        (MAP, MAP | {"valueType": "date"}, "c.value is date, but long in the table"),
        (LIST, MAP, "c is map, but array in the table"),
        ("long", LIST, "c is array, but long in the table"),
    ],
)
def test_elements_of_lists_and_maps_must_fit_too(table: Any, rows: Any, why: str | None) -> None:
    assert misfit(table, rows, "c") == why


def test_a_column_that_must_have_a_value_must_be_in_the_rows() -> None:
    def struct(nullable: bool, *names: str) -> Any:
        fields = [{"name": n, "type": "long", "nullable": nullable, "metadata": {}} for n in names]
        return {"type": "struct", "fields": fields}

    assert misfit(struct(False, "a", "b"), struct(False, "a")) == (
        "the table's column b must have a value, but the rows do not have it"
    )
    assert misfit(struct(True, "a", "b"), struct(True, "a")) is None
    assert (
        misfit(struct(False, "a"), struct(True, "a"), "x")
        == "x.a may be null, but the table does not allow nulls there. Allow them: "
        "ALTER TABLE ... ALTER COLUMN x.a DROP NOT NULL"
    )
    assert misfit(struct(True, "a"), struct(False, "a")) is None


def test_a_table_with_local_times_requires_that_feature(make: Make, table: str) -> None:
    sink = make(schema(id="long", city="string", local="timestamp_ntz"))
    files = stage(sink, "a", [1])
    for path in Path(table).rglob("*.parquet"):
        rows = pq.read_table(path)
        pq.write_table(rows.append_column("local", pa.array([0], pa.timestamp("us"))), path)
    sink = make(schema(id="long", city="string", local="timestamp_ntz"))
    assert sink.publish(-1, 1, files, epoch=1) == 0
    protocol = DeltaTable(table).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (3, 7)
    assert protocol.reader_features == protocol.writer_features == ["timestampNtz"]


def test_a_plain_table_requires_no_features(make: Make, table: str) -> None:
    publish(make(), 1, [1])
    protocol = DeltaTable(table).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)


def test_an_error_of_the_delta_library_is_an_error_of_the_sink(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make()
    publish(sink, 1, [1])
    publish(sink, 2, [2])

    def fail(*_: object, **__: object) -> None:
        raise DeltaError("no such luck")

    monkeypatch.setattr(reading, "DeltaTable", fail)
    with pytest.raises(SinkFailed, match="no such luck"):
        sink.rewind(1, 3, 0)


@pytest.mark.parametrize(
    ("name", "elsewhere"),
    [("s3://other/a.parquet", True), ("/other/a.parquet", True), ("a/b.parquet", False)],
)
def test_files_of_a_shallow_clone_are_outside_the_table(name: str, elsewhere: bool) -> None:
    assert is_elsewhere(name) is elsewhere


@pytest.mark.parametrize("folder", ["per%20cent", "back\\slash"])
def test_a_path_that_the_delta_library_misreads_is_refused(tmp_path: Path, store: Store, folder: str) -> None:
    with pytest.raises(UserError, match="Choose a path without them"):
        delta(str(tmp_path / folder / "out")).bind(store, "out", ROWS)


def test_a_partition_column_whose_folders_are_hidden_is_refused(make: Make) -> None:
    with pytest.raises(UserError, match="begins with a dot"):
        make(schema(**{"id": "long", ".day": "string"}), partition_by=".day")


@pytest.mark.parametrize("column", ["__cutwater_end", "__CUTWATER_by_day"])
def test_a_column_with_a_reserved_name_is_refused(make: Make, column: str) -> None:
    with pytest.raises(UserError, match=f"'{column}': names that begin with __cutwater_ are reserved"):
        make(schema(**{"id": "long", column: "long"}))


def test_an_overwritten_first_commit_is_detected_too(make: Make, table: str) -> None:
    """Both writers created the table at the same time."""
    sink = make()
    publish(sink, 5, [5])
    assert sink.head() == TableHead(0, 5)
    theirs = f"{table}-theirs"
    append(theirs, 100)
    shutil.copy(Path(theirs, "_delta_log", f"{0:020d}.json"), Path(table, "_delta_log"))
    with pytest.raises(StoreError, match=r"version 0 of .* overwritten by another writer"):
        sink.head()


def test_metadata_that_others_add_to_a_column_does_no_harm(make: Make, table: str) -> None:
    fields = [pa.field("id", pa.int64(), metadata={"comment": "a number"}), pa.field("city", pa.string())]
    write_deltalake(table, pa.table({"id": [1], "city": ["a"]}, schema=pa.schema(fields)))
    publish(make(), 5, [2])
    assert ids(table) == [1, 2]
