"""Steering without a member: requests are validated after taking the lead, and answered with what is in effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.log import append
from cutwater.protocol.base.wire import Reply, Request, RequestKind
from cutwater.protocol.leader import restore_tables, steering
from cutwater.protocol.member.journal import KEPT_ANSWERS, Journal
from cutwater.store.at_rest import MAX_RETRIES, carry_out, drive, read_journal
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.builders import pipeline, stage
from tests.support.live_leader import LiveLeader

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
    """Calls `act` right before a command takes the lead."""
    real, done = append, list[bool]()

    def append_late(view: object, sealed: object) -> object:
        if not done:
            done.append(True)
            act()
        return real(view, sealed)  # type: ignore[arg-type]

    monkeypatch.setattr(steering, "append", append_late)


def published(store: LocalStore, leader: LiveLeader, epoch: int, sink: str = "t") -> None:
    index = leader.state.committed[epoch].index
    store.create(paths.mark_name(index, sink), r.encode(r.Published(epoch, sink, index, 1)))


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


def test_a_name_that_is_taken_meanwhile_is_not_taken_away(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    leader.commit(1)
    meanwhile(monkeypatch, lambda: leader.write(r.Savepoint(leader.term, 1, "gold", 2)))
    reply = ask(store, RequestKind.SAVEPOINT, name="gold", epoch=1)
    assert (reply.ok, reply.reason) == (False, FailureReason.NAME_TAKEN.value)
    assert read_journal(store).state.savepoints == {"gold": 2}


def test_a_savepoint_name_that_now_means_another_epoch_is_not_restored(store: LocalStore) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0, savepoint="gold")
    leader.commit(1)
    reply = ask(store, RequestKind.RESTORE, name="gold", epoch=2)
    assert reply.detail == "'gold' is no longer the savepoint of epoch 2"


def test_a_restore_with_a_changed_graph_is_one_entry(store: LocalStore) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    before = read_journal(store).index
    assert ask(store, RequestKind.RESTORE, epoch=1, topology=MORE).ok
    journal = read_journal(store)
    kinds = [type(e.entry.body) for e in journal.view.entries if e.entry.index > before]
    assert kinds == [r.Leader, r.Restored]
    assert (journal.state.topology, journal.state.generation) == (MORE, 2)


def test_two_members_that_join_at_once_do_not_undo_each_other(
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
def test_unknown_stages_are_neither_dropped_nor_reset(option: dict[str, object], store: LocalStore) -> None:
    LiveLeader(store, ONE).commit(0)
    reply = ask(store, RequestKind.RESTORE, epoch=1, **option)
    assert reply.reason == FailureReason.NO_SUCH_STAGE.value


def test_a_renamed_stage_whose_table_has_its_old_name_is_dropped_by_that_name(store: LocalStore) -> None:
    old = r.Topology({"totals": r.StageSpec("totals", (), "main", (r.SinkSpec("totals"),))})
    new = r.Topology({"sums": r.StageSpec("sums", (), "main", (r.SinkSpec("totals"),))})
    LiveLeader(store, old).commit(0)
    assert ask(store, RequestKind.RESTORE, epoch=1, topology=new, request_id="a").reason == "stage_gone"
    assert ask(store, RequestKind.RESTORE, epoch=1, topology=new, drop=("totals",), request_id="b").ok


def test_a_stage_with_a_reader_is_not_dropped_without_the_code(store: LocalStore) -> None:
    LiveLeader(store, MORE).commit(0)
    assert (
        "stage 'fresh' of member 'main' reads s"
        in ask(store, RequestKind.RESTORE, epoch=1, drop=("s",)).detail
    )
    assert ask(store, RequestKind.RESTORE, epoch=1, drop=("fresh",)).ok
    assert read_journal(store).state.topology == ONE


def test_an_epoch_cannot_be_restored_if_a_sink_was_dropped_before_publishing_it(
    store: LocalStore,
) -> None:
    leader = LiveLeader(store, MORE)
    leader.commit(0)
    assert ask(store, RequestKind.RESTORE, epoch=1, drop=("fresh",), request_id="a").ok
    again = Request(RequestKind.RESTORE, "b", epoch=1, topology=MORE)
    assert carry_out(store, read_journal(store), again, lambda *_: 0).reason == "not_published"
    published(store, leader, 1, "u")
    assert carry_out(store, read_journal(store), again, lambda *_: 0).ok


def test_rows_in_flight_are_not_read_with_different_columns(store: LocalStore) -> None:
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


def test_rows_in_flight_are_compared_with_the_columns_that_they_were_written_with(store: LocalStore) -> None:
    """Not with those of the current graph, which may have changed since."""
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


@pytest.mark.parametrize("how", ["dropped", "renamed", "reads another stage"])
def test_rows_in_flight_to_a_stage_that_would_not_read_them_are_not_lost(how: str, store: LocalStore) -> None:
    LiveLeader(store, MORE).commit(1, in_flight=(r.InFlight("s", "fresh", 0, 1, {1: ("f",)}, {}),))
    s, fresh = MORE.stages["s"], MORE.stages["fresh"]
    other = r.StageSpec("other", ("s",), "main", ())
    new: dict[str, Any] = {
        "dropped": {"topology": ONE, "drop": ("fresh",)},
        "renamed": {"topology": r.Topology({"s": s, "other": other}), "drop": ("fresh",)},
        "reads another stage": {
            "topology": r.Topology(
                {"s": s, "other": other, "fresh": r.StageSpec("fresh", ("other",), "main", fresh.sinks)}
            ),
            "reset": ("fresh",),
        },
    }[how]
    reply = ask(store, RequestKind.RESTORE, epoch=1, **new, request_id="a")
    assert reply.reason == "rows_in_flight"
    assert "rows in flight from 's' to 'fresh'" in reply.detail
    assert read_journal(store).state.generation == 1
    assert ask(store, RequestKind.RESTORE, epoch=1, **new, force=True, request_id="b").ok
    if how == "dropped":
        again = ask(store, RequestKind.RESTORE, epoch=1, topology=ONE, request_id="c")
        assert again.ok, "they are given up already"


def test_renaming_a_sink_does_not_lose_rows_that_it_holds_back(store: LocalStore) -> None:
    final = r.Topology({"s": r.StageSpec("s", (), "main", (r.SinkSpec("t", True),))})
    renamed = r.Topology({"s": r.StageSpec("s", (), "main", (r.SinkSpec("u", True),))})
    LiveLeader(store, final).commit(0, held={"t": (r.StagedFile("f", 9),)})
    reply = ask(store, RequestKind.RESTORE, epoch=1, topology=renamed, request_id="a")
    assert reply.reason == FailureReason.SINK_GONE.value
    assert ask(store, RequestKind.RESTORE, epoch=1, topology=renamed, drop=("t",), request_id="b").ok


def test_a_table_that_cannot_be_rewound_refuses_the_restore(store: LocalStore) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    request = Request(RequestKind.RESTORE, "r", epoch=1)
    reply = carry_out(store, read_journal(store), request, lambda sink, transaction: None)
    assert reply.reason == FailureReason.TABLE_HISTORY_GONE.value
    advice = FailureReason.TABLE_HISTORY_GONE.advice
    assert all(way in advice for way in ("Bring back", "newer checkpoint, if there is one", "`--drop SINK`"))
    assert read_journal(store).state.generation == 1


def test_a_table_that_does_not_answer_refuses_the_restore(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    LiveLeader(store, ONE).commit(0)
    asked = []

    def find(sink: str, transaction: int) -> int | None:
        asked.append(sink)
        raise OSError("out of reach")

    request = Request(RequestKind.RESTORE, "r", epoch=1)
    assert carry_out(store, read_journal(store), request, find).reason == "table_unavailable"
    assert asked == ["t"] * restore_tables.TABLE_TRIES


def test_changes_by_others_to_a_table_are_not_undone_unless_forced(store: LocalStore) -> None:
    """The table is asked before the restore is written: afterwards the pipeline could neither continue nor go back."""
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    published(store, leader, 1)

    def history(sink: str, transaction: int) -> fx.TableHistory:
        return fx.TableHistory(min(transaction, leader.state.committed[1].index), 1, ("version 7 (WRITE)",))

    for force in (False, True):
        request = Request(RequestKind.RESTORE, f"r{force}", epoch=1, force=force)
        reply = carry_out(store, read_journal(store), request, lambda *_: 0, history)
        assert (reply.ok, read_journal(store).state.generation) == (force, 1 + force)
        assert force or (reply.reason, "version 7 (WRITE)" in reply.detail) == ("table_changed", True)


def test_changes_by_others_before_an_epoch_is_published_are_kept(store: LocalStore) -> None:
    """The sink first publishes the epoch on top of it, and is rewound to that."""
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    published(store, leader, 1)
    before = leader.state.committed[1].index
    leader.commit(1, {"t": ("f",)})
    others = ("version 7 (WRITE)",)
    request = Request(RequestKind.RESTORE, "r", epoch=2)
    there = fx.TableHistory(leader.state.committed[2].index, 1, others)
    assert carry_out(store, read_journal(store), request, lambda *_: 0, lambda *_: there).reason == (
        "table_changed"
    )
    not_yet = fx.TableHistory(before, 1, others)
    assert carry_out(store, read_journal(store), request, lambda *_: 0, lambda *_: not_yet).ok


def test_a_table_that_lost_the_marked_version_refuses_the_restore(
    store: LocalStore,
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    index = leader.state.committed[1].index
    store.create(paths.mark_name(index, "t"), r.seal(r.Published(1, "t", index, 1, index, 1)))
    request = Request(RequestKind.RESTORE, "r", epoch=1, force=True)
    reply = carry_out(store, read_journal(store), request, lambda *_: 0, lambda *_: fx.TableHistory(0))
    assert (reply.reason, "overwritten" in reply.detail) == ("table_history_gone", True)


def test_a_sink_that_is_newer_than_the_checkpoint_is_checked_too(store: LocalStore) -> None:
    """It is rewound too: to before its first row."""
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    assert ask(store, RequestKind.RESTORE, epoch=1, topology=MORE, request_id="a").ok
    request = Request(RequestKind.RESTORE, "b", epoch=1)
    reply = carry_out(store, read_journal(store), request, lambda sink, _: None if sink == "u" else 0)
    assert (reply.reason, "sink 'u'" in reply.detail) == ("table_history_gone", True)
    assert read_journal(store).state.generation == 2


def test_slow_tables_do_not_cost_a_command_the_lead(store: LocalStore) -> None:
    """The previous leader takes over again soon, so nothing slow is asked during the command's term."""
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    terms = []

    def slow(sink: str, transaction: int) -> int:
        state = read_journal(store).state
        terms.append(state.term)
        if state.term != leader.term:
            leader.campaign()
        return 0

    request = Request(RequestKind.RESTORE, "r", epoch=1)
    assert carry_out(store, read_journal(store), request, slow).ok
    assert terms == [leader.term]


