"""The run whose classes the archive has (`archive_maker.py`): `python -m cutwater.api.archive_training`."""

from __future__ import annotations

import os
import signal
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from pyspark.sql import functions as F

from cutwater.api.archive_maker import make
from cutwater.api.log_lines import lines_to
from cutwater.api.pipeline import Pipeline
from cutwater.sinks import delta, parquet
from cutwater.spark import class_archive
from cutwater.spark.internals.gateway import end_jvm

ENDS_WITHIN_S = 900.0
"""How long Java may take to write the archive."""
GIVES_UP_S = 1_800.0
"""How long all of it may take: nobody waits for this process, so nobody would notice that it hangs."""
CLEANS_UP_S = 60.0


def train(made: Path) -> None:
    """Run a small pipeline with what pipelines usually have, in a JVM that archives its classes there when it ends."""
    os.environ[class_archive.SWITCH] = class_archive.OFF
    with tempfile.TemporaryDirectory(prefix="cutwater-archive-") as name:
        folder = Path(name)
        _put_rows(folder / "in")
        pipeline = Pipeline("archive")
        _add_stages(pipeline, folder)
        conf = {"spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={made}"'}
        with lines_to(lambda line: None):
            pipeline.run(str(folder / "store"), every="1s", once=True, conf=conf)
        end_jvm(ENDS_WITHIN_S)


def _put_rows(folder: Path) -> None:
    folder.mkdir()
    minutes = pa.array([n * 60_000_000 for n in range(100)], pa.timestamp("us", tz="UTC"))
    table = pa.table({"id": pa.array(range(100), pa.int64()), "amount": [1.5] * 100, "ts": minutes})
    for number in range(3):
        pq.write_table(table, folder / f"{number}.parquet")


def _add_stages(pipeline: Pipeline, folder: Path) -> None:
    @pipeline.stage
    def clean(spark: Any) -> Any:
        source = spark.readStream.schema("id long, amount double, ts timestamp")
        return source.option("maxFilesPerTrigger", 1).parquet(str(folder / "in")).where("amount > 0")

    @pipeline.stage(sinks=[parquet(str(folder / "rows"))])
    def enriched(clean: Any) -> Any:
        return clean.selectExpr("id", "ts", "amount * 0.2 as tax", "cast(id as string) as name")

    @pipeline.stage(sinks=[delta(str(folder / "single"))])
    def single(enriched: Any) -> Any:
        return enriched.withWatermark("ts", "1 minute").dropDuplicates(["id", "ts"])

    @pipeline.stage(sinks=[delta(str(folder / "sums"))])
    def sums(clean: Any) -> Any:
        return (
            clean.withWatermark("ts", "1 minute")
            .groupBy(F.window("ts", "1 minute"), "id")
            .agg(F.sum("amount").alias("amount"))
        )


def _give_up(*_: object) -> None:
    """Ends this process. Java ends with it, since it reads a pipe from it."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, CLEANS_UP_S)
    raise SystemExit("the archive of Java's classes has taken too long")


def main() -> None:
    signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, GIVES_UP_S)
    os.nice(19)
    with suppress(OSError):  # if memory runs out, this process and its Java go first
        Path("/proc/self/oom_score_adj").write_text("1000")
    place = class_archive.folder()
    if place is not None:
        with suppress(OSError):
            make(place, train)


if __name__ == "__main__":
    main()
