"""Splits the rows of a batch into good and bad ones.

Spark computes, judges and writes the rows in one job, with a folder for each combination of violated rules. So each row
is in one place, also if the plan or a rule is not deterministic, and the footers have the counts. Good rows keep their
files: a file of them looks as if the stage had no rules.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cutwater.protocol.base.paths import file_name
from cutwater.sinks.footers import Footer, read_footers
from cutwater.sinks.staged_files import is_data, partition_values
from cutwater.spark.files import Files, quoted
from cutwater.spark.rules import MASK, Rules
from cutwater.store.contract import Store

JUDGED = "_judged/"
"""Where a job writes judged rows, in the attempt's folder."""
EXAMPLES = 3
LONGEST = 160


class RulesViolated(Exception):
    """A batch has bad rows, and the stage's rules say that the run ends then. The message is for the user."""


class Split(NamedTuple):
    """A batch's rows as they were written: the footers of the files with good rows, by name, and the files with bad rows
    by their mask, with the number of rows per mask."""

    good: dict[str, Footer]
    bad: dict[int, list[str]]
    rows: dict[int, int]


class Splitter:
    """Splits the batches of a stage."""

    def __init__(self, store: Store, stage: str, schema: StructType, rules: Rules) -> None:
        self._store = store
        self._stage = stage
        self._schema = schema
        self.rules = rules

    def write(self, rows: DataFrame, folder: str, options: Mapping[str, str]) -> Split:
        """Compute the rows and write them: the good ones to `folder`, the bad ones below it."""
        judged = f"{folder}{JUDGED}"
        writer = self.rules.judged(rows).write.options(**options).partitionBy(MASK)
        writer.mode("append").parquet(self._store.spark_url(judged.rstrip("/")))
        names = [name for name in self._store.list(judged) if is_data(name.removeprefix(judged))]
        split = Split({}, {}, {})
        for name, footer in zip(names, read_footers(self._store, names), strict=True):
            mask = int(partition_values(name, [MASK])[MASK] or 0)
            if mask:
                split.bad.setdefault(mask, []).append(name)
                split.rows[mask] = split.rows.get(mask, 0) + footer.rows
            elif footer.rows:
                target = f"{folder}{file_name(name)}"
                self._store.copy(name, target)
                split.good[target] = footer
        return split

    def bad_rows(self, reader: Files, split: Split) -> DataFrame | None:
        """The bad rows with the names of the rules that they violate, if there are bad rows."""
        found: DataFrame | None = None
        for mask, names in split.bad.items():
            rules = F.array(*(F.lit(name) for name in self.rules.violated(mask)))
            rows = self._read(reader, names).withColumn(self.rules.column, rules)
            found = rows if found is None else found.unionAll(rows)
        return found

    def clear(self, folder: str) -> None:
        """Remove what a job has written to split its rows."""
        self._store.delete(self._store.list(f"{folder}{JUDGED}"))

    def refusal(self, reader: Files, split: Split) -> RulesViolated:
        """The error that says which rules the bad rows violate, with examples."""
        bad, good = sum(split.rows.values()), sum(footer.rows for footer in split.good.values())
        said = []
        for name, count in self.rules.counts(split.rows).items():
            names = [
                n for mask, files in split.bad.items() if name in self.rules.violated(mask) for n in files
            ]
            examples = "; ".join(self._examples(reader, names, self.rules.conditions[name]))
            condition = " ".join(self.rules.conditions[name].split())
            said.append(f"{_rows(count)} '{name}' ({condition}), for example {examples}")
        return RulesViolated(
            f"stage '{self._stage}' has {bad} bad rows among {bad + good} of a batch: {'. '.join(said)}. Nothing of this "
            "batch is published, and the next start begins with the same rows: correct the stage's code or the rule "
            "first; or choose on_violation='drop', or on_violation=cutwater.quarantine(path) and --restore latest"
        )

    def _examples(self, reader: Files, names: Sequence[str], condition: str) -> list[str]:
        """A few rows, the columns of the condition first."""
        words = {word.lower() for word in re.findall(r"\w+", condition)}
        columns = sorted(self._schema.names, key=lambda column: column.lower() not in words)
        shown = self._read(reader, names[:EXAMPLES]).limit(EXAMPLES)
        texts = shown.select(*(F.col(quoted(column)).cast("string") for column in columns)).collect()
        return [_shortened(", ".join(f"{c}={v}" for c, v in zip(columns, row, strict=True))) for row in texts]

    def _read(self, reader: Files, names: Sequence[str]) -> DataFrame:
        return reader.frame([self._store.spark_url(name) for name in names], self._schema.json())


def _rows(count: int) -> str:
    return f"{count} rows violate" if count > 1 else "1 row violates"


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}..."
