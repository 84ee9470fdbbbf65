"""Catching up: seed D's behaviours and weaknesses, each by name, and a model of bad peers and networks."""

from __future__ import annotations

import dataclasses
import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from typing import TypeVar

import msgspec
import pytest

from cutwater.protocol.base.chain import GENESIS, Codec, Entry, Sealed
from cutwater.protocol.base.errors import IllegalStep, PeerError, StoreError, UserError
from cutwater.protocol.base.replay_wire import (
    AskRange,
    Compacted,
    EntriesChunk,
    FetchEntries,
    HaveRange,
    Message,
    decode,
    encode,
)
from cutwater.protocol.replay import ReplayPhase, ReplaySession
from cutwater.protocol.replay.messages import (
    Action,
    Anchor,
    AnchorAt,
    Ask,
    Deliver,
    Done,
    Failed,
    Fetch,
    FetchFromStore,
    Progress,
    ReplayConfig,
)
from cutwater.protocol.replay.provider import Provider

Body = dict[str, str]
Log = list[Sealed[Body]]
Session = ReplaySession[Body]
T = TypeVar("T")
CODEC: Codec[Body] = Codec(Body)
CONFIG = ReplayConfig(
    chunk_entries=10,
    chunk_bytes=4_000,
    anchor_bytes=4_000,
    buffer_bytes=16_000,
    timeout_ms=100,
    backoff_ms=50,
    backoff_max_ms=800,
    max_attempts=4,
    ask_again_ms=200,
)


def extend(log: Log, count: int, text: str = "x", snapshot: int = 0) -> Log:
    """The log with `count` more entries; `snapshot` is the place of one that is a SNAPSHOT."""
    log = list(log)
    for index in range(len(log) + 1, len(log) + count + 1):
        prev = log[-1].hash if log else GENESIS
        mark = snapshot if snapshot and index >= snapshot else 0
        log.append(CODEC.seal(Entry(index, prev, mark, f"n{index}", {"text": text})))
    return log


LOG = extend([], 100)
FORGED = extend(LOG[:3], 97, "forged")


def data(log: Log, first: int, last: int) -> list[bytes]:
    return [s.data for s in log[first - 1 : last]]


def capped(log: Log, first: int, last: int, max_bytes: int) -> list[bytes]:
    """As `data`, but no more than `max_bytes`, and at least one entry."""
    sizes = itertools.accumulate(len(d) for d in data(log, first, last))
    fitting = sum(size <= max_bytes for size in sizes)
    return data(log, first, min(last, first + max(fitting, 1) - 1))


def anchor(log: Log, index: int | None = None) -> Anchor:
    sealed = log[-1 if index is None else index - 1]
    return Anchor(sealed.entry.index, sealed.hash)


def only(kind: type[T], actions: Iterable[object]) -> list[T]:
    return [a for a in actions if isinstance(a, kind)]


def indexes(actions: Iterable[object]) -> list[int]:
    return [s.entry.index for d in only(Deliver, actions) for s in d.entries]


def begin(
    *peers: str,
    held: Log = LOG,
    target: Anchor | None = None,
    leader: str = "",
    config: ReplayConfig = CONFIG,
) -> tuple[Session, list[Action]]:
    """A session whose peers have all said that they hold everything; returns what it then asks for."""
    session = ReplaySession(CODEC, None, target or anchor(held), leader, config)
    actions: list[Action] = []
    for peer in peers:
        [ask] = only(Ask, session.peer_joined(peer, 0))
        actions += session.on_available(peer, 1, len(held), ask.request_id, 0)
    return session, actions


def serve(session: Session, fetch: Fetch, log: Log = LOG, now_ms: int = 0) -> list[Action]:
    entries = data(log, fetch.first, fetch.last)
    return session.on_chunk(fetch.peer, fetch.request_id, fetch.first, entries, now_ms)


