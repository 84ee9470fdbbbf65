"""A catch-up over Zenoh from peers in separate processes, and a raw fetch of the same bytes."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from queue import SimpleQueue

import msgspec

from bench.peers import ENTRIES, RAW, cluster, raw_endpoint, serving
from bench.replay_log import CODEC, Body
from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.links import Heard, Links
from cutwater.cluster.zenoh_kv import ZenohKv
from cutwater.protocol.base.chain import Entry
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

WAIT_S = 60.0


def catch_up(log: list[bytes], file: Path, peers: int, delay_s: float, config: ReplayConfig) -> float:
    """Seconds to read the whole log from `peers` peers that answer after a delay. The log itself stands in for the
    store."""
    with serving(peers, file, delay_s) as endpoints:
        links = Links(ZenohKv(cluster(None, list(endpoints.values())), "bench", "late", "1"))
        heard: SimpleQueue[tuple[str, Heard]] = SimpleQueue()
        links.start(lambda sender, message: heard.put((sender, message)))
        deadline = time.monotonic() + WAIT_S
        while len(links.alive()) <= peers:
            if time.monotonic() > deadline:
                raise SystemExit(f"only {', '.join(links.alive())} joined within {WAIT_S:g} s")
            time.sleep(0.01)
        try:
            return _learn(log, list(endpoints), config, links, heard)
        finally:
            links.close()


def _learn(
    log: list[bytes],
    peers: list[str],
    config: ReplayConfig,
    links: Links,
    heard: SimpleQueue[tuple[str, Heard]],
) -> float:
    head = Anchor(len(log), CODEC.open(log[-1]).hash)
    began_s = time.perf_counter()
    session = ReplaySession(CODEC, None, head, None, config)
    todo: deque[Action] = deque()
    for name in peers:
        todo += session.peer_joined(name, 0)
    delivered = 0
    while True:
        while todo:
            action = todo.popleft()
            match action:
                case Ask(peer, request_id):
                    links.send(peer, AskRange(request_id))
                case Fetch(peer, request_id, first, last, max_bytes):
                    links.send(peer, FetchEntries(request_id, first, last, max_bytes))
                case AnchorAt(request_id, index):
                    todo += session.on_anchor(request_id, CODEC.open(log[index - 1]).hash, 0)
                case Deliver():
                    delivered += len(action.entries)
                case ReplayDone(index):
                    assert delivered == index == len(log)
                    return time.perf_counter() - began_s
                case _:
                    raise SystemExit(f"unexpected: {action}")
        sender, message = heard.get(timeout=WAIT_S)
        match message:
            case HaveRange(request_id, first, last):
                todo += session.on_available(sender, first, last, request_id, 0)
            case EntriesChunk(request_id, first, entries):
                todo += session.on_chunk(sender, request_id, first, entries, 0)
            case _:
                raise SystemExit(f"unexpected: {message}")


def fetch_raw(count: int, file: Path, config: ReplayConfig) -> float:
    """Seconds to fetch as many entries in chunks of the same size with plain Zenoh queries and to decode them: no
    seals, no hashes, and only the questions are in order."""
    decode = msgspec.json.Decoder(Entry[Body]).decode
    with serving(1, file, 0.0) as endpoints:
        (name, endpoint), *_ = endpoints.items()
        session = ClusterConfig(peers=(raw_endpoint(endpoint),)).session("bench")
        deadline = time.monotonic() + WAIT_S
        while not any(r.ok for r in session.get(f"{RAW}/{name}", payload="1 1")):
            if time.monotonic() > deadline:
                raise SystemExit("the peer did not answer")
        began_s = time.perf_counter()
        entries = 0
        for first in range(1, count + 1, config.chunk_entries):
            last = min(first + config.chunk_entries - 1, count)
            for reply in session.get(f"{RAW}/{name}", payload=f"{first} {last}", timeout=WAIT_S):
                for data in ENTRIES.decode(reply.ok.payload.to_bytes()):
                    decode(data)
                    entries += 1
        took_s = time.perf_counter() - began_s
        session.close()
    assert entries == count
    return took_s
