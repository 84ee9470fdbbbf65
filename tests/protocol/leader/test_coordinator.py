"""One checkpoint: whom it waits for, until when, and which calls are legal."""

from typing import Any

import pytest

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.errors import IllegalStep
from cutwater.protocol.base.failures import FailureReason as Why
from cutwater.protocol.base.wire import Ack
from cutwater.protocol.leader.coordinator import MAX_DETAIL, Coordinator
from cutwater.protocol.leader.coordinator_actions import (
    Abort,
    Action,
    Begin,
    Decide,
    TurnUnaligned,
)
from cutwater.protocol.leader.quorum import AckOutcome, CheckpointPhase
from tests.support.coordinator_helpers import (
    PLAIN,
    ack,
    all_ack,
    begin,
    decided,
    make,
    run_one,
    snapshot,
    started,
)

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
    assert (done.epoch, done.checkpoint_id, done.acked) == (1, 10, ("a", "b"))
    phases = CheckpointPhase
    assert done.times_ms == {
        phases.BEGINNING: 0,
        phases.COLLECTING: 5,
        phases.CAPTURED: 30,
        phases.DECIDING: 30,
        phases.COMMITTED: 40,
    }
    assert done.since_ms == 40


def test_status_shows_the_start_and_the_acks_of_an_in_flight_checkpoint() -> None:
    c = make()
    c.tick(0)
    (beginning,) = c.in_flight()
    assert (beginning.phase, beginning.since_ms, beginning.acked, beginning.missing) == (
        CheckpointPhase.BEGINNING,
        0,
        (),
        (),
    )
    begin(c, 1, 7)
    c.on_ack(ack("b", 1), 9)
    c.request_savepoint("s", 10, "r")
    (flight,) = c.in_flight()
    assert (flight.phase, flight.since_ms) == (CheckpointPhase.COLLECTING, 7)
    assert (flight.acked, flight.missing) == (("b",), ("a",))
    assert c.queued() == (Begin(Flags.FULL_SNAPSHOT, "s", ("r",)),)
    assert (c.term, c.closed) == (3, None)


def test_seed_a01_the_last_ack_brings_the_decision_without_a_poll() -> None:
    c = started()
    assert all_ack(c, 1, 0) == [decided(1)]


def test_seed_a02_the_ack_of_a_later_checkpoint_does_not_hide_that_of_an_earlier_one() -> None:
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


def test_seed_a05_a_refusal_aborts_at_once_even_if_others_are_silent() -> None:
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


def test_a_long_error_is_truncated_before_it_goes_into_the_journal() -> None:
    c = started("a")
    _, (abort,) = c.on_ack(ack("a", 1, error="x" * 1_000_000), 1)
    assert isinstance(abort, Abort)
    assert len(abort.detail) == MAX_DETAIL


def test_seed_a06_flags_of_every_kind_of_request_reach_begin() -> None:
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
    """Ends `epoch`, which is beginning, while a request waits. Returns what begins then."""
    assert request() == []
    return run_one(c, epoch, 0)


def test_seed_a07_a_departed_member_is_blamed_and_the_others_continue() -> None:
    c = started("abz")
    assert c.on_ack(ack("a", 1), 1)[0] is AckOutcome.COUNTED
    assert c.on_ack(ack("z", 1), 1)[0] is AckOutcome.COUNTED
    (abort,) = c.tick(500)
    assert isinstance(abort, Abort)
    assert abort.detail == "within 500 ms 1 of 3 members did not answer: b"
    c.aborted(1, 501)
    assert c.tick(1_000) == [PLAIN]


# Deadlines.


def test_seed_e01_the_deadline_needs_no_report_and_blames_missing_members() -> None:
    c = make()
    c.tick(0)
    begin(c, 1, 100)
    c.on_ack(ack("a", 1), 200)
    assert c.tick(599) == []
    detail = "within 500 ms 1 of 2 members did not answer: b"
    assert c.tick(600) == [Abort(1, 10, Why.DEADLINE, detail, Flags.CANCEL, late=("b",))]


def test_seed_e01_a_late_report_is_not_blamed_for_the_silence_of_others() -> None:
    c = started()
    assert c.on_ack(ack("a", 1), 900) == (AckOutcome.COUNTED, [])
    (abort,) = c.tick(901)
    assert isinstance(abort, Abort)
    assert abort.detail.endswith(": b")


