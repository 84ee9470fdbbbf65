"""Catching up: a test for each weakness of seed D."""

from __future__ import annotations

import dataclasses

import pytest

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.replay import ReplaySession
from cutwater.protocol.replay.messages import (
    Anchor,
    AnchorAt,
    Ask,
    Deliver,
    Fetch,
    FetchFromStore,
    ReplayDone,
    ReplayFailed,
)
from cutwater.protocol.replay.provider import Provider
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


def test_seed_d01_after_an_empty_answer_another_peer_is_asked() -> None:
    session, actions = begin("a", "b")
    a, b = only(Fetch, actions)
    assert only(Fetch, session.on_chunk("a", a.request_id, 1, [], 0)) == []
    assert [f.first for f in only(Fetch, serve(session, b))] == [1]
    w = world(a="empty", b="empty")
    w.run()
    assert w.delivered == LOG


def test_seed_d02_a_late_answer_after_a_timeout_is_dropped_and_stalls_nothing() -> None:
    session, actions = begin("a", "b", held=LOG[:20])
    a, b = only(Fetch, actions)
    serve(session, b, now_ms=90)
    [again] = only(Fetch, session.tick(100))
    assert (again.peer, again.first) == ("b", 1)
    before = session.buffered_bytes
    assert only(Deliver, serve(session, a, now_ms=101)) == []
    assert session.buffered_bytes == before
    actions = serve(session, again, now_ms=102)
    assert indexes(actions) == list(range(1, 21))
    w = world(a="late", b="late")
    w.run()
    assert w.delivered == LOG


def test_seed_d02_a_late_answer_is_not_mistaken_for_the_answer_to_the_next_request() -> None:
    session, actions = begin("a", "b", held=LOG[:20])
    late, _ = only(Fetch, actions)
    session.tick(100)
    [ask] = [a for a in only(Ask, session.tick(150)) if a.peer == "a"]
    [current] = only(Fetch, session.on_available("a", 1, 20, ask.request_id, 150))
    for entries in (data(LOG, 1, 10), []):
        session.on_chunk("a", late.request_id, late.first, entries, 151)
        session.on_available("a", 1, 20, late.request_id, 151)
    assert session.sources.peers["a"].failures == 1
    assert session.buffered_bytes == 0
    serve(session, current, now_ms=152)
    assert session.buffered_bytes + session.progress().bytes > 0


def test_seed_d03_a_short_answer_is_followed_by_a_fetch_of_exactly_the_rest() -> None:
    session, actions = begin("a", "b", held=LOG[:20])
    a, _ = only(Fetch, actions)
    [rest] = only(Fetch, session.on_chunk("a", a.request_id, 1, data(LOG, 1, 4), 0))
    assert (rest.peer, rest.first, rest.last) == ("a", 5, 10)
    w = world(a="short", b="short")
    w.run()
    assert w.delivered == LOG


def test_seed_d04_availability_is_asked_again_when_the_target_moves_and_as_time_passes() -> None:
    session, actions = begin("a", held=LOG[:10])
    [fetch] = only(Fetch, actions)
    session.retarget(anchor(LOG, 30), 0)
    actions = serve(session, fetch)
    [ask] = only(Ask, actions)
    actions = session.on_available("a", 1, 15, ask.request_id, 0)
    [fetch] = only(Fetch, actions)
    assert (fetch.first, fetch.last) == (11, 15)
    actions = serve(session, fetch)
    assert only(Ask, actions) == []
    assert [a.peer for a in only(Ask, session.tick(CONFIG.ask_again_ms))] == ["a"]


@pytest.mark.parametrize(
    ("first", "entries"),
    [
        (2, data(LOG, 2, 11)),
        (1, data(LOG, 2, 11)),
        (1, data(LOG, 1, 11)),
        (1, [*data(LOG, 1, 3), *data(LOG, 5, 8)]),
        (1, [*data(LOG, 1, 4), *data(FORGED, 5, 8)]),
        (1, [b"\xff"]),
        (1, [b'{"index":1,"prev":"\xff","snapshot":0,"nonce":"","body":{}}']),
        (1, [b'{"index":1,"prev":"","snapshot":0,"nonce":"","body":' + b'{"a":' * 5_000]),
        (-5, data(LOG, 1, 2)),
    ],
)
def test_seed_d05_a_claimed_range_that_does_not_match_is_refused_and_scored(
    first: int, entries: list[bytes]
) -> None:
    session, actions = begin("a", "b")
    a, b = only(Fetch, actions)
    session.on_chunk("a", a.request_id, first, entries, 0)
    assert session.buffered_bytes == 0
    assert session.sources.peers["a"].failures == 1
    assert [(f.peer, f.first) for f in only(Fetch, serve(session, b))] == [("b", 1)]


