"""Catching up: the behaviours of seed D, and compaction."""

from __future__ import annotations

import pytest

from cutwater.protocol.base.chain import GENESIS
from cutwater.protocol.base.errors import IllegalStep
from cutwater.protocol.replay import ReplayPhase, ReplaySession
from cutwater.protocol.replay.messages import (
    Action,
    Anchor,
    CatchUpProgress,
    Fetch,
    FetchFromStore,
    ReplayDone,
    ReplayFailed,
)
from tests.support.replay_world import (
    CODEC,
    CONFIG,
    FORGED,
    LOG,
    World,
    anchor,
    begin,
    data,
    extend,
    indexes,
    only,
    serve,
    world,
)


def test_a_gap_is_fetched_from_many_peers_at_once_in_disjoint_chunks_one_in_flight_each() -> None:
    _, actions = begin("a", "b", "c")
    fetches = only(Fetch, actions)
    assert [(f.peer, f.first, f.last) for f in fetches] == [("a", 1, 10), ("b", 11, 20), ("c", 21, 30)]


def test_the_leader_is_asked_last() -> None:
    session, actions = begin("a", "b", "c", target=anchor(LOG, 10), leader="a")
    serve(session, only(Fetch, actions)[0])
    fetches = only(Fetch, session.retarget(anchor(LOG, 40), 0))
    assert [(f.peer, f.first) for f in fetches] == [("b", 11), ("c", 21), ("a", 31)]


def test_chunks_that_arrive_out_of_order_are_delivered_once_in_order() -> None:
    session, actions = begin("a", "b", "c", held=LOG[:30])
    a, b, c = only(Fetch, actions)
    assert indexes(serve(session, c)) == []
    assert indexes(serve(session, a)) == []
    actions = serve(session, b)
    assert indexes(actions) == list(range(1, 31))
    assert only(ReplayDone, actions) == [ReplayDone(30)]
    assert session.phase is ReplayPhase.DONE


def test_live_entries_are_buffered_and_delivered_at_the_end_if_the_store_has_them() -> None:
    session, actions = begin("a", held=LOG[:10])
    assert session.on_live(data(LOG, 11, 12), 0) == []
    assert session.on_live(data(LOG, 13, 13), 0) == []
    actions = serve(session, only(Fetch, actions)[0])
    assert only(ReplayDone, actions) == [ReplayDone(10)]
    actions = session.retarget(anchor(LOG, 13), 0)
    assert indexes(actions) == [11, 12, 13]
    assert only(ReplayDone, actions) == [ReplayDone(13)]


def test_live_entries_are_kept_also_while_the_new_target_is_looked_up() -> None:
    session, actions = begin("a", held=LOG[:10])
    serve(session, only(Fetch, actions)[0])
    assert session.on_live(data(LOG, 11, 11), 0) == []
    assert indexes(session.retarget(anchor(LOG, 11), 0)) == [11]


def test_live_entries_that_the_store_does_not_have_are_not_delivered() -> None:
    session, actions = begin("a", held=LOG[:10])
    session.on_live(data(FORGED, 11, 12), 0)
    actions = serve(session, only(Fetch, actions)[0])
    assert indexes(actions) == list(range(1, 11))
    assert only(ReplayDone, actions) == [ReplayDone(10)]


def test_forged_live_entries_are_replaced_by_the_journals() -> None:
    session, actions = begin("a", held=LOG[:10])
    session.on_live([*data(FORGED, 11, 12), b"nonsense"], 0)
    serve(session, only(Fetch, actions)[0])
    actions = session.retarget(anchor(LOG, 12), 0)
    assert indexes(actions) == []
    around = World(session, LOG)
    around.peers, around.held = {"a": "honest"}, {"a": 100}
    around.perform(actions)
    around.run()
    assert around.delivered == LOG[10:12]


def test_it_ends_with_the_leaders_log_although_peers_join_leave_answer_late_and_answer_partially() -> None:
    w = world(a="honest", b="late", c="short")

    def swap() -> list[Action]:
        w.leave("a")
        w.join("d")
        return []

    w.at(30, swap)
    w.run()
    assert w.delivered == LOG


def test_a_peer_that_leaves_frees_its_range_for_the_others_at_once() -> None:
    session, actions = begin("a", "b", held=LOG[:20])
    a, b = only(Fetch, actions)
    serve(session, b)
    [again] = only(Fetch, session.peer_left("a", 0))
    assert (again.peer, again.first, again.last) == ("b", a.first, a.last)