def test_seed_c07_one_silent_member_does_not_block_forever() -> None:
    c = make()
    for epoch in range(1, 6):
        now_ms = epoch * 1_000
        assert c.tick(now_ms) == [PLAIN]
        begin(c, epoch, now_ms)
        c.on_ack(ack("a", epoch), now_ms)
        (abort,) = c.tick(now_ms + 500)
        assert isinstance(abort, Abort)
        assert c.aborted(epoch, now_ms + 501) == []


def test_the_deadline_causes_one_abort() -> None:
    c = started()
    assert len(c.tick(500)) == 1
    assert c.tick(501) == []
    assert c.on_ack(ack("a", 1), 502) == (AckOutcome.LATE, [])


def test_the_deadline_counts_from_the_journal_entry() -> None:
    c = make()
    c.tick(0)
    assert c.tick(9_000) == []
    begin(c, 1, 9_000)
    assert c.tick(9_499) == []
    assert len(c.tick(9_500)) == 1


def test_a_checkpoint_that_is_being_decided_has_no_deadline() -> None:
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


def test_unaligned_checkpoints_and_drains_are_not_turned_unaligned() -> None:
    for request in ("unaligned", "drain"):
        c = make(alignment_timeout_ms=100)
        if request == "drain":
            c.request_drain(0, "r")
        else:
            c.request_checkpoint(0, "r", unaligned=True)
        begin(c, 1, 0)
        assert c.tick(200) == []


# Weaknesses of the seeds, and illegal calls.


def test_seed_e02_after_a_decision_it_becomes_idle_by_itself() -> None:
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
    assert c.on_ack(ack("b", 1), 3)[1] == [decided(1)]
    assert c.on_ack(ack("b", 1), 4) == (AckOutcome.DUPLICATE, [])


def test_seed_e05_positions_arrive_with_the_acks_of_a_checkpoint_in_progress() -> None:
    c = started()
    (decide,) = all_ack(c, 1, 1)
    assert isinstance(decide, Decide)
    batches = {m: {s: report.batch for s, report in a.reports.items()} for m, a in decide.acks.items()}
    assert batches == {"a": {"stage a": 1}, "b": {"stage b": 1}}


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


def test_seed_e08_the_last_completed_checkpoint_is_never_partial() -> None:
    c = started()
    all_ack(c, 1, 0)
    assert c.last_completed is None
    c.aborted(1, 1, Why.STORE_DAMAGED, "the manifest")
    assert c.last_completed is None


def illegal(c: Coordinator, match: str, call: Any) -> None:
    before = snapshot(c)
    with pytest.raises(IllegalStep, match=match):
        call()
    assert snapshot(c) == before


def test_seed_e10_abort_and_all_other_steps_are_legal_only_in_their_phases() -> None:
    c = make("a")
    illegal(c, "not in flight", lambda: c.aborted(1, 0, Why.CANCELLED))
    illegal(c, "not in flight", lambda: c.committed(1, 0))
    illegal(c, "no checkpoint was asked to begin", lambda: c.begun(1, 10, 0))
    illegal(c, "nobody is missing", lambda: c.pending(10))
    c.tick(0)
    illegal(c, "not in flight", lambda: c.aborted(0, 0, Why.CANCELLED))
    illegal(c, "nobody is missing", lambda: c.pending(0))
    assert c.on_ack(ack("a", 0), 0) == (AckOutcome.OTHER_CHECKPOINT, [])
    begin(c, 1, 0)
    illegal(c, "it has already begun", lambda: c.begun(2, 20, 0))
    illegal(c, "no step 'committed' from phase 'collecting'", lambda: c.committed(1, 0))
    illegal(c, "give the reason", lambda: c.aborted(1, 0))
    all_ack(c, 1, 0)
    illegal(c, "give the reason", lambda: c.aborted(1, 0))
    c.committed(1, 0)
    illegal(c, "not in flight", lambda: c.committed(1, 0))
    illegal(c, "not in flight", lambda: c.aborted(1, 0, Why.CANCELLED))


def test_an_aborting_checkpoint_cannot_be_committed() -> None:
    c = started("a")
    c.cancel(1, "r")
    illegal(c, "no step 'committed' from phase 'aborting'", lambda: c.committed(1, 2))
