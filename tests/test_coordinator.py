"""When checkpoints begin, whom they wait for, when they are given up."""

import random
from typing import Any

import pytest

from cutwater.protocol.barrier import Flags
from cutwater.protocol.coordinator import (
    MAX_DETAIL,
    MAX_QUEUED,
    Abort,
    Action,
    Begin,
    Coordinator,
    CoordinatorConfig,
    Decide,
    GiveUp,
    Refuse,
    TurnUnaligned,
)
from cutwater.protocol.errors import IllegalStep, UserError
from cutwater.protocol.failures import FailureReason as Why
from cutwater.protocol.quorum import AckOutcome, CheckpointPhase
from cutwater.protocol.watermark import known
from cutwater.protocol.wire import Ack

PLAIN = Begin(Flags.NONE)


def make(members: str = "ab", now_ms: int = 0, last_ms: int | None = None, **config: Any) -> Coordinator:
    config = {"interval_ms": 1_000, "timeout_ms": 500} | config
    return Coordinator(CoordinatorConfig(**config), members, 3, now_ms, last_ms)


def ack(member: str, epoch: int, error: str | None = None, term: int = 3, size_bytes: int = 10) -> Ack:
    part = f"checkpoints/{epoch}-{epoch * 10}/parts/{member}-1.json"
    ok = error is None
    return Ack(member, "boot", epoch, epoch * 10, term, ok, error, known(5), part, f"h-{member}", size_bytes)


def begin(c: Coordinator, epoch: int, now_ms: int) -> list[Action]:
    """Answers a `Begin` as the leader does. In these tests checkpoint ids are ten times the epoch."""
    return c.begun(epoch, epoch * 10, now_ms)


def started(members: str = "ab", **config: Any) -> Coordinator:
    """With epoch 1 in flight since 0."""
    c = make(members, **config)
    assert c.tick(0) == [PLAIN]
    assert begin(c, 1, 0) == []
    return c


def all_ack(c: Coordinator, epoch: int, now_ms: int) -> list[Action]:
    actions: list[Action] = []
    for member in c.members:
        outcome, more = c.on_ack(ack(member, epoch), now_ms)
        assert outcome is AckOutcome.COUNTED
        actions += more
    return actions


def decided(epoch: int, members: str = "ab") -> Decide:
    return Decide(epoch, epoch * 10, {m: ack(m, epoch) for m in members})


def run_one(c: Coordinator, epoch: int, now_ms: int) -> list[Action]:
    """From `Begin`, which is out, to the commit."""
    begin(c, epoch, now_ms)
    assert all_ack(c, epoch, now_ms) == [decided(epoch, "".join(c.members))]
    return c.committed(epoch, now_ms)


def snapshot(c: Coordinator) -> str:
    """Everything that a coordinator holds."""
    flights = [{**{s: getattr(f, s) for s in f.__slots__}, "quorum": f.acked} for f in c.in_flight()]
    return repr((flights, {k: v for k, v in vars(c).items() if k != "_flights"}))


# One checkpoint.


def test_one_checkpoint_from_begin_to_commit() -> None:
    c = make("ba")
    assert c.tick(0) == [PLAIN]
    assert begin(c, 1, 5) == []
    assert c.on_ack(ack("b", 1), 20) == (AckOutcome.COUNTED, [])
    assert c.pending(10) == ("a",)
    assert c.on_ack(ack("a", 1), 30) == (AckOutcome.COUNTED, [decided(1)])
    assert c.last_completed is None
    assert c.committed(1, 40) == []
    assert c.in_flight() == ()
    done = c.last_completed
    assert done is not None
    assert (done.epoch, done.checkpoint_id, done.size_bytes, done.acked) == (1, 10, 20, ("a", "b"))
    phases = CheckpointPhase
    assert done.times_ms == {
        phases.BEGINNING: 0,
        phases.COLLECTING: 5,
        phases.CAPTURED: 30,
        phases.DECIDING: 30,
        phases.COMMITTED: 40,
    }
    assert done.since_ms == 40


def test_status_shows_since_when_and_who_acked_while_it_is_in_flight() -> None:
    c = make()
    c.tick(0)
    (beginning,) = c.status().in_flight
    assert (beginning.phase, beginning.since_ms, beginning.acked, beginning.missing) == (
        CheckpointPhase.BEGINNING,
        0,
        (),
        (),
    )
    assert beginning.size_bytes == 0
    begin(c, 1, 7)
    c.on_ack(ack("b", 1), 9)
    c.request_savepoint("s", 10, "r")
    status = c.status()
    (flight,) = status.in_flight
    assert (flight.phase, flight.since_ms) == (CheckpointPhase.COLLECTING, 7)
    assert (flight.acked, flight.missing, flight.size_bytes) == (("b",), ("a",), 10)
    assert status.queued == (Begin(Flags.FULL_SNAPSHOT, "s", ("r",)),)
    assert (status.term, status.next_due_ms, status.failures_in_a_row, status.closed) == (3, 1_000, 0, None)


