"""The answers of the members to one checkpoint."""

import random

import pytest

from cutwater.protocol.base.errors import IllegalStep, UserError
from cutwater.protocol.base.watermark import NONE, UNKNOWN, Watermark, idle, known
from cutwater.protocol.base.wire import Ack
from cutwater.protocol.leader.quorum import (
    CHECKPOINT,
    AckOutcome,
    CheckpointPhase,
    Quorum,
    Reached,
    Refused,
    TimedOut,
    Waiting,
)


def ack(
    member: str,
    *,
    epoch: int = 7,
    checkpoint_id: int = 70,
    term: int = 2,
    error: str | None = None,
    watermark: Watermark = NONE,
    boot: str = "boot",
) -> Ack:
    return Ack(member, boot, epoch, checkpoint_id, term, error is None, error, watermark, {})


def quorum(*members: str) -> Quorum:
    return Quorum(members, epoch=7, checkpoint_id=70, term=2)


def test_it_is_complete_when_all_have_acked_and_names_them() -> None:
    q = quorum("b", "a")
    assert q.outcome() == Waiting(("a", "b"))
    assert q.on_ack(ack("b")) is AckOutcome.COUNTED
    assert q.outcome() == Waiting(("a",))
    assert not q.reached
    assert q.on_ack(ack("a")) is AckOutcome.COUNTED
    assert q.reached
    assert q.outcome() == Reached({"a": ack("a"), "b": ack("b")}, NONE)


def test_after_a_timeout_it_names_who_answered_and_who_did_not() -> None:
    q = quorum("c", "a", "b")
    q.on_ack(ack("b"))
    assert q.timed_out() == TimedOut(got=("b",), missing=("a", "c"))
    assert q.timed_out().blame == "2 of 3 members did not answer: a, c"


def test_the_blame_names_only_a_few_of_a_thousand() -> None:
    q = quorum(*(f"m{i:04}" for i in range(1000)))
    assert q.timed_out().blame.endswith("m0006, m0007 and 992 more")


def test_seed_a05_the_first_refusal_settles_it_at_once() -> None:
    q = quorum("a", "b", "c")
    q.on_ack(ack("a"))
    assert q.on_ack(ack("c", error="state snapshot failed: disk full")) is AckOutcome.REFUSED
    assert q.outcome() == Refused("c", "state snapshot failed: disk full")
    assert q.on_ack(ack("b", error="something else")) is AckOutcome.LATE
    assert q.outcome() == Refused("c", "state snapshot failed: disk full")
    assert not q.reached


def test_a_refusal_without_an_error_still_has_a_message() -> None:
    q = quorum("a")
    q.on_ack(ack("a", error=""))
    assert q.outcome() == Refused("a", "it gave no reason")


@pytest.mark.parametrize(
    "other", [{"epoch": 6}, {"epoch": 8}, {"checkpoint_id": 71}, {"term": 1}, {"term": 3}]
)
@pytest.mark.parametrize("error", [None, "disk full"])
def test_seed_a03_an_ack_must_match_epoch_checkpoint_id_and_term(
    other: dict[str, int], error: str | None
) -> None:
    q = quorum("a")
    assert q.on_ack(ack("a", error=error, **other)) is AckOutcome.OTHER_CHECKPOINT  # type: ignore[arg-type]
    assert q.outcome() == Waiting(("a",))
    assert q.on_ack(ack("a")) is AckOutcome.COUNTED


def test_seed_a04_a_duplicate_name_is_one_member() -> None:
    q = quorum("a", "b", "a", "b")
    q.on_ack(ack("a"))
    assert q.outcome() == Waiting(("b",))
    q.on_ack(ack("b"))
    assert q.reached


def test_seed_a07_a_departed_member_is_named_and_does_not_affect_others() -> None:
    q = quorum("a", "departed", "z")
    assert q.on_ack(ack("a")) is AckOutcome.COUNTED
    assert q.on_ack(ack("z")) is AckOutcome.COUNTED
    assert q.missing == ("departed",)
    assert q.acked == ("a", "z")


def test_seed_e03_a_stranger_neither_completes_nor_fails_it() -> None:
    q = quorum("a", "b")
    assert q.on_ack(ack("x")) is AckOutcome.STRANGER
    assert q.on_ack(ack("y", error="I do not like it")) is AckOutcome.STRANGER
    assert q.outcome() == Waiting(("a", "b"))


