"""Quarantines: Delta tables for the rows that violate the rules of a stage.

Such a row keeps its columns, and gets one more, with the names of the rules that it violates.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import types as t

from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.options import named_options
from cutwater.sinks.delta.sink import DeltaSink

COLUMN = "violated"


@named_options
def quarantine(
    path: str,
    partition_by: Sequence[str] | str | None = None,
    name: str | None = None,
    existing: str | None = None,
    column: str = COLUMN,
) -> Quarantine:
    """A Delta table at `path` for the rows of a stage that violate its rules: `on_violation=cutwater.quarantine(path)`.
    It has the stage's columns and `column`, an array with the names of the violated rules. The other options are those of
    `delta`. A quarantine belongs to one stage."""
    return Quarantine(path, partition_by, name, existing, column)


class Quarantine(DeltaSink):
    """A Delta table for bad rows. In the store it is a Delta table like any other."""

    def __init__(
        self,
        path: str,
        partition_by: Sequence[str] | str | None,
        name: str | None,
        existing: str | None,
        column: str,
    ) -> None:
        super().__init__(path, partition_by, None, name, existing)
        self.column = column
        if column in self.partition_by:
            raise UserError(
                f"quarantine {self.name} is partitioned by {column!r}, which is an array; leave it out"
            )

    def columns_for(self, rows: t.StructType) -> t.StructType:
        """Its columns, for a stage with these."""
        return t.StructType([*rows.fields, t.StructField(self.column, t.ArrayType(t.StringType()))])
