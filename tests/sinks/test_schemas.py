"""Schemas as Spark describes them: what is left of them in files, and what a Delta table can hold."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from cutwater.sinks.footers import _encloses
from cutwater.sinks.schemas import leaves, plain, unfit_for_delta, unfit_to_partition, unwritable


def field(name: str, kind: Any, nullable: bool = True, **metadata: str) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": nullable, "metadata": metadata}


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def array(kind: Any, null: bool = True) -> dict[str, Any]:
    return {"type": "array", "elementType": kind, "containsNull": null}


def mapping(key: Any, value: Any, null: bool = True) -> dict[str, Any]:
    return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": null}


def test_in_files_everything_may_be_null_and_nothing_is_annotated() -> None:
    deep = struct(
        field("a", "long", False, comment="x"),
        field("b", array(struct(field("c", "string", False, comment="y")), False), False),
        field("d", mapping("string", array("long", False), False)),
    )
    assert plain(deep) == struct(
        field("a", "long"),
        field("b", array(struct(field("c", "string")))),
        field("d", mapping("string", array("long"))),
    )
    assert plain("long") == "long"


def test_columns_are_named_by_their_path() -> None:
    deep = struct(
        field("a", "long"),
        field(
            "b",
            struct(field("c", array("date")), field("d", mapping("string", struct(field("e", "double"))))),
        ),
    )
    assert list(leaves(deep)) == [
        ("a", "long"), ("b.c.element", "date"), ("b.d.key", "string"), ("b.d.value.e", "double"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("long", None), ("timestamp_ntz", None), ("binary", None), ("decimal(10,2)", None), ("decimal(3, -1)", None),
        (array("string"), None), ("interval", "column v is of type interval"), ("decimal", "column v is of type decimal"),
        (array("void"), "column v.element is of type void"), ({"type": "udt"}, "column v is of type udt"),
    ],
)  # fmt: skip
def test_a_delta_table_has_not_all_types(kind: Any, why: str | None) -> None:
    found = unfit_for_delta(struct(field("id", "long"), field("v", kind)))
    assert (found is None) == (why is None)
    assert found is None or found.startswith(why or "")


def test_a_delta_table_has_not_all_names() -> None:
    found = unfit_for_delta(struct(field("a b", "long")))
    assert found == "column 'a b' has a character in its name that Delta does not allow; rename it"


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("date", None), ("string", None), ("boolean", None),
        ("timestamp", "it is partitioned by by, which is of type timestamp; use its date: to_date(...)"),
        ("double", "it is partitioned by by, which is of type double; use another column"),
        (array("long"), "it is partitioned by by, which is of type array; use another column"),
    ],
)  # fmt: skip
def test_a_table_is_partitioned_by_what_a_path_can_tell(kind: Any, why: str | None) -> None:
    schema = struct(field("other", "double"), field("by", kind))
    assert unfit_to_partition(schema, ("by",)) == why
    assert unfit_to_partition(schema, ()) is None


NAN = float("nan")


@pytest.mark.parametrize(
    ("low", "high", "fits"),
    [
        (1.0, 2.0, True), (0.0, 3.0, True), (-0.5, 2.0, False), (1.0, 3.5, False), (NAN, NAN, True),
        (1, 2, True), (-1, 2, False), (1, 4, False), ("a", "b", True),
    ],
)  # fmt: skip
def test_bounds_enclose_what_is_in_a_file_or_say_nothing_of_it(low: Any, high: Any, fits: bool) -> None:
    bounds: dict[type, tuple[Any, Any]] = {float: (0.0, 3.0), int: (0, 3), str: (0, 3)}
    least, most = bounds[type(low)]
    said = SimpleNamespace(min=least, max=most)
    assert _encloses(said, pa.scalar(low), pa.scalar(high)) is fits


ID = field("id", "long")


@pytest.mark.parametrize(
    ("fields", "partition_by", "why"),
    [
        ([ID], ["id"], "partitioned by all columns of its rows"),
        ([ID, field("k", "long")], ["k", "k"], "partitioned by k twice"),
        ([ID, field("k", "long"), field("K", "long")], ["k", "K"], "partitioned by k twice"),
        ([ID, field("a", array("long"))], ["a"], "partitioned by a, which is of type array"),
        ([ID, field("a", struct(ID))], ["a"], "partitioned by a, which is of type struct"),
        ([ID, field("a", mapping("long", "long"))], ["a"], "partitioned by a, which is of type map"),
        ([ID, field("a", "variant")], ["a"], "partitioned by a, which is of type variant"),
        ([ID, field("a", "interval")], [], "column a is a calendar interval"),
        ([ID, field("a", array(struct(field("b", "interval"))))], [], "column a.element.b is a calendar interval"),
        ([ID, field("a", struct())], [], "column a is a struct without fields"),
        ([ID, field("a", mapping("long", struct()))], [], "column a.value is a struct without fields"),
        ([], [], "its rows have no columns"),
    ],
)  # fmt: skip
def test_rows_that_spark_would_not_write_are_refused(
    fields: list[dict[str, Any]], partition_by: list[str], why: str
) -> None:
    found = unwritable(struct(*fields), tuple(partition_by), partition_by)
    assert found is not None
    assert why in found


def test_rows_that_spark_writes_are_not_refused() -> None:
    kinds = ["void", "interval day to second", "variant", array("long"), mapping("string", struct(ID))]
    fields = [ID, *(field(f"c{number}", kind) for number, kind in enumerate(kinds))]
    assert unwritable(struct(*fields), ("id",), ("id",)) is None
    assert unwritable(struct(ID), ("id",), ("__cutwater_by_id",)) is None
