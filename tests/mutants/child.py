"""Runs chosen tests in a copy of the tree, in a forked process that has already imported the large libraries."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from tests.mutants.selecting import mutated

Lines = dict[str, list[int]]
LOOPS = 300
"""A call that executes so many lines that are known already is no longer traced: that would take minutes."""
ELSEWHERE = "not (cluster or damage or faults or kafka or matrix or rare or s3 or wheel)"
"""Tests that take much longer, or that need what a mutant's copy of the tree does not have."""
TOO_LONG_S = 60
"""A test that takes longer, while it is traced, is not run against mutants."""
STARTS_SPARK_S = 240
"""The first test starts Spark, which is slow on a busy machine."""


class Known(NamedTuple):
    """The results of a file's tests without a mutant: their durations, which lines of which module each executed, the
    failed tests, which can catch nothing, and those that take too long."""

    seconds: dict[str, float]
    lines: dict[str, Lines]
    failed: list[str]
    long: Sequence[str] = ()

    @property
    def useful(self) -> list[str]:
        """The tests that can be run against a mutant."""
        return [test for test in self.seconds if test not in self.failed and test not in self.long]


class Selection:
    """Selects the tests that start Spark or those that do not; of these the chosen ones, fastest first, each with a
    time limit."""

    def __init__(self, with_spark: bool, chosen: dict[str, float] | None) -> None:
        self._with_spark = with_spark
        self._chosen = chosen

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [i for i in items if starts_spark(i) is self._with_spark]
        if self._chosen is None:
            limit_s = TOO_LONG_S + STARTS_SPARK_S * self._with_spark
            for item in items:
                item.add_marker(pytest.mark.timeout(limit_s, method="signal"))
            return
        chosen = self._chosen
        items[:] = sorted((i for i in items if i.nodeid in chosen), key=lambda i: chosen[i.nodeid])
        for item in items:
            patience_s = STARTS_SPARK_S if self._with_spark else 30
            item.add_marker(pytest.mark.timeout(patience_s + 6 * chosen[item.nodeid], method="thread"))


def starts_spark(item: pytest.Item) -> bool:
    """Whether `tests/conftest.py` has put a test into the group whose tests run in one process, in sequence. A slow
    test that only waits for processes, servers or time is not in it."""
    return any({"spark", "processes"} & set(mark.args) for mark in item.iter_markers("xdist_group"))


class Tracer:
    """Records which lines of the modules that are mutated each test executes."""

    def __init__(self, root: Path) -> None:
        self._root = f"{root}/src/cutwater/"
        self._files = {f"{self._root}{module}" for module in mutated(root)}
        self._lines: set[tuple[str, int]] = set()
        self._long: list[str] = []
        self.known = Known({}, {}, [], self._long)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        self._lines = set()
        threading.settrace(self._call)
        sys.settrace(self._call)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            lines: Lines = {}
            for file, line in self._lines:
                lines.setdefault(file.removeprefix(self._root), []).append(line)
            self.known.lines[item.nodeid] = lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            is_long = "Timeout (>" in report.longreprtext
            (self._long if is_long else self.known.failed).append(report.nodeid)
        self.known.seconds[report.nodeid] = self.known.seconds.get(report.nodeid, 0.0) + report.duration

    def _call(self, frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
        if frame.f_code.co_filename not in self._files:
            return None
        file, found, old = frame.f_code.co_filename, self._lines, 0

        def line(frame: FrameType, event: str, arg: Any) -> Callable[..., Any] | None:
            nonlocal old
            place = file, frame.f_lineno
            if place in found:
                old += 1
                return None if old > LOOPS else line
            found.add(place)
            return line

        return line


def run_tests(
    root: Path, files: tuple[str, ...], with_spark: bool, chosen: dict[str, float] | None, trace: Path | None
) -> int:
    """Runs tests of the tree at `root` and returns pytest's exit code. The process must end after that."""
    os.setsid()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # which a shell has jobs in the background ignore
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which nohup ignores
    os.chdir(root)
    output = os.open(root / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in [n for n in sys.modules if n == "tests" or n.startswith("tests.")]:
        del sys.modules[name]
    paths = [str(root / "src"), str(root)]
    sys.path[:] = [*paths, *(p for p in sys.path if p and not (Path(p) / "cutwater").is_dir())]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = trace is None
    tracer = Tracer(root)
    plugins: list[object] = [Selection(with_spark, chosen)]
    if trace is not None:
        plugins.append(tracer)
    end = ["-x"] if trace is None else []
    there = [file for file in files if (root / file).exists()]
    code = pytest.main(
        [
            "-q",
            *end,
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            "-m",
            ELSEWHERE,
            f"--basetemp={root}/temp",
            *there,
        ],
        plugins,
    )
    if trace is not None:
        trace.write_text(json.dumps(tracer.known))
    return int(code)