def test_seed_d06_a_gap_in_the_live_entries_is_fetched() -> None:
    session, actions = begin("a", held=LOG[:10])
    session.on_live([*data(LOG, 12, 13), *data(LOG, 16, 20)], 0)
    session.retarget(anchor(LOG, 20), 0)
    actions = serve(session, only(Fetch, actions)[0])
    [ask] = only(Ask, actions)
    fetched = []
    actions = session.on_available("a", 1, 20, ask.request_id, 0)
    delivered: list[int] = []
    while fetches := only(Fetch, actions):
        fetched += [(f.first, f.last) for f in fetches]
        actions = serve(session, fetches[0])
        delivered += indexes(actions)
    assert fetched == [(11, 11), (14, 15)]
    assert delivered[-1] == 20
    assert only(ReplayDone, actions) == [ReplayDone(20)]


@pytest.mark.parametrize("own", [5, 100])
def test_seed_d07_a_local_prefix_that_is_not_the_journals_fails_with_a_clear_error(own: int) -> None:
    session = ReplaySession(CODEC, FORGED[own - 1], anchor(LOG), "a", CONFIG)
    w = World(session, LOG)
    w.join("a")
    w.join("b")
    w.run()
    [failed] = w.ends
    assert isinstance(failed, ReplayFailed)
    assert isinstance(failed.error, StoreError)
    assert f"at {own} it has {FORGED[own - 1].hash[:12]}" in str(failed.error)
    assert w.delivered == []
    assert not any(p.forged for p in session.sources.peers.values())


def test_seed_d07_a_local_log_that_is_longer_than_the_journal_fails() -> None:
    session = ReplaySession(CODEC, LOG[49], anchor(LOG, 40), "a", CONFIG)
    [failed] = only(ReplayFailed, session.tick(0))
    assert "ends at 50, but the journal in the store at 40" in str(failed.error)


def test_seed_d08_a_forged_chain_is_detected_before_any_of_it_is_delivered() -> None:
    session, actions = begin("a", "b", held=LOG[:20])
    a, b = only(Fetch, actions)
    serve(session, a, FORGED)
    actions = serve(session, b)
    assert indexes(actions) == []
    assert session.sources.peers["a"].forged
    assert not session.sources.peers["b"].forged
    [again] = only(Fetch, actions)
    assert (again.peer, again.first, again.last) == ("b", 1, 10)
    assert indexes(serve(session, again)) == list(range(1, 21))


def test_seed_d08_the_forger_is_blamed_and_not_its_neighbours() -> None:
    session, actions = begin("a", "b", "c", held=LOG[:30])
    a, b, c = only(Fetch, actions)
    serve(session, a)
    serve(session, b, FORGED)
    serve(session, c)
    assert [p.name for p in session.sources.peers.values() if p.forged] == ["b"]


def test_seed_d08_a_long_forgery_is_detected_by_an_intermediate_hash() -> None:
    w = world(a="forging", b="honest")
    w.forged["a"] = FORGED
    w.run()
    assert w.delivered == LOG
    assert w.session.sources.peers["a"].forged


def test_seed_d08_a_store_that_contradicts_itself_is_an_error() -> None:
    session, _ = begin("a")
    [failed] = only(ReplayFailed, session.retarget(Anchor(100, FORGED[99].hash), 0))
    assert "two different entries at 100" in str(failed.error)


def test_seed_d09_limits_count_bytes_and_the_buffer_is_bounded() -> None:
    log = extend([], 400, "y" * 300)
    session = ReplaySession(CODEC, None, anchor(log), "a", CONFIG)
    w = World(session, log)
    for name in "abcdef":
        w.join(name)
    w.run()
    assert w.delivered == log
    assert CONFIG.anchor_bytes < session.peak_buffered_bytes <= CONFIG.buffer_bytes
    fetches = only(Fetch, begin("a")[1])
    assert [f.max_bytes for f in fetches] == [CONFIG.chunk_bytes]


def test_seed_d09_requests_in_flight_count_against_the_buffer() -> None:
    _, actions = begin(*"abcdefgh")
    assert len(only(Fetch, actions)) == CONFIG.buffer_bytes // CONFIG.chunk_bytes


def test_seed_d09_later_pieces_leave_room_for_the_lowest_missing_one() -> None:
    session = ReplaySession(CODEC, None, anchor(LOG), "", CONFIG)
    fetches: list[Fetch] = []
    for peer in "abcdefgh":
        [ask] = only(Ask, session.peer_joined(peer, 0))
        fetches += only(Fetch, session.on_available(peer, 41, 100, ask.request_id, 0))
    assert len(fetches) == CONFIG.buffer_bytes // CONFIG.chunk_bytes - 1


def test_seed_d09_the_store_is_asked_for_an_intermediate_hash_and_delivery_begins_there() -> None:
    log = extend([], 100, "y" * 100)
    session, actions = begin("a", held=log)
    asked: list[AnchorAt] = []
    while not asked:
        actions = serve(session, only(Fetch, actions)[0], log)
        asked = only(AnchorAt, actions)
    assert CONFIG.anchor_bytes <= session.buffered_bytes <= CONFIG.anchor_bytes + CONFIG.chunk_bytes
    assert only(Fetch, actions), "fetching goes on meanwhile"
    actions = session.on_anchor(asked[0].request_id, log[asked[0].index - 1].hash, 0)
    assert indexes(actions) == list(range(1, asked[0].index + 1))


