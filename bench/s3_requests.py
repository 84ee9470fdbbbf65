"""Requests to S3 per epoch and per batch, counted by a proxy in front of a real S3 server.

A pipeline of three stages (files, a filter, sums per minute with state) and two Delta tables, with its store and its
tables on S3. First it is idle: requests per second without anything new, and those of a checkpoint without anything
new. Then, per epoch, one file arrives, each stage runs one or two batches, and a checkpoint is taken. Requests are
told apart by who sends them: Spark (through S3A), or Cutwater (the store and the tables).

    python -m bench.s3_requests [--epochs 8] [--names]

Needs `make tools`. With --names it also prints what is asked for, most frequent first.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.support.s3_proxy import Request, S3Proxy, s3_proxy
from tests.support.s3_server import BUCKET, TOOLS, s3_server

import cutwater as cw
from cutwater.api.log_lines import lines_to

IDLE_S = 10.0
SCHEMA = "id long, amount double, ts timestamp"
CHEAP = ("get", "head")
"""The kinds that S3 charges a tenth for. Deletes are free."""


def job(folder: Path) -> cw.Pipeline:
    from pyspark.sql import functions as F

    pipeline = cw.Pipeline("bench")

    @pipeline.stage
    def events(spark: Any) -> Any:
        return spark.readStream.schema(SCHEMA).parquet(str(folder / "in"))

    @pipeline.stage(sinks=[cw.delta(f"s3://{BUCKET}/out/big")])
    def big(events: Any) -> Any:
        return events.where("amount > 50")

    @pipeline.stage(sinks=[cw.delta(f"s3://{BUCKET}/out/total", final_by="window.end")])
    def total(events: Any) -> Any:
        windows = events.withWatermark("ts", "1 minute").groupBy(F.window("ts", "1 minute"))
        return windows.agg(F.sum("amount").alias("amount"))

    return pipeline


def add_file(folder: Path, number: int) -> None:
    """A hundred events of one minute."""
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    start = 1_767_225_600_000_000 + number * 60_000_000
    table = pa.table(
        {
            "id": pa.array(range(100), pa.int64()),
            "amount": pa.array(range(100), pa.float64()),
            "ts": pa.array([start + i * 600_000 for i in range(100)], pa.timestamp("us", tz="UTC")),
        }
    )
    hidden = folder / f".{number}"
    pq.write_table(table, hidden)
    hidden.rename(folder / "in" / f"{number:05d}.parquet")


def batches(pipeline: cw.Pipeline) -> int:
    return sum(stage.batch + 1 for stage in pipeline.status().stages)


def shown(requests: Sequence[Request], per: float) -> dict[str, Any]:
    """Requests by sender and kind, divided by `per`."""
    kinds = Counter((request.client, request.kind) for request in requests)
    found: dict[str, Any] = {
        client: {k: round(n / per, 1) for (c, k), n in sorted(kinds.items()) if c == client}
        for client in ("cutwater", "spark")
    }
    found["all"] = round(len(requests) / per, 1)
    return found


def cost(requests: Sequence[Request], per: float) -> float:
    """US dollars per million, at 0.005 per 1000 writes and lists, and 0.0004 per 1000 reads."""
    cheap = sum(1 for r in requests if r.kind in CHEAP)
    free = sum(1 for r in requests if r.kind == "delete")
    return round((cheap * 0.4 + (len(requests) - cheap - free) * 5.0) / per, 2)


def place(key: str) -> str:
    """A key without numbers, ids and attempts."""
    return re.sub(r"[0-9a-f]{8}(-?[0-9a-f]{4,})*|\d+", "#", key)


def measure(proxy: S3Proxy, folder: Path, epochs: int, names: bool, extra: dict[str, str]) -> dict[str, Any]:
    jars = ",".join(map(str, sorted((TOOLS.parent / "jars").glob("*.jar"))))
    conf = {"spark.jars": jars, "spark.sql.shuffle.partitions": "1", **extra}
    pipeline = job(folder)
    began = time.perf_counter()
    pipeline.start(f"s3://{BUCKET}/store", every="1h", master="local[2]", conf=conf)
    started_s, started = time.perf_counter() - began, len(proxy.requests)
    for number in range(2):
        add_file(folder, number)
        await_batches(pipeline, 3 * (number + 1))
        pipeline.checkpoint(timeout=300)
    pipeline.checkpoint(timeout=300)

    def window(act: Any) -> list[Request]:
        before = len(proxy.requests)
        act()
        return proxy.requests[before:]

    await_silence(proxy)
    idle = window(lambda: time.sleep(IDLE_S))
    empty = window(lambda: [pipeline.checkpoint(timeout=300) for _ in range(epochs)])
    ran = batches(pipeline)

    def busy_epochs() -> None:
        for number in range(2, epochs + 2):
            now = batches(pipeline)
            add_file(folder, number)
            await_batches(pipeline, now + 3)
            pipeline.checkpoint(timeout=300)

    busy = window(busy_epochs)
    ran = batches(pipeline) - ran
    if names:
        for label, requests in (("busy", busy), ("empty", empty), ("idle", idle)):
            print(f"--- {label}")
            for (who, kind, where), n in Counter(
                (r.client, r.kind, place(r.key)) for r in requests
            ).most_common(60):
                print(f"{n / epochs:7.1f}  {who:9}{kind:10}{where}")
    pipeline.stop()
    return {
        "bench": "s3_requests",
        "stages": 3,
        "sinks": 2,
        "epochs": epochs,
        "batches": ran,
        "start": {"requests": started, "seconds": round(started_s, 1)},
        "idle_per_second": shown(idle, IDLE_S),
        "empty_epoch": shown(empty, epochs),
        "epoch_with_rows": shown(busy, epochs),
        "batches_per_epoch": round(ran / epochs, 1),
        "requests_per_batch": round(len(busy) / ran, 1),
        "dollars_per_million_epochs": {"empty": cost(empty, epochs), "with_rows": cost(busy, epochs)},
    }


def await_silence(proxy: S3Proxy) -> None:
    """Waits until Spark has not asked for anything for a while: the batches without data are over."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        before = sum(r.client == "spark" for r in proxy.requests)
        time.sleep(3)
        if before == sum(r.client == "spark" for r in proxy.requests):
            return
    raise SystemExit("Spark never falls silent")


def await_batches(pipeline: cw.Pipeline, wanted: int) -> None:
    deadline = time.monotonic() + 300
    while batches(pipeline) < wanted:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {batches(pipeline)} of {wanted} batches within 300 s")
        time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--conf", action="append", default=[], metavar="KEY=VALUE", help="a setting of Spark")
    arguments = parser.parse_args()
    settings = dict(pair.split("=", 1) for pair in arguments.conf)
    with tempfile.TemporaryDirectory(prefix="bench-s3-") as made:
        folder = Path(made)
        (folder / "in").mkdir()
        with s3_server(folder / "s3") as server, s3_proxy(server.port) as proxy, lines_to(lambda line: None):
            os.environ.update(server.environment | {"AWS_ENDPOINT_URL": proxy.endpoint})
            print(json.dumps(measure(proxy, folder, arguments.epochs, arguments.names, settings)))


if __name__ == "__main__":
    main()
