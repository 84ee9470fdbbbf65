"""Row schemas in Spark's JSON: what a table can hold, and whether rows fit a table."""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterator
from typing import Any

Type = str | dict[str, Any]

_INTEGERS = {"byte", "short", "integer", "long"}
_PARTITIONS = _INTEGERS | {"string", "boolean", "date", "timestamp_ntz"}
_DELTA = _PARTITIONS | {"float", "double", "binary", "timestamp"}
_EXACT = _PARTITIONS | {"timestamp", "binary"}
_DECIMAL = re.compile(r"decimal\(\d+,\s*-?\d+\)")
_NOT_IN_NAMES = re.compile(r"[ ,;{}()\n\t=]")


def plain(kind: Any) -> Any:
    """The type with everything nullable and without metadata: how Parquet files are read."""
    if isinstance(kind, list):
        return [plain(field) for field in kind]
    if not isinstance(kind, dict):
        return kind
    result = {key: plain(value) for key, value in kind.items()}
    for key in ("nullable", "containsNull", "valueContainsNull"):
        if key in result:
            result[key] = True
    if "name" in result:
        result["metadata"] = {}
    return result


def without_nulls(schema: dict[str, Any], columns: Container[str]) -> dict[str, Any]:
    """The schema with these columns declared as never null. Only simple columns: of others a file does not say how many
    nulls they have."""
    fields = [
        {
            **field,
            "nullable": field["nullable"]
            and not (field["name"] in columns and isinstance(field["type"], str)),
        }
        for field in schema["fields"]
    ]
    return {**schema, "fields": fields}


def leaves(kind: Type, path: str = "") -> Iterator[tuple[str, Type]]:
    """Every column and field of a simple type, with its path and type."""
    if isinstance(kind, str) or kind["type"] not in ("struct", "array", "map"):
        yield path, kind
        return
    if kind["type"] == "struct":
        for field in kind["fields"]:
            yield from leaves(field["type"], f"{path}.{field['name']}" if path else field["name"])
    for part in ("elementType", "keyType", "valueType"):
        if part in kind:
            yield from leaves(kind[part], f"{path}.{part.removesuffix('Type')}")


def unfit_for_delta(schema: dict[str, Any]) -> str | None:
    """Why a Delta table cannot hold such rows, `None` if it can."""
    for path, kind in leaves(schema):
        if isinstance(kind, dict) or not (kind in _DELTA or _DECIMAL.fullmatch(kind)):
            name = _short(kind)
            return (
                f"column {path} is of type {name}, which Delta tables do not support; cast it to another type"
            )
        if _NOT_IN_NAMES.search(path):
            return f"column {path!r} has a character in its name that Delta does not allow; rename it"
    return None


def unwritable(schema: dict[str, Any], partition_by: tuple[str, ...], folders: Collection[str]) -> str | None:
    """Why Spark would not write such rows, to folders that are named after these columns; `None` if it would. Every sink
    stages rows in files. `folders`: the columns that are left out of the files."""
    for column in partition_by:
        if sum(other.lower() == column.lower() for other in partition_by) > 1:
            return f"it is partitioned by {column} twice; name each column once"
    if not schema["fields"]:
        return "its rows have no columns; select some"
    if all(field["name"] in folders for field in schema["fields"]):
        return (
            f"it is partitioned by all columns of its rows ({', '.join(partition_by)}), so its files would be empty; "
            "leave one out, or add a column"
        )
    for field in schema["fields"]:
        if field["name"] in partition_by and not _can_be_folder(field):
            return (
                f"it is partitioned by {field['name']}, which is of type {_short(field['type'])} and cannot be the name "
                "of a folder; use another column, or cast it to string"
            )
    return _unwritable_type(schema, "")


def _can_be_folder(field: dict[str, Any]) -> bool:
    kind = field["type"]
    is_simple = isinstance(kind, str) and kind not in ("interval", "void", "variant")
    return is_simple and "__COLLATIONS" not in field.get("metadata", {})


