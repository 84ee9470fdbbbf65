"""What the buttons ask for."""

from __future__ import annotations

import subprocess
import sys
import time
from queue import Queue
from threading import Event, Thread
from typing import Any

import pytest
from starlette.testclient import TestClient

from cutwater.protocol.base.chain import with_checksum
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import REQUEST_PREFIX, reply_name, request_of
from cutwater.protocol.base.wire import Reply, encode_message
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store
from cutwater.web import requests as requests_module
from cutwater.web.requests import MAX_URGENT, MAX_WAITING, RequestBody, Requests, _perform
from tests.support.spark_helpers import await_that
from tests.support.written import beating


def ask(client: TestClient, **wish: Any) -> dict[str, Any]:
    """The answer to a request, once it is done."""
    asked = client.post("/api/v1/requests", json=wish)
    assert asked.status_code == 202, asked.text
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found: dict[str, Any] = client.get(f"/api/v1/requests/{asked.json()['id']}").json()
        if found["state"] != "waiting":
            return found
        time.sleep(0.02)
    raise AssertionError("no answer in time")


def test_a_savepoint_of_a_stopped_pipeline_names_the_newest_checkpoint(
    trusted: TestClient, store: Store
) -> None:
    found = ask(trusted, kind="savepoint", name="good")
    assert (found["state"], found["epoch"]) == ("done", 3)
    assert read_journal(store).state.savepoints["good"] == 3


def test_a_restore_of_a_stopped_pipeline_begins_a_generation(trusted: TestClient, store: Store) -> None:
    found = ask(trusted, kind="restore", ref="before-deploy")
    assert (found["state"], found["epoch"]) == ("done", 2), found
    assert read_journal(store).state.generation == 2


@pytest.mark.parametrize("kind", ["checkpoint", "cancel", "drain"])
def test_what_needs_a_running_pipeline_says_so(trusted: TestClient, kind: str) -> None:
    found = ask(trusted, kind=kind)
    assert (found["state"], "no pipeline is running" in found["text"]) == ("failed", True)


def test_an_unknown_checkpoint_is_refused(trusted: TestClient, store: Store) -> None:
    found = ask(trusted, kind="restore", ref="nobody")
    assert (found["state"], "retained epochs" in found["text"]) == ("failed", True)
    assert read_journal(store).state.generation == 1


def test_a_running_pipeline_is_asked_through_the_store(store: Store) -> None:
    def answer() -> None:
        while not (names := store.list(REQUEST_PREFIX)):
            time.sleep(0.01)
        request_id = str(request_of(names[0]))
        reply = Reply(request_id, True, 7, None)
        store.create(reply_name(request_id), with_checksum(encode_message(reply)))

    with beating(store):
        thread = Thread(target=answer)
        thread.start()
        assert _perform(store, RequestBody("checkpoint", full=True)) == (7, "epoch 7 is committed")
        thread.join()
    assert store.list(REQUEST_PREFIX) == []


def test_requests_are_listed_newest_first(trusted: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests_module, "_perform", lambda store, wish, is_closed: (1, wish.kind))
    for kind in ("checkpoint", "cancel"):
        ask(trusted, kind=kind)
    assert [r["kind"] for r in trusted.get("/api/v1/requests").json()["requests"]] == ["cancel", "checkpoint"]


def test_too_many_waiting_requests_are_refused_except_cancel_and_restore(
    trusted: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = Event()
    monkeypatch.setattr(requests_module, "_perform", lambda *_: (over.wait(30), "") and (None, ""))
    wishes: list[tuple[dict[str, str], int]] = [
        ({"kind": "checkpoint"}, MAX_WAITING),
        ({"kind": "cancel"}, MAX_URGENT),
    ]
    try:
        for wish, limit in wishes:
            for _ in range(limit):
                assert trusted.post("/api/v1/requests", json=wish).status_code == 202
            assert trusted.post("/api/v1/requests", json=wish).status_code == 429
    finally:
        over.set()


@pytest.mark.slow
def test_a_request_that_waits_for_its_answer_does_not_delay_the_end_of_the_process(store: Store) -> None:
    code = (
        "import sys, time; from cutwater.store.opening import open_store; from cutwater.web.requests import *; "
        "Requests(open_store(sys.argv[1]), print).ask(RequestBody('checkpoint')); time.sleep(2)"
    )
    with beating(store):
        done = subprocess.run(
            [sys.executable, "-c", code, store.url.removeprefix("file://")], timeout=30, capture_output=True
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"'waiting'") == 1
    assert store.list(REQUEST_PREFIX), "the request did not wait"


def test_a_server_that_ends_withdraws_the_requests_that_wait(store: Store) -> None:
    answers: Queue[dict[str, Any]] = Queue()
    asked = Requests(store, answers.put)
    with beating(store):
        asked.ask(RequestBody("checkpoint"))
        assert answers.get(timeout=5)["state"] == "waiting"
        await_that("it is asked", lambda: store.list(REQUEST_PREFIX), 10)
        asked.close()
        assert answers.get(timeout=10)["state"] == "failed"
    assert store.list(REQUEST_PREFIX) == []


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_an_answer_names_no_file_of_a_store_that_fails(
    trusted: TestClient, monkeypatch: pytest.MonkeyPatch, is_wrapped: bool
) -> None:
    def refused(*_: object) -> None:
        error = PermissionError(13, "Permission denied", "/home/secret")
        if is_wrapped:
            raise StoreError(f"the store does not answer: {error}") from error
        raise error

    monkeypatch.setattr(requests_module, "_perform", refused)
    found = ask(trusted, kind="restore", ref="1")
    assert (found["state"], "secret" in found["text"]) == ("failed", False)
    assert "the log of the server says why" in found["text"]


def test_an_unexpected_failure_of_a_request_says_no_more_than_that(
    trusted: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(requests_module, "_perform", broken)
    found = ask(trusted, kind="drain")
    assert (found["state"], "secret" in found["text"]) == ("failed", False)
