"""When checkpoints begin: periodically, and on request."""

import pytest

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.failures import FailureReason as Why
from cutwater.protocol.leader.coordinator import MAX_QUEUED, Coordinator
from cutwater.protocol.leader.coordinator_actions import (
    Abort,
    Begin,
    Refuse,
    TurnUnaligned,
)
from cutwater.protocol.leader.quorum import AckOutcome
from tests.support.configs import coordinator_config
from tests.support.coordinator_helpers import PLAIN, ack, all_ack, begin, decided, make, run_one, started

# Interval, pause, concurrency, full snapshots.


def test_the_first_checkpoint_is_due_at_once_and_the_next_after_the_interval() -> None:
    c = make(now_ms=50)
    assert c.tick(50) == [PLAIN]
    run_one(c, 1, 60)
    assert c.tick(1_049) == []
    assert c.tick(1_050) == [PLAIN]


def test_seed_c06_the_interval_is_read() -> None:
    c = make(interval_ms=77)
    c.tick(0)
    run_one(c, 1, 0)
    assert c.tick(76) == []
    assert c.tick(77) == [PLAIN]


def test_the_pause_counts_from_the_end_of_the_last_checkpoint_however_it_ended() -> None:
    c = started(min_pause_ms=300, timeout_ms=5_000)
    all_ack(c, 1, 900)
    c.committed(1, 950)
    assert c.tick(1_000) == []
    assert c.tick(1_249) == []
    assert c.tick(1_250) == [PLAIN]
    begin(c, 2, 1_250)
    c.on_ack(ack("a", 2, error="no"), 2_300)
    assert c.aborted(2, 2_300) == []
    assert c.tick(2_599) == []
    assert c.tick(2_600) == [PLAIN]


def test_next_ms_is_when_it_has_something_to_do() -> None:
    c = make(timeout_ms=500, alignment_timeout_ms=200, min_pause_ms=50)
    assert c.next_ms() == 0
    assert c.tick(0) == [PLAIN]
    assert c.next_ms() is None, "it waits for its number"
    begin(c, 1, 10)
    assert c.next_ms() == 210
    assert c.tick(209) == []
    assert c.tick(210) == [TurnUnaligned(1, 10)]
    assert c.next_ms() == 510
    assert c.tick(509) == []
    assert isinstance(c.tick(510)[0], Abort)
    assert c.next_ms() is None, "it waits for the abort to be durable"
    c.aborted(1, 980)
    assert c.next_ms() == 1_030
    assert c.tick(1_029) == []
    assert c.tick(1_030) == [PLAIN]
    begin(c, 2, 1_030)
    c.request_drain(1_040, "r")
    all_ack(c, 2, 1_050)
    assert c.next_ms() is None, "a drain waits for the commit"


def test_only_one_checkpoint_is_in_flight_unless_more_are_allowed() -> None:
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
    begin(c, 4, 10_005)
    assert c.aborted(2, 10_006, Why.INCONSISTENT_CUT, "x") == [decided(3)]


def test_a_later_checkpoint_waits_until_the_abort_of_the_earlier_one_is_durable() -> None:
    c = started(max_concurrent=2, interval_ms=100)
    c.tick(100)
    begin(c, 2, 100)
    assert all_ack(c, 2, 101) == []
    (abort,) = c.tick(500)
    assert isinstance(abort, Abort)
    assert abort.epoch == 1
    assert c.aborted(1, 502) == [decided(2), PLAIN]


def test_a_captured_checkpoint_that_waits_for_an_earlier_one_has_met_its_deadline() -> None:
    c = started(max_concurrent=2, interval_ms=10, timeout_ms=100, alignment_timeout_ms=20)
    c.tick(10)
    begin(c, 2, 10)
    all_ack(c, 2, 11)
    assert [type(a) for a in c.tick(50)] == [TurnUnaligned]
    assert [a.epoch for a in c.tick(150) if isinstance(a, Abort)] == [1]


def test_only_one_checkpoint_at_a_time_has_no_number() -> None:
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


def test_an_aborted_full_checkpoint_is_still_due_and_a_savepoint_counts_as_one() -> None:
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


def test_a_due_full_checkpoint_is_begun_only_once() -> None:
    c = make("a", full_every=2, max_concurrent=3, interval_ms=10)
    begins = []
    for epoch in (1, 2, 3):
        begins += c.tick(epoch * 10)
        begin(c, epoch, epoch * 10)
    assert begins == [PLAIN, Begin(Flags.FULL_SNAPSHOT), PLAIN]


