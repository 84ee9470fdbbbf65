"""The consequences of failures, and random schedules of them."""

import random

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.failures import FailureReason as Why
from cutwater.protocol.base.watermark import known
from cutwater.protocol.base.wire import Ack
from cutwater.protocol.leader.coordinator import Coordinator
from cutwater.protocol.leader.coordinator_actions import (
    Abort,
    Action,
    Begin,
    Decide,
)
from cutwater.protocol.leader.quorum import CheckpointPhase
from tests.support.coordinator_helpers import PLAIN, ack, all_ack, begin, make, run_one, started

# Failures.


def fail(c: Coordinator, epoch: int, reason: Why = Why.INCONSISTENT_CUT) -> list[Action]:
    now_ms = epoch * 1_000
    assert c.tick(now_ms) == [PLAIN]
    begin(c, epoch, now_ms)
    all_ack(c, epoch, now_ms)
    return c.aborted(epoch, now_ms, reason, "why")


def test_the_leader_may_abort_for_its_own_reason_at_any_time_before_the_decision() -> None:
    for acks in (0, 1, 2):
        c = started()
        for member in "ab"[:acks]:
            c.on_ack(ack(member, 1), 0)
        c.aborted(1, 1, Why.RESTORED, "back to epoch 0")
        assert c.last_failed is not None
        assert (c.last_failed.reason, c.last_failed.phase) == (Why.RESTORED, CheckpointPhase.ABORTED)


# Random schedules.


def play(seed: int) -> list[str]:
    """A leader performs actions in order but late; members answer in any order, twice or never."""
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
                assert not c.closed
                assert action.flags & Flags.DRAIN or not asked & set(action.requests)
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
            if isinstance(action, Begin):
                journal += rng.randint(1, 3)
                epoch = len(begun) + 1
                begun[epoch] = set()
                take(c.begun(epoch, epoch * 10 + journal * 1000, now_ms))
            elif isinstance(action, Abort) or (isinstance(action, Decide) and rng.random() < 0.2):
                assert action.epoch not in fates
                fates[action.epoch] = "aborted"
                take(
                    c.aborted(action.epoch, now_ms, None if isinstance(action, Abort) else Why.STORE_DAMAGED)
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
                member, "boot", flight.epoch, flight.checkpoint_id, 3, not error, error, known(1), {}
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


def test_every_schedule_follows_the_rules() -> None:
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
