"""One source, several targets published by one decision: a partitioned Delta table, plain Parquet files, and a function
that gets each epoch's alarms.

    cutwater run examples/many_sinks.py --store ./state --every 5s
"""

from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import cutwater as cw

pipeline = cw.Pipeline("many-sinks")


def write_alarms(rows: DataFrame, epoch: int) -> None:
    """Called with the rows of an epoch after its commit, at least once and always with the same rows. A file that is
    named after the epoch is therefore correct, however often it is written."""
    folder = Path("out/alarms")
    folder.mkdir(parents=True, exist_ok=True)
    lines = sorted(f"{row.id} {row.amount}" for row in rows.collect())
    (folder / f"{epoch:06d}.txt").write_text("\n".join(lines))


@pipeline.stage(sinks=[cw.delta("out/by_size", partition_by="size"), cw.parquet("out/all")])
def orders(spark: SparkSession) -> DataFrame:
    files = spark.readStream.schema("id long, amount double, ts timestamp").option("maxFilesPerTrigger", 2)
    size = F.when(F.col("amount") > 250, "big").when(F.col("amount") > 0, "small")
    return files.parquet("in/orders").withColumn("size", size)


@pipeline.stage(sinks=[cw.foreach_epoch(write_alarms, name="alarms")])
def alarms(orders: DataFrame) -> DataFrame:
    return orders.where("amount < 0").select("id", "amount")
