"""Requests through the store, as those who ask see them: waiting, renewing, and what an answer means."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.paths import REPLY_PREFIX, REQUEST_PREFIX, request_name
from cutwater.protocol.base.wire import Reply, Request, RequestKind, encode_message
from cutwater.runtime import store_requests
from cutwater.runtime.store_requests import Unanswered, ask_through, renew
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.mailbox_helpers import FlakyStore, asked_before, flaky_store, renewed, reply_to
from tests.support.spark_helpers import await_that


@pytest.fixture
def store(tmp_path: Path) -> FlakyStore:
    return flaky_store(tmp_path)


# --- who asks -------------------------------------------------------------------------------------------


def test_a_request_that_vanishes_is_distinguished_from_an_unanswered_one(store: FlakyStore) -> None:
    request = Request(RequestKind.CHECKPOINT, "aaa")
    assert ask_through(store, request, 0.3) is Unanswered.TIMED_OUT
    assert ask_through(store, request, 30, lambda: False) is Unanswered.NOBODY_THERE
    hint = lambda: LocalStore.delete(store, [f"{REQUEST_PREFIX}aaa.json"])  # noqa: E731
    assert ask_through(store, request, 30, hint=hint) is Unanswered.VANISHED
    assert store.list(REQUEST_PREFIX) == []


def test_a_requester_that_waits_renews_its_request(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_requests, "RENEW_S", 0.1)
    store.fails["renew requests"] = 1
    with asked_before(store, RequestKind.CHECKPOINT, "aaa") as got:
        await_that("it is renewed", lambda: (renewed(store, f"{REQUEST_PREFIX}aaa.json") or 0) >= 3, 30)
        store.create(f"{REPLY_PREFIX}aaa.json", encode_message(Reply("aaa", True, 5)))
        await_that("it is answered", lambda: got, 30)
    assert got == [Reply("aaa", True, 5)]
    assert store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX) == []


def test_a_request_that_is_answered_while_it_is_renewed_does_not_stay(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_requests, "RENEW_S", 0.1)

    def answer(name: str) -> None:
        store.create(reply_to(name), encode_message(Reply("aaa", True, 5)))
        store.delete([name])

    store.before_put = answer
    assert ask_through(store, Request(RequestKind.CHECKPOINT, "aaa"), 30) == Reply("aaa", True, 5)
    assert store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX) == []


def test_an_answer_that_comes_at_the_last_moment_is_received(store: FlakyStore) -> None:
    reply = Reply("aaa", True, 4)

    def end_with_an_answer() -> bool:
        store.create(f"{REPLY_PREFIX}aaa.json", encode_message(reply))
        return False

    assert ask_through(store, Request(RequestKind.CHECKPOINT, "aaa"), 30, end_with_an_answer) == reply
    assert store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX) == []


def test_an_unreadable_answer_is_not_an_answer(store: FlakyStore) -> None:
    store.create(f"{REPLY_PREFIX}aaa.json", b"")
    assert ask_through(store, Request(RequestKind.CHECKPOINT, "aaa"), 30) is Unanswered.UNREADABLE
    assert store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX) == []


def test_an_interrupted_wait_withdraws_the_request(store: FlakyStore) -> None:
    def interrupt() -> bool:
        assert store.list(REQUEST_PREFIX)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_through(store, Request(RequestKind.CHECKPOINT, "aaa"), 30, interrupt)
    assert store.list(REQUEST_PREFIX) == []


# --- what an answer means -----------------------------------------------------------------------------------


def test_a_refusal_gives_a_reason_and_advice() -> None:
    assert store_requests.answered(Reply("x", True, 7), RequestKind.RESTORE) == 7
    reason = FailureReason.NAME_TAKEN
    with pytest.raises(UserError) as refused:
        store_requests.answered(Reply("x", False, None, reason.value, "it is taken."), RequestKind.SAVEPOINT)
    assert str(refused.value) == f"savepoint failed: it is taken. {reason.advice}".strip()
    with pytest.raises(UserError) as refused:
        store_requests.answered(Reply("x", False), RequestKind.CANCEL)
    assert str(refused.value) == "cancel failed: no reason was given."


@pytest.mark.parametrize("name", ["latest", "12", "a b", "1a", "", "-x", "²", "ü", ".x"])
def test_a_savepoint_cannot_have_a_reserved_name(name: str) -> None:
    with pytest.raises(UserError, match="is not a valid savepoint name"):
        store_requests.check_savepoint_name(name)


@pytest.mark.parametrize("name", ["a", "before-deploy", "v1.2", "a_1"])
def test_a_savepoint_can_have_an_ordinary_name(name: str) -> None:
    store_requests.check_savepoint_name(name)


def test_only_requests_that_are_not_renewed_are_forsaken() -> None:
    store = open_store("memory://")
    requests = [Request(RequestKind.CHECKPOINT, name) for name in ("dead", "renewed", "withdrawn")]
    for request in requests:
        store.create(request_name(request.request_id), encode_message(request))

    def meanwhile(seconds: float) -> None:
        assert seconds > 2 * store_requests.renew_every(store)
        renew(store, requests[1], 1)
        store.delete([request_name("withdrawn")])
        store.create(request_name("new"), encode_message(Request(RequestKind.CHECKPOINT, "new")))

    assert store_requests.forsaken(store, meanwhile) == [request_name("dead")]


def test_nobody_is_waited_for_where_there_are_no_requests() -> None:
    assert store_requests.forsaken(open_store("memory://"), lambda _: pytest.fail("it waits")) == []
