"""A Spark standalone cluster on this machine: a master and two workers in processes of their own, with their own folders
and with a Python that has only what Spark needs."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from tests.support.spark_helpers import await_that

HOST = "127.0.0.1"
FOREIGN = ("PYTHON", "PYSPARK", "VIRTUAL", "SPARK")
START_S = 300.0
"""How long Spark's processes may take to start on a busy machine."""


def spark_home() -> Path:
    """The Spark that comes with pyspark."""
    spec = find_spec("pyspark")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


class BarePython:
    """A Python that can run Spark's Python workers, and has no Cutwater."""

    def __init__(self, folder: Path) -> None:
        self.program = str(Path(sys.base_prefix) / "bin" / "python3")
        self.path = str(folder)
        folder.mkdir()
        for name in ("pyspark", "py4j", "pyarrow", "numpy", "pandas", "dateutil", "pytz", "six", "tzdata"):
            spec = find_spec(name)
            if spec is None or spec.origin is None:
                continue
            origin = Path(spec.origin)
            found = origin.parent if origin.name == "__init__.py" else origin
            (folder / found.name).symlink_to(found)
            for libraries in found.parent.glob(f"{name}.libs"):
                (folder / libraries.name).symlink_to(libraries)


class Standalone:
    """The cluster. `url` is its master."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = BarePython(folder / "site")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        port = ("--host", HOST, "--port", "0", "--webui-port", "0")
        self._launch("master", "org.apache.spark.deploy.master.Master", *port)
        self.url = await_that(
            "the master has a port", lambda: re.search(rf"spark://{HOST}:\d+", self.log("master")), START_S
        )[0]
        for name in ("worker1", "worker2"):
            size = ("--cores", "1", "--memory", "1g")
            self._launch(name, "org.apache.spark.deploy.worker.Worker", self.url, *port, *size)
        await_that("two workers", lambda: self.log("master").count("Registering worker") == 2, START_S)

    def _launch(self, name: str, kind: str, *arguments: str) -> None:
        home = self.folder / name
        (home / "tmp").mkdir(parents=True)
        environment = clean_environment() | {
            "PYTHONPATH": self.python.path,
            "TMPDIR": str(home / "tmp"),
            "SPARK_LOCAL_DIRS": str(home / "tmp"),
            "SPARK_WORKER_DIR": str(home / "work"),
            "SPARK_DAEMON_MEMORY": "512m",
        }
        with (home / "log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(spark_home() / "bin/spark-class"), kind, *arguments],
                env=environment, cwd=home, stdout=log, stderr=log,
            )  # fmt: skip

    def log(self, name: str) -> str:
        return (self.folder / name / "log").read_text(errors="replace")

    def executors(self, name: str) -> list[int]:
        """The executors that a worker has started."""
        asked = ["ps", "-o", "pid=", "--ppid", str(self.processes[name].pid)]
        found = subprocess.run(asked, capture_output=True, text=True, check=False).stdout
        return [int(pid) for pid in found.split()]

    def kill(self, name: str) -> None:
        """Kill a worker and its executors, as the loss of its machine does."""
        pids = [self.processes[name].pid, *self.executors(name)]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes[name].wait()

    def end(self) -> None:
        for process in reversed(self.processes.values()):
            process.terminate()
            process.wait(timeout=60)


def clean_environment() -> dict[str, str]:
    """The environment without what this process has for Python and Spark."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
    return kept | {"SPARK_LOCAL_IP": HOST}


class Submitted:
    """`spark-submit` in a process group of its own. Its JVM starts the Python of the driver."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self._log = folder / "submitted"
        home = spark_home()
        environment = clean_environment() | {
            "SPARK_HOME": str(home), "PYSPARK_DRIVER_PYTHON": sys.executable, **environment
        }  # fmt: skip
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [str(home / "bin/spark-submit"), *words],
                env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def lines(self) -> str:
        """What it printed, without Spark's log."""
        return "\n".join(line for line in self.said.splitlines() if not re.match(r"\d\d/\d\d/\d\d ", line))

    def send(self, which: signal.Signals) -> None:
        """Signal the whole group, as supervisors and terminals do."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, which)

    def end(self, seconds: float = START_S) -> int:
        return self.process.wait(timeout=seconds)