class World:
    """Peers, a store, a network and a clock around a session; all that happens follows from `seed`."""

    def __init__(self, session: Session, log: Log, seed: int = 0) -> None:
        self.session = session
        self.log = log
        self.random = random.Random(seed)
        self.now_ms = 0
        self.events: list[tuple[int, int, Callable[[], list[Action]]]] = []
        self.number = 0
        self.peers: dict[str, str] = {}
        self.held: dict[str, int] = {}
        self.forged: dict[str, Log] = {}
        self.store_up = True
        self.store_first = 1
        self.unanswered = 0
        self.loss = 0.0
        self.delivered: Log = []
        self.ends: list[Done | Failed] = []
        self.asked: dict[str, int] = {}
        self.trace: list[str] = []

    def at(self, delay_ms: int, event: Callable[[], list[Action]]) -> None:
        self.number += 1
        heapq.heappush(self.events, (self.now_ms + delay_ms, self.number, event))

    def join(self, name: str, kind: str = "honest") -> None:
        self.peers[name] = kind
        self.held.setdefault(
            name, self.random.randint(0, len(self.log)) if kind == "behind" else len(self.log)
        )
        if kind == "forging":
            keep = self.random.randint(0, len(self.log) - 1)
            self.forged[name] = extend(self.log[:keep], len(self.log) - keep, f"by {name}")
        self.perform(self.session.peer_joined(name, self.now_ms))

    def leave(self, name: str) -> None:
        if self.peers.pop(name, None):
            self.perform(self.session.peer_left(name, self.now_ms))

    def perform(self, actions: list[Action]) -> None:
        session, config = self.session, self.session.config
        assert session.buffered_bytes <= config.buffer_bytes
        for action in actions:
            self.trace.append(f"{self.now_ms} {type(action).__name__}")
            if isinstance(action, Deliver):
                self.delivered += action.entries
            elif isinstance(action, Done | Failed):
                self.ends.append(action)
            elif isinstance(action, Ask | Fetch):
                self.trace[-1] += f" {action.peer}"
                self.asked[action.peer] = self.asked.get(action.peer, 0) + 1
                self.answer(action)
            else:
                self.read(action)
        flying = sorted(session.sources.busy())
        assert all(a[1] < b[0] for a, b in itertools.pairwise(flying)), "overlapping fetches"

    def answer(self, action: Ask | Fetch) -> None:
        peer, request_id, session, rnd = action.peer, action.request_id, self.session, self.random
        kind, held = self.peers.get(peer, "silent"), self.held[peer]
        delay = rnd.randint(1, 60) if kind != "late" else rnd.randint(80, 300)
        if kind == "silent" or rnd.random() < self.loss:
            return
        if isinstance(action, Ask):
            self.at(delay, lambda: session.on_available(peer, 1, held, request_id, self.now_ms))
            return
        first, last = action.first, min(action.last, held)
        if kind == "short":
            last = min(last, first + rnd.randint(0, 3))
        if kind == "liar":
            first += rnd.randint(-2, 2)
        entries = capped(self.forged.get(peer, self.log), max(first, 1), last, action.max_bytes)
        if kind == "empty":
            entries = []
        if kind == "liar" and entries:
            entries[rnd.randrange(len(entries))] = rnd.choice([b"", b"\xff", entries[0], entries[-1][:-3]])
        for _ in range(1 + (rnd.random() < 0.1)):  # sometimes twice
            self.at(
                delay + rnd.randint(0, 20),
                lambda: session.on_chunk(peer, request_id, action.first, entries, self.now_ms),
            )

    def read(self, action: FetchFromStore | AnchorAt) -> None:
        request_id, session = action.request_id, self.session
        if not self.store_up:
            self.at(5, lambda: session.on_store_failed(request_id, "is down", self.now_ms))
            return
        if self.unanswered < 2 and self.random.random() < self.loss / 2:
            self.unanswered += 1  # a store that never answers is one that is down
            return
        self.unanswered = 0
        first = action.index if isinstance(action, AnchorAt) else action.first
        if first < self.store_first:
            covering = self.log[self.store_first - 1].data
            self.at(10, lambda: session.on_snapshot(request_id, covering, self.now_ms))
        elif first > len(self.log):
            self.at(10, lambda: session.on_store_failed(request_id, "has no such entry", self.now_ms))
        elif isinstance(action, AnchorAt):
            known = self.log[action.index - 1].hash
            self.at(10, lambda: session.on_anchor(request_id, known, self.now_ms))
        else:
            entries = capped(self.log, action.first, action.last, action.max_bytes)
            self.at(10, lambda: session.on_store_chunk(request_id, action.first, entries, self.now_ms))

    def run(self, steps: int = 4_000) -> None:
        """Until the session ends; fails if that takes too long or nothing more could happen."""
        self.perform(self.session.tick(self.now_ms))
        for _ in range(steps):
            if self.ends:
                return
            wake = self.session.next_tick_ms(self.now_ms)
            due = self.events[0][0] if self.events else None
            assert wake is not None or due is not None, "stalled: nothing will ever happen again"
            if due is not None and (wake is None or due <= wake):
                self.now_ms, _, event = heapq.heappop(self.events)
                self.perform(event())
            else:
                assert wake is not None
                self.now_ms = wake
                self.perform(self.session.tick(self.now_ms))
        raise AssertionError(f"no end after {steps} steps: {self.trace[-20:]}")


