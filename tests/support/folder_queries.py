"""Small real queries over files, run in Cutwater's Spark folders, and the results of a batch job over the same files."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import Prepared
from cutwater.protocol.base.watermark import NONE
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.incarnations import base_of
from cutwater.spark.checkpoint.prepared import write_prepared
from cutwater.store.contract import Store
from cutwater.store.opening import open_store

STATE = "org.apache.spark.sql.execution.streaming.state"
PROVIDERS = {
    "rocksdb": (f"{STATE}.RocksDBStateStoreProvider", "2"),
    "hdfs": (f"{STATE}.HDFSBackedStateStoreProvider", "1"),
}
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.streaming.minBatchesToRetain": "1000000000",
    "spark.sql.streaming.fileSource.log.deletion": "false",
    "spark.sql.streaming.fileSource.log.compactInterval": "4",
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "3",
    "spark.sql.streaming.stateStore.maintenanceInterval": "200ms",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
}
SCHEMA = "id long, key long, ts timestamp"
ROWS = 40
START = datetime(2024, 1, 1, tzinfo=UTC)

Row = tuple[Any, ...]
Outputs = dict[int, list[Row]]


def make_session() -> SparkSession:
    """A session with early and frequent snapshots, in which Hadoop writes no `.crc` files."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder: Any = SparkSession.builder
    builder = builder.master("local[2]").appName("folders")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    session: Any = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    local = session._jvm.org.apache.hadoop.fs.FileSystem.getLocal(session._jsc.hadoopConfiguration())
    local.setWriteChecksum(False)
    found: SparkSession = session
    return found


def use_provider(spark: SparkSession, provider: str) -> None:
    name, version = PROVIDERS[provider]
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", name)
    spark.conf.set("spark.sql.streaming.stateStore.checkpointFormatVersion", version)


