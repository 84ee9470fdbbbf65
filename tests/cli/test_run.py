"""`cutwater run`, with a fake pipeline instead of Spark."""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from typer.testing import Result

from cutwater.api.config import RunConfig
from cutwater.cli.run import JsonLines, PlainLines
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.store.status import Status
from tests.cli.test_live_view import STATUS
from tests.support.command_helpers import call
from tests.support.spark_helpers import await_that


def test_running_a_missing_file_is_an_error() -> None:
    shown = call("run", "nowhere.py")
    assert shown.exit_code == 1
    assert "there is no file nowhere.py" in shown.stderr


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
        self.started_by = ""
        self.start_error: BaseException | None = None

    def start(self, store: str, given: RunConfig) -> None:
        self.store, self.given = store, given
        self.started_by = threading.current_thread().name
        if self.start_error is not None:
            raise self.start_error
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
    return run_this(monkeypatch, made, *options), made


def run_this(monkeypatch: pytest.MonkeyPatch, pipeline: FakePipeline, *options: str) -> Result:
    monkeypatch.setattr("cutwater.cli.load.load", lambda _: pipeline)
    return call("run", "x.py", *options)


def events(shown: Result) -> list[dict[str, Any]]:
    return [{k: v for k, v in json.loads(line).items() if k != "at"} for line in shown.stdout.splitlines()]


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
    log_lines: list[str] = []

    class Noisy(FakePipeline):
        def stay(self, tick: Callable[[], None] | None) -> bool:
            os.write(2, b"no space left\n")
            await_that("it is told", lambda: "no space left" in log_lines, 10)
            return super().stay(tick)

    monkeypatch.setattr(PlainLines, "add_line", lambda self, line: log_lines.append(line))
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


def test_every_option_reaches_the_pipeline_and_the_defaults_are_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, made = run_fake(monkeypatch, True)
    assert made.given == RunConfig()
    assert made.started_by == "cutwater-start", (
        "Spark is not started in the main thread, which must hear Ctrl-C"
    )
    _, made = run_fake(
        monkeypatch, True, "--every", "3s", "--min-pause", "1s", "--max-concurrent", "2", "--full-every", "5", "--once",
        "--restore", "latest", "--drop", "a", "--drop", "b", "--reset", "c", "--force", "--takeover", "--unaligned",
        "--timeout", "9m", "--alignment-timeout", "4s", "--retained", "7", "--tolerated-failures", "8", "--restarts", "9",
        "--idle-after", "11s", "--master", "local[1]", "--conf", "spark.a=b=c", "--conf", "spark.d=", "--member", "m",
        "--wait-for", "n", "--leader-timeout", "12s",
    )  # fmt: skip
    assert made.given == RunConfig(
        every="3s", min_pause="1s", max_concurrent=2, full_every=5, once=True, restore="latest", drop=("a", "b"),
        reset=("c",), force=True, takeover=True, unaligned=True, timeout="9m", alignment_timeout="4s", retained=7,
        tolerated_failures=8, restarts=9, idle_after="11s", master="local[1]",
        conf={"spark.a": "b=c", "spark.d": ""}, member="m", wait_for=("n",), leader_timeout="12s",
    )  # fmt: skip


@pytest.mark.parametrize("setting", ["spark.a", "=b"])
def test_a_setting_without_a_key_or_a_value_is_an_error(
    monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    shown, made = run_fake(monkeypatch, True, "--conf", setting)
    assert f"--conf {setting}: write KEY=VALUE" in shown.stderr
    assert made.store == ""


def test_json_output_has_each_checkpoint_of_this_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Committing(FakePipeline):
        known: Status | None = None

        def stay(self, tick: Callable[[], None] | None) -> bool:
            assert tick is not None
            committed = [replace(STATUS, epoch=e, epoch_at=e * 1.0, epoch_s=0.5) for e in (4, 4, 5)]
            for self.known in (None, STATUS, replace(STATUS, epoch=3), *committed):
                tick()
            return True

        def status(self) -> Status:
            if self.known is None:
                raise UserError("start() it first")
            return self.known

    assert events(run_this(monkeypatch, Committing(True), "--json")) == [
        {"event": "starting"},
        {"event": "news", "text": "it begins"},
        {"event": "committed", "epoch": 4, "committed_at": "1970-01-01T00:00:04.000+00:00", "took_s": 0.5},
        {"event": "committed", "epoch": 5, "committed_at": "1970-01-01T00:00:05.000+00:00", "took_s": 0.5},
        {"event": "ended", "state": "drained"},
    ]


def test_json_output_says_that_a_run_was_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, _ = run_fake(monkeypatch, False, "--json")
    assert shown.exit_code == 130
    assert events(shown)[-1] == {"event": "ended", "state": "stopped"}


@pytest.mark.parametrize("error", [UserError("no such stage"), StoreError("no manifest"), OSError("no disk")])
@pytest.mark.parametrize("at_the_start", [False, True])
def test_an_error_is_printed_when_the_display_is_closed(
    monkeypatch: pytest.MonkeyPatch, error: Exception, at_the_start: bool
) -> None:
    made = FakePipeline(error)
    made.start_error = error if at_the_start else None
    shown = run_this(monkeypatch, made, "--json")
    assert shown.exit_code == 1
    assert events(shown)[-2:] == [{"event": "ended", "state": "failed"}, {"error": str(error)}]
    assert f"error: {error}" in run_this(monkeypatch, made).stderr


def test_an_unexpected_error_stops_the_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    made = FakePipeline(True)
    made.start_error = ZeroDivisionError()
    shown = run_this(monkeypatch, made, "--json")
    assert isinstance(shown.exception, ZeroDivisionError)
    assert made.stopped
    assert events(shown)[-1] == {"event": "ended", "state": "failed"}


def test_json_output_is_written_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    out = SimpleNamespace(write=lambda text: done.append("write"), flush=lambda: done.append("flush"))
    monkeypatch.setattr(sys, "stdout", out)
    lines = JsonLines(lambda: None)
    lines.start()
    lines.add_line("a word")
    assert done == ["write", "flush"] * 2
