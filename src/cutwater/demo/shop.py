"""A small shop: orders and payments arrive as files; matched orders and revenue per minute go to Delta tables.

cutwater run shop.py --store state --every 2s
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw

HERE = Path(__file__).parent
LIMIT = 1_000_000_000

pipeline = cw.Pipeline("shop")


@pipeline.stage
def orders(spark: SparkSession) -> DataFrame:
    files = spark.readStream.schema("id long, amount double, ts timestamp").option("maxFilesPerTrigger", 2)
    return files.parquet(str(HERE / "in/orders")).where(F.col("amount") < LIMIT)


@pipeline.stage
def payments(spark: SparkSession) -> DataFrame:
    files = spark.readStream.schema("order_id long, paid_at timestamp").option("maxFilesPerTrigger", 2)
    return files.parquet(str(HERE / "in/payments")).dropDuplicates(["order_id"])


@pipeline.stage(sinks=[cw.delta(str(HERE / "out/matched"))])
def matched(orders: DataFrame, payments: DataFrame) -> DataFrame:
    same_order = F.expr("id = order_id AND paid_at BETWEEN ts AND ts + INTERVAL 1 MINUTE")
    # The bad rows of two minutes come before the good ones of these minutes.
    on_time = orders.withWatermark("ts", "3 minutes")
    return on_time.join(payments.withWatermark("paid_at", "3 minutes"), same_order).drop("order_id")


@pipeline.stage(sinks=[cw.delta(str(HERE / "out/revenue"), final_by="window.end")])
def revenue(matched: DataFrame) -> DataFrame:
    # A payment may come a minute after its order, and be three minutes late.
    on_time = matched.withWatermark("ts", "4 minutes")
    per_minute = on_time.groupBy(F.window("ts", "1 minute"))
    return per_minute.agg(F.sum("amount").alias("revenue"), F.count("*").alias("orders"))