def test_seed_a01_the_last_ack_brings_the_decision_without_a_poll() -> None:
    c = started()
    assert all_ack(c, 1, 0) == [decided(1)]


def test_seed_a02_the_ack_of_a_later_checkpoint_does_not_hide_that_of_an_earlier() -> None:
    c = started(max_concurrent=2)
    c.request_checkpoint(1, "r")
    begin(c, 2, 1)
    c.on_ack(ack("a", 1), 2)
    c.on_ack(ack("a", 2), 3)
    assert c.pending(10) == ("b",)
    assert c.on_ack(ack("b", 1), 4) == (AckOutcome.COUNTED, [decided(1)])


@pytest.mark.parametrize("change", [{"epoch": 2}, {"checkpoint_id": 11}, {"term": 2}, {"term": 4}])
def test_seed_a03_an_ack_of_another_epoch_attempt_or_term_does_not_count(change: dict[str, int]) -> None:
    c = started("a")
    fields = {f: getattr(ack("a", 1), f) for f in Ack.__struct_fields__} | change
    assert c.on_ack(Ack(**fields), 1) == (AckOutcome.OTHER_CHECKPOINT, [])
    assert c.pending(10) == ("a",)


def test_seed_a04_a_member_named_twice_acks_once() -> None:
    c = started("baab")
    assert c.members == ("a", "b")
    assert all_ack(c, 1, 0) == [decided(1)]


def test_seed_a05_a_refusal_aborts_at_once_although_others_are_silent() -> None:
    c = started("abc")
    outcome, actions = c.on_ack(ack("b", 1, error="disk full"), 1)
    assert outcome is AckOutcome.REFUSED
    assert actions == [Abort(1, 10, Why.MEMBER_REFUSED, "b: disk full", Flags.CANCEL)]
    assert c.on_ack(ack("a", 1), 2) == (AckOutcome.LATE, [])
    assert c.on_ack(ack("c", 1, error="me too"), 2) == (AckOutcome.LATE, [])
    assert c.tick(10_000) == []
    c.aborted(1, 3)
    assert c.last_failed is not None
    assert (c.last_failed.reason, c.last_failed.detail) == (Why.MEMBER_REFUSED, "b: disk full")


def test_a_long_error_is_cut_before_it_goes_into_the_journal() -> None:
    c = started("a")
    _, (abort,) = c.on_ack(ack("a", 1, error="x" * 1_000_000), 1)
    assert isinstance(abort, Abort)
    assert len(abort.detail) == MAX_DETAIL


def test_seed_a06_flags_reach_the_begin_of_every_kind_of_request() -> None:
    c = make()
    assert c.request_checkpoint(0, "r1", full=True, unaligned=True) == [
        Begin(Flags.FULL_SNAPSHOT | Flags.UNALIGNED, None, ("r1",))
    ]
    assert run_one_after(c, 1, lambda: c.request_checkpoint(0, "r2")) == [Begin(Flags.NONE, None, ("r2",))]
    assert run_one_after(c, 2, lambda: c.request_savepoint("s", 0, "r3")) == [
        Begin(Flags.FULL_SNAPSHOT, "s", ("r3",))
    ]
    assert run_one_after(c, 3, lambda: c.request_drain(0, "r4")) == [Begin(Flags.DRAIN, None, ("r4",))]


def run_one_after(c: Coordinator, epoch: int, request: Any) -> list[Action]:
    """Ends `epoch`, which is beginning, while a request waits; what begins then."""
    assert request() == []
    return run_one(c, epoch, 0)


def test_seed_a07_a_departed_member_is_blamed_and_the_others_go_on() -> None:
    c = started("abz")
    assert c.on_ack(ack("a", 1), 1)[0] is AckOutcome.COUNTED
    assert c.on_ack(ack("z", 1), 1)[0] is AckOutcome.COUNTED
    (abort,) = c.tick(500)
    assert isinstance(abort, Abort)
    assert abort.detail == "within 500 ms 1 of 3 members did not answer: b"
    c.aborted(1, 501)
    assert c.tick(1_000) == [PLAIN]


# Deadlines.


def test_seed_e01_the_deadline_needs_no_report_and_blames_who_is_missing() -> None:
    c = make()
    c.tick(0)
    begin(c, 1, 100)
    c.on_ack(ack("a", 1), 200)
    assert c.tick(599) == []
    assert c.tick(600) == [
        Abort(1, 10, Why.DEADLINE, "within 500 ms 1 of 2 members did not answer: b", Flags.CANCEL)
    ]


def test_seed_e01_a_report_after_the_time_is_not_blamed_for_the_silence_of_others() -> None:
    c = started()
    assert c.on_ack(ack("a", 1), 900) == (AckOutcome.COUNTED, [])
    (abort,) = c.tick(901)
    assert isinstance(abort, Abort)
    assert abort.detail.endswith(": b")


