"""`cutwater run` under supervisors and terminals: signals to its process group, and kills of the JVM or of itself."""

from __future__ import annotations

import logging
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest
from py4j.java_gateway import GatewayClient  # type: ignore[import-untyped]

from cutwater.spark.internals.gateway import hush_py4j
from tests.support.spark_helpers import await_that, deliver, numbers, rows_of

PIPELINE = """
from pathlib import Path
import cutwater as cw

here = Path(__file__).parent
pipeline = cw.Pipeline("signals")

@pipeline.stage
def source(spark):
    return spark.readStream.schema("id long, amount double, ts timestamp").parquet(str(here / "in"))

@pipeline.stage(sinks=[cw.delta(str(here / "out"))])
def kept(source):
    return source.select("id")
"""


class Run:
    """`cutwater run` in a process group of its own, as a shell or a supervisor starts it."""

    def __init__(self, base: Path, *options: str) -> None:
        self.base, self.log = base, base / "said"
        command = [
            sys.executable,
            "-m",
            "cutwater",
            "run",
            str(base / "job.py"),
            "--store",
            str(base / "state"),
        ]
        command += ["--every", "1s", "--master", "local[2]", *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, cwd=base, start_new_session=True
            )

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def await_rows(self, count: int) -> None:
        def are_there() -> bool:
            assert self.process.poll() is None, self.said
            return shown(self.base) == list(range(count))

        await_that(f"{count} rows are shown", are_there, 240)

    def jvm(self) -> int:
        asked = ["ps", "-o", "pid=,args=", "--ppid", str(self.process.pid)]
        found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.splitlines()
        (line,) = [line for line in found if "java" in line]
        return int(line.split()[0])

    def end(self) -> int:
        """The exit code. Its output must be short, without a stack trace."""
        code = self.process.wait(timeout=240)
        assert not any(word in self.said for word in ("Traceback", "Logging error", "\tat ")), self.said
        lines = [
            line for line in self.said.splitlines() if not line.endswith(" s") or " committed in " not in line
        ]
        assert len(lines) < 20, self.said
        assert "[Stage" not in self.said, "Spark's progress bar is in the log"
        return code


def shown(base: Path) -> list[int]:
    if not (base / "out/_delta_log").exists():
        return []
    return [row[0] for row in rows_of(base / "out")]


def exists(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(PIPELINE)
    deliver(tmp_path / "in", "0", numbers(range(5)))
    return tmp_path


@pytest.fixture
def started() -> Iterator[list[Run]]:
    runs: list[Run] = []
    yield runs
    for run in runs:
        with suppress(ProcessLookupError):
            os.killpg(run.process.pid, signal.SIGKILL)
        run.process.wait()


@pytest.fixture
def root_as_it_was() -> Iterator[logging.Logger]:
    root, py4j = logging.getLogger(), logging.getLogger("py4j")
    filters, level = root.filters, py4j.level
    root.filters = []
    yield root
    root.filters = filters
    py4j.setLevel(level)


def test_a_connection_that_is_reset_in_a_call_is_not_logged(
    caplog: pytest.LogCaptureFixture, root_as_it_was: logging.Logger
) -> None:
    """The kernel resets the connection of a call that waits for the JVM when the JVM is killed."""

    def call_and_reset() -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = GatewayClient("127.0.0.1", server.getsockname()[1])
            calls = Thread(target=client.send_command, args=("c\nx\n",))
            calls.start()
            connection, _ = server.accept()
            connection.recv(1)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
            calls.join()

    call_and_reset()
    assert "Exception while sending command" in caplog.text
    caplog.clear()
    hush_py4j()
    call_and_reset()
    root_as_it_was.warning("something else")
    assert [record.message for record in caplog.records] == ["something else"]


@pytest.mark.slow
@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_whole_process_group_drains(
    base: Path, started: list[Run], which: signal.Signals
) -> None:
    run = Run(base)
    started.append(run)
    run.await_rows(5)
    jvm = run.jvm()
    os.killpg(run.process.pid, which)
    assert run.end() == 0, run.said
    assert run.said.splitlines()[-1].endswith("drained")
    await_that("its JVM has ended too", lambda: not exists(jvm))


@pytest.mark.slow
def test_a_killed_jvm_ends_the_run_with_one_clear_line_and_the_next_run_continues(
    base: Path, started: list[Run]
) -> None:
    run = Run(base)
    started.append(run)
    run.await_rows(5)
    os.kill(run.jvm(), signal.SIGKILL)
    assert run.end() == 1, run.said
    assert run.said.count("Spark's process has ended during this run") == 1
    deliver(base / "in", "1", numbers(range(5, 8)))
    again = Run(base, "--once")
    started.append(again)
    assert again.end() == 0, again.said
    assert shown(base) == list(range(8))


@pytest.mark.slow
def test_the_jvm_does_not_outlive_a_killed_driver(base: Path, started: list[Run]) -> None:
    run = Run(base)
    started.append(run)
    run.await_rows(5)
    jvm = run.jvm()
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    await_that("its JVM has ended", lambda: not exists(jvm))