def test_the_store_serves_when_there_is_no_peer() -> None:
    w = world()
    w.run()
    assert w.delivered == LOG
    assert w.ends == [ReplayDone(100)]


def test_only_the_missing_part_is_fetched_and_delivered() -> None:
    w = world(own=95, a="honest")
    w.run()
    assert w.delivered == LOG[95:]


def test_a_member_that_has_everything_is_done_at_once() -> None:
    assert ReplaySession(CODEC, LOG[-1], anchor(LOG)).tick(0) == [ReplayDone(100)]
    assert ReplaySession(CODEC, None, Anchor(0, GENESIS)).tick(0) == [ReplayDone(0)]


def test_progress_is_reported() -> None:
    session, actions = begin("a", "b", "c", held=LOG[:40])
    for fetch in only(Fetch, actions):
        actions += serve(session, fetch)
    assert session.progress() == CatchUpProgress(0, 40, 3, 0)
    assert str(CatchUpProgress(212_000, 517_000, 3, 1)) == "catching up 41 % · 212,000 of 517,000 · 3 peers"
    assert str(CatchUpProgress(0, 0, 1, 0)) == "catching up 100 % · 0 of 0 · 1 peer"


def test_a_completed_session_continues_when_the_target_moves() -> None:
    session, actions = begin("a", held=LOG[:10])
    serve(session, only(Fetch, actions)[0])
    assert session.phase is ReplayPhase.DONE
    w = World(session, LOG)
    w.peers, w.held = {"a": "honest"}, {"a": 100}
    w.perform(session.retarget(anchor(LOG, 50), 0))
    w.run()
    assert w.delivered == LOG[10:50]


def test_a_failed_session_cannot_be_retargeted_and_does_not_change() -> None:
    session = ReplaySession(CODEC, FORGED[9], anchor(LOG, 10))
    [failed] = only(ReplayFailed, session.tick(0))
    assert "not the journal's" in str(failed.error)
    with pytest.raises(IllegalStep):
        session.retarget(anchor(LOG), 0)
    assert session.phase is ReplayPhase.FAILED
    assert session.target.index == 10
    assert session.tick(1) == []


def test_the_same_seed_gives_the_same_run() -> None:
    def trace() -> list[str]:
        w = world(seed=5, a="honest", b="liar", c="late", d="forging")
        w.loss = 0.2
        w.run()
        return w.trace

    assert trace() == trace()


COMPACTED = extend(extend([], 59), 41, snapshot=60)


def test_a_compacted_prefix_is_replaced_by_the_snapshot() -> None:
    w = world(COMPACTED, own=5)
    w.store_first = 60
    w.run()
    assert w.delivered == COMPACTED[59:]
    assert w.ends == [ReplayDone(100)]


def test_peers_that_still_have_a_compacted_prefix_serve_it() -> None:
    w = world(extend(extend([], 5), 7, snapshot=9), a="honest")
    w.store_first = 9
    w.run()
    assert w.delivered == w.log


def test_a_peers_compaction_does_not_cause_a_jump_to_a_snapshot() -> None:
    session, actions = begin("a")
    [fetch] = only(Fetch, actions)
    actions = session.on_compacted("a", fetch.request_id, 60, 0)
    assert [(f.first, f.last) for f in only(FetchFromStore, actions)] == [(1, 10)]
    later = session.tick(60)
    assert [(f.first, f.last) for f in only(Fetch, later)] == [(60, 69)]


def test_an_entry_that_is_not_a_snapshot_is_never_jumped_to() -> None:
    session = ReplaySession(CODEC, None, anchor(LOG), config=CONFIG)
    [fetch] = only(FetchFromStore, session.tick(0))
    assert session.on_snapshot(fetch.request_id, LOG[59].data, 0) == []
    assert session.progress().done == 0


def test_a_snapshot_beyond_the_target_becomes_the_target() -> None:
    session = ReplaySession(CODEC, None, anchor(COMPACTED, 50), config=CONFIG)
    [fetch] = only(FetchFromStore, session.tick(0))
    actions = session.on_snapshot(fetch.request_id, COMPACTED[59].data, 0)
    assert indexes(actions) == [60]
    assert only(ReplayDone, actions) == [ReplayDone(60)]
