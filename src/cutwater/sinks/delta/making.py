"""The function that makes a Delta table a sink."""

from __future__ import annotations

from collections.abc import Sequence

from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.options import named_options
from cutwater.sinks.contract import last_part
from cutwater.sinks.delta.keyed import KeyedDeltaSink
from cutwater.sinks.delta.sink import DeltaSink


@named_options
def delta(
    path: str,
    partition_by: Sequence[str] | str | None = None,
    final_by: str | None = None,
    name: str | None = None,
    existing: str | None = None,
    keys: Sequence[str] | str | None = None,
    sequence_by: str | None = None,
    delete_when: str | None = None,
    except_columns: Sequence[str] | str | None = None,
) -> DeltaSink:
    """A Delta table at `path` (a folder or the URL of a bucket), created with the first rows. With `final_by`, the end of
    a window such as "window.end", rows are published when the pipeline-wide watermark has passed it. A table that others
    have made is refused, unless `existing` is "append", or "upsert" for a table with keys.

    With `keys` the table has one row per key, and each row of the stage is a change of it: the change with the highest
    value in the column `sequence_by` wins, and of equal ones the later. (Without `sequence_by` it is the last one, and a
    batch must not have two of a key.) A change for which the condition `delete_when` is true deletes the row.
    `except_columns` are left out of the table."""
    if keys:
        return KeyedDeltaSink(
            path, partition_by, final_by, name, existing, keys, sequence_by, delete_when, except_columns
        )
    given = {"sequence_by": sequence_by, "delete_when": delete_when, "except_columns": except_columns}
    for option, value in given.items():
        if value:
            raise UserError(
                f"sink {name or last_part(path)}: {option}={value!r} says how rows with equal keys replace each other, "
                "and the sink has no keys: add keys=..., or leave it out"
            )
    return DeltaSink(path, partition_by, final_by, name, existing)