def write_input(folder: Path, numbers: Iterable[int]) -> None:
    """Files of rows whose event time advances from file to file; half of a file's ids occur again later."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        ids = [number * ROWS // 2 + i for i in range(ROWS)]
        times = [START + timedelta(seconds=i // 4) for i in ids]
        table = pa.table(
            {
                "id": pa.array(ids, pa.int64()),
                "key": pa.array([i % 7 for i in ids], pa.int64()),
                "ts": pa.array(times, pa.timestamp("us", tz="UTC")),
            }
        )
        temp = folder / f".{number}"
        pq.write_table(table, temp)
        os.utime(temp, (1000 + number, 1000 + number))
        temp.rename(folder / f"{number:05}.parquet")


# --- the queries ------------------------------------------------------------------------------------------

Read = Callable[[], DataFrame]


def plain(read: Read) -> DataFrame:
    return read().select("id").where("id % 2 = 0")


def count(read: Read) -> DataFrame:
    return read().groupBy("key").count()


def total(read: Read) -> DataFrame:
    """An aggregation without keys, whose state Spark keeps in one partition."""
    return read().groupBy().count().select(F.lit("all"), "count")


def one(read: Read) -> DataFrame:
    """Changes only one partition, and has batches in which nothing changes."""
    return read().where("key = 1 and id % 200 < 80").groupBy("key").count()


def dedup(read: Read) -> DataFrame:
    return read().dropDuplicates(["id"]).select("id")


def join(read: Read) -> DataFrame:
    left = read().withWatermark("ts", "20 seconds").alias("left")
    right = read().withWatermark("ts", "20 seconds").where("key = 1").alias("right")
    same = F.expr("left.id = right.id and left.ts = right.ts")
    return left.join(right, same).select("left.id", "right.key")


def window(read: Read) -> DataFrame:
    grouped = read().withWatermark("ts", "5 seconds").groupBy(F.window("ts", "10 seconds").alias("w"), "key")
    return grouped.count().select("w.end", "key", "count")


def running(read: Read) -> DataFrame:
    """A count per key kept by a Python state processor."""

    class Running(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.total = handle.getValueState("total", "total long")

        def handleInputRows(self, key: Any, rows: Any, timers: Any) -> Any:
            import pandas as pd  # type: ignore[import-untyped]

            total = (self.total.get()[0] if self.total.exists() else 0) + sum(len(frame) for frame in rows)
            self.total.update((total,))
            yield pd.DataFrame({"key": [key[0]], "count": [total]})

        def close(self) -> None: ...

    frame: Any = read().groupBy("key")
    done: DataFrame = frame.transformWithStateInPandas(
        statefulProcessor=Running(),
        outputStructType="key long, count long",
        outputMode="Update",
        timeMode="None",
    )
    return done


QUERIES: dict[str, tuple[Callable[[Read], DataFrame], str]] = {
    "plain": (plain, "append"),
    "count": (count, "update"),
    "total": (total, "update"),
    "one": (one, "update"),
    "dedup": (dedup, "append"),
    "join": (join, "append"),
    "window": (window, "append"),
    "running": (running, "update"),
}


def run(
    spark: SparkSession,
    store: Store,
    query: str,
    folder: Path,
    incarnation: int,
    *,
    generation: int = 1,
    per_batch: int = 1,
    before: Callable[[int], None] | None = None,
    outputs: Outputs | None = None,
) -> Outputs:
    """Runs a query over all existing files, in its own folder, with `per_batch` files in a batch. Calls `before` inside
    each batch, with its number in the log, before it is prepared. Returns the output per batch, which is in `outputs`
    even if the query fails."""
    build, mode = QUERIES[query]
    outputs = {} if outputs is None else outputs
    cache = Cache()
    base = base_of(store, query, generation, incarnation)

    def on_batch(frame: DataFrame, number: int) -> None:
        batch = number + base + 1
        rows = [tuple(row) for row in frame.collect()]
        if before is not None:
            before(batch)
        outputs[batch] = rows
        write_prepared(store, query, generation, incarnation, prepared(batch), cache)

    def read() -> DataFrame:
        return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", per_batch).parquet(str(folder))

    frame = build(read)
    where = store.spark_url(spark_prefix(query, generation, incarnation).rstrip("/"))
    writer: Any = frame.writeStream.outputMode(mode).foreachBatch(on_batch)
    started = writer.option("checkpointLocation", where).trigger(availableNow=True).start()
    started.awaitTermination()
    return outputs


def prepared(batch: int) -> Prepared:
    return Prepared(batch, (), {}, consumed={}, offsets={}, watermark=NONE)


def check(spark: SparkSession, query: str, folder: Path, outputs: Outputs) -> None:
    """Checks that the output of all batches together equals the result of a batch job."""
    build, mode = QUERIES[query]
    rows = [row for batch in sorted(outputs) for row in outputs[batch]]
    assert sorted(outputs) == list(range(len(outputs))), "a batch is missing"
    if query == "running":
        expected = {tuple(r) for r in count(lambda: read_all(spark, folder)).collect()}
        assert {row[0]: row[1] for row in rows} == dict(expected)
    elif mode == "update":
        expected = {tuple(r) for r in build(lambda: read_all(spark, folder)).collect()}
        assert {row[0]: row[1] for row in rows} == dict(expected)
    else:
        found = Counter(rows)
        wanted = Counter(tuple(row) for row in build(lambda: read_all(spark, folder)).collect())
        if query == "window":
            last = max(row[0] for row in wanted)
            assert len(found) > 5
            closed = max(row[0] for row in found)
            assert last - closed <= timedelta(seconds=20)
            wanted = Counter({row: n for row, n in wanted.items() if row[0] <= closed})
        assert found == wanted


def read_all(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.schema(SCHEMA).parquet(str(folder))


def main(arguments: list[str]) -> None:
    """Runs a query in the folder of incarnation 1, and never returns from one of its batches."""
    store, provider, query, files, last = arguments

    def before(batch: int) -> None:
        if batch == int(last):
            print("stopped", flush=True)
            threading.Event().wait()

    spark = make_session()
    use_provider(spark, provider)
    run(spark, open_store(store), query, Path(files), 1, before=before)


if __name__ == "__main__":
    main(sys.argv[1:])