def test_seed_c07_one_silent_member_does_not_block_for_ever() -> None:
    c = make()
    for epoch in range(1, 6):
        now_ms = epoch * 1_000
        assert c.tick(now_ms) == [PLAIN]
        begin(c, epoch, now_ms)
        c.on_ack(ack("a", epoch), now_ms)
        (abort,) = c.tick(now_ms + 500)
        assert isinstance(abort, Abort)
        assert c.aborted(epoch, now_ms + 501) == []


def test_the_deadline_is_asked_for_once() -> None:
    c = started()
    assert len(c.tick(500)) == 1
    assert c.tick(501) == []
    assert c.on_ack(ack("a", 1), 502) == (AckOutcome.LATE, [])


def test_the_members_time_runs_from_the_journal_entry_and_not_before() -> None:
    c = make()
    c.tick(0)
    assert c.tick(9_000) == []
    begin(c, 1, 9_000)
    assert c.tick(9_499) == []
    assert len(c.tick(9_500)) == 1


def test_what_is_being_decided_has_no_deadline_any_more() -> None:
    c = started()
    all_ack(c, 1, 0)
    assert c.tick(100_000) == []
    c.committed(1, 100_000)
    assert c.last_completed is not None


def test_seed_c06_a_checkpoint_that_aligns_too_slowly_is_turned_unaligned_once() -> None:
    c = started(alignment_timeout_ms=100)
    assert c.tick(99) == []
    assert c.tick(100) == [TurnUnaligned(1, 10)]
    assert c.tick(200) == []
    assert c.in_flight()[0].flags == Flags.UNALIGNED
    (abort,) = c.tick(500)
    assert isinstance(abort, Abort)
    assert abort.flags == Flags.UNALIGNED | Flags.CANCEL


def test_what_is_unaligned_or_drains_is_not_turned() -> None:
    for request in ("unaligned", "drain"):
        c = make(alignment_timeout_ms=100)
        if request == "drain":
            c.request_drain(0, "r")
        else:
            c.request_checkpoint(0, "r", unaligned=True)
        begin(c, 1, 0)
        assert c.tick(200) == []


# Interval, pause, concurrency, full snapshots.


def test_the_first_checkpoint_is_due_at_once_and_the_next_after_the_interval() -> None:
    c = make(now_ms=50)
    assert c.tick(50) == [PLAIN]
    run_one(c, 1, 60)
    assert c.tick(1_049) == []
    assert c.tick(1_050) == [PLAIN]


def test_a_new_leader_goes_on_with_the_interval_of_the_one_before() -> None:
    c = make(now_ms=5_000, last_ms=4_500)
    assert c.tick(5_499) == []
    assert c.tick(5_500) == [PLAIN]


def test_a_leader_before_whose_clock_was_ahead_does_not_put_checkpoints_off() -> None:
    c = make(now_ms=5_000, last_ms=10**12)
    assert c.tick(6_000) == [PLAIN]


def test_seed_c06_the_interval_is_read() -> None:
    c = make(interval_ms=77)
    c.tick(0)
    run_one(c, 1, 0)
    assert c.tick(76) == []
    assert c.tick(77) == [PLAIN]


def test_the_pause_counts_from_the_end_of_the_last_one_however_it_ended() -> None:
    c = started(min_pause_ms=300, timeout_ms=5_000)
    all_ack(c, 1, 900)
    c.committed(1, 950)
    assert c.tick(1_000) == []
    assert c.status().next_due_ms == 1_250
    assert c.tick(1_249) == []
    assert c.tick(1_250) == [PLAIN]
    begin(c, 2, 1_250)
    c.on_ack(ack("a", 2, error="no"), 2_300)
    assert c.aborted(2, 2_300) == []
    assert c.tick(2_599) == []
    assert c.tick(2_600) == [PLAIN]


def test_only_one_is_in_flight_unless_more_are_allowed() -> None:
    c = started(timeout_ms=60_000)
    assert c.tick(50_000) == []


def test_seed_c06_max_concurrent_is_read_and_decisions_come_in_epoch_order() -> None:
    c = make(max_concurrent=3, timeout_ms=60_000)
    for epoch in (1, 2, 3):
        assert c.tick(epoch * 1_000) == [PLAIN]
        begin(c, epoch, epoch * 1_000)
    assert c.tick(10_000) == []
    assert all_ack(c, 3, 10_001) == []
    assert all_ack(c, 2, 10_002) == []
    assert [f.phase.value for f in c.in_flight()] == ["collecting", "captured", "captured"]
    assert all_ack(c, 1, 10_003) == [decided(1)]
    assert c.committed(1, 10_004) == [decided(2), PLAIN]
    c.begin_failed(10_005, Why.STORE_UNAVAILABLE)
    assert c.aborted(2, 10_006, Why.INCONSISTENT_CUT, "x") == [decided(3)]


