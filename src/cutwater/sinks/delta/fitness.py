"""Whether rows can be added to a Delta table."""

from __future__ import annotations

from typing import Any

import msgspec
from deltalake import DeltaTable

from cutwater.sinks.schemas import misfit

_FEATURES = {
    "appendOnly",
    "changeDataFeed",
    "checkConstraints",
    "columnMapping",
    "deletionVectors",
    "domainMetadata",
    "generatedColumns",
    "identityColumns",
    "invariants",
    "timestampNtz",
}
"""Table features that allow adding plain files, as long as no column or property uses them."""


_APPENDED_TO = {
    "delta.appendOnly": "so nobody may change its rows; unset it",
    "delta.enableChangeDataFeed": "and Cutwater does not write the changes that readers of the feed expect; unset it",
}
"""Properties with which rows can be added only."""


def schema_of(table: DeltaTable) -> dict[str, Any]:
    """The columns of a table, in Spark's JSON."""
    found: dict[str, Any] = msgspec.json.decode(table.schema().to_json())
    return found


def unfit_for_changes(table: DeltaTable) -> str | None:
    """Why rows of the table cannot be replaced, `None` if they can."""
    configuration = table.metadata().configuration
    for name, why in _APPENDED_TO.items():
        if configuration.get(name, "false").lower() == "true":
            return f"the table has the property {name}, {why}"
    if "deletionVectors" in (table.protocol().reader_features or ()):
        return (
            "the table has deletion vectors, with which a file has rows that the table does not. Rewrite the files "
            "(REORG TABLE ... APPLY (PURGE)) and drop the feature (ALTER TABLE ... DROP FEATURE deletionVectors)"
        )
    return None


def misfit_of(table: DeltaTable, rows: dict[str, Any], partition_by: tuple[str, ...]) -> str | None:
    """Why rows with this schema cannot be added to the table, `None` if they can."""
    schema = schema_of(table)
    metadata = table.metadata()
    used = {k for field in schema["fields"] for k in field["metadata"] if k.startswith("delta.")}
    used.update(set(table.protocol().writer_features or ()) - _FEATURES)
    used.update(k for k in metadata.configuration if k.startswith("delta.constraints."))
    if metadata.configuration.get("delta.columnMapping.mode", "none") != "none":
        used.add("delta.columnMapping.mode")
    if used:
        return f"the table uses {', '.join(sorted(used))}, which Cutwater does not support for writing"
    if tuple(metadata.partition_columns) != partition_by:
        return f"it is partitioned by {metadata.partition_columns}, but the sink by {[*partition_by]}"
    return misfit(schema, rows)
