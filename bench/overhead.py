"""The overhead of a pipeline compared with the same job in plain Spark.

The job: read events from files, clean them, add a column, sum per key and minute. Plain Spark does it as three queries,
which are chained through Parquet file sinks and file sources with a checkpoint folder each, once with Spark's defaults
and once with Cutwater's session settings (`tuned`); and as one query, with the same settings (`fused`). Cutwater does it
as three stages in one query (`cutwater`), the same while somebody watches it on its page and Prometheus reads its
metrics (`watched`), as three stages with a query each (`unchained`), and as one stage (`one-stage`), with a checkpoint
every 5 s and exactly-once publishing to Delta. Each run is a separate process. Its clock starts when the session and the
input are ready, and stops when everything is in the last table. The CPU time of the process and its JVM is measured too:
it says more than the clock while other programs use the machine.

Spark's defaults (which include 200 shuffle partitions) are measured only in the first round, and aborted after a while,
because they can take many times as long. There are enough events that startup and compilation do not dominate.

    python -m bench.overhead [--events 60000000] [--rounds 3] [--timeout 600] [--only cutwater watched]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from bench.latency import cpu_s

FILES = 40
KEYS = 1_000
SCHEMA = "id long, key int, amount double, ts timestamp"


def make_input(folder: Path, events: int) -> None:
    """Events in time order that span one hour, in files of which each batch reads a few."""
    import numpy as np
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    start = 1_767_225_600_000_000
    per_file = events // FILES
    for number in range(FILES):
        ids = np.arange(number * per_file, (number + 1) * per_file)
        table = pa.table(
            {
                "id": ids,
                "key": rng.integers(0, KEYS, per_file, dtype=np.int32),
                "amount": rng.integers(-50, 1_000, per_file) / 10.0,
                "ts": pa.array(start + ids * 3_600_000_000 // events, pa.timestamp("us", tz="UTC")),
            }
        )
        pq.write_table(table, folder / f"{number:05d}.parquet")


def cleaned(frame: Any) -> Any:
    return frame.where("amount > 0")


def enriched(frame: Any) -> Any:
    return frame.selectExpr("key", "amount", "ts", "amount * 0.2 as tax", "id % 7 as weekday")


def summed(frame: Any) -> Any:
    from pyspark.sql import functions as F

    windows = frame.withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute"), "key")
    return windows.agg(F.sum("amount").alias("amount"), F.sum("tax").alias("tax"), F.count("*").alias("n"))


def read_input(spark: Any, folder: Path) -> Any:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 4).parquet(str(folder / "in"))


class Took(NamedTuple):
    """What a run took: seconds by the clock, and of CPU time."""

    seconds: float
    cpu_s: float


class Meter:
    """Measures from now on."""

    def __init__(self) -> None:
        self._cpu_s, self._started = cpu_s(os.getpid()), time.perf_counter()

    def read(self) -> Took:
        seconds = time.perf_counter() - self._started
        return Took(seconds, cpu_s(os.getpid()) - self._cpu_s)


def tuned_session() -> Any:
    """A session of plain Spark's with Cutwater's settings."""
    from cutwater.spark.session import make_session

    spark = make_session("bench")
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "100")
    return spark


def run_fused(folder: Path, work: Path) -> tuple[Took, int]:
    """The job as one query, which writes to a file sink."""
    spark = tuned_session()
    spark.range(10).count()
    meter = Meter()
    frame = summed(enriched(cleaned(read_input(spark, folder))))
    writer = frame.writeStream.format("parquet").option("path", str(work / "c")).outputMode("append")
    writer.option("checkpointLocation", str(work / "cp-c")).trigger(
        availableNow=True
    ).start().awaitTermination()
    took = meter.read()
    rows = spark.read.parquet(str(work / "c")).selectExpr("sum(n)").collect()[0][0]
    spark.stop()
    return took, int(rows)


def run_chained(folder: Path, work: Path, tuned: bool) -> tuple[Took, int]:
    """The job as three independent queries."""
    from pyspark.sql import SparkSession

    if tuned:
        spark = tuned_session()
    else:
        builder: Any = SparkSession.builder
        spark = builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
        spark.sparkContext.setLogLevel("ERROR")
    spark.range(10).count()
    schema = cleaned(spark.read.schema(SCHEMA).parquet(str(folder / "in"))).schema
    enriched_schema = enriched(spark.read.schema(SCHEMA).parquet(str(folder / "in"))).schema
    for name in ("a", "b"):
        (work / name).mkdir(parents=True)
    meter = Meter()

    def start(frame: Any, name: str, **trigger: Any) -> Any:
        writer = frame.writeStream.format("parquet").option("path", str(work / name)).outputMode("append")
        return writer.option("checkpointLocation", str(work / f"cp-{name}")).trigger(**trigger).start()

    first = start(cleaned(read_input(spark, folder)), "a", availableNow=True)
    often = {"processingTime": "100 milliseconds"}
    second = start(enriched(spark.readStream.schema(schema).parquet(str(work / "a"))), "b", **often)
    third = start(summed(spark.readStream.schema(enriched_schema).parquet(str(work / "b"))), "c", **often)
    first.awaitTermination()
    second.processAllAvailable()
    third.processAllAvailable()
    took = meter.read()
    rows = spark.read.parquet(str(work / "c")).selectExpr("sum(n)").collect()[0][0]
    second.stop()
    third.stop()
    spark.stop()
    return took, int(rows)


def run_pipeline(folder: Path, work: Path, variant: str) -> tuple[Took, int]:
    """The job as a pipeline."""
    from deltalake import DeltaTable

    import cutwater as cw
    from bench.watched import watched
    from cutwater.api.log_lines import lines_to
    from cutwater.spark.session import make_session

    pipeline = cw.Pipeline("bench", chain=variant in ("cutwater", "watched"))
    sink = cw.delta(str(work / "c"))
    if variant == "one-stage":

        @pipeline.stage(name="total", sinks=[sink])
        def everything(spark: Any) -> Any:
            return summed(enriched(cleaned(read_input(spark, folder))))

    else:

        @pipeline.stage
        def clean(spark: Any) -> Any:
            return cleaned(read_input(spark, folder))

        @pipeline.stage
        def enrich(clean: Any) -> Any:
            return enriched(clean)

        @pipeline.stage(sinks=[sink])
        def total(enrich: Any) -> Any:
            return summed(enrich)

    spark = make_session("bench")
    spark.range(10).count()
    store = str(work / "store")
    with watched(pipeline, store) if variant == "watched" else nullcontext():
        meter = Meter()
        with lines_to(lambda line: None):
            pipeline.run(store, every="5s", once=True, spark=spark)
        took = meter.read()
    table = DeltaTable(str(work / "c")).to_pyarrow_table(columns=["n"])
    spark.stop()
    return took, sum(table["n"].to_pylist())


VARIANTS = ("cutwater", "watched", "fused", "one-stage", "tuned", "unchained", "defaults")
PIPELINES = ("cutwater", "watched", "one-stage", "unchained")
RATIOS = {
    "ratio": ("cutwater", "tuned"),
    "ratio_to_fused": ("cutwater", "fused"),
    "ratio_one_stage": ("one-stage", "fused"),
    "ratio_unchained": ("unchained", "tuned"),
    "ratio_watched": ("watched", "cutwater"),
}


def run_one(variant: str, folder: Path) -> None:
    work = Path(tempfile.mkdtemp(prefix=f"bench-{variant}-", dir=folder))
    if variant in PIPELINES:
        took, rows = run_pipeline(folder, work, variant)
    elif variant == "fused":
        took, rows = run_fused(folder, work)
    else:
        took, rows = run_chained(folder, work, variant == "tuned")
    shutil.rmtree(work, ignore_errors=True)
    print(json.dumps({"took": took.seconds, "cpu_s": took.cpu_s, "rows": rows}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=60_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for Spark's defaults")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=VARIANTS, help="these variants")
    parser.add_argument("--variant")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.variant:
        run_one(arguments.variant, arguments.folder)
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-overhead-"))
    try:
        print(f"making {arguments.events:,} events", flush=True)
        make_input(folder / "in", arguments.events)
        took: dict[str, list[float]] = {v: [] for v in VARIANTS}
        cpu: dict[str, list[float]] = {v: [] for v in VARIANTS}
        rows: set[int] = set()
        for number in range(arguments.rounds):
            for variant in arguments.only:
                if number and variant == "defaults":
                    continue
                command = [
                    sys.executable,
                    "-m",
                    "bench.overhead",
                    "--variant",
                    variant,
                    "--folder",
                    str(folder),
                ]
                timeout = arguments.timeout if variant == "defaults" else None
                try:
                    done = subprocess.run(
                        command, capture_output=True, text=True, check=False, timeout=timeout
                    )
                except subprocess.TimeoutExpired:
                    print(f"round {number + 1}: {variant:9} takes more than {timeout:g} s", flush=True)
                    continue
                if done.returncode:
                    raise SystemExit(done.stderr[-3000:])
                result = json.loads(done.stdout.splitlines()[-1])
                took[variant].append(result["took"])
                cpu[variant].append(result["cpu_s"])
                rows.add(result["rows"])
                print(
                    f"round {number + 1}: {variant:9} {result['took']:7.1f} s, {result['cpu_s']:7.1f} s of CPU, "
                    f"{result['rows']:,} rows",
                    flush=True,
                )
        if len(rows) != 1:
            raise SystemExit(f"the results differ: {sorted(rows)}")
        medians = {v: statistics.median(t) for v, t in took.items() if t}

        def ratio(one: str, other: str) -> float:
            return round(statistics.median(a / b for a, b in zip(took[one], took[other], strict=True)), 3)

        def spread(variant: str) -> float:
            """How far the rounds are apart: what is less than that is noise."""
            return round((max(took[variant]) - min(took[variant])) / medians[variant], 3)

        print(
            json.dumps(
                {
                    "bench": "overhead",
                    "events": arguments.events,
                    "seconds": {v: round(m, 1) for v, m in medians.items()},
                    "cpu_s": {v: round(statistics.median(c), 1) for v, c in cpu.items() if c},
                    **{name: ratio(a, b) for name, (a, b) in RATIOS.items() if took[a] and took[b]},
                    "ratio_to_defaults": round(
                        medians.get("cutwater", 0.0) / medians.get("defaults", math.inf), 3
                    ),
                    "spread": {v: spread(v) for v in medians},
                    "target": {"ratio": 0.60, "ratio_to_fused": 1.10, "ratio_unchained": 1.0},
                }
            )
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
