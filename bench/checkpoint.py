"""The duration of a checkpoint, from the request to the commit, on a chain of four stages.

Under load: an aligned checkpoint relative to three micro-batches (it passes three channels), and an unaligned one
relative to one. On an idle pipeline: in seconds. Aligned and idle ones also while somebody watches the pipeline on its
page and Prometheus reads its metrics (`watched`). One process; the kinds alternate.

    python -m bench.checkpoint [--rounds 10]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import cutwater as cw
from bench.watched import watched
from cutwater.spark.session import make_session

HOPS = 4
ROWS_PER_S = 50_000


def chain(source: Any, out: Path) -> cw.Pipeline:
    """Four stages in a row, each a query; `source` makes the DataFrame of the first."""
    pipeline = cw.Pipeline("bench", chain=False)

    @pipeline.stage
    def first(spark: Any) -> Any:
        return source(spark)

    @pipeline.stage
    def second(first: Any) -> Any:
        return first.where("value % 10 < 9")

    @pipeline.stage
    def third(second: Any) -> Any:
        return second.selectExpr("value", "timestamp", "value % 100 AS key")

    @pipeline.stage(sinks=[cw.delta(str(out))])
    def fourth(third: Any) -> Any:
        return third.selectExpr("key", "value")

    return pipeline


def micro_batch_s(pipeline: cw.Pipeline) -> float:
    """The median duration of the stages' latest micro-batches."""
    runtime = pipeline._running()
    found: list[float] = []
    for host in runtime.hosts.values():
        progress = host.query.recentProgress if host.query is not None else []
        found += [p["batchDuration"] / 1000 for p in progress if p["numInputRows"]]
    return statistics.median(found)


def timed(pipeline: cw.Pipeline, unaligned: bool) -> float:
    started = time.perf_counter()
    pipeline.checkpoint(unaligned=unaligned)
    return time.perf_counter() - started


def await_rows(pipeline: cw.Pipeline) -> None:
    """Waits until rows have passed through the whole chain."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        if all(stage.batch >= 3 for stage in pipeline.status().stages):
            return
        time.sleep(0.1)
    raise SystemExit("no rows reached the last stage")


def compared(some: list[float], others: list[float]) -> float:
    """The median of the ratios of pairs that were measured one after the other."""
    return round(statistics.median(a / b for a, b in zip(some, others, strict=True)), 3)


def spread(times: list[float]) -> float:
    """How far the rounds are apart: what is less than that is noise."""
    return round((max(times) - min(times)) / statistics.median(times), 3)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    spark = make_session("bench")
    spark.conf.set("spark.sql.streaming.metricsEnabled", "false")
    aligned: list[float] = []
    aligned_watched: list[float] = []
    unaligned: list[float] = []
    batches: list[float] = []
    idle: list[float] = []
    idle_watched: list[float] = []
    with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as name:
        work = Path(name)

        def rate(session: Any) -> Any:
            return session.readStream.format("rate").option("rowsPerSecond", ROWS_PER_S).load()

        pipeline = chain(rate, work / "busy-out")
        pipeline.start(str(work / "busy"), every="1h", spark=spark)
        await_rows(pipeline)
        for number in range(rounds):
            aligned.append(timed(pipeline, unaligned=False))
            unaligned.append(timed(pipeline, unaligned=True))
            batches.append(micro_batch_s(pipeline))
            with watched(pipeline, str(work / "busy")):
                aligned_watched.append(timed(pipeline, unaligned=False))
            print(f"round {number + 1}: aligned {aligned[-1]:.2f} s, watched {aligned_watched[-1]:.2f} s, unaligned "
                  f"{unaligned[-1]:.2f} s, micro-batch {batches[-1]:.2f} s", flush=True)  # fmt: skip
        pipeline.stop()
        batch = statistics.median(batches)

        (work / "in").mkdir()

        def nothing(session: Any) -> Any:
            return session.readStream.schema("value long, timestamp timestamp").parquet(str(work / "in"))

        quiet = chain(nothing, work / "quiet-out")
        quiet.start(str(work / "quiet"), every="1h", spark=spark)
        timed(quiet, unaligned=False)
        for _ in range(rounds):
            idle.append(timed(quiet, unaligned=False))
            with watched(quiet, str(work / "quiet")):
                idle_watched.append(timed(quiet, unaligned=False))
        quiet.stop()
    spark.stop()
    ratio = statistics.median(aligned) / ((HOPS - 1) * batch)
    print(
        json.dumps(
            {
                "bench": "checkpoint",
                "aligned_s": round(statistics.median(aligned), 3),
                "unaligned_s": round(statistics.median(unaligned), 3),
                "micro_batch_s": round(batch, 3),
                "ratio": round(ratio, 3),
                "target": 1.5,
                "unaligned_ratio": round(statistics.median(unaligned) / batch, 3),
                "unaligned_target": 1.0,
                "idle_s": round(statistics.median(idle), 3),
                "idle_target_s": 0.5,
                "aligned_watched_s": round(statistics.median(aligned_watched), 3),
                "ratio_watched": compared(aligned_watched, aligned),
                "idle_watched_s": round(statistics.median(idle_watched), 3),
                "idle_ratio_watched": compared(idle_watched, idle),
                "spread": spread(aligned),
                "idle_spread": spread(idle),
            }
        )
    )


if __name__ == "__main__":
    main()
