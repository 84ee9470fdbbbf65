"""Small random pipelines: each stage as a function, and the same in SQL."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import msgspec

import cutwater as cw

KINDS = {"keep": 1, "shift": 1, "distinct": 1, "both": 2, "match": 2}
"""The kinds of stages, and the number of inputs of each."""


class StagePlan(msgspec.Struct, frozen=True):
    """One stage. `inputs` are numbers of earlier stages; stages 0 and 1 read the sources."""

    what: str
    inputs: tuple[int, ...]
    number: int


class PipelinePlan(msgspec.Struct, frozen=True):
    """`hidden`: the stages without a table, which may be chained, with `chain`."""

    stages: list[StagePlan]
    hidden: frozenset[int] = frozenset()
    chain: bool = True


def sql_of(plans: list[StagePlan], stage: int) -> str:
    """The rows of a stage, as a query over the input."""
    if stage < 2:
        return ROOTS[stage]
    plan = plans[stage - 2]
    rows = [f"({sql_of(plans, i)})" for i in plan.inputs]
    return {
        "keep": f"select id, amount from {rows[0]} where id % {plan.number} != 0",
        "shift": f"select id, amount + {plan.number} as amount from {rows[0]}",
        "distinct": f"select distinct id, amount from {rows[0]}",
        "both": f"from {rows[0]} union all from {rows[-1]}",
        "match": f"select a.id, a.amount + b.amount as amount from {rows[0]} a join {rows[-1]} b on a.id = b.id",
    }[plan.what]


ROOTS = (
    "select id, amount from orders",
    "select order_id as id, order_id % 10 as amount from payments",
)


def save(base: Path, plan: PipelinePlan) -> None:
    (base / "plan.json").write_bytes(msgspec.json.encode(plan))


def random_pipeline(base: Path) -> cw.Pipeline:
    """The pipeline that the parent process saved."""
    plan = msgspec.json.decode((base / "plan.json").read_bytes(), type=PipelinePlan)
    pipeline = cw.Pipeline("faults", chain=plan.chain)

    def tables(stage: int) -> list[Any]:
        return [] if stage in plan.hidden else [cw.delta(f"{base}/out/s{stage}")]

    @pipeline.stage(name="s0", sinks=tables(0))
    def s0(spark: Any) -> Any:
        rows = spark.readStream.schema("id long, amount long").option("maxFilesPerTrigger", 1)
        return rows.parquet(str(base / "in" / "orders"))

    @pipeline.stage(name="s1", sinks=tables(1))
    def s1(spark: Any) -> Any:
        rows = spark.readStream.schema("order_id long").option("maxFilesPerTrigger", 1)
        return rows.parquet(str(base / "in" / "payments")).selectExpr("order_id id", "order_id % 10 amount")

    for number, stage in enumerate(plan.stages, start=2):
        _add(pipeline, f"s{number}", stage, tables(number))
    return pipeline


def _add(pipeline: cw.Pipeline, name: str, plan: StagePlan, sinks: list[Any]) -> None:
    inputs = [f"s{i}" for i in plan.inputs]

    def function(**given: Any) -> Any:
        rows = [given[i] for i in inputs]
        match plan.what:
            case "keep":
                return rows[0].where(f"id % {plan.number} != 0")
            case "shift":
                return rows[0].selectExpr("id", f"amount + {plan.number} amount")
            case "distinct":
                return rows[0].dropDuplicates(["id", "amount"])
            case "both":
                return rows[0].unionAll(rows[1])
            case _:
                other = rows[1].selectExpr("id id2", "amount amount2")
                return (
                    rows[0]
                    .join(other, rows[0]["id"] == other["id2"])
                    .selectExpr("id", "amount + amount2 amount")
                )

    parameters = [inspect.Parameter(i, inspect.Parameter.KEYWORD_ONLY) for i in inputs]
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    pipeline.stage(name=name, sinks=sinks)(function)