def test_a_later_one_waits_until_the_abort_of_the_earlier_is_durable() -> None:
    c = started(max_concurrent=2, interval_ms=100)
    c.tick(100)
    begin(c, 2, 100)
    assert all_ack(c, 2, 101) == []
    (abort,) = c.tick(500)
    assert isinstance(abort, Abort)
    assert abort.epoch == 1
    assert c.aborted(1, 502) == [decided(2), PLAIN]


def test_a_captured_one_that_waits_for_an_earlier_has_met_its_deadline() -> None:
    c = started(max_concurrent=2, interval_ms=10, timeout_ms=100, alignment_timeout_ms=20)
    c.tick(10)
    begin(c, 2, 10)
    all_ack(c, 2, 11)
    assert [type(a) for a in c.tick(50)] == [TurnUnaligned]
    assert [a.epoch for a in c.tick(150) if isinstance(a, Abort)] == [1]


def test_only_one_at_a_time_is_without_a_number() -> None:
    c = make(max_concurrent=2, interval_ms=10)
    assert c.tick(0) == [PLAIN]
    assert c.tick(100) == []
    assert c.request_savepoint("s", 101, "r") == []
    assert begin(c, 1, 102) == [Begin(Flags.FULL_SNAPSHOT, "s", ("r",))]


def test_seed_c06_incremental_is_read_and_every_nth_is_full() -> None:
    c = make("a", full_every=3)
    flags = []
    for epoch in range(1, 8):
        (action,) = c.tick(epoch * 1_000)
        assert isinstance(action, Begin)
        flags.append(action.flags)
        run_one(c, epoch, epoch * 1_000)
    plain, full = Flags.NONE, Flags.FULL_SNAPSHOT
    assert flags == [plain, plain, full, plain, plain, full, plain]


def test_a_full_one_that_aborts_is_still_owed_and_a_savepoint_pays() -> None:
    c = make("a", full_every=2)
    c.tick(0)
    run_one(c, 1, 0)
    for epoch in (2, 3):
        assert c.tick(epoch * 1_000) == [Begin(Flags.FULL_SNAPSHOT)]
        begin(c, epoch, epoch * 1_000)
        c.on_ack(ack("a", epoch, error="no"), epoch * 1_000)
        c.aborted(epoch, epoch * 1_000)
    c.request_savepoint("s", 3_500, "r")
    run_one(c, 4, 3_500)
    assert c.tick(4_500) == [PLAIN]


def test_two_full_ones_are_not_in_flight_because_one_was_due() -> None:
    c = make("a", full_every=2, max_concurrent=3, interval_ms=10)
    begins = []
    for epoch in (1, 2, 3):
        begins += c.tick(epoch * 10)
        begin(c, epoch, epoch * 10)
    assert begins == [PLAIN, Begin(Flags.FULL_SNAPSHOT), PLAIN]


def test_a_new_leader_knows_how_long_ago_the_last_full_one_was() -> None:
    c = Coordinator(CoordinatorConfig(full_every=5), ["a"], 3, 0, since_full=4)
    assert c.tick(0) == [Begin(Flags.FULL_SNAPSHOT)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval_ms", 0),
        ("min_pause_ms", -1),
        ("timeout_ms", 0),
        ("alignment_timeout_ms", -1),
        ("max_concurrent", 0),
        ("tolerated_failures", -1),
        ("retained", 0),
        ("full_every", 0),
    ],
)
def test_a_setting_that_cannot_work_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(UserError, match=f"{name} is {value}; give {value + 1} or more"):
        CoordinatorConfig(**{name: value})


def test_an_alignment_timeout_beyond_the_deadline_is_refused() -> None:
    with pytest.raises(UserError, match="give less than timeout_ms"):
        CoordinatorConfig(timeout_ms=100, alignment_timeout_ms=100)


def test_a_pipeline_without_members_is_refused() -> None:
    with pytest.raises(UserError, match="name at least one"):
        make("")


# Requests.


def test_a_savepoint_goes_ahead_of_a_periodic_one_and_waits_for_what_is_in_flight() -> None:
    c = started(timeout_ms=60_000)
    assert c.request_savepoint("before-deploy", 10, "r") == []
    all_ack(c, 1, 5_000)
    assert c.committed(1, 5_000) == [Begin(Flags.FULL_SNAPSHOT, "before-deploy", ("r",))]
    assert run_one(c, 2, 5_001) == []
    assert c.last_completed is not None
    assert (c.last_completed.savepoint, c.last_completed.requests) == ("before-deploy", ("r",))
    assert c.tick(5_999) == []
    assert c.tick(6_000) == [PLAIN]


def test_a_request_does_not_wait_for_interval_or_pause() -> None:
    c = make(min_pause_ms=10_000)
    c.tick(0)
    run_one(c, 1, 0)
    assert c.request_checkpoint(1, "r") == [Begin(Flags.NONE, None, ("r",))]


