"""Rules for the rows of a stage: what they are, and how a batch's rows are judged by them.

A row is good if every condition is true for it. A condition that is null is violated, as a filter would leave the row
out; a CHECK constraint of SQL lets it pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from enum import Enum
from typing import Any

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from cutwater.protocol.base.errors import UserError
from cutwater.sinks.contract import Sink
from cutwater.sinks.quarantine import Quarantine
from cutwater.spark.plan import row_schema
from cutwater.spark.refusals import first_sentences

MASK = "__cutwater_violated"
"""The column of judged rows with a bit for each rule that the row violates."""
MOST = 60
"""The most rules that a stage can have: each is a bit of a long."""
_UNKNOWN = ("UNRESOLVED_COLUMN", "FIELD_NOT_FOUND")


class OnViolation(Enum):
    """What happens to bad rows."""

    FAIL = "fail"
    DROP = "drop"
    QUARANTINE = "quarantine"


class Rules(msgspec.Struct, frozen=True):
    """The rules of a stage: the condition of each, by name. `quarantine`: the sink that gets bad rows, if one does, and
    `column`, which has the names of the violated rules there."""

    conditions: dict[str, str]
    on_violation: OnViolation
    quarantine: str = ""
    column: str = ""

    def judged(self, rows: DataFrame) -> DataFrame:
        """The rows with `MASK`."""
        bits = [
            F.when(F.coalesce(F.expr(condition), F.lit(False)), F.lit(0))
            .otherwise(F.lit(1 << place))
            .cast("long")
            for place, condition in enumerate(self.conditions.values())
        ]
        mask = bits[0]
        for bit in bits[1:]:
            mask = mask + bit
        return rows.withColumn(MASK, mask)

    def violated(self, mask: int) -> list[str]:
        """The rules that a row with this mask violates."""
        return [name for place, name in enumerate(self.conditions) if mask >> place & 1]

    def counts(self, rows: Mapping[int, int]) -> dict[str, int]:
        """How many rows violate each rule, if any do. `rows`: the number of rows by mask."""
        found: dict[str, int] = {}
        for mask, count in rows.items():
            for name in self.violated(mask):
                found[name] = found.get(name, 0) + count
        return {name: found[name] for name in self.conditions if name in found}


def define_rules(stage: str, expect: Mapping[str, str] | None, on_violation: Any) -> Rules | None:
    """The rules of a stage from its options; `None` if it has none. Raises `UserError` if they are not valid."""
    if expect is None:
        if on_violation is not None:
            raise UserError(f"stage '{stage}' has on_violation and no rules: add expect={{name: condition}}")
        return None
    _check_names(stage, expect)
    if isinstance(on_violation, Quarantine):
        return Rules(dict(expect), OnViolation.QUARANTINE, on_violation.name, on_violation.column)
    if isinstance(on_violation, Sink):
        raise UserError(
            f"stage '{stage}': on_violation is sink {on_violation.name}; write on_violation=cutwater.quarantine(path)"
        )
    try:
        what = OnViolation(OnViolation.FAIL if on_violation is None else on_violation)
    except ValueError:
        what = OnViolation.QUARANTINE
    if what is OnViolation.QUARANTINE:
        raise UserError(
            f"stage '{stage}': on_violation is {on_violation!r}; give 'fail', 'drop' or cutwater.quarantine(path)"
        )
    return Rules(dict(expect), what)


def _check_names(stage: str, expect: Mapping[str, str]) -> None:
    if not isinstance(expect, Mapping) or not 0 < len(expect) <= MOST:
        raise UserError(
            f"stage '{stage}': expect is {expect!r}; give 1 to {MOST} rules, as in expect={{'positive': 'amount > 0'}}"
        )
    seen: dict[str, str] = {}
    for name, condition in expect.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise UserError(f"stage '{stage}': {name!r} cannot name a rule: use a word or a short text")
        if not isinstance(condition, str):
            raise UserError(
                f"stage '{stage}': its rule '{name}' is {condition!r}; give a SQL condition, as in 'amount > 0'"
            )
        other = seen.setdefault(name.strip().lower(), name)
        if other != name:
            raise UserError(f"stage '{stage}' has the rules '{other}' and '{name}'; rename one of them")


def rule_mistakes(stage: str, rules: Rules, frame: DataFrame) -> Iterator[str]:
    """What is wrong with the rules of a stage that gives these rows."""
    taken = {name.lower() for name in frame.columns}
    if MASK in taken:
        yield f"stage '{stage}' has rules and a column {MASK!r}, a reserved name: rename the column"
    if rules.column.lower() in taken:
        yield (
            f"stage '{stage}' has a column '{rules.column}', and its quarantine {rules.quarantine} puts the names of "
            "the violated rules into a column of that name: give quarantine() another column=..."
        )
    empty = frame.sparkSession.createDataFrame([], row_schema(frame.schema))
    for name, condition in rules.conditions.items():
        try:
            empty.where(F.expr(condition)).select(F.expr(condition))
        except PySparkException as error:
            yield f"stage '{stage}': its rule '{name}' ({_line(condition)}) {_problem(empty, condition, error)}"


def _problem(rows: DataFrame, condition: str, error: PySparkException) -> str:
    """Why Spark refuses a condition, and what was probably meant."""
    has = f"its rows have {', '.join(rows.columns)}"
    known = error.getCondition() or ""
    if known.startswith(_UNKNOWN):
        near = [m for word in re.findall(r"\w+", condition) if word not in rows.columns
                for m in get_close_matches(word, rows.columns, n=1)]  # fmt: skip
        meant = f"; did you mean '{near[0]}'?" if near else ""
        return f"uses a column that is not there: {has}{meant}"
    if known == "INVALID_WHERE_CONDITION" or "inside WHERE clause" in str(error):
        return (
            "is about many rows, and a rule judges each row alone: leave out aggregates, window functions and "
            "generators, or compute such a value in the stage, as a column"
        )
    if "FILTER_NOT_BOOLEAN" in known:
        return "is not a condition, which is true or false: compare it with something"
    return f"is refused by Spark: {first_sentences(str(error))}; {has}"


def _line(condition: str) -> str:
    return " ".join(condition.split())
