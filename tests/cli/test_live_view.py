"""The live view of `cutwater run`, and captured Spark output."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from cutwater.cli.live_view import LiveView, view
from cutwater.cli.stderr_capture import capture_stderr
from cutwater.store.contract import Store
from cutwater.store.status import Status
from tests.support.spark_helpers import await_that
from tests.support.written import Written, put_status


@pytest.fixture
def store(tmp_path: Path) -> Store:
    play = Written()
    play.checkpoint()
    play.checkpoint()
    return play.write(tmp_path / "state")


@pytest.mark.parametrize("width", [80, 120])
def test_the_live_view_fits_the_terminal(store: Store, width: int) -> None:
    status = put_status(store)
    screen = Console(width=width, file=io.StringIO(), record=True)
    screen.print(view(status, store.url, time.time(), ["12:00:00 epoch 4 committed in 0.50 s"], width))
    lines = screen.export_text().splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("chain  running for 1 min")
    assert lines[1].startswith("epoch 4 3.")
    row = next(line.split() for line in lines if line.startswith("a "))
    assert row == ["a", "running", "7", "1,234", "0.50", "s", "-", "-"]
    assert "epoch 4 committed in 0.50 s" in lines[-1]


def test_the_live_view_starts_without_a_status_and_ends_with_the_last_one(store: Store) -> None:
    known: list[Status] = []
    file = io.StringIO()
    live = LiveView(
        Console(width=80, file=file, force_terminal=True),
        "here",
        "chain",
        lambda: known[-1] if known else None,
    )
    live.start()
    live.add_line("a first line")
    await_that("it is said that it starts", lambda: "starting chain" in file.getvalue(), 10)
    known.append(put_status(store))
    await_that("the status is shown", lambda: "running" in file.getvalue(), 10)
    live.close("drained")
    last = file.getvalue()[file.getvalue().rindex("chain") :]
    assert "drained" in last
    assert "a first line" in last


def test_spark_output_is_captured_line_by_line_without_notices() -> None:
    heard: list[str] = []
    code = "import os; os.write(2, b'WARNING: Using incubator modules: x\\n12:00:00 spark ERROR x\\n')"
    with capture_stderr(heard.append):
        subprocess.run([sys.executable, "-c", code], check=True)
        await_that("it is heard", lambda: heard, 10)
    assert heard == ["spark ERROR x"]