def _unwritable_type(kind: Type, path: str) -> str | None:
    if kind == "interval":
        return f"column {path} is a calendar interval, which files cannot hold; cast it to string"
    if isinstance(kind, str):
        return None
    parts: list[tuple[Type, str]] = [
        (kind[part], f"{path}.{part.removesuffix('Type')}")
        for part in ("elementType", "keyType", "valueType")
        if part in kind
    ]
    if kind["type"] == "struct":
        if not kind["fields"]:
            return f"column {path} is a struct without fields, which files cannot hold; drop it, or give it a field"
        parts = [
            (field["type"], f"{path}.{field['name']}" if path else field["name"]) for field in kind["fields"]
        ]
    return next((why for part, name in parts if (why := _unwritable_type(part, name))), None)


def unfit_to_partition(schema: dict[str, Any], columns: tuple[str, ...]) -> str | None:
    """Why a table cannot be partitioned by these columns, `None` if it can. A timestamp would be written in the session's
    time zone and read in another, and some readers cannot read negative decimals."""
    for field in schema["fields"]:
        kind = field["type"]
        if field["name"] in columns and not (isinstance(kind, str) and kind in _PARTITIONS):
            name = _short(kind)
            advice = "use its date: to_date(...)" if kind == "timestamp" else "use another column"
            return f"it is partitioned by {field['name']}, which is of type {name}; {advice}"
    return None


def unfit_as_key(kind: Type) -> str | None:
    """Why values of this type cannot be compared exactly, `None` if they can."""
    if isinstance(kind, str) and (kind in _EXACT or _DECIMAL.fullmatch(kind)):
        return None
    name = _short(kind)
    advice = ": cast it to a decimal or an integer" if name in ("float", "double") else ""
    return f"which is of type {name}, and such values cannot be compared exactly{advice}"


def misfit(table: Type, rows: Type, path: str = "") -> str | None:
    """Why rows do not fit a table, `None` if they do. Columns that only the table has are null."""
    if isinstance(table, str) or isinstance(rows, str):
        if table == rows:
            return None
        return f"{path} is {_short(rows)}, but {_short(table)} in the table"
    if table["type"] != rows["type"]:
        return f"{path} is {_short(rows)}, but {_short(table)} in the table"
    if table["type"] == "struct":
        return _struct_misfit(table, rows, path)
    for part, null in (("elementType", "containsNull"), ("keyType", ""), ("valueType", "valueContainsNull")):
        if part in table:
            if rows.get(null) and not table[null]:
                return f"{path} may contain nulls, but the table does not allow them there"
            found = misfit(table[part], rows[part], f"{path}.{part.removesuffix('Type')}")
            if found is not None:
                return found
    return None


def _struct_misfit(table: dict[str, Any], rows: dict[str, Any], path: str) -> str | None:
    have = {field["name"]: field for field in table["fields"]}
    come = {field["name"]: field for field in rows["fields"]}
    for name, field in come.items():
        place = f"{path}.{name}" if path else name
        if name not in have:
            return f"the table has no column {place}"
        if field["nullable"] and not have[name]["nullable"]:
            is_simple = not path and isinstance(field["type"], str)
            fill = "Replace nulls with coalesce(), or allow them" if is_simple else "Allow them"
            return (
                f"{place} may be null, but the table does not allow nulls there. {fill}: {allow_nulls(place)}"
            )
        found = misfit(have[name]["type"], field["type"], place)
        if found is not None:
            return found
    for name, field in have.items():
        if name not in come and not field["nullable"]:
            place = f"{path}.{name}" if path else name
            return f"the table's column {place} must have a value, but the rows do not have it"
    return None


def allow_nulls(column: str) -> str:
    """The statement that lets a column of a table be null."""
    return f"ALTER TABLE ... ALTER COLUMN {column} DROP NOT NULL"


def _short(kind: Type) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