def world(log: Log = LOG, own: int = 0, seed: int = 0, **peers: str) -> World:
    mine = log[own - 1] if own else None
    made = World(ReplaySession(CODEC, mine, anchor(log), "a", CONFIG), log, seed)
    for name, kind in peers.items():
        made.join(name, kind)
    return made


# --- behaviours -----------------------------------------------------------------------------------------


def test_a_gap_is_learnt_from_many_peers_at_once_in_disjoint_chunks_one_in_flight_each() -> None:
    _, actions = begin("a", "b", "c")
    fetches = only(Fetch, actions)
    assert [(f.peer, f.first, f.last) for f in fetches] == [("a", 1, 10), ("b", 11, 20), ("c", 21, 30)]


def test_the_leader_is_asked_last() -> None:
    session, actions = begin("a", "b", "c", target=anchor(LOG, 10), leader="a")
    serve(session, only(Fetch, actions)[0])
    fetches = only(Fetch, session.retarget(anchor(LOG, 40), 0))
    assert [(f.peer, f.first) for f in fetches] == [("b", 11), ("c", 21), ("a", 31)]


def test_chunks_that_arrive_out_of_order_are_joined_and_delivered_once_in_order() -> None:
    session, actions = begin("a", "b", "c", held=LOG[:30])
    a, b, c = only(Fetch, actions)
    assert indexes(serve(session, c)) == []
    assert indexes(serve(session, a)) == []
    actions = serve(session, b)
    assert indexes(actions) == list(range(1, 31))
    assert only(Done, actions) == [Done(30)]
    assert session.phase is ReplayPhase.DONE


def test_live_entries_are_kept_aside_and_delivered_at_the_end_if_the_store_has_them() -> None:
    session, actions = begin("a", held=LOG[:10])
    assert session.on_live(data(LOG, 11, 12), 0) == []
    assert session.on_live(data(LOG, 13, 13), 0) == []
    actions = serve(session, only(Fetch, actions)[0])
    [ask] = only(AnchorAt, actions)
    assert ask.index == 13
    actions = session.on_anchor(ask.request_id, LOG[12].hash, 0)
    assert indexes(actions) == [11, 12, 13]
    assert only(Done, actions) == [Done(13)]


def test_live_entries_that_the_store_does_not_have_are_not_delivered() -> None:
    session, actions = begin("a", held=LOG[:10])
    session.on_live(data(FORGED, 11, 12), 0)
    actions = serve(session, only(Fetch, actions)[0])
    [ask] = only(AnchorAt, actions)
    actions = session.on_store_failed(ask.request_id, "has no such entry", 0)
    assert actions == [Done(10)]


def test_forged_live_entries_are_replaced_by_the_journals() -> None:
    session, actions = begin("a", held=LOG[:10])
    session.on_live([*data(FORGED, 11, 12), b"nonsense"], 0)
    actions = serve(session, only(Fetch, actions)[0])
    actions = session.on_anchor(only(AnchorAt, actions)[0].request_id, LOG[11].hash, 0)
    assert indexes(actions) == []
    around = World(session, LOG)
    around.peers, around.held = {"a": "honest"}, {"a": 100}
    around.perform(actions)
    around.run()
    assert around.delivered == LOG[10:12]


