"""The files of Delta tables: what Spark writes, their statistics, and what their paths contain."""

from __future__ import annotations

import json
from datetime import date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.sinks.footers import HIGHEST_CHARACTER, INDEXED_COLUMNS, check_pages, statistics
from cutwater.sinks.staged_files import is_data, partition_values
from cutwater.store.opening import open_store
from tests.support.delta_helpers import Make, ids, make, table
from tests.support.sink_helpers import (
    store,
    write_with_spark,
)

__all__ = ["make", "store", "table"]


MANY_KINDS = """
    select * from values
    (1L, 'a b/c%d=e:f', date'2024-01-02', 1.50BD, timestamp_ntz'2024-01-02 03:04:05.123456',
     timestamp'2024-01-02 03:04:05.123456', array(1, 2), map('a', 1), named_struct('n', 3, 'x', 'y'),
     x'00', 1.5D),
    (2L, null, null, null, null, null, null, null, null, null, null),
    (3L, 'ü "x"', date'1900-01-02', -1.50BD, timestamp_ntz'9999-01-02 03:04:05',
     timestamp'1900-01-02 03:04:05', array(null), map('a', null), named_struct('n', null, 'x', null),
     x'', double('NaN'))
    as t(id, city, day, price, local, at, list, map, struct, bytes, ratio)"""


def test_every_type_of_value_can_be_read_back(make: Make, table: str, spark: SparkSession) -> None:
    rows = spark.sql(MANY_KINDS)
    sink = make(rows.schema.json(), partition_by=["city", "day", "local"])
    files = write_with_spark(sink, "a", rows)
    assert sink.publish(-1, 1, tuple(f.name for f in files)) == 0
    back = DeltaTable(table).to_pyarrow_table().select(rows.columns).sort_by("id")
    expected = rows.toArrow().sort_by("id")
    assert back.schema.field("at").type == pa.timestamp("us", "UTC")
    assert str(back.to_pylist()) == str(expected.to_pylist())  # as text: NaN is not equal to itself

    dataset = DeltaTable(table).to_pyarrow_dataset()
    found = duckdb.from_arrow(dataset).filter("city = 'ü \"x\"'").project("id, day, price").fetchall()
    assert [str(value) for value in found[0]] == ["3", "1900-01-02", "-1.50"]

    assert sink.rewind(0, 2, -1) == 1
    assert sink.rewind(1, 3, 0) == 2
    assert ids(table) == [1, 2, 3]


def test_files_are_added_with_statistics(make: Make, table: str, spark: SparkSession) -> None:
    rows = spark.sql(MANY_KINDS).drop("ratio").coalesce(1)
    sink = make(rows.schema.json())
    files = write_with_spark(sink, "a", rows)
    sink.publish(-1, 1, tuple(f.name for f in files))
    log = Path(table, "_delta_log", f"{0:020d}.json").read_text()
    (add,) = [json.loads(line)["add"] for line in log.splitlines() if '"add"' in line]
    stats = json.loads(add["stats"])
    assert stats["numRecords"] == 3
    assert stats["minValues"] == {
        "id": 1,
        "city": "a b/c%d=e:f",
        "day": "1900-01-02",
        "price": -1.5,
        "local": "2024-01-02T03:04:05.123456",
        "at": "1900-01-02T03:04:05.000000Z",
        "struct": {"n": 3, "x": "y"},
    }
    assert stats["maxValues"]["at"] == "2024-01-02T03:04:05.123456Z"
    assert stats["nullCount"]["struct"] == {"n": 2, "x": 2}
    assert stats["nullCount"]["bytes"] == 1
    assert not {"list", "map"} & stats["nullCount"].keys()
    assert DeltaTable(table).scan(predicate="id > 3").read_all().num_rows == 0


