"""Catching up with random peers over a random network."""

from __future__ import annotations

import random

import pytest

from cutwater.protocol.replay import ReplayPhase, ReplaySession
from cutwater.protocol.replay.messages import (
    Action,
    ReplayDone,
)
from tests.support.replay_world import CODEC, CONFIG, World, anchor, data, extend

KINDS = ["honest", "short", "empty", "late", "silent", "liar", "forging", "behind"]


@pytest.mark.parametrize("block", range(10))
def test_replay_ends_with_exactly_the_leaders_log_or_with_an_error(block: int) -> None:
    for seed in range(block * 15, block * 15 + 15):
        play(seed)


def play(seed: int) -> None:
    """One seeded run, with all invariants checked during and after it."""
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
    if isinstance(end, ReplayDone):
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
    """Targets move, leaders change, peers join and leave, live entries arrive."""
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