def test_peers_join_leave_answer_late_and_answer_less_and_it_ends_with_the_leaders_log() -> None:
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
    assert w.ends == [Done(100)]


def test_only_the_missing_part_is_fetched_and_delivered() -> None:
    w = world(own=95, a="honest")
    w.run()
    assert w.delivered == LOG[95:]


def test_a_member_that_has_everything_is_done_at_once() -> None:
    assert ReplaySession(CODEC, LOG[-1], anchor(LOG)).tick(0) == [Done(100)]
    assert ReplaySession(CODEC, None, Anchor(0, GENESIS)).tick(0) == [Done(0)]


def test_progress_is_reported() -> None:
    session, actions = begin("a", "b", "c", held=LOG[:40])
    for fetch in only(Fetch, actions):
        actions += serve(session, fetch)
    assert session.progress() == Progress(0, 40, 3, 0)
    assert str(Progress(212_000, 517_000, 3, 1)) == "catching up 41 % · 212,000 of 517,000 · 3 peers"
    assert str(Progress(0, 0, 1, 0)) == "catching up 100 % · 0 of 0 · 1 peer"


def test_a_session_that_was_done_goes_on_when_the_target_moves() -> None:
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
    [failed] = only(Failed, session.tick(0))
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


# --- what compaction has covered ------------------------------------------------------------------------

COMPACTED = extend(extend([], 59), 41, snapshot=60)


def test_a_compacted_prefix_is_replaced_by_the_snapshot() -> None:
    w = world(COMPACTED, own=5)
    w.store_first = 60
    w.run()
    assert w.delivered == COMPACTED[59:]
    assert w.ends == [Done(100)]


def test_peers_that_still_hold_a_compacted_prefix_serve_it() -> None:
    w = world(extend(extend([], 5), 7, snapshot=9), a="honest")
    w.store_first = 9
    w.run()
    assert w.delivered == w.log


def test_a_peers_compaction_sends_nobody_to_a_snapshot() -> None:
    session, actions = begin("a")
    [fetch] = only(Fetch, actions)
    actions = session.on_compacted("a", fetch.request_id, 60, 0)
    assert [(f.first, f.last) for f in only(FetchFromStore, actions)] == [(1, 10)]
    later = session.tick(60)
    assert [(f.first, f.last) for f in only(Fetch, later)] == [(60, 69)]


def test_an_entry_that_is_no_snapshot_is_never_jumped_to() -> None:
    session = ReplaySession(CODEC, None, anchor(LOG), config=CONFIG)
    [fetch] = only(FetchFromStore, session.tick(0))
    assert session.on_snapshot(fetch.request_id, LOG[59].data, 0) == []
    assert session.progress().done == 0


def test_a_snapshot_beyond_the_target_becomes_the_target() -> None:
    session = ReplaySession(CODEC, None, anchor(COMPACTED, 50), config=CONFIG)
    [fetch] = only(FetchFromStore, session.tick(0))
    actions = session.on_snapshot(fetch.request_id, COMPACTED[59].data, 0)
    assert indexes(actions) == [60]
    assert only(Done, actions) == [Done(60)]


# --- the weaknesses of the seed -------------------------------------------------------------------------


def test_seed_d01_an_empty_answer_is_fetched_from_somebody_else() -> None:
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


def test_seed_d02_a_late_answer_does_not_pass_for_the_answer_to_the_next_request() -> None:
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


def test_seed_d04_availability_is_asked_again_as_the_target_moves_and_as_time_passes() -> None:
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


def test_seed_d06_a_hole_in_the_live_entries_is_fetched() -> None:
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
    assert only(Done, actions) == [Done(20)]


@pytest.mark.parametrize("own", [5, 100])
def test_seed_d07_a_local_prefix_that_is_not_the_journals_fails_with_a_clear_error(own: int) -> None:
    session = ReplaySession(CODEC, FORGED[own - 1], anchor(LOG), "a", CONFIG)
    w = World(session, LOG)
    w.join("a")
    w.join("b")
    w.run()
    [failed] = w.ends
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, StoreError)
    assert f"at {own} it has {FORGED[own - 1].hash[:12]}" in str(failed.error)
    assert w.delivered == []
    assert not any(p.forged for p in session.sources.peers.values())


