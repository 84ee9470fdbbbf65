"""The pipelines under test."""

from __future__ import annotations

import inspect
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import functions as F

import cutwater as cw
from tests.faults.random_pipelines import random_pipeline

ORDERS = "id long, amount long, ts timestamp, file long"
PAYMENTS = "order_id long, paid_at timestamp"
SLOW_S = 1.0


def out(base: Path) -> str:
    """Where the tables are: in the folder, or at a URL."""
    return os.environ.get("CUTWATER_TEST_TABLES") or f"{base}/out"


def _source(spark: Any, base: Path, kind: str, schema: str) -> Any:
    reader = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1)
    return reader.parquet(str(base / "in" / kind))


def stateless(base: Path) -> cw.Pipeline:
    """One root, two readers of its channel, three tables."""
    pipeline = cw.Pipeline("faults")

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/orders")])
    def orders(spark: Any) -> Any:
        return _source(spark, base, "orders", ORDERS)

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/big")])
    def big(orders: Any) -> Any:
        return orders.where("amount >= 50").select("id", "amount")

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/small")])
    def small(orders: Any) -> Any:
        return orders.where("amount < 50").select("id", "amount")

    return pipeline


def _orders_and_payments(pipeline: cw.Pipeline, base: Path) -> None:
    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/orders")])
    def orders(spark: Any) -> Any:
        return _source(spark, base, "orders", ORDERS)

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/payments")])
    def payments(spark: Any) -> Any:
        return _source(spark, base, "payments", PAYMENTS).dropDuplicates(["order_id"])

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/matched")])
    def matched(orders: Any, payments: Any) -> Any:
        both = orders.withWatermark("ts", "1 minute").join(
            payments.withWatermark("paid_at", "1 minute"),
            F.expr("id = order_id and paid_at >= ts and paid_at <= ts + interval 1 hour"),
        )
        return both.select("id", "amount", "ts", "paid_at")


def _revenue(pipeline: cw.Pipeline, base: Path, rows: Any) -> Any:
    windows = rows.withWatermark("ts", "1 minute").groupBy(F.window("ts", "10 seconds"))
    return windows.agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))


def join(base: Path) -> cw.Pipeline:
    """Two roots, one with state, and a stream-stream join of them, each with a table."""
    pipeline = cw.Pipeline("faults")
    _orders_and_payments(pipeline, base)
    return pipeline


def windowed(base: Path) -> cw.Pipeline:
    """Windows that are emitted when they are closed."""
    pipeline = cw.Pipeline("faults")

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/orders")])
    def orders(spark: Any) -> Any:
        return _source(spark, base, "orders", ORDERS)

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/revenue", final_by="window.end")])
    def revenue(orders: Any) -> Any:
        return _revenue(pipeline, base, orders)

    return pipeline


def chained(base: Path) -> cw.Pipeline:
    """Windows in one query with the stages before them."""
    pipeline = cw.Pipeline("faults")

    @pipeline.stage(chain=True)
    def orders(spark: Any) -> Any:
        return _source(spark, base, "orders", ORDERS)

    @pipeline.stage(chain=True)
    def kept(orders: Any) -> Any:
        return orders.where("amount >= 0").select("amount", "ts")

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/revenue", final_by="window.end")])
    def revenue(kept: Any) -> Any:
        return _revenue(pipeline, base, kept)

    return pipeline


def shop(base: Path) -> cw.Pipeline:
    """The join, and windows over its output: everything combined."""
    pipeline = cw.Pipeline("faults")
    _orders_and_payments(pipeline, base)

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/revenue", final_by="window.end")])
    def revenue(matched: Any) -> Any:
        return _revenue(pipeline, base, matched)

    return pipeline


def chance(base: Path) -> cw.Pipeline:
    """Nondeterministic output, in a table and in two stages that read it."""
    pipeline = cw.Pipeline("faults")

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/drawn"), cw.parquet(f"{out(base)}/drawn_files")])
    def drawn(spark: Any) -> Any:
        orders = _source(spark, base, "orders", ORDERS).select("id")
        return orders.withColumn("token", F.expr("uuid()")).where("rand() < 0.5")

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/once")])
    def once(drawn: Any) -> Any:
        return drawn

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/again")])
    def again(drawn: Any) -> Any:
        return drawn.dropDuplicates(["id"])

    return pipeline


