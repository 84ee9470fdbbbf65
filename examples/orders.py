"""The pipeline of docs/getting-started.md: two sources, a join, revenue per minute, two tables that always agree.

python examples/make_orders.py in            # some input to try it on
cutwater run examples/orders.py --store ./state --every 5s
"""

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw

ORDERS = "id long, amount double, ts timestamp"
PAYMENTS = "id long, order_id long, paid_at timestamp"

pipeline = cw.Pipeline("orders")


@pipeline.stage  # a stage is a function that returns a streaming DataFrame
def clean(spark: SparkSession) -> DataFrame:
    return spark.readStream.schema(ORDERS).parquet("in/orders").where("amount > 0")


@pipeline.stage
def paid(spark: SparkSession) -> DataFrame:
    return spark.readStream.schema(PAYMENTS).parquet("in/payments").dropDuplicates(["id"])


@pipeline.stage(sinks=[cw.delta("out/matched")])
def matched(clean: DataFrame, paid: DataFrame) -> DataFrame:  # its parameters name the stages that it reads
    orders = clean.withWatermark("ts", "1 minute").alias("o")
    payments = paid.withWatermark("paid_at", "1 minute").alias("p")
    within_an_hour = F.expr("o.id = p.order_id AND p.paid_at BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR")
    return orders.join(payments, within_an_hour).select("o.id", "o.amount", "o.ts", "p.paid_at")


@pipeline.stage(sinks=[cw.delta("out/revenue", final_by="window.end")])  # shown when closed everywhere
def revenue(matched: DataFrame) -> DataFrame:
    # A payment may come an hour after its order, and be a minute late.
    on_time = matched.withWatermark("ts", "61 minutes")
    per_minute = on_time.groupBy(F.window("ts", "1 minute"))
    return per_minute.agg(F.sum("amount").alias("revenue"))
