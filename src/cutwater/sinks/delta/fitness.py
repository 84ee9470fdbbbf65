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


def schema_of(table: DeltaTable) -> dict[str, Any]:
    """The columns of a table, in Spark's JSON."""
    found: dict[str, Any] = msgspec.json.decode(table.schema().to_json())
    return found


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
