"""State of your own: `transformWithStateInPandas` keeps the running total and the number of orders per customer.

cutwater run examples/sessions.py --store ./state --every 5s
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StatefulProcessor, StatefulProcessorHandle

import cutwater as cw

pipeline = cw.Pipeline("sessions")


class Totals(StatefulProcessor):
    """Emits, for every order of a customer, the number of orders so far and their total."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._total = handle.getValueState("total", "orders long, spent double")

    def handleInputRows(
        self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any
    ) -> Iterator[pd.DataFrame]:
        count, spent = self._total.get() if self._total.exists() else (0, 0.0)
        for frame in rows:
            lines = []
            for row in frame.sort_values("id").itertuples():
                count, spent = count + 1, spent + float(row.amount)
                lines.append({"customer": key[0], "id": row.id, "orders": count, "spent": spent})
            yield pd.DataFrame(lines)
        self._total.update((count, spent))

    def close(self) -> None:
        pass


@pipeline.stage
def orders(spark: SparkSession) -> DataFrame:
    files = spark.readStream.schema("id long, amount double, ts timestamp").option("maxFilesPerTrigger", 2)
    return files.parquet("in/orders").where("amount > 0").selectExpr("id", "amount", "id % 50 AS customer")


@pipeline.stage(sinks=[cw.delta("out/totals")])
def totals(orders: DataFrame) -> DataFrame:
    return orders.groupBy("customer").transformWithStateInPandas(
        Totals(), "customer long, id long, orders long, spent double", outputMode="append", timeMode="None"
    )
