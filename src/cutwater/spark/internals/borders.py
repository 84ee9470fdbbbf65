"""The border between two stages that run in one query: where one stage's rows become the other's.

The optimizer does not move filters or expressions across an `observe()`, so each stage's code sees the rows that it would
see in a query of its own. (Columns that nobody needs are still left out.) It also counts the rows. And a border declares
the same columns as a channel would: everything may be null. So state has the same schema whether or not its stage reads a
channel.

Users observe rows too. An observation is a border only if it has the name of one of a stage that runs in the query; Spark
refuses two observations with one name in one query.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cutwater.spark.internals import java as j

PREFIX = "cutwater: rows of "
"""What the name of a border begins with; the stage's name follows."""


def at_border(frame: DataFrame, stage: str, schema: str) -> DataFrame:
    """The rows of a stage, as the stage reads them that it is chained into. `schema`: the columns that a channel would
    have, as JSON."""
    observed = frame.observe(f"{PREFIX}{stage}", F.count(F.lit(1)).alias("rows"))
    return _all_nullable(observed, schema)


def stage_of_border(name: str, chained: Collection[str]) -> str | None:
    """The stage, one of those that are chained, whose border has this name; `None` if the user observes something."""
    stage = name.removeprefix(PREFIX)
    return stage if stage != name and stage in chained else None


def observed_rows(metrics: Mapping[str, Any], chained: Collection[str]) -> dict[str, int]:
    """The rows of each chained stage in one batch, from the metrics that Spark observed in it."""
    found = {stage: metrics.get(f"{PREFIX}{stage}") for stage in chained}
    return {stage: int(row["rows"]) for stage, row in found.items() if row is not None}


def _all_nullable(frame: DataFrame, schema: str) -> DataFrame:
    wanted = frame.sparkSession._jsparkSession.parseDataType(schema)
    java = j.Java.of(frame.sparkSession)
    columns, plan = java.type(j.EXPRESSIONS), frame._jdf.queryExecution().analyzed().output()
    known = [plan.apply(i) for i in range(plan.size())]
    kinds = [wanted.apply(i).dataType() for i in range(wanted.size())]
    if all(a.nullable() and a.dataType().equals(kind) for a, kind in zip(known, kinds, strict=True)):
        return frame
    nullable = java.type(j.KNOWN_NULLABLE)
    made = []
    for attribute, kind in zip(known, kinds, strict=True):
        column = columns.column(attribute)
        if not attribute.dataType().equals(kind):  # values inside of it are declared as never null
            column = columns.column(columns.expression(column.cast(kind)))
        inner = columns.expression(column)
        named = getattr(columns.column(nullable(inner)), "as")
        made.append(named(attribute.name(), attribute.metadata()))
    return DataFrame(frame._jdf.select(java.type(j.PYTHON_UTILS).toSeq(made)), frame.sparkSession)
