"""Steering the journal without a member: validated after the lead is taken, answered by what is in effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cutwater.offline import carry_out, drive, read_journal
from cutwater.protocol import effects as fx
from cutwater.protocol import records as r
from cutwater.protocol import steering
from cutwater.protocol.errors import UserError
from cutwater.protocol.failures import FailureReason
from cutwater.protocol.journal import KEPT_ANSWERS, Journal
from cutwater.protocol.log import append
from cutwater.protocol.wire import Reply, Request, RequestKind
from cutwater.restoring import check_topology, differences
from cutwater.stores import LocalStore, open_store
from tests.builders import pipeline, stage
from tests.live_leader import LiveLeader

ONE = r.Topology({"s": r.StageSpec("s", (), "main", (r.SinkSpec("t"),))})
MORE = r.Topology({**ONE.stages, "fresh": r.StageSpec("fresh", ("s",), "main", (r.SinkSpec("u"),))})


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    found = open_store(str(tmp_path / "store"), create=True)
    assert isinstance(found, LocalStore)
    return found


def ask(store: LocalStore, kind: RequestKind, **what: object) -> Reply:
    request = Request(kind, str(what.pop("request_id", "r1")), **what)  # type: ignore[arg-type]
    return carry_out(store, read_journal(store), request, lambda sink, transaction: 0)


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Something that somebody else does right before a command takes the lead."""
    real, done = append, list[bool]()

    def append_late(view: object, sealed: object) -> object:
        if not done:
            done.append(True)
            act()
        return real(view, sealed)  # type: ignore[arg-type]

    monkeypatch.setattr(steering, "append", append_late)


def published(store: LocalStore, leader: LiveLeader, epoch: int, sink: str = "t") -> None:
    index = leader.state.committed[epoch].index
    store.create(r.mark_name(index, sink), r.encode(r.Published(epoch, sink, index, 1)))