def test_like_requests_that_wait_become_one_checkpoint() -> None:
    c = started()
    c.request_checkpoint(1, "r1")
    c.request_checkpoint(2, "r2", full=True)
    c.request_savepoint("s", 3, "r3")
    c.request_checkpoint(4, "r4")
    c.request_checkpoint(5, "r5", full=True)
    assert c.status().queued == (
        Begin(Flags.NONE, None, ("r1", "r4")),
        Begin(Flags.FULL_SNAPSHOT, None, ("r2", "r5")),
        Begin(Flags.FULL_SNAPSHOT, "s", ("r3",)),
    )


def test_a_request_heard_twice_is_one_request() -> None:
    c = make()
    c.tick(0)
    assert c.request_savepoint("s", 1, "r") == []
    assert c.request_savepoint("s", 2, "r") == []
    begin(c, 1, 3)
    all_ack(c, 1, 3)
    assert c.committed(1, 3) == [Begin(Flags.FULL_SNAPSHOT, "s", ("r",))]
    assert c.request_savepoint("s", 4, "r") == []
    assert c.status().queued == ()


def test_a_savepoint_name_that_is_being_taken_is_refused() -> None:
    c = make()
    c.request_savepoint("s", 0, "r1")
    assert c.request_savepoint("s", 1, "r2") == [
        Refuse("r2", Why.ALREADY_IN_PROGRESS, "savepoint 's' is being taken")
    ]
    run_one(c, 1, 2)
    assert c.request_savepoint("s", 3, "r3") == [Begin(Flags.FULL_SNAPSHOT, "s", ("r3",))]


def test_the_queue_is_bounded() -> None:
    c = make()
    c.tick(0)
    for i in range(MAX_QUEUED):
        request = c.request_checkpoint(1, f"r{i}") if i % 2 else c.request_savepoint(f"s{i}", 1, f"r{i}")
        assert request == []
    for refused in (c.request_checkpoint(2, "x"), c.request_savepoint("x", 2, "x"), c.request_drain(2, "x")):
        assert refused == [Refuse("x", Why.QUEUE_FULL, "64 requests are waiting")]


def test_a_drain_waits_until_nothing_is_in_flight_and_then_is_alone_and_the_last() -> None:
    c = make(max_concurrent=3, interval_ms=10, timeout_ms=60_000)
    for epoch in (1, 2):
        c.tick(epoch * 10)
        begin(c, epoch, epoch * 10)
    assert c.request_drain(25, "r") == []
    assert c.tick(1_000) == []
    all_ack(c, 1, 1_001)
    assert c.committed(1, 1_002) == []
    all_ack(c, 2, 1_003)
    assert c.committed(2, 1_004) == [Begin(Flags.DRAIN, None, ("r",))]
    begin(c, 3, 1_005)
    assert c.tick(5_000) == []
    all_ack(c, 3, 5_001)
    assert c.committed(3, 5_002) == []
    assert c.tick(100_000) == []
    assert c.status().closed is Why.DRAINED
    assert c.request_checkpoint(100_001, "late") == [
        Refuse("late", Why.DRAINED, "no further checkpoint begins")
    ]


def test_a_drain_that_aborts_lets_things_go_on() -> None:
    c = make()
    c.request_drain(0, "r")
    begin(c, 1, 0)
    (abort,) = c.tick(500)
    assert isinstance(abort, Abort)
    assert abort.flags == Flags.DRAIN | Flags.CANCEL
    assert c.aborted(1, 501) == []
    assert c.tick(1_000) == [PLAIN]
    assert c.request_checkpoint(1_001, "again") == []


def test_requests_beside_a_drain_are_refused_but_another_drain_joins_it() -> None:
    c = make()
    c.tick(0)
    c.request_savepoint("first", 1, "r0")
    c.request_drain(2, "r1")
    beside = "no other checkpoint begins beside a drain"
    assert c.request_savepoint("s", 3, "r2") == [Refuse("r2", Why.DRAINING, beside)]
    assert c.request_drain(4, "r3") == []
    assert run_one(c, 1, 5) == [Begin(Flags.FULL_SNAPSHOT, "first", ("r0",))]
    assert run_one(c, 2, 6) == [Begin(Flags.DRAIN, None, ("r1", "r3"))]
    begin(c, 3, 7)
    assert c.request_drain(8, "r4") == [Refuse("r4", Why.DRAINING, beside)]
    assert c.request_checkpoint(8, "r5") == [Refuse("r5", Why.DRAINING, beside)]


def test_a_leader_of_a_drained_pipeline_begins_nothing() -> None:
    c = Coordinator(CoordinatorConfig(), ["a"], 3, 0, drained=True)
    assert c.tick(10**9) == []
    assert [type(a) for a in c.request_drain(10**9, "r")] == [Refuse]


