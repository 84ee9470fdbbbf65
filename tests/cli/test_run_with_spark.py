"""`cutwater run` as a process of its own, with Spark."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.command_helpers import call
from tests.support.spark_helpers import await_that, deliver, numbers, rows_of

PIPELINE = """
import cutwater as cw
from pyspark.sql import functions as F
from helper import BIG

pipeline = cw.Pipeline("sums")

def double(amount):
    return 2 * amount

@pipeline.stage(sinks=[cw.delta("out/doubled")])
def doubled(spark):
    rows = spark.readStream.schema("id long, amount double, ts timestamp").parquet("in")
    return rows.where(F.col("amount") < BIG).withColumn("twice", F.udf(double, "double")("amount"))
"""


@contextmanager
def started(folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`cutwater run` in a process group of its own, which ends with the test at the latest."""
    command = [sys.executable, "-m", "cutwater", "run", "sums.py", "--every", "1s", "--master", "local[2]"]
    command += options
    with (folder / "out.log").open("w") as out, (folder / "err.log").open("w") as err:
        process = subprocess.Popen(
            command, cwd=folder, stdout=out, stderr=err, text=True, start_new_session=True
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    (tmp_path / "sums.py").write_text(PIPELINE)
    (tmp_path / "helper.py").write_text("BIG = 1000.0\n")
    deliver(tmp_path / "in", "one", numbers(range(100)))
    return tmp_path


def output(folder: Path) -> str:
    return (folder / "out.log").read_text()


@pytest.mark.slow
def test_a_pipeline_is_controlled_from_another_terminal(sums: Path) -> None:
    where = ("--store", sums / "state")
    with started(sums) as process:
        await_that("rows are published", lambda: (sums / "out/doubled/_delta_log").is_dir(), 240)
        assert json.loads(call("status", "--json", *where).stdout)["running"] is True
        taken = json.loads(call("savepoint", "good", "--json", *where).stdout)
        found = json.loads(call("checkpoints", "--json", *where).stdout)["checkpoints"]
        assert [c["savepoints"] for c in found if c["epoch"] == taken["epoch"]] == [["good"]]
        steps = json.loads(call("explain", str(taken["epoch"]), "--json", *where).stdout)["steps"]
        assert steps[0]["step"] == "doubled"
        deliver(sums / "in", "two", numbers(range(100, 150)))
        drained = call("drain", *where)
        assert drained.exit_code == 0, drained.stderr
        assert "published everywhere" in drained.stdout
        assert process.wait(120) == 0
    assert "savepoint 'good' is epoch" in output(sums)
    assert output(sums).splitlines()[-1].endswith("drained")
    assert (sums / "err.log").read_text() == ""
    assert rows_of(sums / "out/doubled", "id", "twice") == [(i, 2.0 * (i % 97)) for i in range(150)]
    assert call("verify", *where).exit_code == 0
    assert call("restore", "good", *where).exit_code == 0
    with started(sums, "--once", "--json") as process:
        assert process.wait(240) == 0, (sums / "err.log").read_text()
    events = [json.loads(line) for line in output(sums).splitlines()]
    assert events[-1]["state"] == "drained"
    assert "committed" in {event["event"] for event in events}
    assert [row[0] for row in rows_of(sums / "out/doubled", "id")] == list(range(150))


@pytest.mark.slow
def test_ctrl_c_while_spark_starts_prints_one_line(sums: Path) -> None:
    with started(sums) as process:
        await_that("it starts", lambda: "starting Spark" in output(sums), 60)
        await_that("Spark's process is there", lambda: _has_started_a_program(process.pid), 60)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) == 130
    said = (sums / "err.log").read_text()
    assert said.endswith("error: interrupted\n")
    assert "\tat org.apache" not in said
    assert len(output(sums).splitlines()) == 1


def _has_started_a_program(pid: int) -> bool:
    """Whether a process has started another program. A fork before its exec does not count."""
    own = Path(f"/proc/{pid}/cmdline").read_bytes()
    tasks = Path(f"/proc/{pid}/task")
    children = [child for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    return any(Path(f"/proc/{child}/cmdline").read_bytes() not in (b"", own) for child in children)


@pytest.mark.slow
def test_ctrl_c_drains_and_a_second_one_stops_at_once(sums: Path) -> None:
    with started(sums) as process:
        await_that("a checkpoint is committed", lambda: "committed in" in output(sums), 240)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(120) == 0
    assert output(sums).splitlines()[-1].endswith("drained")
    with started(sums) as process:
        await_that("a checkpoint is committed", lambda: "committed in" in output(sums), 240)
        os.killpg(process.pid, signal.SIGINT)
        await_that("it is being drained", lambda: "draining" in output(sums), 30)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(60) in (0, 130)  # 0 if the drain was faster
    for text in (output(sums), (sums / "err.log").read_text()):
        assert "Traceback" not in text
        assert "\tat org.apache" not in text