def test_a_request_is_carried_out_once_however_often_it_is_received(store: LocalStore) -> None:
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


def test_a_command_does_not_restart_a_drained_pipeline(store: LocalStore) -> None:
    leader = LiveLeader(store, ONE)
    place = leader.journal.index + 1
    leader.write(r.Begun(leader.term, 1, 1, place, 2, leader.state.topology_hash))
    leader.write(r.Committed(leader.term, 1, 1, place, "h", None, {"s": 0}))
    drained = read_journal(store).state.drained
    assert ask(store, RequestKind.SAVEPOINT, name="end", epoch=1).ok
    assert (drained, read_journal(store).state.drained) == (True, True)


@pytest.mark.slow
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
    assert now.index == before + 2 * steering.LEAD_TRIES, "it wrote after its term was over"


def test_a_command_that_crashes_between_its_two_entries_changes_nothing(store: LocalStore) -> None:
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
    while entries < 2:  # the second Create is RESTORED: it crashes before that
        effect = procedure.send(answer)
        entries += isinstance(effect, fx.Create)
        if entries < 2:
            answer = 0 if isinstance(effect, fx.FindTableVersion) else drive(store, _one(effect))
    after = read_journal(store).state
    assert (after.generation, after.topology, after.committed) == (1, ONE, before.committed)
    assert after.term == before.term + 1