def test_cancel_aborts_what_is_in_flight_and_says_so_in_the_flags() -> None:
    c = started(max_concurrent=2, interval_ms=10)
    c.request_savepoint("s", 1, "r1")
    begin(c, 2, 1)
    all_ack(c, 2, 2)
    full = Flags.FULL_SNAPSHOT
    assert c.cancel(3, "r2") == [
        Abort(1, 10, Why.CANCELLED, "by request", Flags.CANCEL),
        Abort(2, 20, Why.CANCELLED, "by request", full | Flags.CANCEL),
    ]
    assert c.aborted(2, 4) == []
    assert c.aborted(1, 5) == []
    assert c.tick(11) == [PLAIN]


def test_cancel_of_one_that_has_no_number_yet_aborts_it_as_soon_as_it_has() -> None:
    c = make()
    c.tick(0)
    assert c.cancel(1, "r") == []
    assert begin(c, 1, 2) == [Abort(1, 10, Why.CANCELLED, "by request, while it began", Flags.CANCEL)]
    assert c.on_ack(ack("a", 1), 3) == (AckOutcome.LATE, [])
    c.aborted(1, 4)
    assert c.last_failed is not None
    assert c.last_failed.reason is Why.CANCELLED


def test_cancel_with_nothing_in_flight_is_refused() -> None:
    assert make().cancel(0, "r") == [Refuse("r", Why.NOTHING_TO_CANCEL, "none is in flight")]


def test_cancel_of_what_is_being_decided_or_aborted_is_refused() -> None:
    c = started("a", max_concurrent=2)
    c.request_checkpoint(0, "r1")
    begin(c, 2, 0)
    all_ack(c, 1, 1)
    c.on_ack(ack("a", 2, error="no"), 1)
    story = "epoch 1 is deciding, epoch 2 is aborting"
    assert c.cancel(2, "r2") == [Refuse("r2", Why.NOTHING_TO_CANCEL, story)]
    assert c.committed(1, 3) == []


# Failures.


def fail(c: Coordinator, epoch: int, reason: Why = Why.INCONSISTENT_CUT) -> list[Action]:
    now_ms = epoch * 1_000
    assert c.tick(now_ms) == [PLAIN]
    begin(c, epoch, now_ms)
    all_ack(c, epoch, now_ms)
    return c.aborted(epoch, now_ms, reason, "why")


def test_more_failures_in_a_row_than_tolerated_end_the_run() -> None:
    c = make(tolerated_failures=2)
    assert fail(c, 1) == []
    assert fail(c, 2) == []
    c.tick(3_000)
    begin(c, 3, 3_000)
    c.request_savepoint("s", 3_001, "r1")
    c.on_ack(ack("a", 3, error="disk full"), 3_002)
    story = "3 checkpoints in a row failed, the last with member_refused: a: disk full"
    assert c.aborted(3, 3_003) == [
        GiveUp(Why.TOO_MANY_FAILURES, story),
        Refuse("r1", Why.TOO_MANY_FAILURES, story),
    ]
    assert c.status().queued == ()
    assert c.tick(100_000) == []
    assert [type(a) for a in c.request_checkpoint(100_001, "r2")] == [Refuse]


def test_a_commit_forgives_and_what_somebody_asked_for_does_not_count() -> None:
    c = make(tolerated_failures=1)
    assert fail(c, 1) == []
    c.tick(2_000)
    run_one(c, 2, 2_000)
    assert fail(c, 3) == []
    assert fail(c, 4, Why.TOPOLOGY_CHANGED) == []
    assert c.status().failures_in_a_row == 1
    assert [type(a) for a in fail(c, 5)] == [GiveUp]


def test_it_gives_up_once_even_if_another_fails_behind_it() -> None:
    c = started(tolerated_failures=0, max_concurrent=2, interval_ms=10)
    c.tick(10)
    begin(c, 2, 10)
    assert [a.epoch for a in c.tick(600) if isinstance(a, Abort)] == [1, 2]
    assert [type(a) for a in c.aborted(1, 601)] == [GiveUp]
    assert c.aborted(2, 602) == []


def test_a_begin_that_fails_uses_no_number_and_counts() -> None:
    c = make(tolerated_failures=0)
    c.tick(0)
    (action,) = c.begin_failed(1, Why.STORE_UNAVAILABLE, "no answer")
    assert isinstance(action, GiveUp)
    assert c.in_flight() == ()
    assert c.last_failed is not None
    assert (c.last_failed.epoch, c.last_failed.reason) == (0, Why.STORE_UNAVAILABLE)


def test_the_leader_may_abort_for_a_reason_of_its_own_at_any_time_before_the_fate() -> None:
    for acks in (0, 1, 2):
        c = started()
        for member in "ab"[:acks]:
            c.on_ack(ack(member, 1), 0)
        c.aborted(1, 1, Why.RESTORED, "back to epoch 0")
        assert c.last_failed is not None
        assert (c.last_failed.reason, c.last_failed.phase) == (Why.RESTORED, CheckpointPhase.ABORTED)


# What the seeds got wrong, and calls that do not fit.


