"""`cutwater run` around a pipeline that is only played: which options reach it, what is told, and how it ends."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner, Result

from cutwater.api.config import RunConfig
from cutwater.api.log_lines import LOG
from cutwater.cli import load
from cutwater.cli.main import app
from cutwater.cli.run import Events
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.store.status import Status
from tests.cli.test_live import STATUS


class Played:
    """A pipeline that runs for as long as `stay` does."""

    name = "shop"

    def __init__(self) -> None:
        self.started: list[tuple[str, RunConfig]] = []
        self.by = ""
        self.known: Status | None = None
        self.stopped = False
        self.while_it_runs: Callable[[Callable[[], None] | None], bool] = lambda tick: True
        self.start_fails: BaseException | None = None

    def start(self, store: str, config: RunConfig) -> None:
        self.by = threading.current_thread().name
        self.started.append((store, config))
        if self.start_fails is not None:
            raise self.start_fails

    def stay(self, tick: Callable[[], None] | None) -> bool:
        return self.while_it_runs(tick)

    def status(self) -> Status:
        if self.known is None:
            raise UserError("start() it first")
        return self.known

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> Played:
    made = Played()
    monkeypatch.setattr(load, "load", {"shop.py": made}.__getitem__)
    return made


def run(*options: str) -> Result:
    return CliRunner().invoke(app, ["run", "shop.py", "--store", "/state", *options])


def events(shown: Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in json.loads(line).items() if k != "at"} for line in shown.stdout.splitlines()]


def test_options_reach_the_pipeline_and_have_the_defaults_of_its_own(played: Played) -> None:
    assert run().exit_code == 0
    run(
        "--every", "3s", "--once", "--restore", "latest", "--drop", "a", "--drop", "b", "--reset", "c", "--force",
        "--takeover", "--unaligned", "--timeout", "9m", "--alignment-timeout", "4s", "--retained", "7",
        "--tolerated-failures", "8", "--restarts", "9", "--idle-after", "11s", "--master", "local[1]",
        "--conf", "spark.a=b=c", "--conf", "spark.d=", "--member", "m", "--wait-for", "n", "--leader-timeout", "12s",
    )  # fmt: skip
    plain, full = [config for _, config in played.started]
    assert {where for where, _ in played.started} == {"/state"}
    assert plain == RunConfig()
    assert full == RunConfig(
        every="3s", once=True, restore="latest", drop=("a", "b"), reset=("c",), force=True, takeover=True,
        unaligned=True, timeout="9m", alignment_timeout="4s", retained=7, tolerated_failures=8, restarts=9,
        idle_after="11s", master="local[1]", conf={"spark.a": "b=c", "spark.d": ""}, member="m", wait_for=("n",),
        leader_timeout="12s",
    )  # fmt: skip
    assert played.by == "cutwater-start", "Spark is not started in the main thread, which has to hear Ctrl-C"


@pytest.mark.parametrize("setting", ["spark.a", "=b"])
def test_a_setting_is_a_key_and_a_value(played: Played, setting: str) -> None:
    assert f"--conf {setting}: write KEY=VALUE" in run("--conf", setting).stderr
    assert played.started == []


def test_who_has_peers_has_a_name(played: Played) -> None:
    assert "give it a name with --member NAME" in run("--listen", "tcp/127.0.0.1:1").stderr
    assert played.started == []


def test_what_happens_is_told_line_by_line(played: Played) -> None:
    def stay(tick: Callable[[], None] | None) -> bool:
        LOG.info("epoch 4 is committed")
        return True

    played.while_it_runs = stay
    lines = [line.partition(" ")[2] for line in run().stdout.splitlines()]
    assert lines == ["starting Spark, then the stages", "epoch 4 is committed", "drained"]


def test_programs_are_told_of_each_checkpoint_once(played: Played) -> None:
    def stay(tick: Callable[[], None] | None) -> bool:
        assert tick is not None
        tick()
        played.known = STATUS
        tick()
        played.known = replace(STATUS, epoch=3)
        tick()
        for epoch in (4, 4, 5):
            played.known = replace(STATUS, epoch=epoch, epoch_at=epoch * 1.0, epoch_s=0.5)
            tick()
        LOG.info("a word")
        return True

    played.while_it_runs = stay
    assert events(run("--json")) == [
        {"event": "starting"},
        {"event": "committed", "epoch": 4, "committed_at": "1970-01-01T00:00:04.000+00:00", "took_s": 0.5},
        {"event": "committed", "epoch": 5, "committed_at": "1970-01-01T00:00:05.000+00:00", "took_s": 0.5},
        {"event": "news", "text": "a word"},
        {"event": "ended", "state": "drained"},
    ]


def test_a_run_that_is_stopped_at_once_ends_with_a_code_of_its_own(played: Played) -> None:
    played.while_it_runs = lambda tick: False
    shown = run("--json")
    assert shown.exit_code == 130
    assert events(shown)[-1] == {"event": "ended", "state": "stopped"}


@pytest.mark.parametrize("error", [UserError("no such stage"), StoreError("no manifest"), OSError("no disk")])
@pytest.mark.parametrize("at_the_start", [False, True])
def test_an_error_is_told_when_the_view_is_closed(
    played: Played, error: Exception, at_the_start: bool
) -> None:
    def fail(tick: Any) -> bool:
        raise error

    if at_the_start:
        played.start_fails = error
    else:
        played.while_it_runs = fail
    shown = run("--json")
    assert shown.exit_code == 1
    assert events(shown) == [
        {"event": "starting"}, {"event": "ended", "state": "failed"}, {"error": str(error)},
    ]  # fmt: skip
    assert "error: " + str(error) in run().stderr


def test_what_is_not_foreseen_stops_the_pipeline(played: Played) -> None:
    played.start_fails = ZeroDivisionError()
    shown = run("--json")
    assert isinstance(shown.exception, ZeroDivisionError)
    assert played.stopped
    assert events(shown)[-1] == {"event": "ended", "state": "failed"}


def test_programs_are_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    out = SimpleNamespace(write=lambda text: done.append("write"), flush=lambda: done.append("flush"))
    monkeypatch.setattr(sys, "stdout", out)
    events = Events(lambda: None)
    events.start()
    events.tell("a word")
    assert done == ["write", "flush"] * 2