def test_a_new_leader_knows_when_the_last_full_checkpoint_was() -> None:
    c = Coordinator(coordinator_config(full_every=5), ["a"], 3, 0, since_full=4)
    assert c.tick(0) == [Begin(Flags.FULL_SNAPSHOT)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("interval_ms", 0),
        ("min_pause_ms", -1),
        ("timeout_ms", 0),
        ("alignment_timeout_ms", -1),
        ("max_concurrent", 0),
        ("retained", 0),
        ("full_every", 0),
    ],
)
def test_an_invalid_setting_is_refused_by_name(name: str, value: int) -> None:
    with pytest.raises(UserError, match=f"{name} is {value}; give {value + 1} or more"):
        coordinator_config(**{name: value})


def test_an_alignment_timeout_beyond_the_deadline_is_refused() -> None:
    with pytest.raises(UserError, match="give less than timeout_ms"):
        coordinator_config(timeout_ms=100, alignment_timeout_ms=100)


def test_a_pipeline_without_members_is_refused() -> None:
    with pytest.raises(UserError, match="name at least one"):
        make("")


# Requests.


def test_a_savepoint_precedes_a_periodic_checkpoint_and_waits_for_the_one_in_flight() -> None:
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


def test_equal_waiting_requests_become_one_checkpoint() -> None:
    c = started()
    c.request_checkpoint(1, "r1")
    c.request_checkpoint(2, "r2", full=True)
    c.request_savepoint("s", 3, "r3")
    c.request_checkpoint(4, "r4")
    c.request_checkpoint(5, "r5", full=True)
    assert c.queued() == (
        Begin(Flags.NONE, None, ("r1", "r4")),
        Begin(Flags.FULL_SNAPSHOT, None, ("r2", "r5")),
        Begin(Flags.FULL_SNAPSHOT, "s", ("r3",)),
    )


def test_a_request_received_twice_is_one_request() -> None:
    c = make()
    c.tick(0)
    assert c.request_savepoint("s", 1, "r") == []
    assert c.request_savepoint("s", 2, "r") == []
    begin(c, 1, 3)
    all_ack(c, 1, 3)
    assert c.committed(1, 3) == [Begin(Flags.FULL_SNAPSHOT, "s", ("r",))]
    assert c.request_savepoint("s", 4, "r") == []
    assert c.queued() == ()


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


def test_a_drain_waits_until_nothing_is_in_flight_and_is_then_the_only_and_last_checkpoint() -> None:
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
    assert c.closed is Why.DRAINED
    assert c.request_checkpoint(100_001, "late") == [
        Refuse("late", Why.DRAINED, "no further checkpoint begins")
    ]


def aborted_drain() -> Coordinator:
    """A drain that "r" requested was aborted at 500, because it took too long."""
    c = make()
    c.request_drain(0, "r")
    begin(c, 1, 0)
    (abort,) = c.tick(500)
    assert isinstance(abort, Abort)
    assert abort.flags == Flags.DRAIN | Flags.CANCEL
    assert c.stays_asked(1, abort.reason)
    assert c.aborted(1, 500) == []
    return c


def test_an_aborted_drain_is_retried_until_it_commits() -> None:
    c = aborted_drain()
    assert c.next_ms() == 1_500
    assert c.tick(1_499) == [], "no other checkpoint begins meanwhile"
    assert c.tick(1_500) == [Begin(Flags.DRAIN, None, ("r",))]
    begin(c, 2, 1_500)
    c.on_ack(ack("a", 2, error="disk full"), 1_600)
    assert c.aborted(2, 1_600) == []
    assert c.tick(2_600) == [Begin(Flags.DRAIN, None, ("r",))]
    run_one(c, 3, 2_600)
    assert c.closed is Why.DRAINED


def test_a_drain_that_misses_its_deadline_gets_twice_the_time_when_it_is_retried() -> None:
    c, began_ms = make(), 0
    c.request_drain(0, "r")
    for epoch, time_ms in enumerate((500, 1_000, 2_000, 4_000, 8_000, 8_000), 1):
        begin(c, epoch, began_ms)
        assert c.next_ms() == began_ms + time_ms
        assert c.tick(began_ms + time_ms - 1) == []
        (abort,) = c.tick(began_ms + time_ms)
        assert isinstance(abort, Abort)
        assert f"within {time_ms} ms" in abort.detail
        c.aborted(epoch, began_ms + time_ms)
        began_ms += time_ms + 1_000
        assert c.tick(began_ms) == [Begin(Flags.DRAIN, None, ("r",))]