def test_seed_e02_after_a_fate_it_is_idle_again_by_itself() -> None:
    c = make("a")
    c.tick(0)
    run_one(c, 1, 0)
    assert c.tick(1_000) == [PLAIN]
    begin(c, 2, 1_000)
    c.on_ack(ack("a", 2, error="no"), 1_001)
    c.aborted(2, 1_002)
    assert c.tick(2_000) == [PLAIN]


def test_seed_e03_reports_are_checked_for_membership_and_id() -> None:
    c = make("a")
    c.tick(0)
    assert c.on_ack(ack("a", 1), 0) == (AckOutcome.OTHER_CHECKPOINT, [])
    begin(c, 1, 0)
    before = snapshot(c)
    assert c.on_ack(ack("stranger", 1), 1) == (AckOutcome.STRANGER, [])
    assert c.on_ack(ack("stranger", 1, error="no"), 1) == (AckOutcome.STRANGER, [])
    assert c.on_ack(ack("a", 99), 1) == (AckOutcome.OTHER_CHECKPOINT, [])
    assert snapshot(c) == before


def test_seed_c08_reports_must_be_for_this_checkpoint_and_from_a_member() -> None:
    c = started("ab", max_concurrent=2)
    c.request_checkpoint(0, "r")
    begin(c, 2, 0)
    c.on_ack(ack("a", 1), 1)
    c.on_ack(ack("b", 2), 1)
    assert (c.pending(10), c.pending(20)) == (("b",), ("a",))


def test_seed_e04_a_duplicate_report_is_not_counted_twice() -> None:
    c = started()
    c.on_ack(ack("a", 1), 1)
    assert c.on_ack(ack("a", 1), 2) == (AckOutcome.DUPLICATE, [])
    assert c.pending(10) == ("b",)
    assert c.in_flight()[0].size_bytes == 10
    assert c.on_ack(ack("b", 1), 3)[1] == [decided(1)]
    assert c.on_ack(ack("b", 1), 4) == (AckOutcome.DUPLICATE, [])


def test_seed_e05_positions_come_with_the_acks_while_it_is_in_progress() -> None:
    c = started()
    (decide,) = all_ack(c, 1, 1)
    assert isinstance(decide, Decide)
    assert {m: (a.part, a.part_hash) for m, a in decide.acks.items()} == {
        "a": ("checkpoints/1-10/parts/a-1.json", "h-a"),
        "b": ("checkpoints/1-10/parts/b-1.json", "h-b"),
    }


def test_seed_e06_numbers_come_from_the_journal_and_only_grow() -> None:
    c = make("a")
    c.tick(0)
    c.begun(41, 977, 0)
    assert c.in_flight()[0].epoch == 41
    c.aborted(41, 1, Why.LEADER_CHANGED)
    c.tick(1_000)
    for epoch, checkpoint_id in ((41, 978), (42, 977), (1, 1)):
        before = snapshot(c)
        with pytest.raises(IllegalStep, match="numbers only grow"):
            c.begun(epoch, checkpoint_id, 1_000)
        assert snapshot(c) == before
    c.begun(42, 978, 1_000)


def test_seed_e08_the_last_completed_one_is_never_partial() -> None:
    c = started()
    all_ack(c, 1, 0)
    assert c.last_completed is None
    c.aborted(1, 1, Why.PART_UNREADABLE, "part of a")
    assert c.last_completed is None


def illegal(c: Coordinator, match: str, call: Any) -> None:
    before = snapshot(c)
    with pytest.raises(IllegalStep, match=match):
        call()
    assert snapshot(c) == before


def test_seed_e10_abort_and_every_other_step_work_only_from_their_phases() -> None:
    c = make("a")
    illegal(c, "not in flight", lambda: c.aborted(1, 0, Why.CANCELLED))
    illegal(c, "not in flight", lambda: c.committed(1, 0))
    illegal(c, "none was asked to begin", lambda: c.begun(1, 10, 0))
    illegal(c, "none was asked to begin", lambda: c.begin_failed(0, Why.STORE_UNAVAILABLE))
    illegal(c, "nobody is missing", lambda: c.pending(10))
    c.tick(0)
    illegal(c, "not in flight", lambda: c.aborted(0, 0, Why.CANCELLED))
    illegal(c, "nobody is missing", lambda: c.pending(0))
    assert c.on_ack(ack("a", 0), 0) == (AckOutcome.OTHER_CHECKPOINT, [])
    begin(c, 1, 0)
    illegal(c, "it has begun already", lambda: c.begun(2, 20, 0))
    illegal(c, "it has begun already", lambda: c.begin_failed(0, Why.STORE_UNAVAILABLE))
    illegal(c, "no step 'committed' from phase 'collecting'", lambda: c.committed(1, 0))
    illegal(c, "give the reason", lambda: c.aborted(1, 0))
    all_ack(c, 1, 0)
    illegal(c, "give the reason", lambda: c.aborted(1, 0))
    c.committed(1, 0)
    illegal(c, "not in flight", lambda: c.committed(1, 0))
    illegal(c, "not in flight", lambda: c.aborted(1, 0, Why.CANCELLED))


