"""A peer that serves a log in its own process, for benchmarks: `python -m bench.peers CONFIG`.

It answers catch-up requests over the links (`Provider`), after a delay as on a network. For comparison it also serves
the same chunks as plain bytes to plain Zenoh queries. It ends when its input ends.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

import msgspec

from bench.ports import free_endpoints
from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.links import Heard, Links
from cutwater.cluster.zenoh_kv import ZenohKv
from cutwater.protocol.base.replay_wire import AskRange, FetchEntries
from cutwater.protocol.replay.provider import Provider

RAW = "bench/raw"
ENTRIES = msgspec.msgpack.Decoder(list[bytes])


class Config(msgspec.Struct):
    """The peer `name` serves the log in the file `log`, `delay_s` after each request."""

    name: str
    log: str
    listen: str
    delay_s: float


def serve(config: Config) -> None:
    """Serves until the input ends."""
    log = ENTRIES.decode(Path(config.log).read_bytes())
    provider = Provider(1, log, keep_bytes=1 << 40)
    asked: SimpleQueue[tuple[str, Heard]] = SimpleQueue()
    links = Links(ZenohKv(cluster(config.listen, None), "bench", config.name, "1"))

    def answer() -> None:
        while True:
            sender, message = asked.get()
            if isinstance(message, AskRange | FetchEntries):
                time.sleep(config.delay_s)
                links.send(sender, provider.answer(message))

    def answer_raw(query: Any) -> None:
        first, last = map(int, query.payload.to_string().split())
        with query:
            query.reply(query.key_expr, msgspec.msgpack.encode(log[first - 1 : last]))

    Thread(target=answer, daemon=True).start()
    session = ClusterConfig(listen=(raw_endpoint(config.listen),)).session("bench")
    session.declare_queryable(f"{RAW}/{config.name}", answer_raw)
    links.start(lambda sender, message: asked.put((sender, message)))
    print("ready", flush=True)
    sys.stdin.read()
    links.close()
    session.close()


def cluster(listen: str | None, peers: list[str] | None) -> ClusterConfig:
    """The cluster configuration of the peers and the member that catches up."""
    return ClusterConfig(
        listen=(listen,) if listen else (), peers=tuple(peers or ()), secret="the members of a benchmark"
    )


def raw_endpoint(endpoint: str) -> str:
    """The endpoint where a peer serves plain bytes: another address of the same machine."""
    return endpoint.replace("127.0.0.1", "127.0.0.2")


@contextmanager
def serving(count: int, log: Path, delay_s: float) -> Iterator[dict[str, str]]:
    """Starts `count` peers, and yields their endpoints by name."""
    endpoints = {f"peer-{i}": endpoint for i, endpoint in enumerate(free_endpoints(count))}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name, endpoint in endpoints.items():
            config = msgspec.json.encode(Config(name, str(log), endpoint, delay_s)).decode()
            command = [sys.executable, "-m", "bench.peers", config]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        yield endpoints
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


if __name__ == "__main__":
    serve(msgspec.json.decode(sys.argv[1], type=Config))
