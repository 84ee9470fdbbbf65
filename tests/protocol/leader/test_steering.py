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
from tests.support.live_leader import LiveLeader
from tests.support.steering_helpers import MORE, ONE, ask, new_store, published


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return new_store(tmp_path)


def meanwhile(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Calls `act` right before a command takes the lead."""
    real, done = append, list[bool]()

    def append_late(view: object, sealed: object) -> object:
        if not done:
            done.append(True)
            act()
        return real(view, sealed)  # type: ignore[arg-type]

    monkeypatch.setattr(steering, "append", append_late)


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