def test_seed_e04_a_duplicate_is_not_counted_twice_and_the_first_answer_counts() -> None:
    q = quorum("a", "b")
    first = ack("a", watermark=known(5))
    assert q.on_ack(first) is AckOutcome.COUNTED
    assert q.on_ack(first) is AckOutcome.DUPLICATE
    assert q.on_ack(ack("a", boot="restarted", watermark=known(1))) is AckOutcome.DUPLICATE
    assert q.on_ack(ack("a", error="after all, no")) is AckOutcome.DUPLICATE
    assert not q.reached
    q.on_ack(ack("b", watermark=known(9)))
    reached = q.outcome()
    assert isinstance(reached, Reached)
    assert reached.acks["a"] == first
    assert reached.watermark == known(5)


def test_a_refusal_is_final() -> None:
    q = quorum("a")
    q.on_ack(ack("a", error="no"))
    assert q.on_ack(ack("a")) is AckOutcome.DUPLICATE
    assert q.outcome() == Refused("a", "no")


def test_the_watermark_is_the_lowest_of_all_members_including_the_leader() -> None:
    q = quorum("leader", "a", "b")
    q.on_ack(ack("a", watermark=known(30)))
    q.on_ack(ack("leader", watermark=known(10)))
    q.on_ack(ack("b", watermark=idle(1)))
    reached = q.outcome()
    assert isinstance(reached, Reached)
    assert reached.watermark == known(10)


def test_seed_a15_a_member_without_a_watermark_yet_holds_it_back() -> None:
    q = quorum("a", "b")
    q.on_ack(ack("a", watermark=known(30)))
    q.on_ack(ack("b", watermark=UNKNOWN))
    reached = q.outcome()
    assert isinstance(reached, Reached)
    assert reached.watermark == UNKNOWN


def test_a_quorum_without_members_is_refused() -> None:
    with pytest.raises(UserError, match="name at least one member"):
        quorum()


def test_an_answer_after_closing_is_late_and_changes_nothing() -> None:
    q = quorum("a", "b")
    q.on_ack(ack("a"))
    q.close()
    assert q.on_ack(ack("b")) is AckOutcome.LATE
    assert q.on_ack(ack("b", error="no")) is AckOutcome.LATE
    assert q.timed_out() == TimedOut(("a",), ("b",))


def test_the_outcome_does_not_depend_on_the_order_of_arrival() -> None:
    members = [f"m{i}" for i in range(30)]
    outcomes = set()
    for seed in range(20):
        arrivals = [ack(m, watermark=known(i)) for i, m in enumerate(members)]
        random.Random(seed).shuffle(arrivals)
        q = quorum(*members)
        for a in arrivals:
            q.on_ack(a)
        reached = q.outcome()
        assert isinstance(reached, Reached)
        outcomes.add((tuple(reached.acks), reached.watermark))
    assert outcomes == {(tuple(sorted(members)), known(0))}


class Untouchable(dict[str, object]):
    """A dictionary that allows lookups but not iteration."""

    def __iter__(self) -> None:  # type: ignore[override]
        raise AssertionError("an ack iterated over the members")

    keys = values = items = __iter__  # type: ignore[assignment]


def test_the_cost_of_an_ack_does_not_depend_on_the_number_of_members() -> None:
    q = quorum(*(f"m{i}" for i in range(100)))
    q._missing = Untouchable(q._missing)
    q._acks = Untouchable()  # type: ignore[assignment]
    for i in range(100):
        assert q.on_ack(ack(f"m{i}")) is AckOutcome.COUNTED
        assert q.on_ack(ack(f"m{i}")) is AckOutcome.DUPLICATE
        assert q.reached == (i == 99)


def test_every_phase_is_reachable_and_only_decisions_are_final() -> None:
    reached = {CHECKPOINT.start, *CHECKPOINT.steps.values()}
    assert reached == set(CheckpointPhase)
    final = reached - {phase for phase, _ in CHECKPOINT.steps}
    assert final == {CheckpointPhase.COMMITTED, CheckpointPhase.ABORTED}


def test_a_checkpoint_that_is_being_decided_cannot_be_aborted() -> None:
    with pytest.raises(IllegalStep):
        CHECKPOINT.next(CheckpointPhase.DECIDING, "abort")


def test_only_a_decision_commits() -> None:
    assert [p for p, event in CHECKPOINT.steps if event == "committed"] == [CheckpointPhase.DECIDING]
