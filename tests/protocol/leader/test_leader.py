"""Leadership: one leader at a time, and its decisions."""

from __future__ import annotations

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.events import LeadershipLost
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.base.wire import Ack, Heartbeat, Request, RequestKind, encode_message
from cutwater.protocol.leader.coordinator_actions import Action, Begin, Refuse
from cutwater.protocol.leader.leader import Leader, LeaderPhase
from cutwater.protocol.member.member import Member
from cutwater.sim.process import Process, SimWord
from cutwater.sim.world import World
from tests.support.builders import (
    CHAIN,
    ask,
    checkpoint,
    entries,
    leader_of,
    of,
    rest,
    running_world,
    slow_down,
    until,
)
from tests.support.configs import leader_config, member_config

# One leader at a time.


def test_one_member_leads_and_the_others_follow() -> None:
    world = running_world()
    assert [p.leader.phase for p in world.processes].count(LeaderPhase.LEADING) == 1
    assert [(e.term, e.name) for e in entries(world, r.Leader)] == [(1, leader_of(world).name)]


def test_a_leader_that_sends_heartbeats_is_not_replaced() -> None:
    world = running_world()
    rest(world, 5_000)
    assert len(entries(world, r.Leader)) == 1


def cut_off_leader() -> tuple[World, Leader]:
    """The first leader is cut off while one of its epochs is open; another member leads."""
    world = running_world()
    old = leader_of(world)
    slow_down(world, "b", 4_000)
    ask(world, RequestKind.CHECKPOINT)
    rest(world, 60)
    assert world.oracle.ledger.open.keys() == {2}
    old.pause()
    until(world, lambda: any(p is not old for p in world.leaders()))
    return world, old.leader


def test_seed_a08_of_two_leaders_in_a_partition_only_one_decides() -> None:
    """Both sides reach the store; what the first leader writes after the second one's entry is void."""
    world = running_world()
    old = leader_of(world)
    others = [name for name in CHAIN.members() if name != old.name]
    world.network.blocked = {(old.name, o) for o in others} | {(o, old.name) for o in others}
    until(world, lambda: world.oracle.ledger.term == 2)
    ask(world, RequestKind.CHECKPOINT)
    rest(world, 3_000)
    world.network.blocked.clear()
    rest(world, 1_000)
    checkpoint(world)
    term = 0
    for name in world.store.list(paths.JOURNAL_PREFIX):
        body = r.JOURNAL.open(world.store.objects[name]).entry.body
        term = body.term if isinstance(body, r.Leader) else term
        assert body.term == term, "nobody writes in a term that is over"
    assert len(world.leaders()) == 1
    world.oracle.final_check()


def test_seed_a09_a_leader_that_lost_its_term_stops_and_says_why() -> None:
    world, old = cut_off_leader()
    new = next(p for p in world.leaders() if p.leader is not old)
    old_process = next(p for p in world.processes if p.leader is old)
    old_process.wake_up()
    until(world, lambda: old.phase is LeaderPhase.FOLLOWING, ms=1_000)
    assert LeadershipLost(1, new.name) in old.member.events
    assert old.coordinator is None


def test_seed_a09_open_epochs_of_a_lost_term_never_commit() -> None:
    world, old = cut_off_leader()
    next(p for p in world.processes if p.leader is old).wake_up()
    until(world, lambda: world.oracle.epochs >= 2)
    rest(world, 3_000)
    assert 2 not in world.oracle.ledger.history
    state = leader_of(world).member.journal.state
    assert [(a.epoch, a.reason) for a in state.aborted] == [(2, "leader_changed")]
    assert all(version.transaction != 5 for version in world.tables["out"].versions)


def stray_ack(member: str, epoch: int, checkpoint_id: int, term: int) -> Ack:
    return Ack(member, "boot", epoch, checkpoint_id, term, True, None, NONE, {})


def test_the_inbox_of_a_former_leader_is_dropped() -> None:
    leader = Leader(Member("m0", "boot", CHAIN, member_config(), SimWord), leader_config())
    leader.on_message(stray_ack("m1", 1, 3, 1))
    assert not leader._inbox
    assert leader.member.woken == []
    leader.phase = LeaderPhase.LEADING
    leader.on_message(stray_ack("m1", 1, 3, 1))
    assert leader.member.woken == ["lead"]
    leader.phase = LeaderPhase.FOLLOWING
    assert list(leader._lead(2)) == []
    assert not leader._inbox, "a new term begins without unprocessed messages of the old one"


