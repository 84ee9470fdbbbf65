"""The columns that a staged file was written with: those in the file, and those that only its folders have.

Rows may wait for a long time between being staged and being published, and the code may change in between. Readers
return nulls for a column that a file does not have, so a file is published only if it has the expected columns.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from cutwater.sinks.footers import Footer
from cutwater.sinks.schemas import Type, misfit, plain
from cutwater.sinks.staged_files import partition_columns
from cutwater.spark.files import SCHEMA_KEY

RESERVED = "__cutwater_"
"""The prefix of columns that sinks add while they stage rows."""

_TEXT = re.compile(r"(var)?char\(\d+\)|string collate .*")


class Columns(msgspec.Struct, frozen=True):
    """`inside`: the columns of a file with their types, `None` if the file does not record the type. `outside`: those
    that are in the names of its folders instead."""

    inside: dict[str, Type | None]
    outside: frozenset[str] = frozenset()

    def __str__(self) -> str:
        said = [f"{name} {_shown(kind)}" for name, kind in self.inside.items()]
        said += [f"{name} (in the path: partition_by)" for name in sorted(self.outside)]
        return ", ".join(said)

    def is_like(self, other: Columns) -> bool:
        """Whether both have the same columns, of the same types as far as they are known, in the same place."""
        if self.outside != other.outside or self.inside.keys() != other.inside.keys():
            return False
        return all(_are_alike(kind, other.inside[name]) for name, kind in self.inside.items())

    def fit(self, table: dict[str, Any], partition_by: tuple[str, ...]) -> bool:
        """Whether a file with these columns can be added to a table. Columns that only the table has are null."""
        if self.outside != set(partition_by):
            return False
        have = {field["name"]: field for field in table["fields"] if field["name"] not in self.outside}
        if any(name not in self.inside and not field["nullable"] for name, field in have.items()):
            return False
        return all(
            name in have and _are_alike(kind, plain(have[name]["type"])) for name, kind in self.inside.items()
        )


def columns_of(schema: dict[str, Any], outside: frozenset[str] = frozenset()) -> Columns:
    """The columns of rows with this schema; those in `outside` are in the names of a file's folders."""
    fields = {field["name"]: _text(plain(field["type"])) for field in schema["fields"]}
    inside = {name: kind for name, kind in fields.items() if name not in outside}
    return Columns(inside, outside & fields.keys())


def staged_columns(name: str, footer: Footer) -> Columns:
    """The columns of a staged file."""
    outside = frozenset(key for key in partition_columns(name) if not key.startswith(RESERVED))
    said = (footer.metadata.metadata or {}).get(SCHEMA_KEY.encode())
    if said is None:
        return Columns(dict.fromkeys(footer.metadata.schema.to_arrow_schema().names), outside)
    return Columns(columns_of(msgspec.json.decode(said)).inside, outside)


def _text(kind: Any) -> Any:
    """The type with all kinds of strings as one: in a file they are the same."""
    if isinstance(kind, str):
        return "string" if _TEXT.fullmatch(kind) else kind
    if isinstance(kind, list):
        return [_text(part) for part in kind]
    if not isinstance(kind, dict):
        return kind
    return {key: value if key == "name" else _text(value) for key, value in kind.items()}


def _are_alike(one: Type | None, other: Type | None) -> bool:
    if one is None or other is None:
        return True
    return misfit(one, other) is None and misfit(other, one) is None


def _shown(kind: Type | None) -> str:
    if kind is None:
        return "(type unknown)"
    return kind if isinstance(kind, str) else str(kind["type"])