def test_what_was_asked_to_abort_cannot_be_committed() -> None:
    c = started("a")
    c.cancel(1, "r")
    illegal(c, "no step 'committed' from phase 'aborting'", lambda: c.committed(1, 2))


# Any schedule.


def play(seed: int) -> list[str]:
    """A leader that performs actions in order but late; members answer in any order, twice or never."""
    rng = random.Random(seed)
    c = make(
        "abc",
        interval_ms=rng.choice([50, 300]),
        min_pause_ms=rng.choice([0, 80]),
        timeout_ms=400,
        alignment_timeout_ms=rng.choice([None, 100]),
        max_concurrent=rng.choice([1, 2, 3]),
        full_every=rng.choice([None, 2]),
    )
    trace: list[str] = []
    todo: list[Action] = []
    asked: set[str] = set()
    begun: dict[int, set[str]] = {}
    fates: dict[int, str] = {}
    decides: list[int] = []
    journal = 0

    def take(actions: list[Action]) -> None:
        for action in actions:
            trace.append(repr(action))
            todo.append(action)
            if isinstance(action, Begin):
                assert not c.status().closed
                assert not asked & set(action.requests)
                asked.update(action.requests)
            elif isinstance(action, Decide):
                assert begun[action.epoch] == {"a", "b", "c"} == set(action.acks)
                assert all(e in fates for e in begun if e < action.epoch)
                decides.append(action.epoch)

    for step in range(120):
        now_ms = step * 20
        take(c.tick(now_ms))
        choice = rng.random()
        if todo and choice < 0.5:
            action = todo.pop(0)
            if isinstance(action, Begin) and rng.random() < 0.1:
                take(c.begin_failed(now_ms, Why.STORE_UNAVAILABLE))
            elif isinstance(action, Begin):
                journal += rng.randint(1, 3)
                epoch = len(begun) + 1
                begun[epoch] = set()
                take(c.begun(epoch, epoch * 10 + journal * 1000, now_ms))
            elif isinstance(action, Abort) or (isinstance(action, Decide) and rng.random() < 0.2):
                assert action.epoch not in fates
                fates[action.epoch] = "aborted"
                take(
                    c.aborted(
                        action.epoch, now_ms, None if isinstance(action, Abort) else Why.PART_UNREADABLE
                    )
                )
            elif isinstance(action, Decide):
                assert action.epoch not in fates
                fates[action.epoch] = "committed"
                take(c.committed(action.epoch, now_ms))
        elif choice < 0.9 and c.in_flight():
            flight = rng.choice(c.in_flight())
            member = rng.choice("abcx")
            error = "no" if rng.random() < 0.05 else None
            answer = Ack(
                member, "boot", flight.epoch, flight.checkpoint_id, 3, not error, error, known(1), "p", "h"
            )
            if member != "x" and error is None and flight.epoch in begun:
                begun[flight.epoch].add(member)
            take(c.on_ack(answer, now_ms)[1])
        elif choice < 0.93:
            take(c.request_savepoint(f"s{step}", now_ms, f"r{step}"))
        elif choice < 0.95:
            take(c.request_checkpoint(now_ms, f"r{step}"))
        elif choice < 0.96:
            take(c.cancel(now_ms, f"r{step}"))
        elif choice < 0.965:
            take(c.request_drain(now_ms, f"r{step}"))
        assert len(c.in_flight()) <= c.config.max_concurrent
        epochs = [f.epoch for f in c.in_flight() if f.epoch]
        assert epochs == sorted(epochs)
        if any(f.flags & Flags.DRAIN for f in c.in_flight()):
            assert len(c.in_flight()) == 1
    assert decides == sorted(set(decides))
    assert set(begun) == set(fates) | {f.epoch for f in c.in_flight() if f.epoch}
    trace.append(repr(sorted(fates.items())))
    return trace


def test_any_schedule_keeps_the_rules() -> None:
    traces = [play(seed) for seed in range(150)]
    ends = "".join(trace[-1] for trace in traces)
    assert "committed" in ends
    assert "aborted" in ends


def test_the_same_schedule_gives_the_same_actions() -> None:
    assert [play(seed) for seed in range(10)] == [play(seed) for seed in range(10)]


def test_when_the_faults_stop_the_next_checkpoint_commits() -> None:
    c = make()
    for epoch in range(1, 20):
        c.tick(epoch * 1_000)
        begin(c, epoch, epoch * 1_000)
        c.tick(epoch * 1_000 + 500)
        c.aborted(epoch, epoch * 1_000 + 501)
    assert c.tick(20_000) == [PLAIN]
    run_one(c, 20, 20_000)
    assert c.last_completed is not None
    assert c.last_completed.epoch == 20
