"""What grows over a thousand epochs of a small pipeline.

Compares the driver's Python memory, the time per epoch and the number of files in the store: medians of the last
hundred epochs against the first hundred after a warm-up of fifty. The source has rows for every micro-batch, so every
epoch waits for one.

    python -m bench.epochs [--epochs 1000]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import cutwater as cw
from bench.checkpoint import await_rows
from cutwater.spark.session import make_session

WARM_UP = 50
SHOWN = 100


def resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def files_in(folder: Path) -> int:
    return sum(len(files) for _, _, files in os.walk(folder))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1_000)
    epochs = parser.parse_args().epochs
    spark = make_session("bench")
    seconds: list[float] = []
    memory: list[int] = []
    files: list[int] = []
    with tempfile.TemporaryDirectory(prefix="bench-epochs-") as name:
        work = Path(name)
        pipeline = cw.Pipeline("bench", chain=False)

        @pipeline.stage
        def source(spark: Any) -> Any:
            return spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 50).load()

        @pipeline.stage(sinks=[cw.parquet(str(work / "out"))])
        def copy(source: Any) -> Any:
            return source.where("value % 2 = 0")

        pipeline.start(str(work / "store"), every="1h", spark=spark)
        await_rows(pipeline)
        for number in range(epochs):
            started = time.perf_counter()
            pipeline.checkpoint()
            seconds.append(time.perf_counter() - started)
            memory.append(resident_bytes())
            files.append(files_in(work / "store"))
            if number % 50 == 49:
                print(f"{number + 1} epochs: {statistics.median(seconds[-50:]):.3f} s each, "
                      f"{memory[-1] >> 20} MiB, {files[-1]} files", flush=True)  # fmt: skip
        pipeline.stop()
    spark.stop()

    def growth(values: list[Any]) -> float:
        first = statistics.median(values[WARM_UP : WARM_UP + SHOWN])
        return round(float(statistics.median(values[-SHOWN:]) / first), 3)

    found = {"seconds": growth(seconds), "memory": growth(memory), "files": growth(files)}
    print(
        json.dumps(
            {"bench": "epochs", "epochs": epochs, **found, "ratio": max(found.values()), "target": 1.1}
        )
    )


if __name__ == "__main__":
    main()
