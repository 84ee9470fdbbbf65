"""`final_by`, checked against the columns of a stage before the stage runs."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import get_close_matches

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import types as t

from cutwater.protocol.base.errors import UserError
from cutwater.sinks.staged_files import window_end
from cutwater.spark.refusals import first_sentences

MISSING = ("UNRESOLVED_COLUMN", "FIELD_NOT_FOUND")
"""Spark's error conditions for a column, or a field of a struct, that is not there."""


def check_final_by(frame: DataFrame, sink: str, final_by: str) -> None:
    """Raises `UserError` if `final_by` of a sink does not give a timestamp for the rows of `frame`."""
    try:
        window_end(frame, final_by)
    except UserError as error:
        raise UserError(f"sink '{sink}': {error}") from error
    except PySparkException as error:
        raise UserError(
            f"sink '{sink}' has final_by={final_by!r}, {_problem(frame, final_by, error)}"
        ) from error


def _problem(frame: DataFrame, final_by: str, error: PySparkException) -> str:
    """What is wrong with the expression, and what was probably meant."""
    columns = dict(_names(frame.schema))
    ends = [name for name, kind in columns.items() if isinstance(kind, t.TimestampType)]
    near = get_close_matches(final_by, ends or columns, n=1)
    meant = f"; did you mean '{near[0]}'?" if near else ""
    if (error.getCondition() or "").startswith(MISSING):
        return f"which its rows do not have; they have {', '.join(columns)}{meant}"
    return f"which Spark refuses: {first_sentences(str(error))}; its rows have {', '.join(columns)}{meant}"


def _names(kind: t.StructType, where: str = "") -> Iterator[tuple[str, t.DataType]]:
    """The columns, and the fields of those that are structs."""
    for field in kind.fields:
        yield f"{where}{field.name}", field.dataType
        if isinstance(field.dataType, t.StructType):
            yield from _names(field.dataType, f"{where}{field.name}.")