def test_a_drain_is_retried_after_the_interval_if_that_is_short() -> None:
    c = make(interval_ms=100)
    c.request_drain(0, "r")
    begin(c, 1, 0)
    c.aborted(1, 0, Why.INCONSISTENT_CUT)
    assert c.tick(99) == []
    assert c.tick(100) == [Begin(Flags.DRAIN, None, ("r",))]


def test_a_cancelled_drain_is_not_retried() -> None:
    c = make()
    c.request_drain(0, "r")
    begin(c, 1, 0)
    c.cancel(1, "c")
    assert not c.stays_asked(1, Why.CANCELLED)
    assert c.aborted(1, 2) == []
    assert c.tick(1_000) == [PLAIN]


def test_a_drain_that_waits_for_its_retry_can_be_cancelled() -> None:
    c = aborted_drain()
    assert c.cancel(600, "c") == [Refuse("r", Why.CANCELLED, "by request")]
    assert c.tick(1_000) == [PLAIN]


def test_a_drain_that_the_leaders_process_wants_is_requested_once_at_a_time() -> None:
    c = make()
    assert c.want_drain(0) == [Begin(Flags.DRAIN)]
    assert c.want_drain(1) == []
    begin(c, 1, 1)
    assert c.want_drain(2) == []
    c.on_ack(ack("a", 1, error="disk full"), 3)
    assert c.aborted(1, 4) == []
    assert c.want_drain(5) == []
    assert c.tick(1_004) == [Begin(Flags.DRAIN)]
    run_one(c, 2, 1_004)
    assert c.want_drain(1_005) == []


def test_requests_during_a_drain_are_refused_but_another_drain_joins_it() -> None:
    c = make()
    c.tick(0)
    c.request_savepoint("first", 1, "r0")
    c.request_drain(2, "r1")
    beside = "no other checkpoint begins during a drain"
    assert c.request_savepoint("s", 3, "r2") == [Refuse("r2", Why.DRAINING, beside)]
    assert c.request_drain(4, "r3") == []
    assert run_one(c, 1, 5) == [Begin(Flags.FULL_SNAPSHOT, "first", ("r0",))]
    assert run_one(c, 2, 6) == [Begin(Flags.DRAIN, None, ("r1", "r3"))]
    begin(c, 3, 7)
    assert c.request_drain(8, "r4") == [Refuse("r4", Why.DRAINING, beside)]
    assert c.request_checkpoint(8, "r5") == [Refuse("r5", Why.DRAINING, beside)]


def test_a_leader_of_a_drained_pipeline_begins_nothing() -> None:
    c = Coordinator(coordinator_config(), ["a"], 3, 0, drained=True)
    assert c.tick(10**9) == []
    assert [type(a) for a in c.request_drain(10**9, "r")] == [Refuse]


def test_cancel_aborts_the_checkpoint_in_flight_with_the_cancel_flag() -> None:
    c = started(max_concurrent=2, interval_ms=10)
    c.request_savepoint("s", 1, "r1")
    begin(c, 2, 1)
    all_ack(c, 2, 2)
    full = Flags.FULL_SNAPSHOT
    assert c.cancel(3, "r2") == [
        Abort(1, 10, Why.CANCELLED, "by request", Flags.CANCEL),
        Abort(2, 20, Why.CANCELLED, "by request", full | Flags.CANCEL, "r2"),
    ]
    assert c.aborted(2, 4) == []
    assert c.aborted(1, 5) == []
    assert c.tick(11) == [PLAIN]


def test_cancel_of_a_checkpoint_without_a_number_aborts_it_as_soon_as_it_has_one() -> None:
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


def test_cancel_of_a_checkpoint_that_is_deciding_or_aborting_is_refused() -> None:
    c = started("a", max_concurrent=2)
    c.request_checkpoint(0, "r1")
    begin(c, 2, 0)
    all_ack(c, 1, 1)
    c.on_ack(ack("a", 2, error="no"), 1)
    detail = "epoch 1 is deciding, epoch 2 is aborting"
    assert c.cancel(2, "r2") == [Refuse("r2", Why.NOTHING_TO_CANCEL, detail)]
    assert c.committed(1, 3) == []