def test_seed_d07_a_local_log_that_is_longer_than_the_journal_fails() -> None:
    session = ReplaySession(CODEC, LOG[49], anchor(LOG, 40), "a", CONFIG)
    [failed] = only(Failed, session.tick(0))
    assert "ends at 50, but the journal in the store at 40" in str(failed.error)


def test_seed_d08_a_forged_chain_is_found_out_before_anything_of_it_is_delivered() -> None:
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


def test_seed_d08_blame_falls_on_the_forger_and_not_on_its_neighbours() -> None:
    session, actions = begin("a", "b", "c", held=LOG[:30])
    a, b, c = only(Fetch, actions)
    serve(session, a)
    serve(session, b, FORGED)
    serve(session, c)
    assert [p.name for p in session.sources.peers.values() if p.forged] == ["b"]


def test_seed_d08_a_long_forgery_is_found_out_by_the_hash_on_the_way() -> None:
    w = world(a="forging", b="honest")
    w.forged["a"] = FORGED
    w.run()
    assert w.delivered == LOG
    assert w.session.sources.peers["a"].forged


def test_seed_d08_a_store_that_contradicts_itself_is_an_error() -> None:
    session, _ = begin("a")
    [failed] = only(Failed, session.retarget(Anchor(100, FORGED[99].hash), 0))
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


def test_seed_d09_what_is_in_flight_counts_against_the_buffer() -> None:
    _, actions = begin(*"abcdefgh")
    assert len(only(Fetch, actions)) == CONFIG.buffer_bytes // CONFIG.chunk_bytes


def test_seed_d09_later_pieces_leave_room_for_the_lowest_missing_one() -> None:
    session = ReplaySession(CODEC, None, anchor(LOG), "", CONFIG)
    fetches: list[Fetch] = []
    for peer in "abcdefgh":
        [ask] = only(Ask, session.peer_joined(peer, 0))
        fetches += only(Fetch, session.on_available(peer, 41, 100, ask.request_id, 0))
    assert len(fetches) == CONFIG.buffer_bytes // CONFIG.chunk_bytes - 1


def test_seed_d09_the_store_is_asked_for_a_hash_on_the_way_and_delivery_begins_there() -> None:
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


def test_seed_d09_a_chunk_larger_than_asked_for_is_refused() -> None:
    log = extend([], 10, "y" * 1_000)
    session, actions = begin("a", held=log)
    serve(session, only(Fetch, actions)[0], log)
    assert session.buffered_bytes == 0
    assert "bytes" in session.sources.peers["a"].reason


@pytest.mark.parametrize("size", [5_000, 13_000, 40_000])
def test_seed_d09_an_entry_larger_than_a_chunk_or_than_the_buffer_passes(size: int) -> None:
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


def test_seed_d09_live_entries_beyond_the_room_are_let_go() -> None:
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


def test_seed_d11_a_leader_change_throws_no_work_away() -> None:
    session, actions = begin("a", "b", held=LOG[:20], leader="b")
    a, b = only(Fetch, actions)
    serve(session, b)
    kept = session.buffered_bytes
    assert kept
    session.leader_changed("a", 0)
    assert session.buffered_bytes == kept
    assert indexes(serve(session, a)) == list(range(1, 21))


@pytest.mark.parametrize("kind", ["silent", "empty", "liar", "forging"])
def test_seed_d12_a_bad_peer_is_asked_ever_more_seldom(kind: str) -> None:
    log = extend(LOG, 900)
    w = world(log, a="honest", b=kind)
    if kind == "forging":
        w.forged["b"] = extend([], 1_000, "forged")
    w.run(20_000)
    assert w.delivered == log
    spans = 2 + w.now_ms // CONFIG.backoff_max_ms
    assert w.asked["b"] <= 4 * (6 + spans)  # doubling waits, then one try (ask and fetch) per longest wait
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


# --- when nobody can serve ------------------------------------------------------------------------------


