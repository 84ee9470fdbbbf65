"""From the arrival of a file to its rows in the output, the cost of idling, and how soon a run is back after a kill.

The job: read small files of events, clean them, add a column, drop duplicates. Variants: `cutwater` is a pipeline of
three stages in one query, with a checkpoint every second and a Delta table; `unchained` has a query for each of them;
`one-stage` has all of it in one stage; `chained` is three plain Spark queries that are chained through Parquet file
sinks; `fused` is one plain Spark query. Plain Spark writes Parquet files with its file sink.

Each run is a process of its own, which is killed and started again. Measured are: from the start of the process to the
first visible rows; arrival to visible while files arrive steadily (a row is visible when the table's log names its
file); the CPU time of the process and its JVM, then and while nothing arrives; from SIGKILL to the first new rows. At
the end every row must be there exactly once. Runs of different variants alternate.

    python -m bench.latency [--variants cutwater,fused] [--rounds 3] [--rate 5] [--seconds 60] [--idle 60]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from cutwater.sinks.staged_files import is_data

ROWS = 2_000
SCHEMA = "file int, id long, amount double, ts timestamp"
SETTLE_S = 15.0
"""Between the first visible rows and the measurement: the JVM compiles."""
GIVE_UP_S = 300.0
VARIANTS = ("cutwater", "unchained", "one-stage", "chained", "fused")

# --- the job ----------------------------------------------------------------------------------------------


def read_input(spark: Any, folder: Path) -> Any:
    return spark.readStream.schema(SCHEMA).parquet(str(folder / "in"))


def cleaned(frame: Any) -> Any:
    return frame.where("amount > 0")


def enriched(frame: Any) -> Any:
    return frame.selectExpr("file", "id", "amount", "ts", "amount * 0.2 as tax")


def deduplicated(frame: Any) -> Any:
    return frame.withWatermark("ts", "1 minute").dropDuplicatesWithinWatermark(["id"])


def run_pipeline(folder: Path, options: dict[str, Any], variant: str) -> None:
    import cutwater as cw

    pipeline = cw.Pipeline("latency", chain=variant != "unchained")
    sink = cw.delta(str(folder / "out"))
    if variant == "one-stage":

        @pipeline.stage(sinks=[sink])
        def all_of_it(spark: Any) -> Any:
            return deduplicated(enriched(cleaned(read_input(spark, folder))))

    else:

        @pipeline.stage
        def clean(spark: Any) -> Any:
            return cleaned(read_input(spark, folder))

        @pipeline.stage
        def enrich(clean: Any) -> Any:
            return enriched(clean)

        @pipeline.stage(sinks=[sink])
        def dedup(enrich: Any) -> Any:
            return deduplicated(enrich)

    pipeline.run(str(folder / "store"), takeover=True, **options)


def run_queries(folder: Path, is_fused: bool) -> None:
    from cutwater.spark.session import make_session

    spark = make_session("latency")
    spark.conf.set("spark.sql.streaming.minBatchesToRetain", "100")

    def start(frame: Any, name: str) -> None:
        writer = frame.writeStream.format("parquet").option("path", str(folder / name)).outputMode("append")
        writer = writer.option("checkpointLocation", str(folder / f"checkpoint-{name}"))
        writer.trigger(processingTime="100 milliseconds").start()

    if is_fused:
        start(deduplicated(enriched(cleaned(read_input(spark, folder)))), "out")
    else:
        kinds = {"a": SCHEMA, "b": SCHEMA + ", tax double"}
        for name in kinds:
            (folder / name).mkdir(exist_ok=True)
        first, second = (spark.readStream.schema(kind).parquet(str(folder / n)) for n, kind in kinds.items())
        start(cleaned(read_input(spark, folder)), "a")
        start(enriched(first), "b")
        start(deduplicated(second), "out")
    spark.streams.awaitAnyTermination()


# --- what arrives, and what is visible ---------------------------------------------------------------------


class Arrivals:
    """Puts files into the folder, and knows when each has become visible."""

    def __init__(self, folder: Path) -> None:
        self.arrived: list[float] = []
        self.visible: dict[int, float] = {}
        self.rows = 0
        self._folder = folder
        self._read: set[str] = set()
        (folder / "in").mkdir()

    def put(self) -> None:
        import pyarrow as pa  # type: ignore[import-untyped]
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        number, now = len(self.arrived), int(time.time() * 1_000_000)
        columns = {
            "file": pa.array([number] * ROWS, pa.int32()),
            "id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()),
            "amount": pa.array([1.5] * ROWS),
            "ts": pa.array([now] * ROWS, pa.timestamp("us", tz="UTC")),
        }
        hidden = self._folder / f".{number}.parquet"
        pq.write_table(pa.table(columns), hidden)
        hidden.rename(self._folder / "in" / f"{number:06d}.parquet")
        self.arrived.append(time.monotonic())

    def look(self) -> None:
        import pyarrow.parquet as pq

        out = self._folder / "out"
        for path in [*self._delta(out), *self._spark(out)]:
            column = pq.read_table(path, columns=["file"])["file"]
            self.rows += len(column)
            for number in column.unique().to_pylist():
                self.visible.setdefault(number, time.monotonic())

    def _delta(self, out: Path) -> Iterator[Path]:
        for entry in self._new(out / "_delta_log", ".json"):
            for line in entry.read_text().splitlines():
                if (added := json.loads(line).get("add")) is not None:
                    yield out / added["path"]

    def _spark(self, out: Path) -> Iterator[Path]:
        for entry in self._new(out / "_spark_metadata", ""):
            lines = entry.read_text().splitlines()[1:]
            found = (Path(json.loads(line)["path"].removeprefix("file://")) for line in lines)
            yield from (path for path in found if is_data(path.name) and str(path) not in self._read)
            self._read.update(json.loads(line)["path"].removeprefix("file://") for line in lines)

    def _new(self, log: Path, suffix: str) -> list[Path]:
        names = [p for p in log.glob(f"*{suffix}") if p.name.split(".")[0].isdigit()] if log.is_dir() else []
        found = sorted(p for p in names if str(p) not in self._read)
        self._read.update(map(str, found))
        return found

    @property
    def are_visible(self) -> bool:
        return len(self.visible) == len(self.arrived)

    def await_that(self, condition: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        until = time.monotonic() + GIVE_UP_S
        while not condition():
            if process.poll() is not None or time.monotonic() > until:
                log = (self._folder / "log").read_text()[-3000:]
                raise SystemExit(
                    f"the output does not come: {len(self.visible)} of {len(self.arrived)}\n{log}"
                )
            time.sleep(0.02)
            self.look()

    def steadily(self, rate: float, seconds: float) -> range:
        """Put files at this rate; returns their numbers."""
        first, begun, number = len(self.arrived), time.monotonic(), 0
        while time.monotonic() - begun < seconds:
            if time.monotonic() - begun >= number / rate:
                number += 1
                self.put()
            self.look()
            time.sleep(0.01)
        return range(first, len(self.arrived))


# --- the processes ----------------------------------------------------------------------------------------


def stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def tree(pid: int) -> list[int]:
    """A process and its descendants."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int(stat(int(entry.name))[1])
            except OSError:
                continue
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found


