"""Rules as users write them: what is refused, and how it is said."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import cutwater as cw
from cutwater.plan.graph import graph_mistakes
from cutwater.protocol.base.errors import UserError, mistakes_in
from cutwater.spark.rules import OnViolation, define_rules
from tests.support.spark_helpers import NUMBERS, deliver, numbers


def test_bad_rows_end_the_run_unless_the_stage_says_otherwise() -> None:
    for given, what in ((None, OnViolation.FAIL), ("fail", OnViolation.FAIL), ("drop", OnViolation.DROP)):
        rules = define_rules("s", {"a": "x > 0"}, given)
        assert rules is not None
        assert rules.on_violation is what
    assert define_rules("s", None, None) is None


@pytest.mark.parametrize(
    ("expect", "on_violation", "said"),
    [
        (None, "drop", "has on_violation and no rules"),
        ({}, None, "give 1 to 60 rules"),
        ("amount > 0", None, "give 1 to 60 rules"),
        ({str(n): "true" for n in range(61)}, None, "give 1 to 60 rules"),
        ({"": "x"}, None, "'' cannot name a rule"),
        ({"a\nb": "x"}, None, "cannot name a rule"),
        ({"a": 5}, None, "its rule 'a' is 5; give a SQL condition"),
        ({"small": "x", "Small ": "y"}, None, "has the rules 'small' and 'Small '; rename one"),
        ({"a": "x"}, "ignore", "on_violation is 'ignore'; give 'fail', 'drop' or cutwater.quarantine(path)"),
        ({"a": "x"}, "quarantine", "on_violation is 'quarantine'; give 'fail', 'drop' or cutwater.quarantine(path)"),
        ({"a": "x"}, cw.delta("bad"), "on_violation is sink bad; write on_violation=cutwater.quarantine(path)"),
    ],
)  # fmt: skip
def test_rules_that_cannot_be_meant_are_refused(expect: Any, on_violation: Any, said: str) -> None:
    with pytest.raises(UserError) as raised:
        define_rules("s", expect, on_violation)
    assert said in str(raised.value)


def test_a_quarantine_is_one_more_table_of_its_stage() -> None:
    pipeline = cw.Pipeline("p")
    with pytest.raises(UserError, match=r"has quarantine bad among its sinks; give it as on_violation"):
        pipeline.stage(name="q", sinks=[cw.quarantine("bad")])(lambda: None)
    with pytest.raises(UserError, match="output_mode 'update', but sink bad can only be appended to"):
        pipeline.stage(name="s", expect={"a": "x"}, on_violation=cw.quarantine("bad"), output_mode="update")(
            lambda: None
        )
    pipeline.stage(name="s", expect={"a": "x"}, on_violation=cw.quarantine("t/bad"))(lambda: None)
    pipeline.stage(name="t", sinks=[cw.delta("t/bad", name="other")])(lambda: None)
    found = list(graph_mistakes(pipeline.stages))
    assert len(found) == 2
    assert "stage 's' has no sink, and no other stage reads it" in found[0], "good rows would go nowhere"
    assert "stages 's' and 't' both write to t/bad" in found[1]


def test_rules_that_spark_cannot_judge_a_row_by_are_refused_at_the_start_each_in_one_line(
    spark: SparkSession, tmp_path: Path
) -> None:
    deliver(tmp_path / "in", "0", numbers(range(3)))
    pipeline = cw.Pipeline("p")
    rules = {
        "unknown": "amuont > 0",
        "many": "sum(amount) > 0",
        "ranked": "row_number() over (order by id) < 3",
        "number": "amount + 1",
        "broken": "amount >",
        "fine": "amount > 0",
    }

    @pipeline.stage(
        sinks=[cw.delta(str(tmp_path / "out"))],
        expect=rules,
        on_violation=cw.quarantine(str(tmp_path / "bad"), column="ID"),
    )
    def clean(spark: SparkSession) -> DataFrame:
        return spark.readStream.schema(NUMBERS).parquet(str(tmp_path / "in"))

    with pytest.raises(UserError) as raised:
        pipeline.run(str(tmp_path / "state"), once=True, spark=spark)
    found = mistakes_in(raised.value)
    column, unknown, many, ranked, number, broken = found
    assert column.startswith("stage 'clean' has a column 'ID', and its quarantine bad puts")
    assert unknown == (
        "stage 'clean': its rule 'unknown' (amuont > 0) uses a column that is not there: its rows have id, amount, ts; "
        "did you mean 'amount'?"
    )
    assert "its rule 'many' (sum(amount) > 0) is about many rows, and a rule judges each row alone" in many
    assert "is about many rows" in ranked
    assert "its rule 'number' (amount + 1) is not a condition" in number
    assert "its rule 'broken' (amount >) is refused by Spark: " in broken
    assert not [line for line in found if "\n" in line]
    assert not list((tmp_path / "state").glob("journal/*"))