def test_it_fails_with_the_range_and_every_reason_when_nobody_can_serve() -> None:
    w = world(a="silent", b="empty")
    w.store_up = False
    w.run()
    [failed] = w.ends
    assert isinstance(failed, Failed)
    assert isinstance(failed.error, StoreError)
    text = str(failed.error)
    assert "entries 1-100" in text
    assert "the store: is down" in text
    assert "a: did not answer within 100 ms" in text
    assert "b: sent nothing for 1-10" in text


def test_it_needs_no_store_beside_the_target_if_the_gap_fits_the_buffer() -> None:
    w = world(LOG[:20], a="honest", b="honest")
    w.store_up = False
    w.run()
    assert w.delivered == LOG[:20]


def test_it_fails_if_nothing_can_be_proven_and_the_buffer_is_full() -> None:
    w = world(extend(LOG, 100), a="honest", b="honest")
    w.store_up = False
    w.run()
    [failed] = w.ends
    assert isinstance(failed, Failed)
    assert "vouch for" in str(failed.error)
    assert w.delivered == []


def test_a_store_that_recovers_is_used_again() -> None:
    w = world(a="silent")
    w.store_up = False

    def recover() -> list[Action]:
        w.store_up = True
        return []

    w.at(400, recover)
    w.run()
    assert w.delivered == LOG


@pytest.mark.parametrize("wrong", [{"buffer_bytes": 10}, {"chunk_entries": 0}])
def test_a_configuration_that_cannot_work_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(UserError, match="replay: "):
        ReplayConfig(**wrong)


# --- the serving side, and the wire ---------------------------------------------------------------------


def test_a_provider_answers_within_every_cap_but_always_with_one_entry() -> None:
    provider = Provider(11, data(LOG, 11, 60), max_entries=20, max_bytes=10_000)
    one = len(LOG[19].data)
    assert provider.available() == (11, 60)
    assert provider.serve(20, 90, 5, 10_000) == data(LOG, 20, 24)
    assert provider.serve(20, 90, 100, 100_000) == data(LOG, 20, 39)
    assert provider.serve(20, 22, 100, 100_000) == data(LOG, 20, 22)
    assert provider.serve(20, 90, 100, 3 * one) == data(LOG, 20, 22)
    assert provider.serve(20, 90, 0, 1) == data(LOG, 20, 20)
    assert provider.serve(60, 90, 100, 10_000) == data(LOG, 60, 60)
    assert provider.serve(61, 90, 100, 10_000) == []
    assert provider.serve(20, 19, 100, 10_000) == []
    assert provider.serve(10, 20, 100, 10_000) == 11


def test_a_provider_compacts_follows_snapshots_and_refuses_what_it_holds() -> None:
    provider = Provider(1, data(LOG, 1, 50))
    provider.compact(40)
    assert provider.available() == (40, 50)
    assert provider.serve(41, 42, 9, 9_999) == data(LOG, 41, 42)
    provider.append(51, data(LOG, 51, 52))
    assert provider.serve(50, 99, 9, 9_999) == data(LOG, 50, 52)
    with pytest.raises(UserError, match="held already"):
        provider.append(52, data(LOG, 52, 52))
    provider.append(60, data(LOG, 60, 61))
    assert provider.available() == (60, 61)
    assert provider.held_bytes == sum(len(s.data) for s in LOG[59:61])
    provider.compact(99)
    assert provider.available() == (99, 98)
    with pytest.raises(UserError, match="first place is 1"):
        Provider(0)


def test_a_member_that_catches_up_serves_what_it_has() -> None:
    session, actions = begin("a", held=LOG[:20])
    provider = Provider()
    assert provider.answer(AskRange(1)) == HaveRange(1, 1, 0)
    while not only(Done, actions):
        actions = serve(session, only(Fetch, actions)[0])
        for delivery in only(Deliver, actions):
            provider.append(delivery.entries[0].entry.index, [s.data for s in delivery.entries])
    assert provider.answer(AskRange(2)) == HaveRange(2, 1, 20)
    assert provider.answer(FetchEntries(3, 19, 40, 9_999)) == EntriesChunk(3, 19, data(LOG, 19, 20))
    provider.compact(10)
    assert provider.answer(FetchEntries(4, 1, 40, 9_999)) == Compacted(4, 10)