@pytest.mark.parametrize("city", [None, "city"])
def test_a_filter_finds_every_row_that_matches(
    make: Make, table: str, spark: SparkSession, city: str | None
) -> None:
    long_text, unbounded = "'z' || repeat('y', 40)", "if(id = 1, 0.5D, double('NaN'))"
    rows = spark.sql(
        f"select id, id = 1 yes, if(id = 1, 'a', {long_text}) text, {unbounded} ratio, cast(id - 1 as decimal(18, 8)) "
        "price, if(id = 3, null, 'ü ' || id) city from values (1L), (2L), (3L) as t(id)"
    ).coalesce(1)
    sink = make(rows.schema.json(), partition_by=city)
    sink.publish(-1, 1, tuple(f.name for f in write_with_spark(sink, "a", rows)))
    field = pyarrow.dataset.field
    for found in (sink.dataset(0), DeltaTable(table).to_pyarrow_dataset()):
        for filter, wanted in (
            (field("yes"), [1]),
            (~field("yes"), [2, 3]),
            (field("text") == "a", [1]),
            (field("text") > "b", [2, 3]),
            (field("ratio") == 0.5, [1]),
            (field("price") == Decimal(0), [1]),
            (field("city") == "ü 2", [2]),
            (field("city").is_null(), [3]),
        ):
            assert sorted(found.to_table(filter=filter).column("id").to_pylist()) == wanted, filter


def test_statistics_are_short_and_never_wrong() -> None:
    """Long texts are truncated, and the upper bound then sorts after the text; a row group may have only nulls."""
    rows = {"text": ["b" * 50, "a" * 50, None], "fits": ["b" * 32, "a" * 50, None], "few": [None, None, 7]}
    assert described(rows, row_group_size=1) == {
        "numRecords": 3,
        "minValues": {"text": "a" * 32, "fits": "a" * 32, "few": 7},
        "maxValues": {"text": "b" * 32 + HIGHEST_CHARACTER, "fits": "b" * 32, "few": 7},
        "nullCount": {"text": 1, "fits": 1, "few": 2},
    }


def test_the_upper_bound_of_a_text_is_never_below_it() -> None:
    for text in ("b" * 32, "b" * 33, "b" * 32 + HIGHEST_CHARACTER + "c", HIGHEST_CHARACTER * 40, "ü" * 40):
        assert described({"text": [text]})["maxValues"]["text"] >= text


def test_a_decimal_is_written_without_an_exponent() -> None:
    rows = pa.table({"price": pa.array([Decimal(0), Decimal("1.5")], pa.decimal128(18, 8))})
    data = BytesIO()
    pq.write_table(rows, data)
    found = statistics(pq.read_metadata(data))
    assert '"minValues":{"price":0.00000000},"maxValues":{"price":1.50000000}' in found


def test_bounds_are_left_out_of_a_file_in_which_one_column_has_none() -> None:
    """Infinity is not JSON. deltalake's Arrow dataset would skip the file for every filter on `number`."""
    rows = {"id": [1, 2, None], "number": [1.0, float("inf"), None]}
    assert described(rows) == {"numRecords": 3, "nullCount": {"id": 1, "number": 1}}


def described(rows: dict[str, Any], **how: Any) -> Any:
    """The statistics of a file with these rows."""
    data = BytesIO()
    pq.write_table(pa.table(rows), data, **how)
    return json.loads(statistics(pq.read_metadata(data)))


def test_windows_are_staged_separately_and_published_when_they_are_closed(
    make: Make, table: str, spark: SparkSession
) -> None:
    rows = spark.sql(
        "select id, window, city from (select id, window(timestamp_seconds(60 * id), '1 minute') window, "
        "if(id % 2 = 0, 'even', null) city from range(4))"
    )
    sink = make(rows.schema.json(), final_by="window.end", partition_by="city")
    staged = write_with_spark(sink, "a", rows)
    assert sorted({file.end for file in staged}) == [60_000, 120_000, 180_000, 240_000]
    closed = tuple(file.name for file in staged if file.end is not None and file.end <= 120_000)
    sink.publish(-1, 1, closed)
    assert ids(table) == [0, 1]
    sink.publish(0, 2, tuple(file.name for file in staged if file.name not in closed))
    back = DeltaTable(table).to_pyarrow_table().sort_by("id")
    assert back.column_names == ["id", "window", "city"]
    assert back.column("city").to_pylist() == ["even", None, "even", None]


def test_a_window_end_is_rounded_up_to_milliseconds(make: Make, spark: SparkSession) -> None:
    rows = spark.sql("select timestamp_micros(c) at from values (60000000), (60000001), (null) as t(c)")
    staged = write_with_spark(make(rows.schema.json(), final_by="at"), "a", rows)
    assert sorted([f.end for f in staged], key=str) == [60_000, 60_001, None]


def test_final_by_must_be_a_timestamp(make: Make, spark: SparkSession) -> None:
    rows = spark.range(1)
    with pytest.raises(UserError, match="final_by='id' is a long"):
        make(rows.schema.json(), final_by="id").writer(rows)