def test_a_repeated_message_to_a_busy_leader_is_queued_once() -> None:
    """An ack has the reports of all stages of its member, and is repeated every half second until the decision."""
    leader = Leader(Member("m0", "boot", CHAIN, member_config(), SimWord), leader_config())
    leader.phase = LeaderPhase.LEADING
    for _ in range(1_000):
        for name in ("m1", "m2"):
            leader.on_message(stray_ack(name, 1, 3, 1))
        leader.on_message(Request(RequestKind.CHECKPOINT, "r1"))
    assert len(leader._inbox) == 3
    leader.on_message(stray_ack("m1", 2, 5, 1))
    leader.on_message(Request(RequestKind.CHECKPOINT, "r2"))
    assert len(leader._inbox) == 5


@pytest.mark.parametrize(
    ("epoch_off", "id_off", "term_off"), [(0, 0, -1), (0, -1, 0), (-1, 0, 0)], ids=["term", "id", "epoch"]
)
def test_seed_a03_an_ack_of_another_checkpoint_commits_nothing(
    epoch_off: int, id_off: int, term_off: int
) -> None:
    world = running_world()
    slow_down(world, "b", 3_000)
    ask(world, RequestKind.CHECKPOINT)
    rest(world, 60)
    (begun,) = world.oracle.ledger.open.values()
    for name in CHAIN.members():
        ack = stray_ack(name, begun.epoch + epoch_off, begun.checkpoint_id + id_off, begun.term + term_off)
        leader_of(world).deliver(name, encode_message(ack))
    rest(world, 100)
    assert world.oracle.ledger.open.keys() == {begun.epoch}
    until(world, lambda: world.oracle.epochs == 2)


@pytest.mark.parametrize(("who", "term"), [("m1", 2), ("m1", 4), ("m2", 3), ("stranger", 3)])
def test_only_a_heartbeat_of_the_leader_in_its_term_counts(who: str, term: int) -> None:
    leader = Leader(Member("m0", "boot", CHAIN, member_config(), SimWord), leader_config())
    leader.member.journal.state.term, leader.member.journal.state.leader = 3, "m1"
    leader.member.now_ms = 100
    leader.on_heartbeat(Heartbeat(who, "boot", term, 9))
    assert leader._campaign.seen_ms == 0
    leader.on_heartbeat(Heartbeat("m1", "boot", 3, 9))
    assert leader._campaign.seen_ms == 100


def sleeping_follower() -> tuple[World, Process]:
    """A follower that was paused for long, with the missed heartbeats still unread."""
    world = running_world()
    follower = of(world, "m2")
    assert leader_of(world) is not follower
    follower.pause()
    rest(world, 5_000)
    return world, follower


def test_a_woken_follower_does_not_unseat_a_healthy_leader() -> None:
    world, follower = sleeping_follower()
    follower.mail = []
    follower.wake_up()
    rest(world, 3_000)
    assert len(entries(world, r.Leader)) == 1


def test_a_woken_follower_without_a_leader_leads_after_its_whole_timeout() -> None:
    world, follower = sleeping_follower()
    for name in ("m0", "m1"):
        world.stop(of(world, name))
    follower.wake_up()
    rest(world, world.leader_config.timeout_ms)
    assert follower.leader.phase is LeaderPhase.FOLLOWING
    until(world, lambda: follower.leader.phase is LeaderPhase.LEADING)


def late_follower(late_ms: int) -> int:
    """How long a follower without heartbeats whose checks are always late has waited when it campaigns."""
    member = Member("m0", "boot", CHAIN, member_config(), SimWord)
    member.live = True
    leader = Leader(member, leader_config())
    actor = leader.run()
    effect = next(actor)
    while isinstance(effect, fx.Wait):
        member.now_ms += effect.ms + late_ms
        effect = actor.send(None)
    return member.now_ms


def test_a_follower_whose_checks_are_always_late_still_campaigns() -> None:
    assert late_follower(late_ms=0) == 3_000
    assert late_follower(late_ms=900) == 3_800
    assert late_follower(late_ms=1_500) == 7_000, "the timeout counts from its first late check"


def test_a_growing_journal_shows_a_leader_even_if_its_messages_are_lost() -> None:
    world = running_world(interval_ms=100)
    leads = leader_of(world).name
    world.network.blocked |= {(leads, m) for m in CHAIN.members()}
    rest(world, 3_000)
    assert [e.name for e in entries(world, r.Leader)] == [leads]


def test_a_leader_whose_term_is_over_drops_its_remaining_work() -> None:
    lead = leader_of(running_world()).leader
    state = lead.member.journal.state
    term, coordinator = state.term, lead.coordinator
    assert coordinator is not None
    state.term += 1
    actions: list[Action] = [Begin(Flags.NONE), Refuse("r", FailureReason.DRAINING, "")]
    assert list(lead._perform_all(term, coordinator, actions)) == []
    with pytest.raises(StopIteration) as stop:
        next(lead.record(term, lambda index: r.Leader(term, "m0")))
    assert stop.value.value is False
