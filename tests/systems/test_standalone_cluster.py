"""Pipelines on a real Spark standalone cluster, whose Python does not have Cutwater."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.support.spark_helpers import await_that, deliver, numbers, rows_of
from tests.support.standalone import Standalone, Submitted

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(2400)]

WAIT_S = 600.0

PIPELINE = """
import json
from pathlib import Path
from pyspark.sql import functions as F
import cutwater as cw

here = Path(__file__).parent
pipeline = cw.Pipeline("cluster")

@pipeline.stage
def source(spark):
    keys = ("spark.sql.shuffle.partitions", "spark.sql.session.timeZone", "spark.sql.adaptive.enabled")
    seen = {key: spark.conf.get(key) for key in keys} | {"spark.master": spark.sparkContext.master}
    (here / "seen.json").write_text(json.dumps(seen))
    files = spark.readStream.schema("id long, amount double, ts timestamp").option("maxFilesPerTrigger", 1)
    return files.parquet(str(here / "in")).where("id % 10 < 9")

@pipeline.stage(sinks=[cw.delta(str(here / "doubled"))])
def doubled(source):
    return source.dropDuplicates(["id"]).select("id", DOUBLE.alias("amount"), "ts")

@pipeline.stage(sinks=[cw.delta(str(here / "sums"), final_by="window.end")])
def sums(doubled):
    windows = doubled.withWatermark("ts", "1 second").groupBy(F.window("ts", "10 seconds"))
    return windows.agg(F.sum("amount").alias("amount"), F.count("*").alias("n")).selectExpr(
        "window", "unix_seconds(window.start) AS start", "amount", "n")
"""

IN_CODE = """
import sys
conf = {"spark.executor.memory": "512m", "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2",
        "spark.cores.max": "2"}
pipeline.run(str(here / "state"), every="1s", once=True, master=sys.argv[1], conf=conf)
"""

AS_SUBMITTED = """
if __name__ == "__main__":
    pipeline.run(str(here / "state"), every="1s")
"""

HELPER = """
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType

@F.udf(DoubleType())
def multiply(amount):
    with open("factor/factor.txt") as file:  # of the archive, which Spark unpacks beside the executor
        return amount * int(file.read())