def test_an_epoch_that_a_live_restore_abandons_is_not_restored(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    published(store, leader, 1)
    leader.commit(1)
    meanwhile(monkeypatch, lambda: leader.restore(1))
    reply = ask(store, RequestKind.RESTORE, epoch=2)
    assert (reply.ok, reply.reason) == (False, FailureReason.NOT_PUBLISHED.value)
    assert "before sink 't' had published it" in reply.detail
    assert read_journal(store).state.generation == 2


def test_a_checkpoint_that_expires_meanwhile_is_neither_named_nor_restored(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    leader.commit(1)
    meanwhile(monkeypatch, lambda: leader.expire(1))
    assert ask(store, RequestKind.SAVEPOINT, name="gold", epoch=1).reason == "no_such_checkpoint"
    assert ask(store, RequestKind.RESTORE, epoch=1).reason == "no_such_checkpoint"
    state = read_journal(store).state
    assert (state.savepoints, state.generation) == ({}, 1)


def test_a_name_that_somebody_takes_meanwhile_is_not_taken_away(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    leader.commit(1)
    meanwhile(monkeypatch, lambda: leader.write(r.Savepoint(leader.term, 1, "gold", 2)))
    reply = ask(store, RequestKind.SAVEPOINT, name="gold", epoch=1)
    assert (reply.ok, reply.reason) == (False, FailureReason.NAME_TAKEN.value)
    assert read_journal(store).state.savepoints == {"gold": 2}


def test_a_savepoints_name_that_means_another_epoch_by_now_is_not_restored(store: LocalStore) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0, savepoint="gold")
    leader.commit(1)
    reply = ask(store, RequestKind.RESTORE, name="gold", epoch=2)
    assert reply.detail == "'gold' is no longer the savepoint of epoch 2"


def test_a_restore_with_another_graph_is_one_entry(store: LocalStore) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    before = read_journal(store).index
    assert ask(store, RequestKind.RESTORE, epoch=1, topology=MORE).ok
    journal = read_journal(store)
    kinds = [type(e.entry.body) for e in journal.view.entries if e.entry.index > before]
    assert kinds == [r.Leader, r.Restored]
    assert (journal.state.topology, journal.state.generation) == (MORE, 2)


def test_two_that_join_at_once_do_not_undo_each_other(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    base = leader.state.topology_hash
    other = r.Topology({**ONE.stages, "mine": r.StageSpec("mine", ("s",), "b", (r.SinkSpec("v"),))})

    def join() -> None:
        monkeypatch.undo()
        assert ask(store, RequestKind.RESTORE, epoch=1, topology=MORE, base=base, request_id="a").ok

    meanwhile(monkeypatch, join)
    reply = ask(store, RequestKind.RESTORE, epoch=1, topology=other, base=base, request_id="b")
    assert reply.reason == FailureReason.GRAPH_CHANGED.value
    assert ask(store, RequestKind.RESTORE, epoch=1, topology=other, request_id="c").reason == "stage_gone"
    assert read_journal(store).state.topology == MORE


@pytest.mark.parametrize("option", [{"drop": ("x",)}, {"reset": ("x",)}, {"drop": ("s",), "topology": MORE}])
def test_stages_that_are_not_there_are_neither_dropped_nor_reset(
    option: dict[str, object], store: LocalStore
) -> None:
    LiveLeader(store, ONE).commit(0)
    reply = ask(store, RequestKind.RESTORE, epoch=1, **option)
    assert reply.reason == FailureReason.NO_SUCH_STAGE.value


def test_a_stage_that_another_reads_is_not_dropped_without_the_code(store: LocalStore) -> None:
    LiveLeader(store, MORE).commit(0)
    assert "fresh reads it" in ask(store, RequestKind.RESTORE, epoch=1, drop=("s",)).detail
    assert ask(store, RequestKind.RESTORE, epoch=1, drop=("fresh",)).ok
    assert read_journal(store).state.topology == ONE


def test_a_sink_that_was_dropped_before_it_had_published_an_epoch_does_not_come_back_to_it(
    store: LocalStore,
) -> None:
    leader = LiveLeader(store, MORE)
    leader.commit(0)
    assert ask(store, RequestKind.RESTORE, epoch=1, drop=("fresh",), request_id="a").ok
    again = Request(RequestKind.RESTORE, "b", epoch=1, topology=MORE)
    assert carry_out(store, read_journal(store), again, lambda *_: 0).reason == "not_published"
    published(store, leader, 1, "u")
    assert carry_out(store, read_journal(store), again, lambda *_: 0).ok


def test_rows_in_flight_are_not_read_with_other_columns(store: LocalStore) -> None:
    old = r.Topology(
        {n: r.StageSpec(n, s.inputs, s.member, s.sinks, "x long") for n, s in MORE.stages.items()}
    )
    new = r.Topology(
        {n: r.StageSpec(n, s.inputs, s.member, s.sinks, "y long") for n, s in MORE.stages.items()}
    )
    flight = r.InFlight("s", "fresh", 0, 1, {1: ("f",)}, {}, r.columns("x long"))
    LiveLeader(store, old).commit(1, in_flight=(flight,))
    assert ask(store, RequestKind.RESTORE, epoch=1, topology=new).reason == "rows_in_flight"
    assert ask(store, RequestKind.RESTORE, epoch=1, topology=old).ok


def test_rows_in_flight_are_held_against_the_columns_that_they_were_written_with(store: LocalStore) -> None:
    """Not against those of the graph in force, which may have changed since."""
    old = r.Topology(
        {n: r.StageSpec(n, s.inputs, s.member, s.sinks, "x long") for n, s in MORE.stages.items()}
    )
    new = r.Topology(
        {n: r.StageSpec(n, s.inputs, s.member, s.sinks, "y long") for n, s in MORE.stages.items()}
    )
    leader = LiveLeader(store, old)
    leader.commit(1, in_flight=(r.InFlight("s", "fresh", 0, 1, {1: ("f",)}, {}, r.columns("x long")),))
    leader.commit(1)
    assert ask(store, RequestKind.RESTORE, epoch=2, topology=new, request_id="a").ok
    assert ask(store, RequestKind.RESTORE, epoch=1, request_id="b").reason == "rows_in_flight"


def test_what_a_sink_holds_is_not_left_behind_by_a_new_name(store: LocalStore) -> None:
    final = r.Topology({"s": r.StageSpec("s", (), "main", (r.SinkSpec("t", True),))})
    renamed = r.Topology({"s": r.StageSpec("s", (), "main", (r.SinkSpec("u", True),))})
    LiveLeader(store, final).commit(0, held={"t": (r.StagedFile("f", 9),)})
    reply = ask(store, RequestKind.RESTORE, epoch=1, topology=renamed, request_id="a")
    assert reply.reason == FailureReason.SINK_GONE.value
    assert ask(store, RequestKind.RESTORE, epoch=1, topology=renamed, drop=("t",), request_id="b").ok


def test_a_table_that_cannot_go_back_refuses_the_restore(store: LocalStore) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    request = Request(RequestKind.RESTORE, "r", epoch=1)
    reply = carry_out(store, read_journal(store), request, lambda sink, transaction: None)
    assert reply.reason == FailureReason.TABLE_HISTORY_GONE.value
    assert read_journal(store).state.generation == 1


def test_a_table_that_does_not_answer_refuses_the_restore(store: LocalStore) -> None:
    LiveLeader(store, ONE).commit(0)
    asked = []

    def find(sink: str, transaction: int) -> int | None:
        asked.append(sink)
        raise OSError("out of reach")

    request = Request(RequestKind.RESTORE, "r", epoch=1)
    assert carry_out(store, read_journal(store), request, find).reason == "table_unavailable"
    assert asked == ["t"] * steering.TABLE_TRIES


def test_a_request_is_done_once_however_often_it_is_heard(store: LocalStore) -> None:
    LiveLeader(store, ONE).commit(0)
    for _ in range(3):
        assert ask(store, RequestKind.RESTORE, epoch=1) == Reply("r1", True, 1)
    assert read_journal(store).state.generation == 2
    assert ask(store, RequestKind.RESTORE, epoch=1, request_id="another").ok
    assert read_journal(store).state.generation == 3


def test_the_journal_remembers_a_bounded_number_of_requests(store: LocalStore) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    for number in range(KEPT_ANSWERS + 5):
        leader.write(r.Savepoint(leader.term, 1, f"n{number}", 1, True, f"r{number}"))
    assert list(leader.state.answers) == [f"r{n}" for n in range(5, KEPT_ANSWERS + 5)]


def test_a_command_does_not_set_a_drained_pipeline_going(store: LocalStore) -> None:
    leader = LiveLeader(store, ONE)
    place = leader.journal.index + 1
    leader.write(r.Begun(leader.term, 1, 1, place, 2, leader.state.topology_hash))
    leader.write(r.Committed(leader.term, 1, 1, place, "h", None, {"s": 0}))
    drained = read_journal(store).state.drained
    assert ask(store, RequestKind.SAVEPOINT, name="end", epoch=1).ok
    assert (drained, read_journal(store).state.drained) == (True, True)


def test_a_command_that_always_loses_the_lead_says_so(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    real = steering.steer

    def steer(writer: steering.Writer, request: Request) -> fx.Procedure[Reply | None]:
        leader.campaign()
        return (yield from real(writer, request))

    monkeypatch.setattr(steering, "steer", steer)
    before = read_journal(store).index
    reply = ask(store, RequestKind.RESTORE, epoch=1)
    assert (reply.ok, reply.reason) == (False, FailureReason.NOT_LEADER.value)
    now = read_journal(store)
    assert now.state.generation == 1
    assert now.index == before + 2 * steering.LEAD_TRIES, "it wrote something after its term was over"


def test_a_command_that_dies_between_its_two_entries_leaves_everything_as_it_was(store: LocalStore) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    before = read_journal(store).state
    procedure = steering.command(
        Journal(),
        "command-x",
        iter("abcdefgh").__next__,
        Request(RequestKind.RESTORE, "r", epoch=1, topology=MORE),
    )
    answer: object = None
    entries = 0
    while entries < 2:  # the second Create is RESTORED: the power fails before it
        effect = procedure.send(answer)
        entries += isinstance(effect, fx.Create)
        if entries < 2:
            answer = 0 if isinstance(effect, fx.FindTableVersion) else drive(store, _one(effect))
    after = read_journal(store).state
    assert (after.generation, after.topology, after.committed) == (1, ONE, before.committed)
    assert after.term == before.term + 1


def _one(effect: fx.Effect) -> fx.Procedure[object]:
    return (yield effect)


# --- another graph without a restore ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (pipeline(stage("s"), stage("t", "s"), stage("u", "s")), ["stage 'u' is new"]),
        (pipeline(stage("s")), ["stage 't' is gone"]),
        (pipeline(stage("s"), stage("t")), ["stage 't' reads [] and read ['s']"]),
        (
            pipeline(stage("s"), stage("t", "s", sinks=[r.SinkSpec("x")])),
            ["the sinks of stage 't' are ['x'], not []"],
        ),
        (pipeline(stage("s"), stage("t", "s", "m9")), ["stage 't' moved from member 'm0' to 'm9'"]),
        (
            pipeline(r.StageSpec("s", (), "m0", (), "{}"), stage("t", "s")),
            ["the columns that stage 's' gives to its readers differ"],
        ),
        (pipeline(stage("s"), stage("t", "s")), []),
    ],
)
def test_what_differs_between_two_graphs_is_told(now: r.Topology, said: list[str]) -> None:
    assert differences(pipeline(stage("s"), stage("t", "s")), now) == said


def test_a_store_of_another_graph_is_refused_with_what_differs(store: LocalStore) -> None:
    LiveLeader(store, ONE).commit(0)
    check_topology(store, ONE)
    with pytest.raises(UserError, match="is not the one in this code: stage 'new' is new; stage 's' is gone"):
        check_topology(store, pipeline(stage("new", member="main")))
