"""Requests of a member that follows: it forwards them through the store, or keeps them until it leads."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.paths import REPLY_PREFIX, REQUEST_PREFIX
from cutwater.protocol.base.wire import Reply, Request, RequestKind, encode_message
from cutwater.protocol.leader.leader import LeaderPhase
from cutwater.runtime import store_requests
from cutwater.runtime.runtime import Runtime
from tests.support.live_member import TWO, members
from tests.support.mailbox_helpers import (
    GARBAGE,
    FlakyStore,
    flaky_store,
    heard_by,
    leading,
    put_request,
    renewed,
    reply_to,
)
from tests.support.spark_helpers import await_that


@pytest.fixture
def store(tmp_path: Path) -> FlakyStore:
    return flaky_store(tmp_path)


@pytest.fixture
def led_by_one(store: FlakyStore) -> FlakyStore:
    """A pipeline of two members, of which the leader is absent."""
    with members(store, TWO) as up:
        leading(up, "one")
    return store


def answered_by(
    made: Runtime, request: Request, seconds: float = 30
) -> tuple[Thread, list[Reply | UserError]]:
    got: list[Reply | UserError] = []

    def ask() -> None:
        try:
            got.append(made.mailbox.ask(request, seconds))
        except UserError as error:
            got.append(error)

    thread = Thread(target=ask)
    thread.start()
    return thread, got


@pytest.mark.parametrize("data", [*GARBAGE, encode_message(Request(RequestKind.DRAIN, "aaa"))])
def test_an_unreadable_answer_does_not_stop_a_member_from_receiving_others(
    led_by_one: FlakyStore, data: bytes
) -> None:
    store = led_by_one
    with members(store, TWO) as up:
        made = up.start("two", timeout_ms=600_000)
        thread, got = answered_by(made, Request(RequestKind.CHECKPOINT, "aaa"))
        await_that("it is forwarded", lambda: store.exists(f"{REQUEST_PREFIX}aaa.json"), 30)
        store.create(f"{REPLY_PREFIX}aaa.json", data)
        thread.join(30)
        assert isinstance(got[0], Reply)
        assert not got[0].ok
        assert "cannot be read" in got[0].detail
        await_that("both are removed", lambda: not store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX), 30)
        assert any("replies/aaa.json cannot be read" in line for line in up.log_lines)
        thread, got = answered_by(made, Request(RequestKind.CHECKPOINT, "bbb"))
        await_that("the next is forwarded", lambda: store.exists(f"{REQUEST_PREFIX}bbb.json"), 30)
        store.create(f"{REPLY_PREFIX}bbb.json", encode_message(Reply("bbb", True, 5)))
        thread.join(30)
        assert got == [Reply("bbb", True, 5)]
        await_that("both are removed", lambda: not store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX), 30)


def test_forwarding_a_request_is_retried(led_by_one: FlakyStore) -> None:
    store = led_by_one
    store.fails["create requests"] = 3
    with members(store, TWO) as up:
        made = up.start("two", timeout_ms=600_000)
        thread, got = answered_by(made, Request(RequestKind.CHECKPOINT, "aaa"))
        await_that("it is forwarded", lambda: store.exists(f"{REQUEST_PREFIX}aaa.json"), 30)
        store.create(f"{REPLY_PREFIX}aaa.json", encode_message(Reply("aaa", True, 5)))
        thread.join(30)
        assert got == [Reply("aaa", True, 5)]


def test_a_forwarded_request_is_renewed_while_its_process_waits(led_by_one: FlakyStore) -> None:
    store, now = led_by_one, [1_000.0]
    with members(store, TWO) as up:
        made = up.start("two", timeout_ms=600_000, clock=lambda: now[0])
        thread, got = answered_by(made, Request(RequestKind.CHECKPOINT, "aaa"))
        name = f"{REQUEST_PREFIX}aaa.json"
        await_that("it is forwarded", lambda: made.mailbox._renewals and store.exists(name), 30)
        store.fails["renew requests"] = 1
        for _ in range(2):  # the first fails
            await_that("it is not due", lambda: made.mailbox._renewals["aaa"][1] > now[0], 30)
            now[0] += store_requests.RENEW_S
        await_that("it is renewed", lambda: renewed(store, name) == 2, 30)

        def answer(name: str) -> None:
            store.create(reply_to(name), encode_message(Reply("aaa", True, 5)))
            store.delete([name])

        store.before_put = answer
        now[0] += store_requests.RENEW_S
        thread.join(30)
        assert got == [Reply("aaa", True, 5)]
        await_that("nothing is left", lambda: not store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX), 30)


def test_a_forwarded_request_that_nobody_answers_is_withdrawn(led_by_one: FlakyStore) -> None:
    store = led_by_one
    with members(store, TWO) as up:
        made = up.start("two", timeout_ms=600_000)
        thread, got = answered_by(made, Request(RequestKind.CHECKPOINT, "aaa"), 1.0)
        await_that("it is forwarded", lambda: store.exists(f"{REQUEST_PREFIX}aaa.json"), 30)
        store.fails["delete requests"] = 2
        thread.join(30)
        assert "no answer to 'checkpoint' within 1 s, so it is withdrawn" in str(got[0])
        await_that("it is removed", lambda: not store.list(REQUEST_PREFIX), 30)


def test_a_member_that_becomes_leader_carries_out_the_requests_that_it_had_forwarded(
    led_by_one: FlakyStore,
) -> None:
    store = led_by_one
    with members(store, TWO) as up:
        made = up.start("two", timeout_ms=2_000)
        thread, got = answered_by(made, Request(RequestKind.FORGET, "aaa", name="never-was"))
        heard = heard_by(made)
        await_that("it leads", lambda: made.leader.phase is LeaderPhase.LEADING, 30)
        thread.join(30)
        assert isinstance(got[0], Reply)
        assert heard == ["aaa"]
        await_that("nothing is left", lambda: not store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX), 30)


def test_without_a_leader_a_member_keeps_its_request_until_it_leads(store: FlakyStore) -> None:
    """In the store it would survive the process, and a later run would act on it."""
    with members(store) as up:
        made = up.start("main", timeout_ms=900)
        thread, got = answered_by(made, Request(RequestKind.FORGET, "aaa", name="never-was"))
        thread.join(30)
        assert isinstance(got[0], Reply)
    assert not [name for name in store.created if name.startswith(REQUEST_PREFIX)]


def test_a_request_to_a_member_that_ends_or_fails_is_answered_at_once(led_by_one: FlakyStore) -> None:
    with members(led_by_one, TWO) as up:
        made = up.start("two", timeout_ms=600_000)
        thread, got = answered_by(made, Request(RequestKind.CHECKPOINT, "aaa"), 600)
        await_that("it waits", lambda: "aaa" in made.mailbox._waiting, 30)
        made.failure = ValueError("no disk")
        made.mailbox.stop()
        thread.join(30)
    assert str(got[0]) == "the pipeline has failed: no disk"


def test_a_former_leader_leaves_its_requests_to_the_new_one(led_by_one: FlakyStore) -> None:
    with members(led_by_one, TWO) as up:
        made = up.start("two", timeout_ms=600_000)
        box = made.mailbox
        await_that("it follows", box._inbox._others_lead, 30)
        made.shell.call(lambda: box._take(Request(RequestKind.CHECKPOINT, "aaa")))
        await_that("it is left", lambda: not box._inbox.known and box._inbox.is_empty, 30)
        assert led_by_one.list(REQUEST_PREFIX) == []


def test_readable_requests_are_read_next_to_unreadable_ones(store: FlakyStore) -> None:
    for name in ("aaa", "bbb", "ccc"):
        put_request(store, RequestKind.CHECKPOINT, name)
    names = store.list(REQUEST_PREFIX)
    with members(store, TWO) as up:
        box = up.start("two", timeout_ms=600_000).mailbox
        store.refused.add(names[1])
        found = box._read_each(names)
        store.refused.clear()
    assert [data is not None for data in found] == [True, False, True]