def slow(base: Path) -> cw.Pipeline:
    """A stage that falls behind: it reads one batch of its channel at a time, slowly."""
    pipeline = cw.Pipeline("faults")

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/orders")])
    def orders(spark: Any) -> Any:
        return _source(spark, base, "orders", ORDERS)

    @pipeline.stage(sinks=[cw.delta(f"{out(base)}/big")], max_rows=1)
    def big(orders: Any) -> Any:
        rows = orders.where("amount >= 50").select("id", "amount")
        return rows.mapInArrow(_after_a_while, rows.schema)

    return pipeline


def judged(base: Path) -> cw.Pipeline:
    """A root with rules and a quarantine, a table, and a stage with rules that reads it."""
    pipeline = cw.Pipeline("faults")

    @pipeline.stage(
        sinks=[cw.delta(f"{out(base)}/orders")],
        expect={"big": "amount >= 50", "odd": "id % 2 = 1"},
        on_violation=cw.quarantine(f"{out(base)}/bad"),
    )
    def orders(spark: Any) -> Any:
        return _source(spark, base, "orders", ORDERS)

    @pipeline.stage(
        sinks=[cw.delta(f"{out(base)}/small")], expect={"small": "amount < 70"}, on_violation="drop"
    )
    def small(orders: Any) -> Any:
        return orders.select("id", "amount")

    return pipeline


def kafka(base: Path) -> cw.Pipeline:
    """A root that reads Kafka, with the options in `kafka.json`, and a reader with state. Its positions go to a consumer
    group. The option `stage` renames the root, which has no table then; with `chain` it has no group either."""
    pipeline = cw.Pipeline("faults")
    options = json.loads((base / "kafka.json").read_text())
    root = options.pop("stage", "records")
    chain = {"yes": True, "no": False}.get(options.pop("chain", ""))
    tables = [cw.delta(f"{base}/out/records")] if root == "records" and chain is None else []
    group = "faults" if chain is None else None

    @pipeline.stage(name=root, sinks=tables, commit_group=group, chain=chain)
    def records(spark: Any) -> Any:
        reader = spark.readStream.format("kafka").option("startingOffsets", "earliest").options(**options)
        return reader.load().selectExpr("topic", "cast(value as string) value")

    def values(**given: Any) -> Any:
        return given[root].select("value").dropDuplicates(["value"])

    parameter = inspect.Parameter(root, inspect.Parameter.KEYWORD_ONLY)
    values.__signature__ = inspect.Signature([parameter])  # type: ignore[attr-defined]
    pipeline.stage(sinks=[cw.delta(f"{base}/out/values")])(values)
    return pipeline


def keyed(base: Path) -> cw.Pipeline:
    """A table with keys, in whose changes everything occurs: late and repeated ones, deletes, keys that are used again,
    rows that move to another partition; and a running total."""
    pipeline = cw.Pipeline("faults")

    @pipeline.stage
    def orders(spark: Any) -> Any:
        return _source(spark, base, "orders", ORDERS)

    @pipeline.stage(
        sinks=[
            cw.delta(
                f"{out(base)}/newest", keys="key", sequence_by="at", delete_when="op = 'd'", except_columns="op",
                partition_by="part",
            ),
            cw.delta(f"{out(base)}/orders"),
        ]
    )  # fmt: skip
    def changes(orders: Any) -> Any:
        return orders.selectExpr(*(f"{sql} AS {name}" for name, sql in CHANGES.items()))

    @pipeline.stage(output_mode="update", sinks=[cw.delta(f"{out(base)}/totals", keys="key")])
    def totals(orders: Any) -> Any:
        return orders.groupBy(F.expr("id % 7").alias("key")).agg(F.sum("amount").alias("total"))

    return pipeline


CHANGES = {
    "key": "(id * 7919) % 61",
    "at": "(id + (id * 31) % 150) * 10000 + id",
    "amount": "amount",
    "part": "amount % 3",
    "op": "CASE WHEN (id * 17) % 5 = 0 THEN 'd' ELSE 'u' END",
}
"""Columns of the changes that the orders are taken for. No two have the same `at`."""


def _after_a_while(batches: Iterator[Any]) -> Iterator[Any]:
    for batch in batches:
        time.sleep(SLOW_S)
        yield batch


PIPELINES: dict[str, Callable[[Path], cw.Pipeline]] = {
    "stateless": stateless,
    "join": join,
    "windowed": windowed,
    "chained": chained,
    "shop": shop,
    "chance": chance,
    "slow": slow,
    "judged": judged,
    "keyed": keyed,
    "kafka": kafka,
    "random": random_pipeline,
}
