"""A member that catches up, with modelled peers, network and store."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from typing import TypeVar

from cutwater.protocol.base.chain import GENESIS, Codec, Entry, Sealed
from cutwater.protocol.replay import ReplaySession
from cutwater.protocol.replay.messages import (
    Action,
    Anchor,
    AnchorAt,
    Ask,
    Deliver,
    Fetch,
    FetchFromStore,
    ReplayConfig,
    ReplayDone,
    ReplayFailed,
)

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
    """The log with `count` more entries; `snapshot` is the index of one that is a SNAPSHOT."""
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
    """A session whose peers have all said that they have everything. Returns what it then asks for."""
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
    """Peers, a store, a network and a clock around a session; everything is determined by `seed`."""

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
        self.ends: list[ReplayDone | ReplayFailed] = []
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
            elif isinstance(action, ReplayDone | ReplayFailed):
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
            self.unanswered += 1  # a store that is down never answers
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
        """Runs until the session ends; fails if that takes too long or nothing more can happen."""
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
