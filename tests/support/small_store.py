"""The small pipeline whose stores are in `tests/support/stores/`, for tests that continue them.

`python -m tests.support.small_store FILE` runs it in a temporary folder and writes its store and table to FILE, a
`.tar.gz`. Do so before the format of stores changes, with the version that is about to become the old one.
"""

from __future__ import annotations

import sys
import tarfile
import tempfile
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import cutwater as cw


def small_pipeline(base: Path) -> cw.Pipeline:
    """Numbers in the table `out`. The source's offsets contain no paths, so the store can be moved."""
    pipeline = cw.Pipeline("old")

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        numbers = spark.readStream.format("rate-micro-batch")
        return numbers.option("rowsPerBatch", 5).option("startTimestamp", 0).load()

    @pipeline.stage(sinks=[cw.parquet(str(base / "out"))])
    def kept(source: DataFrame) -> DataFrame:
        return source.selectExpr("value as id")

    return pipeline


def unpacked(name: str, folder: Path) -> Path:
    """The folder, with the store `state` and the table `out` of an archive."""
    with tarfile.open(Path(__file__).parent / "stores" / name) as archive:
        archive.extractall(folder, filter="data")
    return folder


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Without owner and times, and without the status, which names the machine."""
    if info.name in ("state/status", "state/.tmp"):
        return None
    info.uid, info.gid, info.uname, info.gname, info.mtime = 0, 0, "", "", 0
    return info


def _run_with_a_file_source(base: Path) -> None:
    """The store remembers the place of every source that has one. The stage that reads it is dropped afterwards: a store
    whose sources have places cannot be moved."""
    (base / "in").mkdir()
    (base / "in" / "0.txt").write_text("one line")
    pipeline = small_pipeline(base)

    @pipeline.stage(sinks=[cw.parquet(str(base / "lines"))])
    def files(spark: SparkSession) -> DataFrame:
        return spark.readStream.text(str(base / "in"))

    pipeline.run(str(base / "state"), once=True, every="1h")


def main(archive: str) -> None:
    base = Path(tempfile.mkdtemp(prefix="small-store-"))
    _run_with_a_file_source(base)
    with small_pipeline(base).start(
        str(base / "state"), every="1h", restore="latest", drop=["files", "lines"]
    ) as running:
        running.savepoint("good")
        running.drain()
    with tarfile.open(archive, "w:gz") as packed:
        for name in ("state", "out"):
            packed.add(base / name, name, filter=_anonymous)


if __name__ == "__main__":
    main(sys.argv[1])
