"""Each thing that happens is one event of each member that it concerns, in order."""

from __future__ import annotations

from collections import Counter
from typing import TypeVar

import pytest

from cutwater.protocol.base import events as ev
from cutwater.protocol.base import records as r
from cutwater.protocol.base.wire import RequestKind
from cutwater.protocol.member.journal import Journal, apply
from cutwater.protocol.member.member import Member
from cutwater.protocol.member.next_query import QueryEnd
from cutwater.sim.process import Process
from cutwater.sim.world import World
from tests.support.builders import (
    ask,
    begun,
    checkpoint,
    committed,
    drain,
    entries,
    leader_of,
    lose_query,
    of,
    pipeline,
    refusal,
    rest,
    restart_all,
    running_world,
    slow_down,
    stage,
    until,
)

E = TypeVar("E", bound=ev.Event)


def events_of(process: Process, kind: type[E]) -> list[E]:
    return [event for event in process.member.events if isinstance(event, kind)]


# --- a calm pipeline -----------------------------------------------------------------------------------------


def test_every_member_emits_each_decision_of_the_journal_once() -> None:
    world = running_world()
    checkpoint(world)
    checkpoint(world, RequestKind.SAVEPOINT, name="good")
    drain(world)
    name = leader_of(world).name
    wanted = [(b.epoch, b.checkpoint_id, b.flags, b.savepoint, name) for b in entries(world, r.Begun)]
    assert len(wanted) == 4
    for process in world.processes:
        begun_events = events_of(process, ev.EpochBegun)
        assert [(e.epoch, e.checkpoint_id, e.flags, e.savepoint, e.leader) for e in begun_events] == wanted
        assert [e.epoch for e in events_of(process, ev.EpochCommitted)] == [1, 2, 3, 4]
        assert len(events_of(process, ev.CaughtUp)) == 1
        assert isinstance(process.member.events[0], ev.CaughtUp)


def test_a_member_emits_the_steps_of_its_own_stages_and_sinks_in_order() -> None:
    world = running_world()
    checkpoint(world)
    rest(world)
    for process, name in ((of(world, "m0"), "a"), (of(world, "m1"), "b"), (of(world, "m2"), "c")):
        assert [(e.stage, e.epoch) for e in events_of(process, ev.StageCut)] == [(name, 1), (name, 2)]
        assert [e.epoch for e in events_of(process, ev.EpochCaptured)] == [1, 2]
        assert [e.stage for e in events_of(process, ev.StageStarted)] == [name]
        logged = events_of(process, ev.BatchLogged)
        assert [e.batch for e in logged] == list(range(len(logged)))
        assert logged[-1].batch == process.member.stages[name].log.state.last
        assert {e.stage for e in logged} == {name}
        of_two = [e for e in process.member.events if getattr(e, "epoch", None) == 2]
        kinds = [type(e) for e in of_two if not isinstance(e, ev.ManifestWritten | ev.TablePublished)]
        assert kinds == [ev.EpochBegun, ev.AlignmentBegun, ev.StageCut, ev.EpochCaptured, ev.EpochCommitted]
        written = [e.epoch for e in events_of(process, ev.ManifestWritten)]
        assert written == ([1, 2] if process is leader_of(world) else [])
    published = [(e.sink, e.epoch) for p in world.processes for e in events_of(p, ev.TablePublished)]
    assert published == [("out", 1), ("out", 2)]


def test_a_cancelled_epoch_is_reported_as_aborted_and_a_refusal_with_its_reason() -> None:
    world = running_world()
    slow_down(world, "b")
    ask(world, RequestKind.CHECKPOINT)
    rest(world, 60)
    ask(world, RequestKind.CANCEL)
    rest(world, 200)
    for process in world.processes:
        assert events_of(process, ev.EpochAborted) == [ev.EpochAborted(2, "cancelled", "by request", False)]
    (refused,) = events_of(leader_of(world), ev.RequestsRefused)
    assert (len(refused.requests), refused.reason) == (1, "cancelled")
    ask(world, RequestKind.CANCEL)
    rest(world, 60)
    assert refusal(world) == "none is in flight"


def test_all_members_report_a_restore_and_its_table_goes_back_once() -> None:
    world = running_world()
    checkpoint(world)
    ask(world, RequestKind.RESTORE, epoch=1)
    until(world, lambda: world.oracle.ledger.generation == 2 and world.oracle.all_settled())
    rest(world, 500)
    for process in world.processes:
        assert events_of(process, ev.PipelineRestored) == [ev.PipelineRestored(1, 2)]
        assert [e.generation for e in events_of(process, ev.StageStarted)] == [1, 2]
    rewound = [(e.sink, e.epoch) for p in world.processes for e in events_of(p, ev.TableRewound)]
    assert rewound == [("out", 1)]


def test_all_members_report_a_new_leader_and_open_epochs_are_void() -> None:
    world = running_world()
    old = leader_of(world)
    slow_down(world, "b", 4_000)
    ask(world, RequestKind.CHECKPOINT)
    rest(world, 60)
    world.stop(old)
    until(world, lambda: world.oracle.ledger.term == 2)
    rest(world, 500)
    new = leader_of(world).name
    for process in world.processes:
        assert events_of(process, ev.LeaderChanged)[-1] == ev.LeaderChanged(2, new)
        assert [(e.epoch, e.reason, e.is_void) for e in events_of(process, ev.EpochAborted)] == [
            (2, "leader_changed", True)
        ]
    assert not [e for p in world.processes for e in events_of(p, ev.LeadershipLost)]