def test_a_batch_without_rows_stages_nothing(make: Make, spark: SparkSession) -> None:
    rows = spark.range(1).where("id > 5")
    assert write_with_spark(make(rows.schema.json()), "a", rows) == []


def test_statistics_cover_dates_times_and_structs_but_not_lists() -> None:
    at = datetime(2024, 1, 2, 3, 4, 5, 123456)
    rows = pa.table(
        {
            "list": [[1, 2], [3]],
            "pair": pa.array([{"n": 1, "m": {"x": "b"}}, {"n": None, "m": {"x": "a"}}]),
            "map": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "day": [date(2024, 1, 2), date(1900, 1, 2)],
            "local": [at, at],
            "at": pa.array([at, at], pa.timestamp("us", "UTC")),
            "yes": [True, False],
            "bytes": [b"a", b"b"],
        }
    )
    data = BytesIO()
    pq.write_table(rows, data)
    stats = json.loads(statistics(pq.read_metadata(data)))
    assert stats["minValues"] == {
        "pair": {"n": 1, "m": {"x": "a"}},
        "day": "1900-01-02",
        "local": "2024-01-02T03:04:05.123456",
        "at": "2024-01-02T03:04:05.123456Z",
        "yes": False,
    }
    assert stats["maxValues"]["pair"] == {"n": 1, "m": {"x": "b"}}
    assert stats["maxValues"]["day"] == "2024-01-02"
    assert stats["nullCount"] == {
        "pair": {"n": 1, "m": {"x": 0}}, "day": 0, "local": 0, "at": 0, "yes": 0, "bytes": 0,
    }  # fmt: skip


def test_statistics_cover_only_the_first_columns() -> None:
    data = BytesIO()
    pq.write_table(pa.table({f"c{n}": [n] for n in range(INDEXED_COLUMNS + 1)}), data)
    stats = json.loads(statistics(pq.read_metadata(data)))
    assert list(stats["nullCount"]) == [f"c{n}" for n in range(INDEXED_COLUMNS)]