def test_seed_d09_a_chunk_larger_than_requested_is_refused() -> None:
    log = extend([], 10, "y" * 1_000)
    session, actions = begin("a", held=log)
    serve(session, only(Fetch, actions)[0], log)
    assert session.buffered_bytes == 0
    assert "bytes" in session.sources.peers["a"].reason


@pytest.mark.parametrize("size", [5_000, 13_000, 40_000])
def test_seed_d09_an_entry_larger_than_a_chunk_or_the_buffer_is_accepted(size: int) -> None:
    log = extend(extend(extend([], 40, "y" * 200), 1, "z" * size), 40, "y" * 200)
    session = ReplaySession(CODEC, None, anchor(log), "a", CONFIG)
    providers = {name: Provider(1, data(log, 1, len(log))) for name in "abc"}
    w = World(session, log)

    def answer(action: Ask | Fetch) -> None:
        provider = providers[action.peer]
        if isinstance(action, Ask):
            have = provider.available()
            w.at(5, lambda: session.on_available(action.peer, *have, action.request_id, w.now_ms))
        else:
            chunk = provider.serve(action.first, action.last, 100, action.max_bytes)
            assert isinstance(chunk, list)
            w.at(5, lambda: session.on_chunk(action.peer, action.request_id, action.first, chunk, w.now_ms))

    w.answer = answer  # type: ignore[method-assign]
    for name in providers:
        w.join(name)
    w.run(1_000)
    assert w.delivered == log
    assert not any(p.forged or p.failures for p in session.sources.peers.values())


def test_seed_d09_live_entries_that_do_not_fit_are_dropped() -> None:
    session, _ = begin("a", held=LOG[:10])
    log = extend(LOG[:10], 200, "y" * 300)
    for index in range(11, 211):
        session.on_live(data(log, index, index), 0)
        assert session.buffered_bytes <= CONFIG.buffer_bytes - CONFIG.chunk_bytes
    assert len(session.pieces.items) <= 4, "entries that arrive one by one are joined"


def test_seed_d10_later_pieces_are_fetched_while_nobody_covers_the_cursor() -> None:
    session = ReplaySession(CODEC, None, anchor(LOG), "z", CONFIG)
    [ask] = only(Ask, session.peer_joined("a", 0))
    actions = session.on_available("a", 41, 100, ask.request_id, 0)
    assert [(f.first, f.last) for f in only(Fetch, actions)] == [(41, 50)]
    assert [(f.first, f.last) for f in only(FetchFromStore, actions)] == [(1, 10)]


def test_seed_d11_a_leader_change_discards_no_work() -> None:
    session, actions = begin("a", "b", held=LOG[:20], leader="b")
    a, b = only(Fetch, actions)
    serve(session, b)
    kept = session.buffered_bytes
    assert kept
    session.leader_changed("a", 0)
    assert session.buffered_bytes == kept
    assert indexes(serve(session, a)) == list(range(1, 21))


@pytest.mark.parametrize("kind", ["silent", "empty", "liar", "forging"])
def test_seed_d12_a_bad_peer_is_asked_less_and_less_often(kind: str) -> None:
    log = extend(LOG, 900)
    w = world(log, a="honest", b=kind)
    if kind == "forging":
        w.forged["b"] = extend([], 1_000, "forged")
    w.run(20_000)
    assert w.delivered == log
    spans = 2 + w.now_ms // CONFIG.backoff_max_ms
    assert w.asked["b"] <= 4 * (
        6 + spans
    )  # doubling waits, then one attempt (ask and fetch) per longest wait
    assert w.asked["b"] < w.asked["a"]


def test_seed_d12_the_waits_of_a_failing_peer_double_and_survive_leaving() -> None:
    session, actions = begin("a", config=dataclasses.replace(CONFIG, max_attempts=99))
    waits, now = [], 0
    for _ in range(5):
        assert len(only(Fetch, actions)) == 1
        now += CONFIG.timeout_ms
        session.tick(now)
        session.peer_left("a", now)
        session.peer_joined("a", now)
        again = session.sources.peers["a"].not_before_ms
        waits.append(again - now)
        now = again
        [ask] = [a for a in only(Ask, session.tick(now)) if a.peer == "a"]
        actions = session.on_available("a", 1, 100, ask.request_id, now)
    assert waits == [50, 100, 200, 400, 800]


def test_seed_d13_the_session_and_the_provider_keep_a_bounded_part_of_the_log() -> None:
    log = extend([], 2_000)
    w = world(log, a="honest", b="honest", c="honest")
    w.run(20_000)
    assert w.session.peak_buffered_bytes <= CONFIG.buffer_bytes < sum(len(s.data) for s in log)
    assert len(w.session.pieces.known) < 10
    provider = Provider(keep_bytes=5_000)
    for sealed in log:
        provider.append(sealed.entry.index, [sealed.data])
        assert provider.held_bytes <= 5_000
    first, last = provider.available()
    assert last == 2_000
    assert provider.serve(first, last, 1, 1) == [log[first - 1].data]
    assert len(provider._entries) < 100
