"""Runs a pipeline in a separate process, kills it at a failpoint, and reads its tables."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from cutwater import parquet_files
from cutwater.sinks.delta.reading import load
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.faults.inputs import FINAL_WATERMARK, Input, Rows

ROOT = Path(__file__).parents[2]
DEADLINE_S = 180.0
QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss2m"
"""A JVM that lives for seconds does not benefit from its optimizing compiler."""

WORKER = f"""#!/bin/sh
PYTHONPATH={ROOT} exec {sys.executable} "$@"
"""
"""Otherwise each of Spark's Python workers would import from its zip, and compile it again."""


class Child:
    """One process that runs a pipeline. Its output is in `log`."""

    def __init__(self, bench: Bench, number: int, steps: tuple[str, ...], options: Any, env: Any) -> None:
        self.log = bench.base / f"child-{number}.log"
        self.what = f"child {number} ({' '.join(steps)}, {options or 'as usual'}, {env or 'unharmed'})"
        command = [
            sys.executable,
            "-m",
            "tests.faults.child",
            bench.kind,
            str(bench.base),
            json.dumps({"store": bench.store, **options}),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*command, *steps],
                cwd=ROOT,
                env={
                    **os.environ,
                    "JAVA_TOOL_OPTIONS": f"{QUICK_START} -Djava.io.tmpdir={bench.scratch}",
                    "TMPDIR": str(bench.scratch),
                    "PYSPARK_PYTHON": str(bench.python),
                    "CUTWATER_TEST_TABLES": bench.tables,
                    **bench.env,
                    **env,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def end(self) -> int:
        """Waits until it has ended, and returns its exit code. Fails if it does not end."""
        try:
            return self.process.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.what} did not end in {DEADLINE_S:g} s:\n{self.said()}") from None
        finally:
            self.kill()

    def kill(self) -> None:
        """Kills it and its JVM."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def await_line(self, begin: str) -> None:
        """Waits until it has printed a line that begins with `begin`."""
        deadline = time.monotonic() + DEADLINE_S
        while not any(line.startswith(begin) for line in self.log.read_text(errors="replace").splitlines()):
            assert self.process.poll() is None, f"{self.what} ended before '{begin}':\n{self.said()}"
            assert time.monotonic() < deadline, f"{self.what} never printed '{begin}':\n{self.said()}"
            time.sleep(0.1)

    def await_pause(self) -> None:
        """Waits until it has paused itself at its failpoint."""
        deadline = time.monotonic() + DEADLINE_S
        while True:
            ended, status = os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)
            if ended and os.WIFSTOPPED(status):
                return
            assert not ended, f"{self.what} ended instead of being paused:\n{self.said()}"
            assert time.monotonic() < deadline, f"{self.what} was never paused:\n{self.said()}"
            time.sleep(0.05)

    def signal(self, which: signal.Signals) -> None:
        os.kill(self.process.pid, which)

    def said(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-60:])


class Bench:
    """One pipeline with its input, store and tables, and the child processes that ran it."""

    def __init__(
        self,
        base: Path,
        kind: str,
        files: int = 0,
        store: str = "",
        tables: str = "",
        env: dict[str, str] | None = None,
    ) -> None:
        self.base = base
        self.store = store or f"{base}/store"
        self.tables = tables or f"{base}/out"
        self.env = env or {}
        self.kind = kind
        self.input = Input(base)
        self.input.add(files)
        self.children: list[Child] = []
        self.scratch = base / "tmp"
        self.scratch.mkdir(exist_ok=True)
        self.python = base / "python"
        self.python.write_text(WORKER)
        self.python.chmod(0o755)

    # --- processes ------------------------------------------------------------------------------------

    def start(self, *steps: str, kill_at: str = "", pause_at: str = "", **options: Any) -> Child:
        env = {"CUTWATER_KILL_AT": kill_at} if kill_at else {}
        if pause_at:
            env = {"CUTWATER_KILL_AT": pause_at, "CUTWATER_KILL_WITH": "SIGSTOP"}
        child = Child(self, len(self.children), steps or ("once",), options, env)
        self.children.append(child)
        return child

    def run(self, *steps: str, **options: Any) -> Child:
        """Runs a child that must succeed."""
        child = self.start(*steps, **options)
        code = child.end()
        assert code == 0, f"{child.what} ended with {code}:\n{child.said()}"
        return child

    def run_killed(self, place: str, *steps: str, **options: Any) -> None:
        """Runs a child that must be killed at a failpoint. Fails if it never reaches it."""
        child = self.start(*steps, kill_at=place, **options)
        code = child.end()
        assert code == -signal.SIGKILL, f"{child.what} was not killed but ended with {code}:\n{child.said()}"

    def run_perhaps_killed(self, place: str, **options: Any) -> bool:
        """Runs a child that is killed if it reaches a failpoint, and must succeed otherwise. Returns whether it was
        killed."""
        child = self.start(kill_at=place, **options)
        code = child.end()
        assert code in (0, -signal.SIGKILL), f"{child.what} ended with {code}:\n{child.said()}"
        return code != 0

    def end_all(self) -> None:
        for child in self.children:
            child.kill()

    # --- what is durable --------------------------------------------------------------------------------

    def durable(self) -> dict[str, Any]:
        """Everything that matters: the records in the store, and the tables' versions and rows. Excludes the folders of
        epochs that were not committed."""
        store, uncommitted_folders = self.base / "store", self.uncommitted_folders()
        records = {
            str(path.relative_to(store)): path.read_bytes()
            for kind in ("journal", "checkpoints", "published", "stages/*/*/log")
            for path in store.glob(f"{kind}/**/*.json")
            if path.relative_to(store).parts[1] not in uncommitted_folders
        }
        tables = {path.name for path in (self.base / "out").iterdir() if (path / "_delta_log").exists()}
        return {**records, **{t: (self.version(t), self.rows(t)) for t in tables}}

    def uncommitted_folders(self) -> set[str]:
        """The checkpoint folders of epochs that are not committed."""
        committed = read_journal(open_store(str(self.base / "store"))).state.committed
        names = {path.name for path in (self.base / "store" / "checkpoints").iterdir()}
        return {name for name in names if int(name.split("-")[0]) not in committed}

    def version(self, table: str) -> int:
        return DeltaTable(str(self.base / "out" / table)).version()

    # --- tables ---------------------------------------------------------------------------------------

    def rows(self, table: str, version: int | None = None) -> Rows:
        """All rows of a Delta table, sorted; timestamps as microseconds, a window as its start."""
        try:
            found = load(f"{self.tables}/{table}", version)
        except TableNotFoundError:
            return []
        return plain_rows(found.to_pyarrow_table())

    def wanted(self, sql: str) -> Rows:
        """The result of a batch job over the input."""
        watermark_ms = read_journal(open_store(self.store)).state.watermark
        return self.input.query(sql.replace(FINAL_WATERMARK, str((watermark_ms or 0) * 1000)))

    def check(self, **truth: str) -> None:
        """Compares whole tables with the results of a batch job."""
        for table, sql in truth.items():
            found, wanted = self.rows(table), self.wanted(sql)
            assert wanted, f"the expected rows of '{table}' are empty, so nothing is proved"
            assert found == wanted, difference(table, found, wanted)


def plain_rows(table: pa.Table) -> Rows:
    columns = [plain_column(table.column(i).combine_chunks()) for i in range(table.num_columns)]
    return sorted(zip(*columns, strict=True))


def plain_column(column: Any) -> list[Any]:
    if pa.types.is_struct(column.type):
        column = column.field("start")
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64())
    values: list[Any] = column.to_pylist()
    return values


def difference(table: str, found: Rows, wanted: Rows) -> str:
    """Describes how two sets of rows differ."""
    more = sorted(set(found) - set(wanted))
    less = sorted(set(wanted) - set(found))
    twice = len(found) - len(set(found))
    return (
        f"table '{table}' has {len(found)} rows and should have {len(wanted)}: {len(less)} are missing "
        f"{less[:5]}, {len(more)} should not be there {more[:5]}, {twice} are there more than once"
    )


def agree(bench: Bench) -> None:
    """Checks that all results of a random draw come from the same draw."""
    drawn = bench.rows("drawn")
    files = parquet_files(str(bench.base / "out" / "drawn_files"))
    assert drawn
    assert len({row[0] for row in drawn}) == len(drawn), "a row was drawn twice"
    assert plain_rows(pq.ParquetDataset(files).read()) == drawn
    assert bench.rows("once") == drawn
    assert bench.rows("again") == drawn


def pause_and_overtake(bench: Bench, place: str) -> None:
    """Pauses a process at a failpoint, lets a successor run to the end, and resumes the first one: it must end, and
    change nothing."""
    paused = bench.start(pause_at=place, retained=1)
    paused.await_pause()
    bench.run(takeover=True, retained=1000)
    before = bench.durable()
    paused.signal(signal.SIGCONT)
    paused.end()
    after = bench.durable()
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    assert changed == [], f"{paused.what} changed something:\n{paused.said()}"


def pause_and_meet(bench: Bench, place: str) -> None:
    """Pauses a process at a failpoint, and resumes it while a successor is running: it must give way."""
    paused = bench.start(pause_at=place)
    paused.await_pause()
    bench.input.add(2)
    successor = bench.start("checkpoint", "await=returned", "drain", takeover=True)
    successor.await_line("checkpoint ->")
    paused.signal(signal.SIGCONT)
    code = paused.end()
    assert code == 1, f"{paused.what} ended with {code}:\n{paused.said()}"
    assert "another process has taken over" in paused.said(), paused.said()
    bench.input.add(2)
    (bench.base / "returned").touch()
    assert successor.end() == 0, successor.said()