@pytest.mark.parametrize("kind", ["local", "memory"])
def test_a_file_is_read_completely_to_find_damage(tmp_path: Path, kind: str) -> None:
    store = open_store(str(tmp_path / "files") if kind == "local" else "memory://", create=True)
    data = BytesIO()
    pq.write_table(pa.table({"id": list(range(1000))}), data, write_page_checksum=True)
    store.put("a.parquet", data.getvalue())
    assert check_pages(store, "a.parquet") == 1000
    broken = bytearray(data.getvalue())
    broken[len(broken) // 3] ^= 1
    store.put("a.parquet", bytes(broken))
    with pytest.raises(StoreError, match=r"a\.parquet is damaged"):
        check_pages(store, "a.parquet")
    with pytest.raises(StoreError, match=r"b\.parquet is gone"):
        check_pages(store, "b.parquet")


def part(**what: Any) -> Any:
    """What a footer says about a column in one row group."""
    return SimpleNamespace(**({"has_null_count": True, "null_count": 0, "num_values": 1} | what))


def of_parts(parts: list[Any], kind: Any) -> Any:
    """The statistics of a file with one column `id`, of which its footer says this, row group by row group."""
    footer = SimpleNamespace(
        num_rows=len(parts),
        num_row_groups=len(parts),
        row_group=lambda group: SimpleNamespace(column=lambda _: SimpleNamespace(statistics=parts[group])),
        schema=SimpleNamespace(to_arrow_schema=lambda: pa.schema([("id", kind)])),
    )
    return json.loads(statistics(footer))


def test_statistics_have_bounds_only_if_every_row_group_has_them() -> None:
    parts = [part(has_min_max=True, min=5, max=6), part(has_min_max=False)]
    assert of_parts(parts, pa.int64()) == {"numRecords": 2, "nullCount": {"id": 0}}
    parts[1] = part(has_min_max=True, min=1, max=2)
    assert of_parts(parts, pa.int64())["minValues"] == {"id": 1}
    parts[0] = part(has_null_count=False)
    assert of_parts(parts, pa.int64()) == {"numRecords": 2, "nullCount": {}}


def numbers(*bounds: tuple[float, float], kind: Any = None) -> Any:
    """The statistics of a file of floating-point numbers with these bounds, row group by row group."""
    parts = [part(has_min_max=True, min=low, max=high) for low, high in bounds]
    return of_parts(parts, kind or pa.float64())


NAN, INFINITY = float("nan"), float("inf")


@pytest.mark.parametrize("other", [(3.0, NAN), (NAN, NAN), (3.0, INFINITY), (-INFINITY, 3.0)], ids=str)
@pytest.mark.parametrize("kind", [pa.float64(), pa.float32()], ids=str)
def test_one_row_group_with_a_nan_or_infinity_leaves_a_column_without_bounds(
    other: tuple[float, float], kind: Any
) -> None:
    """Spark writes NaN as the maximum if there is one. Python's max() ignores it, unless it comes first."""
    for bounds in ([other], [(1.0, 2.0), other], [other, (1.0, 2.0)], [(1.0, 2.0), other, (4.0, 5.0)]):
        assert numbers(*bounds, kind=kind).keys() == {"numRecords", "nullCount"}, bounds


def test_bounds_enclose_both_zeros() -> None:
    """To some readers -0.0 is below 0.0, to others they are equal."""
    for bounds in ([(0.0, -0.0)], [(0.0, 0.0), (-0.0, -0.0)], [(-0.0, -0.0), (0.0, 0.0)]):
        found = numbers(*bounds)
        assert (str(found["minValues"]["id"]), str(found["maxValues"]["id"])) == ("-0.0", "0.0")
    assert numbers((1.0, 2.0), (-1.0, 3.0))["minValues"] == {"id": -1.0}


def test_no_reader_misses_rows_of_a_file_of_sparks_with_nans(
    make: Make, table: str, spark: SparkSession
) -> None:
    """The last of several row groups has the NaNs, and numbers that are above those of the others."""
    number = "if(id > 39990, double('NaN'), double(id))"
    rows = spark.range(40_000).coalesce(1).selectExpr("id", f"{number} x", f"named_struct('y', {number}) s")
    sink = make(rows.schema.json())
    small = {"parquet.block.size": "65536", "parquet.page.size": "4096", "parquet.enable.dictionary": "false"}
    sink.writer(rows).options(**small).parquet(sink.staging("a"))
    (file,) = sink.staged("a")
    found = pq.read_metadata(Path(table, file.name))
    assert found.num_row_groups > 1
    last = found.row_group(found.num_row_groups - 1).column(1).statistics
    assert str(last.max) == "nan", "this is what the test is about"
    sink.publish(-1, 1, (file.name,))
    assert sink.problems([file.name]) == [], "a NaN is not damage"
    dataset, field = DeltaTable(table).to_pyarrow_dataset(), pyarrow.dataset.field
    for column in (field("x"), field("s", "y")):
        assert dataset.to_table(filter=column >= 39_990).column("id").to_pylist() == [39_990]
    (action,) = pa.table(DeltaTable(table).get_add_actions(flatten=True)).to_pylist()
    assert not [key for key in action if key.startswith(("min.", "max.")) and action[key] is not None]


def test_window_ends_are_read_from_folder_names(make: Make, table: str) -> None:
    sink = make(final_by="at")
    for folder in ("__cutwater_end=60000", "__cutwater_end=__HIVE_DEFAULT_PARTITION__"):
        place = Path(sink.staging("a").removeprefix("file://"), folder)
        place.mkdir(parents=True)
        pq.write_table(pa.table({"id": [1]}), place / "part-0.parquet")
        pq.write_table(pa.table({"id": []}), place / "part-1.parquet")
    assert [file.end for file in sink.staged("a")] == [60_000, None]
    assert sink.measure(sink.staged("a"))[0] == 2


def test_partition_values_are_read_from_folders_that_name_a_column() -> None:
    name = "1-1-0-a/city/day=2024%2D01/kind=__HIVE_DEFAULT_PARTITION__/other=x/part=0.parquet"
    found = partition_values(name, ["city", "day", "kind", "part"])
    assert found == {"day": "2024-01", "kind": None}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("part-0.parquet", True), ("city=a/part-0.parquet", True), ("_city=a/part-0.parquet", True),
        ("part-0.txt", False), ("_temporary/0/part-0.parquet", False), (".hidden/part-0.parquet", False),
        (".part-0.parquet", False), ("_part-0.parquet", False), ("city=a/_temporary/part-0.parquet", False),
    ],
)  # fmt: skip
def test_only_committed_output_of_a_job_is_data(name: str, counts: bool) -> None:
    assert is_data(name) is counts
