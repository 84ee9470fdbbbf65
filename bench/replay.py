"""The cost of a catch-up: `python -m bench.replay [--entries 1000000] [--rounds 3]`, entries of about 200 bytes.

1. `session_ratio`: three in-memory peers that are called directly, relative to a plain loop that decodes and
   hash-checks the same bytes.
2. `raw_ratio`: three peers in separate processes over Zenoh, relative to fetching the same bytes from one peer with
   plain Zenoh queries and decoding them (`replay_net.py`).
3. `speedup`: three such peers compared with one, with the same chunk size, each answering after 5 ms as on a network.

The last line is JSON; `ratio` is the worst ratio of result to target (for the speedup, of target to result).
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path

import msgspec

from bench import replay_net
from bench.replay_log import CODEC, Body, make_log
from cutwater.protocol.base.chain import Sealed, follows
from cutwater.protocol.base.replay_wire import AskRange, EntriesChunk, FetchEntries, HaveRange
from cutwater.protocol.replay import ReplaySession
from cutwater.protocol.replay.messages import (
    Action,
    Anchor,
    AnchorAt,
    Ask,
    Deliver,
    Fetch,
    ReplayConfig,
    ReplayDone,
)
from cutwater.protocol.replay.provider import Provider

SESSION_TARGET = 3.0
RAW_TARGET = 4.0
SPEEDUP_TARGET = 2.0
DELAY_S = 0.005


def plain_loop(log: list[bytes]) -> float:
    """Seconds to decode and check the whole log, entry by entry."""
    began = time.perf_counter()
    before: Sealed[Body] | None = None
    for data in log:
        sealed = CODEC.open(data)
        if not follows(before, sealed):
            raise SystemExit(f"the log is broken at {sealed.entry.index}")
        before = sealed
    return time.perf_counter() - began


def catch_up(log: list[bytes], config: ReplayConfig) -> tuple[float, int]:
    """Seconds to read the whole log from three peers, and the maximum number of buffered bytes. The log itself stands
    in for the store."""
    peers = {f"peer-{i}": Provider(1, log) for i in range(3)}
    head = Anchor(len(log), CODEC.open(log[-1]).hash)
    began = time.perf_counter()
    session = ReplaySession(CODEC, None, head, "peer-0", config)
    todo: deque[Action] = deque()
    for name in peers:
        todo += session.peer_joined(name, 0)
    delivered = 0
    while todo:
        action = todo.popleft()
        match action:
            case Ask(peer, request_id):
                have = peers[peer].answer(AskRange(request_id))
                assert isinstance(have, HaveRange)
                todo += session.on_available(peer, have.first, have.last, request_id, 0)
            case Fetch(peer, request_id, first, last, max_bytes):
                chunk = peers[peer].answer(FetchEntries(request_id, first, last, max_bytes))
                assert isinstance(chunk, EntriesChunk)
                todo += session.on_chunk(peer, request_id, chunk.first, chunk.entries, 0)
            case AnchorAt(request_id, index):
                todo += session.on_anchor(request_id, CODEC.open(log[index - 1]).hash, 0)
            case Deliver(entries):
                delivered += len(entries)
            case ReplayDone(index):
                assert delivered == index == len(log)
                return time.perf_counter() - began, session.peak_buffered_bytes
            case _:
                raise SystemExit(f"unexpected: {action}")
    raise SystemExit("the session stalled")


def measure_session(log: list[bytes], rounds: int) -> dict[str, float]:
    """The session compared with a plain loop, in this process."""
    config = ReplayConfig()
    loops, sessions, peak = [], [], 0
    for number in range(1, rounds + 1):
        loops.append(plain_loop(log))
        seconds, kept = catch_up(log, config)
        sessions.append(seconds)
        peak = max(peak, kept)
        print(f"round {number}: loop {loops[-1]:.2f} s, session {seconds:.2f} s, {seconds / loops[-1]:.2f} ×")
    ratio = statistics.median(s / p for s, p in zip(sessions, loops, strict=True))
    return {
        "loop_seconds": round(statistics.median(loops), 3),
        "session_seconds": round(statistics.median(sessions), 3),
        "peak_buffered_bytes": peak,
        "buffer_bytes": config.buffer_bytes,
        "session_ratio": round(ratio, 3),
        "session_target": SESSION_TARGET,
    }


def measure_network(log: list[bytes], rounds: int) -> dict[str, float]:
    """Over Zenoh: compared with raw fetching, and three peers compared with one."""
    config = ReplayConfig()
    raw, plain, one, three = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log"
        file.write_bytes(msgspec.msgpack.encode(log))
        for number in range(1, rounds + 1):
            raw.append(replay_net.fetch_raw(len(log), file, config))
            plain.append(replay_net.catch_up(log, file, 3, 0.0, config))
            one.append(replay_net.catch_up(log, file, 1, DELAY_S, config))
            three.append(replay_net.catch_up(log, file, 3, DELAY_S, config))
            print(
                f"round {number}: raw {raw[-1]:.2f} s, 3 peers {plain[-1]:.2f} s; "
                f"after 5 ms: 1 peer {one[-1]:.2f} s, 3 peers {three[-1]:.2f} s"
            )
    return {
        "raw_seconds": round(statistics.median(raw), 3),
        "network_seconds": round(statistics.median(plain), 3),
        "raw_ratio": round(statistics.median(p / r for p, r in zip(plain, raw, strict=True)), 3),
        "raw_target": RAW_TARGET,
        "one_peer_seconds": round(statistics.median(one), 3),
        "three_peers_seconds": round(statistics.median(three), 3),
        "speedup": round(statistics.median(o / t for o, t in zip(one, three, strict=True)), 3),
        "speedup_target": SPEEDUP_TARGET,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    log = make_log(options.entries)
    size = sum(map(len, log))
    print(f"{options.entries:,} entries, {size / options.entries:.0f} bytes each")
    found = measure_session(log, options.rounds) | measure_network(log, options.rounds)
    ratios = [
        found["session_ratio"] / SESSION_TARGET,
        found["raw_ratio"] / RAW_TARGET,
        SPEEDUP_TARGET / found["speedup"],
    ]
    figures = {"bench": "replay", "entries": options.entries, "bytes": size, **found}
    print(json.dumps({**figures, "ratio": round(max(ratios), 3)}))


if __name__ == "__main__":
    main()
