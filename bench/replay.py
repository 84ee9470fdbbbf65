"""What a catch-up costs beside a plain loop that decodes and hash-checks the same bytes.

`python -m bench.replay [--entries 1000000] [--rounds 3]`: entries of about 200 bytes, three peers in memory
that are called directly. The last line is JSON; `ratio` is the session's time by the loop's, `target` what
it must not exceed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections import deque

import msgspec

from cutwater.protocol.chain import GENESIS, Codec, Entry, Sealed, follows
from cutwater.protocol.replay import ReplaySession
from cutwater.protocol.replay.messages import (
    Action,
    Anchor,
    AnchorAt,
    Ask,
    AskRange,
    Deliver,
    Done,
    EntriesChunk,
    Fetch,
    FetchEntries,
    HaveRange,
    ReplayConfig,
)
from cutwater.protocol.replay.provider import Provider

TARGET = 3.0


class Body(msgspec.Struct, frozen=True):
    epoch: int
    text: str


CODEC: Codec[Body] = Codec(Body)


def make_log(count: int) -> list[bytes]:
    """`count` chained entries of about 200 bytes."""
    log: list[bytes] = []
    prev = GENESIS
    for index in range(1, count + 1):
        sealed = CODEC.seal(Entry(index, prev, 0, f"n{index}", Body(index, "x" * 50)))
        log.append(sealed.data)
        prev = sealed.hash
    return log


def plain_loop(log: list[bytes]) -> float:
    """Seconds to decode and check the whole log, one entry after the other."""
    began = time.perf_counter()
    before: Sealed[Body] | None = None
    for data in log:
        sealed = CODEC.open(data)
        if not follows(before, sealed):
            raise SystemExit(f"the log is broken at {sealed.entry.index}")
        before = sealed
    return time.perf_counter() - began


def catch_up(log: list[bytes], config: ReplayConfig) -> tuple[float, int]:
    """Seconds to learn the whole log from three peers, and the most bytes that were kept meanwhile. The log
    itself plays the store."""
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
            case Done(index):
                assert delivered == index == len(log)
                return time.perf_counter() - began, session.peak_buffered_bytes
            case _:
                raise SystemExit(f"unexpected: {action}")
    raise SystemExit("the session stalled")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    config = ReplayConfig()
    log = make_log(options.entries)
    size = sum(map(len, log))
    print(f"{options.entries:,} entries, {size / options.entries:.0f} bytes each, 3 peers")
    loops, sessions, peak = [], [], 0
    for number in range(1, options.rounds + 1):
        loops.append(plain_loop(log))
        seconds, kept = catch_up(log, config)
        sessions.append(seconds)
        peak = max(peak, kept)
        print(f"round {number}: loop {loops[-1]:.2f} s, session {seconds:.2f} s, {seconds / loops[-1]:.2f} ×")
    ratio = statistics.median(s / p for s, p in zip(sessions, loops, strict=True))
    result = {
        "bench": "replay",
        "entries": options.entries,
        "bytes": size,
        "loop_seconds": round(statistics.median(loops), 3),
        "session_seconds": round(statistics.median(sessions), 3),
        "peak_buffered_bytes": peak,
        "buffer_bytes": config.buffer_bytes,
        "ratio": round(ratio, 3),
        "target": TARGET,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