def cpu_s(pid: int) -> float:
    """The CPU time that a process and its living descendants have used."""
    ticks = 0
    for one in tree(pid):
        try:
            ticks += sum(map(int, stat(one)[11:13]))
        except OSError:
            continue
    return ticks / os.sysconf("SC_CLK_TCK")


def begin(variant: str, folder: Path, arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "bench.latency", "--variant", variant, "--folder", str(folder)]
    command += ["--every", arguments.every, *(["--unaligned"] if arguments.unaligned else [])]
    with open(folder / "log", "ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def kill(process: subprocess.Popen[bytes]) -> None:
    for pid in reversed(tree(process.pid)):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()


def measure(variant: str, folder: Path, arguments: argparse.Namespace) -> dict[str, float]:
    arrivals = Arrivals(folder)
    for _ in range(3):
        arrivals.put()
    started = time.monotonic()
    process = begin(variant, folder, arguments)
    try:
        arrivals.await_that(lambda: arrivals.are_visible, process)
        found = {"start_s": time.monotonic() - started, "start_cpu_s": cpu_s(process.pid)}
        if arguments.idle:
            time.sleep(SETTLE_S)
            before, begun = cpu_s(process.pid), time.monotonic()
            time.sleep(arguments.idle)
            found["idle_cpu_s_per_min"] = (cpu_s(process.pid) - before) * 60 / (time.monotonic() - begun)
        if arguments.seconds:
            arrivals.steadily(arguments.rate, SETTLE_S)
            before, begun = cpu_s(process.pid), time.monotonic()
            measured = arrivals.steadily(arguments.rate, arguments.seconds)
            found["cores"] = (cpu_s(process.pid) - before) / (time.monotonic() - begun)
            arrivals.await_that(lambda: arrivals.are_visible, process)
            late = sorted(arrivals.visible[n] - arrivals.arrived[n] for n in measured)
            found["median_s"], found["p99_s"] = statistics.median(late), late[int(len(late) * 0.99)]
        if arguments.kill:
            kill(process)
            killed = time.monotonic()
            process = begin(variant, folder, arguments)
            new = arrivals.steadily(arguments.rate, 1.0)
            arrivals.await_that(lambda: any(n in arrivals.visible for n in new), process)
            found["recovery_s"] = min(arrivals.visible[n] for n in new if n in arrivals.visible) - killed
            arrivals.await_that(lambda: arrivals.are_visible, process)
        if arrivals.rows != ROWS * len(arrivals.arrived):
            raise SystemExit(f"{variant}: {arrivals.rows} rows of {ROWS * len(arrivals.arrived)}")
        return found
    finally:
        kill(process)


def run_one(arguments: argparse.Namespace) -> None:
    variant, folder = arguments.variant, arguments.folder
    if variant in ("cutwater", "unchained", "one-stage"):
        run_pipeline(folder, {"every": arguments.every, "unaligned": arguments.unaligned}, variant)
    else:
        run_queries(folder, variant == "fused")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rate", type=float, default=5, help="files per second")
    parser.add_argument("--seconds", type=float, default=60, help="how long files arrive")
    parser.add_argument("--idle", type=float, default=60, help="how long none arrives")
    parser.add_argument("--every", default="1s")
    parser.add_argument("--unaligned", action="store_true")
    parser.add_argument("--kill", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--variant")
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    if arguments.variant:
        run_one(arguments)
        return
    results: dict[str, list[dict[str, float]]] = {}
    for number in range(arguments.rounds):
        for variant in arguments.variants.split(","):
            folder = Path(tempfile.mkdtemp(prefix=f"bench-latency-{variant}-"))
            try:
                found = measure(variant, folder, arguments)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            results.setdefault(variant, []).append(found)
            shown = ", ".join(f"{key} {value:.2f}" for key, value in found.items())
            print(f"round {number + 1}: {variant:9} {shown}", flush=True)
    medians = {
        variant: {key: round(statistics.median(f[key] for f in found), 2) for key in found[0]}
        for variant, found in results.items()
    }
    print(json.dumps({"bench": "latency", "every": arguments.every, "rate": arguments.rate, **medians}))


if __name__ == "__main__":
    main()