def test_decisions_from_before_a_member_caught_up_are_not_reported() -> None:
    world = running_world()
    checkpoint(world)
    restart_all(world)
    until(world, lambda: world.oracle.epochs == 3)
    rest(world)
    for process in world.processes:
        assert [e.epoch for e in events_of(process, ev.EpochBegun)] == [3]
        assert [e.epoch for e in events_of(process, ev.EpochCommitted)] == [3]


def test_each_lost_query_is_reported_and_then_that_its_stage_is_given_up() -> None:
    world = running_world(pipeline(stage("a", member="m0")))
    (process,) = world.processes
    restarts = process.member.config.restarts
    for attempt in range(1, restarts + 1):
        after_ms = process.member.query_ended(
            "a", QueryEnd.STOPPED if attempt == 1 else QueryEnd.FAILED, "lost"
        )
        assert events_of(process, ev.StageFailed)[-1] == ev.StageFailed(
            "a", "lost", attempt == 1, attempt, restarts, after_ms or 0
        )
    assert events_of(process, ev.StageGivenUp) == []
    assert lose_query(process, "a") is None
    assert events_of(process, ev.StageGivenUp) == [ev.StageGivenUp("a", "lost", restarts + 1)]
    assert len(events_of(process, ev.StageFailed)) == restarts


# --- a journal -----------------------------------------------------------------------------------------------


def test_an_entry_that_is_void_makes_nothing_happen() -> None:
    events: list[ev.Event] = []
    state = r.JournalState()
    bodies: list[r.JournalBody] = [r.Leader(2, "b"), r.Leader(1, "a"), begun(1, 3), committed(1, 3)]
    for index, body in enumerate(bodies, 1):
        apply(state, body, index, events.append)
    assert events == [ev.LeaderChanged(2, "b")]


def test_a_jump_emits_the_outcome_of_open_epochs_and_the_epochs_that_are_open_now() -> None:
    author, reader = Journal(), Journal()
    bodies: list[r.JournalBody] = [
        r.Leader(1, "a"), begun(1, 2), begun(2, 3), begun(3, 4), committed(1, 2),
        r.Aborted(1, 1, 2, 3, "deadline", "slow"), begun(4, 7), r.Leader(2, "b"),
        r.Begun(2, 1, 5, 9, 0, "h"),
    ]  # fmt: skip
    for number, body in enumerate(bodies):
        author.view.push(author.view.seal(body, str(number)))
        if number < 4:
            reader.view.push(author.view.entries[-1])
    events: list[ev.Event] = []
    reader.observe = events.append
    reader.view.jump(author.view.seal(r.Snapshot(2, 1, author.state), "s", snapshot=True))
    assert events == [
        ev.EpochCommitted(1, None),
        ev.EpochAborted(2, "deadline", "slow", False),
        ev.EpochAborted(3, "leader_changed", "b leads in term 2", False),
        ev.LeaderChanged(2, "b"),
        ev.EpochBegun(5, 9, 0, None, "b"),
    ]


# --- any schedule --------------------------------------------------------------------------------------------


def check_once(events: list[ev.Event]) -> None:
    """Nothing happens twice in one process, and an epoch only ends after it has begun."""
    generation: dict[str, int] = {}
    seen: Counter[tuple[object, ...]] = Counter()
    opened: set[int] = set()
    for event in events:
        match event:
            case ev.CaughtUp():
                seen["caught up",] += 1
            case ev.LeaderChanged():
                seen["leader", event.term] += 1
            case ev.EpochBegun():
                opened.add(event.epoch)
                seen["begun", event.epoch] += 1
            case ev.EpochCommitted() | ev.EpochAborted():
                assert event.epoch in opened, event
                seen["decided", event.epoch] += 1
            case ev.PipelineRestored():
                seen["restored", event.generation] += 1
            case ev.StageStarted():
                generation[event.stage] = event.generation
                seen["started", event.stage, event.generation, event.incarnation] += 1
            case ev.BatchLogged():
                seen["batch", event.stage, generation[event.stage], event.batch] += 1
            case ev.StageCut():
                assert event.epoch in opened, event
                seen["cut", event.stage, event.epoch] += 1
            case ev.EpochCaptured():
                seen["captured", event.epoch] += 1
            case ev.TablePublished():
                seen["published", event.sink, event.epoch] += 1
            case _:
                pass
    assert {what: count for what, count in seen.items() if count > 1} == {}


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 12))])
def test_nothing_happens_twice_in_any_schedule(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    members: list[Member] = []
    usual = Member.__init__

    def remembered(self: Member, *args: object) -> None:
        usual(self, *args)  # type: ignore[arg-type]
        members.append(self)

    monkeypatch.setattr(Member, "__init__", remembered)
    assert World(seed).run().violation is None
    kinds = {type(event) for member in members for event in member.events}
    assert {ev.EpochBegun, ev.EpochCommitted, ev.StageCut, ev.BatchLogged} <= kinds
    for member in members:
        check_once(member.events)
