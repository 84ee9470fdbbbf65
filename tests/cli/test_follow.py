"""`cutwater follow`: what it prints, and the command that it runs for each epoch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from cutwater.cli.follow import _end_group, ending_on_sigterm, run_once
from cutwater.cli.main import app
from cutwater.protocol.follower.followed import Followed
from tests.support.spark_helpers import await_that

FIRST = Followed(epoch=7, generation=1, tables={"big": 3, "out": None}, watermark=1_000, position=21)
BACK = Followed(epoch=5, generation=2, tables={}, watermark=None, position=23, rewound=True, after_gap=True)


class Epochs:
    """What a follower is given; then the user interrupts it."""

    def __init__(self, *given: Followed) -> None:
        self.given = given
        self.asked: dict[str, Any] = {}
        self.taken = 0

    @contextmanager
    def __call__(self, store: str, **options: Any) -> Iterator[Iterator[Followed]]:
        self.asked = {"store": store, **options}
        yield self._all()

    def _all(self) -> Iterator[Followed]:
        for one in self.given:
            self.taken += 1
            yield one
        raise KeyboardInterrupt


def invoke(epochs: Epochs, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Result:
    monkeypatch.setattr("cutwater.api.follow.follow", epochs)
    return CliRunner().invoke(app, ["follow", "--store", "./state", *arguments])


def test_it_prints_a_line_per_epoch_until_it_is_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    epochs = Epochs(FIRST, BACK)
    done = invoke(epochs, monkeypatch, "--name", "cache", "--after", "latest")
    assert done.exit_code == 130
    assert done.output.splitlines()[:2] == [
        "epoch 7 · generation 1 · big 3, out ? · watermark 1970-01-01T00:00:01.000+00:00",
        "rewound to epoch 5 · generation 2 · no tables · epochs before it have expired and were not given",
    ]
    assert epochs.asked == {"store": "./state", "peers": (), "name": "cache", "after": "latest"}


def test_with_json_each_line_is_an_object(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = invoke(Epochs(FIRST, BACK), monkeypatch, "--json").output.splitlines()
    first, back = map(json.loads, lines[:2])
    assert first == {
        "epoch": 7, "generation": 1, "tables": {"big": 3, "out": None}, "watermark": 1_000, "position": 21,
        "rewound": False, "after_gap": False,
    }  # fmt: skip
    assert (back["epoch"], back["rewound"], back["after_gap"]) == (5, True, True)
    assert Followed(**first) == FIRST


def test_a_command_gets_each_epoch_on_its_stdin_and_is_repeated_until_it_succeeds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("cutwater.cli.follow.time.sleep", pauses.append)
    out, tries = tmp_path / "out", tmp_path / "tries"
    script = f"echo >> {tries}; test $(wc -l < {tries}) -ge 4 && cat >> {out}"
    epochs = Epochs(FIRST, BACK)
    done = invoke(epochs, monkeypatch, "--exec", script)
    assert [json.loads(line)["epoch"] for line in out.read_text("utf-8").splitlines()] == [7, 5]
    assert pauses == [1, 2, 4]
    assert "the command for epoch 7 has ended with 1; it runs again in 4.0 s" in done.output
    assert epochs.taken == 2  # the next epoch is asked for only when the command has succeeded


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_command_ends_with_its_follower(sent: signal.Signals, tmp_path: Path) -> None:
    """With all that it has started: otherwise the next follower would run it a second time beside it."""
    pids = tmp_path / "pids"
    script = f"sleep 300 & echo $$ $! > {pids}; wait"
    program = (
        "import signal, sys; from cutwater.cli.follow import _end_group, ending_on_sigterm, run_once\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with ending_on_sigterm(): run_once(sys.argv[1], b'{}')"
    )
    follower = subprocess.Popen([sys.executable, "-c", program, script], stderr=subprocess.DEVNULL)
    await_that("the command runs", lambda: pids.exists() and bool(pids.read_text().strip()), 30)
    follower.send_signal(sent)
    assert follower.wait(30) != 0
    for pid in pids.read_text().split():
        await_that(f"{pid} has ended", partial(has_ended, int(pid)), 10)


def test_a_command_ends_with_a_follower_that_is_ended_while_it_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[int] = []

    class Interrupted(subprocess.Popen[bytes]):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            started.append(self.pid)
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("cutwater.cli.follow.subprocess.Popen", Interrupted)
    with pytest.raises(SystemExit), ending_on_sigterm():
        run_once("sleep 300", b"{}")
    try:
        await_that("the command has ended", partial(has_ended, *started), 10)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(started[0], signal.SIGKILL)


def has_ended(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_an_empty_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    done = invoke(Epochs(), monkeypatch, "--exec", " ")
    assert (done.exit_code, "--exec needs a command" in done.output) == (1, True)


def test_what_a_command_has_started_ends_with_it_also_if_only_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cutwater.cli.follow.COMMAND_ENDS_S", 0.5)
    pid = tmp_path / "pid"
    stubborn = f"trap '' TERM; echo $$ > {pid}; sleep 300"
    process = subprocess.Popen(["sh", "-c", 'sh -c "$1" & wait', "sh", stubborn], start_new_session=True)
    await_that("the command has started it", lambda: pid.exists() and bool(pid.read_text().strip()), 30)
    _end_group(process)
    assert process.returncode == -signal.SIGTERM
    await_that("it has ended", partial(has_ended, int(pid.read_text())), 10)