"""

DEFAULTS = """
spark.executor.memory           512m
spark.driver.host               127.0.0.1
spark.sql.session.timeZone      Asia/Tokyo
spark.sql.shuffle.partitions    5
"""

RUNNER = "from cutwater.cli.main import main\n\nmain()\n"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Standalone]:
    made = Standalone(tmp_path)
    yield made
    made.end()


@pytest.fixture
def started() -> Iterator[list[Submitted]]:
    runs: list[Submitted] = []
    yield runs
    for run in runs:
        run.send(signal.SIGKILL)
        run.process.wait()


def deliver_parts(base: Path, parts: Iterable[int]) -> None:
    """Two hundred rows each; a quarter of them comes twice."""
    for part in parts:
        deliver(base / "in", f"{part}", numbers(range(part * 200, part * 200 + 200)))
        deliver(base / "in", f"{part}-again", numbers(range(part * 200, part * 200 + 50)))


def expected(parts: int) -> tuple[list[Any], list[Any]]:
    """Both tables, computed from the same input without Spark."""
    kept = [i for i in range(parts * 200) if i % 10 < 9]
    sums: dict[int, list[float]] = {}
    for i in kept:
        sums.setdefault(1_767_225_600 + i // 100 * 10, []).append(2.0 * (i % 97))
    closed = sorted(sums)[:-1]  # the last event is less than a second after the last window but one ended
    return [(i, 2.0 * (i % 97)) for i in kept], [(s, sum(sums[s]), len(sums[s])) for s in closed]


def tables(base: Path) -> tuple[list[Any], list[Any]]:
    if not (base / "sums/_delta_log").exists() or not (base / "doubled/_delta_log").exists():
        return [], []
    return rows_of(base / "doubled", "id", "amount"), rows_of(base / "sums", "start", "amount", "n")


def test_a_master_and_settings_given_in_code_are_used(tmp_path: Path, cluster: Standalone) -> None:
    deliver_parts(tmp_path, range(5))
    (tmp_path / "job.py").write_text(PIPELINE.replace("DOUBLE", 'F.expr("amount * 2")') + IN_CODE)
    environment = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, str(tmp_path / "job.py"), cluster.url]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert tables(tmp_path) == expected(5)
    assert "Registered app cutwater cluster" in cluster.log("master")


def test_a_submitted_pipeline_survives_the_loss_of_its_driver_and_of_a_worker(
    tmp_path: Path, cluster: Standalone, started: list[Submitted]
) -> None:
    has_cutwater = [cluster.python.program, "-c", "import pyspark, cutwater"]
    bare = subprocess.run(
        has_cutwater, env={"PYTHONPATH": cluster.python.path}, capture_output=True, text=True, check=False
    )
    assert "No module named 'cutwater'" in bare.stderr
    job = PIPELINE.replace("DOUBLE", 'multiply("amount")')
    (tmp_path / "job.py").write_text("from helper import multiply\n" + job + AS_SUBMITTED)
    (tmp_path / "submit.py").write_text(RUNNER)
    with zipfile.ZipFile(tmp_path / "helper.zip", "w") as packed:
        packed.writestr("helper.py", HELPER)
    (tmp_path / "factor.txt").write_text("2")
    with tarfile.open(tmp_path / "factor.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "factor.txt", "factor.txt")
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf/spark-defaults.conf").write_text(DEFAULTS)

    def submit(*program: str) -> Submitted:
        run = Submitted(
            tmp_path, "--master", cluster.url, "--name", "orders of the shop", "--py-files", "helper.zip",
            "--archives", "factor.tar.gz#factor", "--conf", "spark.cores.max=2",
            "--conf", "spark.sql.shuffle.partitions=2", *program,
            SPARK_CONF_DIR=str(tmp_path / "conf"), PYSPARK_PYTHON=cluster.python.program,
        )  # fmt: skip
        started.append(run)
        return run

    def await_of(run: Submitted, what: str, holds: Callable[[], Any]) -> Any:
        def look() -> Any:
            assert run.process.poll() is None, run.said[-6000:]
            return holds()

        return await_that(what, look, WAIT_S)

    deliver_parts(tmp_path, range(2))
    first = submit("job.py")
    await_of(first, "rows are shown", lambda: tables(tmp_path)[0])
    assert json.loads((tmp_path / "seen.json").read_text()) == {
        "spark.master": cluster.url,
        "spark.sql.shuffle.partitions": "2",  # submitted, over the file
        "spark.sql.session.timeZone": "Asia/Tokyo",  # of the file, over our default
        "spark.sql.adaptive.enabled": "false",  # our default
    }
    assert "Registered app orders of the shop" in cluster.log("master")
    deliver_parts(tmp_path, [2])
    store = open_store(str(tmp_path / "state"))
    await_of(first, "an epoch in progress", lambda: read_journal(store).state.open)
    first.send(signal.SIGKILL)
    first.process.wait()

    second = submit("submit.py", "run", "job.py", "--store", str(tmp_path / "state"), "--every", "1s")
    await_of(second, "three parts are shown", lambda: tables(tmp_path) == expected(3))
    await_that("an executor on each worker", lambda: cluster.executors("worker1"), WAIT_S)
    deliver_parts(tmp_path, [3])
    cluster.kill("worker1")
    deliver_parts(tmp_path, [4])
    await_of(second, "all parts are shown", lambda: tables(tmp_path) == expected(5))
    second.send(signal.SIGTERM)
    assert second.end(WAIT_S) == 0, second.said[-6000:]
    assert "Lost executor" in second.said
    assert tables(tmp_path) == expected(5)
    assert second.lines.splitlines()[-1].endswith("drained")
    assert not any(word in second.lines for word in ("Traceback", "Py4J")), second.lines
    assert read_journal(store).state.drained


def test_standalone_clusters_refuse_python_drivers_in_cluster_mode(tmp_path: Path) -> None:
    """docs/running-on-a-cluster.md quotes this."""
    (tmp_path / "job.py").write_text("")
    run = Submitted(tmp_path, "--master", "spark://127.0.0.1:1", "--deploy-mode", "cluster", "job.py")
    assert run.end() == 1
    refused = "Cluster deploy mode is currently not supported for python applications on standalone clusters."
    assert refused in run.said