@pytest.mark.parametrize(
    "message",
    [
        AskRange(1),
        HaveRange(1, 2, 3),
        FetchEntries(1, 2, 3, 4),
        EntriesChunk(1, 2, [b"\xff\x00", b""]),
        Compacted(1, 2),
    ],
)
def test_messages_survive_the_wire_and_bad_bytes_are_a_peers_error(message: Message) -> None:
    wire = encode(message)
    assert decode(wire) == message
    for bad in (
        b"",
        b"\xc1",
        wire[:-1],
        wire + b"\x00",
        msgspec.msgpack.encode({"type": "?"}),
        b"\x91" * 9_000,
    ):
        with pytest.raises(PeerError, match="not a catch-up message"):
            decode(bad)


# --- the model: any peers, any network ------------------------------------------------------------------

KINDS = ["honest", "short", "empty", "late", "silent", "liar", "forging", "behind"]


@pytest.mark.parametrize("block", range(10))
def test_replay_ends_with_exactly_the_leaders_log_or_with_an_error(block: int) -> None:
    for seed in range(block * 15, block * 15 + 15):
        play(seed)


def play(seed: int) -> None:
    """One seeded run, with everything that must hold during and after it."""
    rnd = random.Random(seed)
    size = rnd.choice([1, 50, 300])
    full = extend([], rnd.randint(1, 150), "y" * size)
    if rnd.random() < 0.3:
        full = extend(full, 1, "z" * rnd.choice([5_000, 20_000]))
    snapshot = len(full) + 1 if rnd.random() < 0.2 else 0
    full = extend(full, rnd.randint(1, 100), "y" * size, snapshot)
    own = rnd.randint(0, len(full) // 2)
    seen = rnd.randint(max(own, 1), len(full))
    session = ReplaySession(CODEC, full[own - 1] if own else None, anchor(full, seen), "p0", CONFIG)
    w = World(session, full, seed)
    w.loss = rnd.choice([0.0, 0.1, 0.3])
    w.store_first = snapshot or 1
    for number in range(rnd.randint(0, 5)):
        w.join(f"p{number}", rnd.choice(KINDS))
    if rnd.random() < 0.2:
        w.store_up = False
    disturb(w, rnd, seen)
    w.run()
    [end] = w.ends
    reached = session.target.index
    if isinstance(end, Done):
        assert end.index == reached >= seen
        assert reached == (w.delivered[-1].entry.index if w.delivered else own), seed
    else:
        assert not w.store_up, (seed, end)
    before = own
    for sealed in w.delivered:
        index = sealed.entry.index
        assert sealed == full[index - 1], seed
        assert index == before + 1 or before < index == snapshot, seed
        before = index
    assert session.peak_buffered_bytes <= CONFIG.buffer_bytes
    guilty = {name for name, peer in session.sources.peers.items() if peer.forged}
    assert guilty <= {name for name in w.held if name in w.forged}, seed


def disturb(w: World, rnd: random.Random, seen: int) -> None:
    """Targets that move, leaders that change, peers that come and go, entries that arrive live."""
    full, session = w.log, w.session

    def event() -> list[Action]:
        nonlocal seen
        kind = rnd.choice(["target", "leader", "leave", "join", "live"])
        if session.phase in (ReplayPhase.DONE, ReplayPhase.FAILED):
            return []
        if kind == "target":
            seen = rnd.randint(seen, len(full))
            return session.retarget(anchor(full, seen), w.now_ms)
        if kind == "leader":
            return session.leader_changed(f"p{rnd.randint(0, 5)}", w.now_ms)
        if kind == "leave":
            w.leave(f"p{rnd.randint(0, 5)}")
        elif kind == "join":
            name = f"p{rnd.randint(0, 5)}"
            if name not in w.peers:
                w.join(name, "forging" if name in w.forged else rnd.choice(KINDS))
        else:
            first = rnd.randint(seen, len(full))
            return session.on_live(data(full, first, first + rnd.randint(0, 5)), w.now_ms)
        return []

    for _ in range(rnd.randint(0, 12)):
        w.at(rnd.randint(0, 600), event)
