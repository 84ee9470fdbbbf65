"""Signals to spark-submit, whose JVM starts the driver's Python."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.spark.test_signals import PIPELINE, exists, shown
from tests.support.spark_helpers import await_that, deliver, numbers
from tests.support.standalone import Submitted

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(1800)]

WAIT_S = 600.0
RUN = """
if __name__ == "__main__":
    pipeline.run(str(here / "state"), every="1s")
"""


class Job:
    """A small pipeline under spark-submit, with a local master."""

    def __init__(self, base: Path) -> None:
        (base / "job.py").write_text(PIPELINE + RUN)
        deliver(base / "in", "0", numbers(range(5)))
        self.run = Submitted(base, "--master", "local[2]", "job.py")
        self.jvm = self.run.process.pid
        self.python = 0
        self.base = base

    def await_rows(self) -> None:
        await_that("its rows are shown", self._is_up, WAIT_S)
        asked = ["ps", "-o", "pid=,args=", "--ppid", str(self.jvm)]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
        (line,) = [line for line in found if "python" in line.split()[1]]  # it also forks for short commands
        self.python = int(line.split()[0])

    def _is_up(self) -> bool:
        assert self.run.process.poll() is None, self.run.said[-6000:]
        return shown(self.base) == list(range(5))


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    made = Job(tmp_path)
    try:
        made.await_rows()
        yield made
    finally:
        made.run.send(signal.SIGKILL)
        made.run.process.wait()


def test_a_signal_to_the_jvm_alone_drains(job: Job) -> None:
    os.kill(job.jvm, signal.SIGTERM)
    assert job.run.end(WAIT_S) == 0, job.run.said[-6000:]
    assert job.run.lines.count("draining: stages finish") == 1
    assert job.run.lines.splitlines()[-1].endswith("(drain)")
    assert not any(word in job.run.lines for word in ("Traceback", "Py4J")), job.run.lines


def test_the_driver_ends_with_a_killed_jvm(job: Job) -> None:
    os.kill(job.jvm, signal.SIGKILL)
    job.run.process.wait()
    await_that("its Python has ended too", lambda: not exists(job.python), WAIT_S)
