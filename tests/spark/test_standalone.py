"""The same pipeline on a real Spark standalone cluster: a master and two workers in separate processes, without Cutwater
in their Python, and with their own temporary folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.spark_helpers import await_that, deliver, numbers, rows_of

pytestmark = pytest.mark.slow

PIPELINE = """
import sys
from pathlib import Path
from pyspark.sql import functions as F
import cutwater as cw

here = Path(sys.argv[1])
pipeline = cw.Pipeline("cluster")

@pipeline.stage
def source(spark):
    files = spark.readStream.schema("id long, amount double, ts timestamp").option("maxFilesPerTrigger", 1)
    return files.parquet(str(here / "in")).where("id % 10 < 9")

@pipeline.stage(sinks=[cw.delta(str(here / "doubled"))])
def doubled(source):
    return source.dropDuplicates(["id"]).selectExpr("id", "amount * 2 AS amount", "ts")

@pipeline.stage(sinks=[cw.delta(str(here / "sums"), final_by="window.end")])
def sums(doubled):
    windows = doubled.withWatermark("ts", "1 second").groupBy(F.window("ts", "10 seconds"))
    return windows.agg(F.sum("amount").alias("amount"), F.count("*").alias("n")).selectExpr(
        "window", "unix_seconds(window.start) AS start", "amount", "n")

conf = {"spark.pyspark.python": sys.argv[3], "spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": "2", "spark.cores.max": "2"}
pipeline.run(str(here / "state"), every="1s", once=True, master=sys.argv[2], conf=conf)
"""


@pytest.fixture
def bare_python(tmp_path: Path) -> tuple[str, str]:
    """A Python that can run Spark's workers, and a path with just the packages that they need."""
    links = tmp_path / "site"
    links.mkdir()
    for name in ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "dateutil", "pytz", "six", "tzdata"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            continue
        origin = Path(spec.origin)
        found = origin.parent if origin.name == "__init__.py" else origin
        (links / found.name).symlink_to(found)
        for libraries in found.parent.glob(f"{name}.libs"):
            (links / libraries.name).symlink_to(libraries)
    python = str(Path(sys.base_prefix) / "bin" / "python3")
    return python, str(links)


@pytest.fixture
def cluster(tmp_path: Path, bare_python: tuple[str, str]) -> Iterator[str]:
    """The URL of the master. The master and the workers are ended by their process ids."""
    import pyspark

    home = Path(pyspark.__file__).parent
    processes: list[subprocess.Popen[bytes]] = []

    def launch(name: str, *arguments: str) -> Path:
        folder = tmp_path / name
        (folder / "tmp").mkdir(parents=True)
        environment = {
            k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL", "SPARK"))
        }
        environment |= {
            "PYTHONPATH": bare_python[1],
            "TMPDIR": str(folder / "tmp"),
            "SPARK_LOCAL_DIRS": str(folder / "tmp"),
            "SPARK_WORKER_DIR": str(folder / "work"),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_DAEMON_MEMORY": "512m",
        }
        log = (folder / "log").open("wb")
        command = [str(home / "bin/spark-class"), *arguments]
        processes.append(subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log))
        return folder / "log"

    master_log = launch(
        "master",
        "org.apache.spark.deploy.master.Master",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--webui-port",
        "0",
    )
    url = await_that(
        "the master has a port",
        lambda: re.search(r"spark://127\.0\.0\.1:\d+", master_log.read_text(errors="replace")),
    )[0]
    for number in (1, 2):
        launch(
            f"worker{number}", "org.apache.spark.deploy.worker.Worker", url, "--host", "127.0.0.1", "--cores", "1",
            "--memory", "1g", "--webui-port", "0",
        )  # fmt: skip
    await_that("two workers", lambda: master_log.read_text(errors="replace").count("Registering worker") == 2)
    yield url
    for process in reversed(processes):
        process.terminate()
        process.wait(timeout=30)


def test_a_standalone_cluster_gives_the_same_result(
    tmp_path: Path, cluster: str, bare_python: tuple[str, str]
) -> None:
    for part in range(5):
        deliver(tmp_path / "in", f"{part}", numbers(range(part * 200, part * 200 + 200)))
        deliver(tmp_path / "in", f"{part}-again", numbers(range(part * 200, part * 200 + 50)))
    (tmp_path / "job.py").write_text(PIPELINE)
    environment = {**os.environ, "PYTHONPATH": bare_python[1], "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path), cluster, bare_python[0]]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    kept = [i for i in range(1000) if i % 10 < 9]
    assert rows_of(tmp_path / "doubled", "id", "amount") == [(i, 2.0 * (i % 97)) for i in kept]
    sums: dict[int, list[float]] = {}
    for i in kept:
        sums.setdefault(1_767_225_600 + i // 100 * 10, []).append(2.0 * (i % 97))
    closed = sorted(sums)[:-1]  # the last event is less than a second after the last window but one ended
    assert rows_of(tmp_path / "sums", "start", "amount", "n") == [
        (s, sum(sums[s]), len(sums[s])) for s in closed
    ]
    logs = "".join(p.read_text(errors="replace") for p in (tmp_path / "master").glob("log"))
    assert "Registered app cutwater cluster" in logs