def _one(effect: fx.Effect) -> fx.Procedure[object]:
    return (yield effect)


ROOT = r.StageSpec("root", (), "main", (r.SinkSpec("u"),))
MIXED = r.StageSpec("root", ("s",), "main", (r.SinkSpec("u"),))


def back(
    store: LocalStore, spec: r.StageSpec, versions: dict[int, int] | None = None, **more: object
) -> Reply:
    """Adds a stage that the only checkpoint does not have. `versions`: those of its table, by transaction."""

    def find(sink: str, transaction: int) -> int:
        known = versions or {} if sink == "u" else {}
        return max((version for index, version in known.items() if index <= transaction), default=-1)

    graph = r.Topology({**ONE.stages, "root": spec})
    request = Request(RequestKind.RESTORE, "r1", None, 1, topology=graph, **more)  # type: ignore[arg-type]
    return carry_out(store, read_journal(store), request, find)


@pytest.mark.parametrize(("spec", "native"), [(ROOT, ()), (MIXED, ("root",))])
def test_a_stage_cannot_return_if_its_table_already_has_rows_of_its_source(
    store: LocalStore, spec: r.StageSpec, native: tuple[str, ...]
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    store.create(paths.mark_name(1, "u"), r.seal(r.Published(1, "u", 1, 0)))
    reply = back(store, spec, native=native)
    assert (reply.ok, reply.reason) == (False, FailureReason.NO_POSITIONS.value)
    assert "sink 'u' already has rows of it" in reply.detail
    assert read_journal(store).state.generation == 1


def test_rows_in_the_table_are_enough_to_refuse_a_stage(store: LocalStore) -> None:
    """The process that published them crashed before it wrote the mark."""
    LiveLeader(store, ONE).commit(0)
    assert back(store, ROOT, {1: 0}).reason == FailureReason.NO_POSITIONS.value


def test_a_sink_that_was_dropped_does_not_come_back(store: LocalStore) -> None:
    """Its table would lack the rows in between, and nobody could see where."""
    LiveLeader(store, ONE).commit(0)
    store.create(paths.mark_name(1, "u"), r.seal(r.Published(1, "u", 1, 0, 1, 2)))
    reply = back(store, MIXED)
    assert (reply.ok, reply.reason) == (False, FailureReason.SINK_RETURNS.value)
    assert "sink 'u' was dropped before epoch 1" in reply.detail
    assert read_journal(store).state.generation == 1
    assert back(store, MIXED, {1: 0}).reason == FailureReason.SINK_RETURNS.value, "without the mark"


def test_a_sink_that_was_dropped_before_it_published_does_not_come_back_to_publish(store: LocalStore) -> None:
    both = r.Topology({**ONE.stages, "root": MIXED})
    leader = LiveLeader(store, both)
    leader.commit(0, release={"u": ("staged",)})
    leader.topology = ONE
    leader.commit(1)
    request = Request(RequestKind.RESTORE, "r1", None, 2, topology=both)
    reply = carry_out(store, read_journal(store), request, lambda sink, transaction: -1)
    assert (reply.ok, reply.reason) == (False, FailureReason.SINK_RETURNS.value)
    assert "it would publish the rows of epoch 1, which were given up" in reply.detail


def test_a_sink_without_rows_may_have_marks_of_epochs_before_it(store: LocalStore) -> None:
    LiveLeader(store, ONE).commit(0)
    store.create(paths.mark_name(1, "u"), r.seal(r.Published(1, "u", 1, -1, 0)))
    assert back(store, MIXED).ok


def test_a_sink_that_was_added_after_the_checkpoint_goes_back_to_before_its_first_row(
    store: LocalStore,
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    later = leader.state.committed[1].index + 1
    store.create(paths.mark_name(later, "u"), r.seal(r.Published(2, "u", later, 0)))
    assert back(store, MIXED, {later: 0}).ok


def test_nothing_is_written_to_an_older_copy_of_the_store(store: LocalStore) -> None:
    """The journal would grow past the entry that the table has, with other contents, and its rows would come again."""
    LiveLeader(store, ONE).commit(0)
    journal = read_journal(store)
    ahead = fx.TableHistory(journal.index + 6, 1)
    request = Request(RequestKind.RESTORE, "r", epoch=1)
    for _ in range(3):
        reply = carry_out(store, read_journal(store), request, lambda *_: 0, lambda *_: ahead)
        assert (reply.ok, reply.reason) == (False, FailureReason.JOURNAL_BEHIND.value)
        assert f"ends at entry {journal.index}" in reply.detail
        assert read_journal(store).index == journal.index


def test_a_stage_newer_than_the_checkpoint_reads_its_source_again_when_its_table_is_rewound(
    store: LocalStore,
) -> None:
    leader = LiveLeader(store, ONE)
    leader.commit(0)
    later = leader.state.committed[1].index + 3
    store.create(paths.mark_name(later, "u"), r.seal(r.Published(2, "u", later, 0)))
    assert back(store, ROOT, {later: 0}).ok


@pytest.mark.parametrize("has_code", [True, False])
def test_a_stage_that_another_members_stage_reads_cannot_be_dropped(
    store: LocalStore, has_code: bool
) -> None:
    reader = r.StageSpec("y", ("s",), "b", (r.SinkSpec("u"),))
    other = r.StageSpec("z", (), "main", (r.SinkSpec("v"),))
    leader = LiveLeader(store, r.Topology({**ONE.stages, "y": reader, "z": other}))
    leader.commit(0)
    published(store, leader, 1)
    published(store, leader, 1, "u")
    graph = r.Topology({"y": reader, "z": other}) if has_code else None
    reply = ask(store, RequestKind.RESTORE, epoch=1, drop=("s",), topology=graph)
    assert (reply.ok, reply.reason) == (False, FailureReason.STILL_READ.value)
    assert "stage 'y' of member 'b' reads s" in reply.detail
    assert read_journal(store).state.generation == 1
    # The advice works: drop both, and bring the reader back with changed code.
    assert ask(store, RequestKind.RESTORE, epoch=1, drop=("s", "y"), request_id="r2").ok
    back = r.Topology({"y": r.StageSpec("y", ("z",), "b", (r.SinkSpec("u"),)), "z": other})
    refused = ask(store, RequestKind.RESTORE, epoch=1, drop=("s",), topology=back, request_id="r3")
    assert refused.reason == FailureReason.INPUTS_CHANGED.value
    assert refused.detail.startswith("stage 'y' reads z, and read s at epoch 1. To start it there")
    again = ask(
        store, RequestKind.RESTORE, epoch=1, drop=("s",), reset=("y",), topology=back, request_id="r4"
    )
    assert again.ok


@pytest.mark.parametrize("is_known", [True, False])
def test_a_source_that_was_read_before_is_not_read_again_into_tables_that_have_its_rows(
    store: LocalStore, is_known: bool
) -> None:
    """A stage without a sink of its own was renamed: the table of its reader has the rows."""
    before = pipeline(stage("a"), stage("b", "a", sinks=[r.SinkSpec("t")]))
    leader = LiveLeader(store, before)
    leader.commit(0)
    published(store, leader, 1)
    renamed = pipeline(stage("a2"), stage("b", "a2", sinks=[r.SinkSpec("t")]))
    rereads = ("a2",) if is_known else ()
    reply = ask(
        store, RequestKind.RESTORE, epoch=1, drop=("a",), reset=("b",), topology=renamed, native=("a2",), rereads=rereads
    )  # fmt: skip
    assert reply.ok is not is_known
    if is_known:
        assert reply.reason == FailureReason.NO_POSITIONS.value
        assert "sink 't' already has rows of it" in reply.detail


@pytest.mark.parametrize("begins", [True, False])
def test_a_reset_stage_does_not_begin_to_read_what_its_table_got_through_a_channel(
    store: LocalStore, begins: bool
) -> None:
    """Two stages become one: the second reads the source of the first itself."""
    leader = LiveLeader(store, pipeline(stage("a"), stage("b", "a", sinks=[r.SinkSpec("t")])))
    leader.commit(0)
    published(store, leader, 1)
    merged = pipeline(stage("b", sinks=[r.SinkSpec("t")]))
    rereads = ("b",) if begins else ()
    reply = ask(
        store, RequestKind.RESTORE, epoch=1, drop=("a",), reset=("b",), topology=merged, native=("b",), rereads=rereads
    )  # fmt: skip
    assert reply.ok is not begins
    if begins:
        assert reply.reason == FailureReason.NO_POSITIONS.value
        assert "epoch 1 has no positions of stage 'b' in sources of its own" in reply.detail


@pytest.mark.parametrize("begins", [True, False])
def test_a_stage_without_a_batch_does_not_begin_to_read_what_its_table_has(
    store: LocalStore, begins: bool
) -> None:
    """It is in the checkpoint, and has no position there."""
    before = pipeline(stage("x"), stage("a"), stage("b", "x", "a", sinks=[r.SinkSpec("t")]))
    leader = LiveLeader(store, before)
    leader.commit(0)
    published(store, leader, 1)
    without = pipeline(stage("a"), stage("b", "a", sinks=[r.SinkSpec("t")]))
    rereads = ("a",) if begins else ()
    reply = ask(
        store, RequestKind.RESTORE, epoch=1, drop=("x",), reset=("b",), topology=without, native=("a",), rereads=rereads
    )  # fmt: skip
    assert reply.ok is not begins
    if begins:
        assert reply.reason == FailureReason.NO_POSITIONS.value
        assert "epoch 1 has no positions of stage 'a' in sources of its own" in reply.detail


def test_a_dropped_stage_need_not_be_named_again_for_the_same_checkpoint(store: LocalStore) -> None:
    leader = LiveLeader(store, MORE)
    leader.commit(0)
    leader.commit(1)
    for epoch in (1, 2):  # and nothing to u, whose rows are dropped with its stage
        published(store, leader, epoch)
    assert ask(store, RequestKind.RESTORE, epoch=2, request_id="a").ok
    assert ask(store, RequestKind.RESTORE, epoch=2, topology=ONE, request_id="b").reason == "stage_gone"
    assert ask(store, RequestKind.RESTORE, epoch=2, drop=("fresh",), request_id="c").ok
    assert ask(store, RequestKind.RESTORE, epoch=2, request_id="d").ok
    assert ask(store, RequestKind.RESTORE, epoch=2, topology=ONE, request_id="e").ok
    assert ask(store, RequestKind.RESTORE, epoch=1, request_id="f").reason == "stage_gone"


def test_a_command_gives_up_on_a_store_that_never_answers_but_not_on_a_slow_one(
    tmp_path: Path,
) -> None:
    class Failing(LocalStore):
        left = 0

        def read(self, name: str) -> bytes | None:
            self.left -= 1
            if self.left >= 0:
                raise OSError("the store does not answer")
            return b"x"

    def ask(times: int) -> fx.Procedure[list[bytes]]:
        found = []
        for _ in range(times):
            answer = yield fx.Read("a")
            if answer is not fx.FAILED:
                found.append(answer)
        return found

    store = Failing(tmp_path)
    store.left = MAX_RETRIES
    assert drive(store, ask(MAX_RETRIES + 1)) == [b"x"]
    store.left = MAX_RETRIES + 1
    with pytest.raises(StoreError, match="does not answer"):
        drive(store, ask(5 * MAX_RETRIES))
