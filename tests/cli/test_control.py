"""Commands that send requests to a running pipeline."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from typer.testing import Result

from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.paths import REPLY_PREFIX, REQUEST_PREFIX
from cutwater.protocol.base.wire import Reply, Request, RequestKind, encode_message
from cutwater.runtime.store_requests import understood
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.command_helpers import call
from tests.support.live_member import members
from tests.support.spark_helpers import await_that
from tests.support.written import Written, beating


@contextmanager
def answering(store: Store, *replies: dict[str, Any]) -> Iterator[list[Request]]:
    """A running pipeline, as far as the store shows: it answers one request after the other."""
    heard: list[Request] = []

    def answer() -> None:
        while not over.wait(0.01):
            for name in store.list(REQUEST_PREFIX):
                request = understood(store.read(name), Request)
                if request is not None and request not in heard:
                    heard.append(request)
                    reply = Reply(request.request_id, **replies[len(heard) - 1])
                    store.put(f"{REPLY_PREFIX}{request.request_id}.json", encode_message(reply))

    with beating(store) as over:
        thread = Thread(target=answer)
        thread.start()
        try:
            yield heard
        finally:
            over.set()
            thread.join()


@pytest.fixture
def store(tmp_path: Path) -> Store:
    play = Written()
    play.checkpoint()
    play.checkpoint()
    return play.write(tmp_path / "state")


def test_requests_reach_the_running_pipeline_and_answers_come_back(store: Store) -> None:
    where = ("--store", store.url)
    with answering(store, *({"ok": True, "epoch": n} for n in (7, 8, 2, 8, 2))) as heard:
        assert call("checkpoint", "--full", "--unaligned", *where).stdout == "epoch 7 is committed\n"
        assert json.loads(call("savepoint", "x", "--json", *where).stdout) == {"savepoint": "x", "epoch": 8}
        assert call("savepoint", "y", "--epoch", "latest", *where).exit_code == 0
        assert call("savepoint", "x", "--forget", *where).exit_code == 0
        assert "continues from there" in call("restore", "latest", "--reset", "b", *where).stdout
    kinds = [request.kind for request in heard]
    assert kinds == [
        RequestKind.CHECKPOINT, RequestKind.SAVEPOINT, RequestKind.SAVEPOINT, RequestKind.FORGET,
        RequestKind.RESTORE,
    ]  # fmt: skip
    assert (heard[0].full, heard[0].unaligned) == (True, True)
    assert (heard[2].name, heard[2].epoch) == ("y", 2)
    assert (heard[4].epoch, heard[4].reset) == (2, ("b",))
    assert store.list(REQUEST_PREFIX) == store.list(REPLY_PREFIX) == []


def test_a_restore_reaches_a_running_pipeline_with_all_that_was_said(store: Store) -> None:
    where = ("--store", store.url)
    assert call("savepoint", "good", "--epoch", "1", *where).exit_code == 0
    with answering(store, *({"ok": True, "epoch": 1} for _ in range(2))) as heard:
        answer = json.loads(call("restore", "good", "--force", "--json", *where).stdout)
        assert call("restore", "1", "--reset", "b", "--reset", "c", *where).exit_code == 0
    assert answer == {
        "epoch": 1, "running": True, "news": ["restored epoch 1; the pipeline continues from there"],
    }  # fmt: skip
    assert [(r.name, r.epoch, r.force, r.reset) for r in heard] == [
        ("good", 1, True, ()), (None, 1, False, ("b", "c")),
    ]  # fmt: skip


def test_a_takeover_does_not_ask_who_runs(store: Store) -> None:
    with beating(store):
        answer = json.loads(call("restore", "1", "--takeover", "--json", "--store", store.url).stdout)
        assert (answer["epoch"], answer["running"]) == (1, False)
        assert store.list(REQUEST_PREFIX) == []


def test_json_output_says_what_was_cancelled_and_forgotten(store: Store) -> None:
    where = ("--json", "--store", store.url)
    with answering(store, {"ok": True}, {"ok": True, "epoch": 2}, {"ok": True, "epoch": 3}):
        assert json.loads(call("cancel", *where).stdout) == {"cancelled": True}
        assert json.loads(call("savepoint", "x", "--forget", *where).stdout) == {"forgotten": "x", "epoch": 2}
        assert json.loads(call("checkpoint", *where).stdout) == {"epoch": 3}


def test_a_refusal_says_why_and_what_to_do(store: Store) -> None:
    reason = FailureReason.NOTHING_TO_CANCEL
    with answering(store, {"ok": False, "reason": reason.value, "detail": "none is in flight"}):
        shown = call("cancel", "--store", store.url)
    assert shown.exit_code == 1
    assert f"none is in flight. {reason.advice}" in shown.stderr


def test_an_unanswered_request_is_withdrawn(store: Store) -> None:
    with beating(store):
        shown = call("checkpoint", "--timeout", "300ms", "--store", store.url)
    assert shown.exit_code == 1
    assert "no answer within 0.30 s" in shown.stderr
    assert store.list(REQUEST_PREFIX) == []


def test_a_command_stops_waiting_when_the_pipeline_ends(store: Store) -> None:
    with beating(store) as over:

        def end_when_asked() -> None:
            await_that("it asks", lambda: store.list(REQUEST_PREFIX))
            over.set()

        asked = Thread(target=end_when_asked)
        asked.start()
        shown = call("checkpoint", "--store", store.url)
        asked.join()
    assert shown.exit_code == 1
    assert "ended before it answered" in shown.stderr
    assert store.list(REQUEST_PREFIX) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("option", [(), ("--json",)], ids=["text", "json"])
def test_an_interrupted_command_withdraws_its_request_and_says_so(
    store: Store, option: tuple[str, ...], number: signal.Signals
) -> None:
    command = [sys.executable, "-m", "cutwater", "checkpoint", "--store", store.url, *option]
    with beating(store):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        await_that("it asks", lambda: store.list(REQUEST_PREFIX))
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    said = json.loads(out)["error"] if option else err
    assert "interrupted; the request was withdrawn, but it may have been carried out" in said
    assert "Traceback" not in out + err
    assert store.list(REQUEST_PREFIX) == []


def test_a_command_below_nohup_waits_on_when_its_terminal_is_closed(store: Store) -> None:
    command = [
        "nohup",
        sys.executable,
        "-m",
        "cutwater",
        "checkpoint",
        "--timeout",
        "60s",
        "--store",
        store.url,
    ]
    with beating(store):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        (name,) = await_that("it asks", lambda: store.list(REQUEST_PREFIX))
        process.send_signal(signal.SIGHUP)
        reply = Reply(name.removeprefix(REQUEST_PREFIX).removesuffix(".json"), True, 5)
        before = store.read(name)
        await_that("it waits on", lambda: store.read(name) not in (before, None), 30)
        store.create(name.replace(REQUEST_PREFIX, REPLY_PREFIX), encode_message(reply))
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_a_lost_request_and_an_unreadable_answer_are_errors(store: Store) -> None:
    def disturb(act: Callable[[str], None]) -> Result:
        with beating(store):
            thread = Thread(target=lambda: act(await_that("it asks", lambda: store.list(REQUEST_PREFIX))[0]))
            thread.start()
            shown = call("checkpoint", "--timeout", "60s", "--store", store.url)
            thread.join()
        assert shown.exit_code == 1
        assert f"`cutwater checkpoints --store {store.url}` for what is committed" in shown.stderr
        return shown

    shown = disturb(lambda name: store.delete([name]))
    assert "the request disappeared from the store without an answer" in shown.stderr
    shown = disturb(lambda name: store.put(name.replace(REQUEST_PREFIX, REPLY_PREFIX), b"{}"))
    assert "the answer cannot be read" in shown.stderr
    assert store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX) == []


def test_drop_needs_a_restart(store: Store) -> None:
    with beating(store):
        shown = call("restore", "1", "--drop", "c", "--store", store.url)
    assert shown.exit_code == 1
    assert "--drop needs a restart" in shown.stderr


def test_a_checkpoint_in_progress_can_be_cancelled(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "state"), create=True)
    with members(store) as up:
        made = up.start("main")
        await_that("it leads", lambda: made.leader.coordinator is not None, 30)
        made.hosts["s"].attend = lambda stage: None  # type: ignore[method-assign]
        made.come_to_rest()
        await_that("a drain is in progress", lambda: made.member.journal.state.open, 30)
        shown = call("cancel", "--store", store.url, "--json")
    assert json.loads(shown.stdout) == {"cancelled": True}
