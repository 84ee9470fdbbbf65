"""Requests through the store: each is answered whatever fails, and nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.log import append
from cutwater.protocol.base.paths import REPLY_PREFIX, REQUEST_PREFIX, request_name
from cutwater.protocol.base.wire import Reply, Request, RequestKind, encode_message
from cutwater.protocol.leader import inbox
from cutwater.protocol.leader.leader import LeaderPhase
from cutwater.runtime import mailbox, store_requests
from cutwater.runtime.runtime import Runtime
from cutwater.runtime.store_requests import Unanswered, ask_through, renew, understood
from cutwater.store.at_rest import drive, read_journal
from cutwater.store.contract import Names
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.live_member import TWO, Members, members
from tests.support.spark_helpers import await_that

GARBAGE = [b"", b"{}", b'{"type":"request\xff"}', b'{"type":"request","x":' + b"[" * 100_000]


class FlakyStore(LocalStore):
    """A store that fails a number of times to write or remove names that begin with `fails`."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fails: dict[str, int] = {}
        self.refused: set[str] = set()
        """Names that can be neither read nor written nor removed."""
        self.failed = 0
        self.early: list[str] = []
        """Requests that were removed before their answer was written."""
        self.created: list[str] = []
        self.before_put: Callable[[str], None] = lambda name: None

    def create(self, name: str, data: bytes) -> bool:
        self._maybe_fail("create", name)
        self.created.append(name)
        return super().create(name, data)

    def put(self, name: str, data: bytes) -> None:
        assert not name.startswith(REPLY_PREFIX), f"{name} would not be durable"
        if name.startswith(REQUEST_PREFIX):
            self._maybe_fail("renew", name)
            self.before_put(name)
        super().put(name, data)

    def delete(self, names: Iterable[str]) -> None:
        for name in list(names):
            self._maybe_fail("delete", name)
            if name.startswith(REQUEST_PREFIX) and self.exists(name) and not self.exists(reply_to(name)):
                self.early.append(name)
            super().delete([name])

    def read(self, name: str) -> bytes | None:
        self._maybe_fail("read", name)
        return super().read(name)

    def list(self, prefix: str, after: str = "") -> Names:
        self._maybe_fail("list", prefix)
        return super().list(prefix, after)

    def _maybe_fail(self, what: str, name: str) -> None:
        if name in self.refused:
            raise PermissionError(13, "denied", name)
        kind = f"{what} {name.split('/')[0]}"
        if self.fails.get(kind):
            self.fails[kind] -= 1
            self.failed += 1
            raise OSError("the store does not answer")


def reply_to(name: str) -> str:
    return name.replace(REQUEST_PREFIX, REPLY_PREFIX)


@pytest.fixture
def store(tmp_path: Path) -> FlakyStore:
    (tmp_path / "state").mkdir()
    return FlakyStore(tmp_path / "state")


def put_request(store: LocalStore, kind: RequestKind, request_id: str, **what: Any) -> Request:
    request = Request(kind, request_id, **what)
    store.create(f"{REQUEST_PREFIX}{request_id}.json", encode_message(request))
    return request


@contextmanager
def asked_before(
    store: LocalStore, kind: RequestKind, request_id: str, **what: Any
) -> Iterator[list[Reply | Unanswered]]:
    """A command that has asked before a member starts, and waits; its answer."""
    got: list[Reply | Unanswered] = []
    over = Event()
    request = Request(kind, request_id, **what)
    thread = Thread(target=lambda: got.append(ask_through(store, request, 60, lambda: not over.is_set())))
    thread.start()
    await_that("it has asked", lambda: store.exists(f"{REQUEST_PREFIX}{request_id}.json"), 30)
    try:
        yield got
    finally:
        over.set()
        thread.join()


def reply_of(store: LocalStore, request_id: str) -> Reply:
    """Waits for the answer and the removal of the request, and returns the answer."""

    def found() -> Reply | None:
        if store.exists(f"{REQUEST_PREFIX}{request_id}.json"):
            return None
        return understood(store.read(f"{REPLY_PREFIX}{request_id}.json"), Reply)

    reply = await_that(f"{request_id} is answered", found, 30)
    assert isinstance(reply, Reply)
    return reply


def leading(up: Members, name: str = "main") -> Runtime:
    made = up.start(name)
    await_that("it leads", lambda: made.leader.phase is LeaderPhase.LEADING and made.leader.coordinator, 30)
    await_that("it has looked", lambda: made.mailbox._arrivals.is_ready, 30)
    return made


def heard_by(made: Runtime) -> list[str]:
    """Collects the requests that are passed to this member's leader from now on."""
    heard: list[str] = []
    original = made.leader.on_message

    def listen(message: Any) -> None:
        if isinstance(message, Request):
            heard.append(message.request_id)
        original(message)

    made.leader.on_message = listen  # type: ignore[method-assign]
    return heard


# --- the leader -----------------------------------------------------------------------------------------


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


# --- a member that follows ------------------------------------------------------------------------------


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


# --- who asks -------------------------------------------------------------------------------------------


def test_a_request_that_vanishes_is_distinguished_from_an_unanswered_one(store: FlakyStore) -> None:
    request = Request(RequestKind.CHECKPOINT, "aaa")
    assert ask_through(store, request, 0.3) is Unanswered.TIMED_OUT
    assert ask_through(store, request, 30, lambda: False) is Unanswered.NOBODY_THERE
    hint = lambda: LocalStore.delete(store, [f"{REQUEST_PREFIX}aaa.json"])  # noqa: E731
    assert ask_through(store, request, 30, hint=hint) is Unanswered.VANISHED
    assert store.list(REQUEST_PREFIX) == []


def renewed(store: LocalStore, name: str) -> int | None:
    data = store.read(name)
    assert data is None or b'"sum":' in data
    request = understood(data, Request)
    return request.renewed if request is not None else None


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


def test_an_answer_that_comes_at_the_last_moment_is_heard(store: FlakyStore) -> None:
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
