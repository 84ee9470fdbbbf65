"""`cutwater run`, with a fake pipeline instead of Spark."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import Result

from cutwater.api.config import RunConfig
from cutwater.cli.run import PlainLines
from cutwater.protocol.base.errors import UserError
from tests.support.command_helpers import call
from tests.support.spark_helpers import await_that


def test_running_a_missing_file_is_an_error() -> None:
    shown = call("run", "nowhere.py")
    assert shown.exit_code == 1
    assert "there is no file nowhere.py" in shown.stderr


def test_a_setting_without_a_value_is_an_error() -> None:
    assert "write KEY=VALUE" in call("run", "x.py", "--conf", "spark.thing").stderr


def test_wrong_usage_exits_with_2() -> None:
    assert call("run").exit_code == 2
    assert call("gc", "--retained", "many").exit_code == 2


class FakePipeline:
    """A pipeline with a given outcome that records its options."""

    name = "shop"

    def __init__(self, outcome: bool | BaseException) -> None:
        self.outcome = outcome
        self.store = ""
        self.given = RunConfig()
        self.stopped = False

    def start(self, store: str, given: RunConfig) -> None:
        self.store, self.given = store, given
        logging.getLogger("cutwater").info("it begins")
        logging.getLogger("cutwater").debug("a debug line, which is not printed")

    def stay(self, tick: Callable[[], None] | None) -> bool:
        for _ in range(2):
            if tick is not None:
                tick()
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def stop(self) -> None:
        self.stopped = True

    def status(self) -> Any:
        return SimpleNamespace(epoch=4, epoch_s=0.5, epoch_at=0.0)


def run_fake(
    monkeypatch: pytest.MonkeyPatch, outcome: bool | BaseException, *options: str
) -> tuple[Result, FakePipeline]:
    made = FakePipeline(outcome)
    monkeypatch.setattr("cutwater.cli.load.load", lambda _: made)
    return call("run", "x.py", *options), made


def test_a_drained_run_exits_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, made = run_fake(
        monkeypatch, True, "--store", "s", "--conf", "a=b", "--restore", "7", "--drop", "c"
    )
    assert shown.exit_code == 0
    assert [line.split(" ", 1)[1] for line in shown.stdout.splitlines()] == [
        "starting Spark, then the stages", "it begins", "drained",
    ]  # fmt: skip
    assert made.store == "s"
    assert made.given == RunConfig(conf={"a": "b"}, restore="7", drop=("c",))
    assert not made.stopped


def test_what_spark_writes_to_stderr_is_printed_with_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    class Noisy(FakePipeline):
        def stay(self, tick: Callable[[], None] | None) -> bool:
            os.write(2, b"no space left\n")
            await_that("it is told", lambda: "no space left" in told, 10)
            return super().stay(tick)

    monkeypatch.setattr(PlainLines, "add_line", lambda self, line: told.append(line))
    monkeypatch.setattr("cutwater.cli.load.load", lambda _: Noisy(True))
    assert call("run", "x.py").exit_code == 0


def test_a_run_that_is_stopped_at_once_exits_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, _ = run_fake(monkeypatch, False)
    assert shown.exit_code == 130
    assert shown.stdout.endswith("stopped\n")


def test_a_failed_run_says_why_and_exits_with_1(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, _ = run_fake(monkeypatch, UserError("no luck"))
    assert (shown.exit_code, shown.stderr) == (1, "error: no luck\n")


def test_an_interrupted_run_stops_its_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, made = run_fake(monkeypatch, KeyboardInterrupt())
    assert shown.exit_code == 130
    assert made.stopped


def test_json_output_has_one_event_per_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, _ = run_fake(monkeypatch, True, "--json")
    events = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [e["event"] for e in events] == ["starting", "news", "committed", "ended"]
    assert (events[2]["epoch"], events[2]["took_s"], events[3]["state"]) == (4, 0.5, "drained")
    failed, _ = run_fake(monkeypatch, UserError("no luck"), "--json")
    ended, error = (json.loads(line) for line in failed.stdout.splitlines()[-2:])
    assert (ended["state"], error) == ("failed", {"error": "no luck"})


def test_a_member_that_listens_needs_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTWATER_SECRET", "a secret that is long enough for all")
    shown, made = run_fake(monkeypatch, True, "--listen", "tcp/127.0.0.1:0")
    assert shown.exit_code == 1
    assert "give it a name with --member NAME" in shown.stderr
    assert made.store == ""
