"""Requests to a leader, through the store: each is answered whatever fails, and nothing is left behind."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from threading import Thread

import pytest

from cutwater.protocol.base import records as r
from cutwater.protocol.base.log import append
from cutwater.protocol.base.paths import REPLY_PREFIX, REQUEST_PREFIX
from cutwater.protocol.base.wire import Reply, Request, RequestKind, encode_message
from cutwater.protocol.leader import inbox
from cutwater.runtime import mailbox
from cutwater.runtime.runtime import Runtime
from cutwater.runtime.store_requests import renew, understood
from cutwater.store.at_rest import drive, read_journal
from tests.support.live_member import TWO, members
from tests.support.mailbox_helpers import (
    GARBAGE,
    FlakyStore,
    asked_before,
    flaky_store,
    heard_by,
    leading,
    put_request,
    reply_of,
)
from tests.support.spark_helpers import await_that


@pytest.fixture
def store(tmp_path: Path) -> FlakyStore:
    return flaky_store(tmp_path)


def test_a_request_stays_until_its_answer_is_durable(store: FlakyStore) -> None:
    with members(store) as up:
        leading(up)
        put_request(store, RequestKind.CHECKPOINT, "aaa")
        assert reply_of(store, "aaa").ok
    assert store.early == []


@pytest.mark.parametrize("kind", ["create replies", "delete requests"])
def test_an_answer_that_cannot_be_written_is_retried_and_the_request_is_carried_out_once(
    store: FlakyStore, kind: str
) -> None:
    with members(store) as up:
        made = leading(up)
        heard = heard_by(made)
        store.fails[kind] = 3
        put_request(store, RequestKind.CHECKPOINT, "aaa")
        assert reply_of(store, "aaa").ok
        assert store.failed == 3
        assert heard == ["aaa"]
    assert store.early == []


def test_a_member_that_ends_writes_its_last_answers(store: FlakyStore) -> None:
    with members(store) as up:
        made = leading(up)
        store.fails["create replies"] = 1_000_000
        put_request(store, RequestKind.DRAIN, "aaa")
        await_that("it has drained", lambda: made.drained, 30)
        await_that("its answer fails", lambda: store.failed > 2, 30)
        ending = Thread(target=made.stop)
        ending.start()
        await_that("it ends", made.mailbox._stopped.is_set, 30)
        store.fails.clear()
        ending.join()
    assert understood(store.read(f"{REPLY_PREFIX}aaa.json"), Reply) == Reply("aaa", True, 2)
    assert store.list(REQUEST_PREFIX) == []


def test_a_request_whose_answer_was_never_written_is_left_for_the_next_leader(
    store: FlakyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mailbox, "LAST_JOBS_S", 0.2)
    with members(store) as up:
        made = leading(up)
        store.fails["create replies"] = 1_000_000
        with asked_before(store, RequestKind.SAVEPOINT, "aaa", name="good") as got:
            await_that("its answer fails", lambda: store.failed > 2, 30)
            made.stop()
            assert store.list(REQUEST_PREFIX) == [f"{REQUEST_PREFIX}aaa.json"]
            done = read_journal(store).state.savepoints["good"]
            store.fails.clear()
            heard = heard_by(up.start("main"))
            await_that("it is answered", lambda: got, 30)
        assert got == [Reply("aaa", True, done)]
        assert heard == ["aaa"]
    assert read_journal(store).state.savepoints == {"good": done}
    assert store.list(REQUEST_PREFIX) + store.list(REPLY_PREFIX) == []


def test_a_new_leader_handles_requests_that_somebody_waits_for(store: FlakyStore) -> None:
    with (
        asked_before(store, RequestKind.SAVEPOINT, "aaa", name="good") as first,
        asked_before(store, RequestKind.FORGET, "bbb", name="never-was") as second,
        members(store) as up,
    ):
        heard = heard_by(up.start("main"))
        await_that("both are answered", lambda: first and second, 30)
        assert [isinstance(got[0], Reply) and got[0].ok for got in (first, second)] == [True, False]
        assert sorted(heard) == ["aaa", "bbb"]
    assert "good" in read_journal(store).state.savepoints


def forsaken(made: Runtime, now: list[float]) -> None:
    """Lets so much time pass for the mailbox that it removes a request which nobody renews."""
    for _ in range(int(inbox.FORSAKEN_S / inbox.LOOKED_AWAY_S) + 1):
        now[0] += inbox.LOOKED_AWAY_S
        await_that("it looks", lambda: made.mailbox._arrivals.looked_s == now[0], 30)


@pytest.mark.parametrize("kind", [RequestKind.DRAIN, RequestKind.SAVEPOINT])
def test_a_request_of_a_killed_command_is_not_carried_out_by_the_next_run(
    store: FlakyStore, kind: RequestKind
) -> None:
    put_request(store, kind, "aaa", name="good", renewed=7)
    now = [1_000.0]
    with members(store) as up:
        made = up.start("main", clock=lambda: now[0])
        heard = heard_by(made)
        await_that("it is seen", lambda: made.mailbox._arrivals.doubtful, 30)
        put_request(store, RequestKind.CHECKPOINT, "bbb")
        assert reply_of(store, "bbb").ok, "it keeps no other waiting"
        assert store.exists(f"{REQUEST_PREFIX}aaa.json"), "whoever asked may renew it yet"
        forsaken(made, now)
        await_that("it is removed", lambda: not store.list(REQUEST_PREFIX), 30)
        assert heard == ["bbb"]
        assert not made.drained
        assert made.mailbox._arrivals.doubtful.keys() <= {"aaa"}
        assert [
            line
            for line in up.log_lines
            if f"request aaa ({kind.value}) is removed and not carried out" in line
        ]
    assert read_journal(store).state.savepoints == {}


def test_time_in_which_nobody_looked_does_not_count_against_a_request(store: FlakyStore) -> None:
    put_request(store, RequestKind.SAVEPOINT, "aaa", name="good")
    now = [1_000.0]
    with members(store) as up:
        made = up.start("main", clock=lambda: now[0])
        await_that("it is seen", lambda: made.mailbox._arrivals.doubtful, 30)
        now[0] += 10 * inbox.FORSAKEN_S  # the process was asleep, and so may be whoever asked
        await_that("it looks", lambda: made.mailbox._arrivals.looked_s == now[0], 30)
        made.mailbox.look()
        await_that("it looks again", lambda: not made.mailbox._look.is_set(), 30)
        assert store.exists(f"{REQUEST_PREFIX}aaa.json")
        renew(store, Request(RequestKind.SAVEPOINT, "aaa", name="good"), 1)
        assert reply_of(store, "aaa").ok


def test_existing_requests_are_not_new_if_the_first_look_fails(store: FlakyStore) -> None:
    put_request(store, RequestKind.SAVEPOINT, "aaa", name="good")
    store.fails["list requests"] = 3
    with members(store) as up:
        made = leading(up)
        assert store.failed == 3
        heard = heard_by(made)
        await_that("it is seen", lambda: made.mailbox._arrivals.doubtful, 30)
        assert heard == []


def test_a_renewal_after_the_answer_does_not_bring_a_request_back(store: FlakyStore) -> None:
    now = [1_000.0]
    with members(store) as up:
        made = up.start("main", clock=lambda: now[0])
        await_that("it has looked", lambda: made.mailbox._arrivals.is_ready, 30)
        heard = heard_by(made)
        request = put_request(store, RequestKind.CHECKPOINT, "aaa")
        assert reply_of(store, "aaa").ok
        renew(store, request, 1)
        await_that("it is removed", lambda: not store.list(REQUEST_PREFIX), 30)
        store.delete([f"{REPLY_PREFIX}aaa.json"])  # whoever asked has its answer
        renew(store, request, 2)
        await_that("it is seen", lambda: made.mailbox._arrivals.doubtful, 30)
        forsaken(made, now)
        await_that("it is removed", lambda: not store.list(REQUEST_PREFIX), 30)
        assert heard == ["aaa"]
    assert store.list(REPLY_PREFIX) == []


@pytest.mark.slow
@pytest.mark.parametrize("place", [REQUEST_PREFIX, REPLY_PREFIX])
def test_an_unreadable_or_unanswerable_request_does_not_delay_others(store: FlakyStore, place: str) -> None:
    put_request(store, RequestKind.CHECKPOINT, "aaaaaaaaaaaa")
    store.refused.add(f"{place}aaaaaaaaaaaa.json")
    with members(store) as up:
        leading(up)
        for request_id in ("bbbbbbbbbbbb", "cccccccccccc"):
            put_request(store, RequestKind.CHECKPOINT, request_id)
            assert reply_of(store, request_id).request_id == request_id


def test_a_request_that_a_crashed_leader_answered_is_removed_and_not_repeated(
    store: FlakyStore,
) -> None:
    put_request(store, RequestKind.SAVEPOINT, "aaa", name="twice")
    store.create(f"{REPLY_PREFIX}aaa.json", encode_message(Reply("aaa", True, 7)))
    with members(store) as up:
        heard = heard_by(leading(up))
        assert reply_of(store, "aaa") == Reply("aaa", True, 7)
        put_request(store, RequestKind.CHECKPOINT, "bbb")
        assert reply_of(store, "bbb").ok
        assert heard == ["bbb"]
    assert read_journal(store).state.savepoints == {}


def test_a_damaged_answer_is_rewritten(store: FlakyStore) -> None:
    store.create(f"{REPLY_PREFIX}aaa.json", b"")
    with members(store) as up:
        leading(up)
        put_request(store, RequestKind.CHECKPOINT, "aaa")
        assert reply_of(store, "aaa").ok


def test_a_request_is_delivered_once_in_each_term(store: FlakyStore) -> None:
    with members(store, TWO) as up:
        made = leading(up, "one")
        heard = heard_by(made)
        rounds: list[int] = []
        again = made.mailbox._deliver_again

        def count() -> None:
            rounds.append(1)
            again()

        made.mailbox._deliver_again = count  # type: ignore[method-assign]
        put_request(
            store, RequestKind.CHECKPOINT, "aaa"
        )  # it cannot complete, because the other member is missing
        await_that("it is looked at several times", lambda: len(rounds) >= 4, 30)
        assert heard == ["aaa"]
        journal = read_journal(store)
        entry = r.Leader(journal.state.term + 1, "command-1")
        drive(store, append(journal.view, journal.view.seal(entry, "n")))
        await_that("it leads again", lambda: made.member.journal.state.leader == "one" and len(heard) > 1, 30)
        before = len(rounds)
        await_that("it is looked at several times", lambda: len(rounds) >= before + 4, 30)
        assert heard == ["aaa", "aaa"]
        assert made.mailbox._is_due


@pytest.mark.parametrize(
    "data", [*GARBAGE, encode_message(Reply("aaa", True)), encode_message(Request(RequestKind.DRAIN, "bbb"))]
)
def test_an_unreadable_request_is_refused_and_removed(store: FlakyStore, data: bytes) -> None:
    store.create(f"{REQUEST_PREFIX}aaa.json", data)
    with members(store) as up:
        made = leading(up)
        reply = reply_of(store, "aaa")
        assert not reply.ok
        assert "cannot be read" in reply.detail
        put_request(store, RequestKind.CHECKPOINT, "ccc")
        assert reply_of(store, "ccc").ok
        assert not made.drained
        assert (
            len([line for line in up.log_lines if "cannot be read, so this request is refused" in line]) == 1
        )


@pytest.mark.parametrize("name", ["requests/notes.txt", "requests/deeper/aaa.json"])
def test_an_object_whose_name_is_not_that_of_a_request_is_removed(store: FlakyStore, name: str) -> None:
    store.create(name, encode_message(Request(RequestKind.CHECKPOINT, "aaa")))
    with members(store) as up:
        leading(up)
        await_that("it is removed", lambda: not store.exists(name), 30)
        assert any(f"{name} is not a request" in line for line in up.log_lines)
    assert store.list(REPLY_PREFIX) == []


def test_unfetched_answers_are_removed_by_the_leaders_clock(store: FlakyStore) -> None:
    store.create(f"{REPLY_PREFIX}old.json", encode_message(Reply("old", True)))
    store.create(f"{REPLY_PREFIX}damaged.json", b"")
    with members(store) as up:
        made = leading(up)
        box = made.mailbox
        now = [1_000.0]
        box._clock = lambda: now[0]
        box._next_sweep = 0.0
        await_that("they are seen", lambda: len(box._replies) == 2, 30)
        now[0] += mailbox.KEEP_REPLIES_S - 1
        store.create(f"{REPLY_PREFIX}new.json", encode_message(Reply("new", True)))
        await_that("the new one is seen", lambda: len(box._replies) == 3, 30)
        assert len(store.list(REPLY_PREFIX)) == 3
        now[0] += mailbox.SWEEP_EVERY_S
        await_that(
            "the old ones are removed", lambda: store.list(REPLY_PREFIX) == [f"{REPLY_PREFIX}new.json"], 30
        )


def is_seen(box: mailbox.Mailbox, name: str) -> bool:
    return name in box._replies


def test_the_number_of_kept_answers_is_bounded(store: FlakyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mailbox, "KEEP_REPLIES", 3)
    monkeypatch.setattr(mailbox, "SWEEP_EVERY_S", 0.0)
    with members(store) as up:
        seen = leading(up).mailbox
        for name in [f"{REPLY_PREFIX}{number}.json" for number in (9, 8, 7, 6, 5)]:
            store.create(name, b"")
            await_that(f"{name} is seen", partial(is_seen, seen, name), 30)
        await_that("the first are removed", lambda: len(store.list(REPLY_PREFIX)) == 3, 30)
    assert store.list(REPLY_PREFIX) == [f"{REPLY_PREFIX}{n}.json" for n in (5, 6, 7)]


def test_an_answer_that_cannot_be_removed_does_not_keep_others(store: FlakyStore) -> None:
    names = [f"{REPLY_PREFIX}{name}.json" for name in ("aaa", "bbb", "ccc")]
    for name in names:
        store.create(name, b"")
    with members(store) as up:
        box = leading(up).mailbox
        now = [1_000.0]
        box._clock = lambda: now[0]
        box._next_sweep = 0.0
        await_that("they are seen", lambda: len(box._replies) == 3, 30)
        store.refused.add(names[1])
        now[0] += mailbox.KEEP_REPLIES_S
        await_that("the others are removed", lambda: store.list(REPLY_PREFIX) == [names[1]], 30)
        store.refused.clear()


def test_a_fault_in_one_job_is_reported_and_ends_nothing(store: FlakyStore) -> None:
    with members(store) as up:
        made = leading(up)
        faults = [1, 1]

        def errand() -> None:
            if faults:
                raise ZeroDivisionError(faults.pop())

        made.mailbox._jobs["answer", "x"] = errand
        put_request(store, RequestKind.CHECKPOINT, "aaa")
        assert reply_of(store, "aaa").ok
        assert faults == []
        assert len([line for line in up.log_lines if "ZeroDivisionError" in line]) == 1
