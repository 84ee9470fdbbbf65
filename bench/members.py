"""A member without Spark in its own process, for benchmarks: `python -m bench.members CONFIG`.

It runs the protocol as a real member does (shell, member, leader, links, a local store with fsync), but without
Spark: its only stage is a root that never has a batch. The leader prints the duration of each checkpoint, from the
announcement of PREPARE to that of COMMIT, which follows immediately after COMMITTED is durable. The process ends when
its input ends.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import assert_never

import msgspec
from msgspec.structs import replace

from bench.ports import free_endpoints
from cutwater.api.config import RunConfig
from cutwater.cluster.config import ClusterConfig
from cutwater.cluster.links import Heard, Hint, Links, Presence
from cutwater.cluster.zenoh_kv import ZenohKv
from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.performer import Incarnations, StoredFiles, perform
from cutwater.protocol.base.records import Prepared, StageSpec, Topology
from cutwater.protocol.base.replay_wire import AskRange, Compacted, EntriesChunk, FetchEntries, HaveRange
from cutwater.protocol.base.wire import (
    Ack,
    Announcement,
    Heartbeat,
    LogGrown,
    Phase,
    Reply,
    Request,
    SourcesDone,
)
from cutwater.protocol.leader.leader import Leader, LeaderConfig
from cutwater.protocol.member.member import Member
from cutwater.runtime.local_word import LocalWord
from cutwater.runtime.shell import Shell
from cutwater.store.local import LocalStore
from cutwater.store.perform import MemberlessPerformer

TIMEOUT_MS = 2_000
POLL_MS = 1_000
"""The same value as for a member with links on a local store."""


class Config(msgspec.Struct):
    """One member of `members`; `interval_ms` is the time between two checkpoints."""

    name: str
    members: list[str]
    store: str
    listen: str
    peer: str | None
    interval_ms: int


class BatchlessPerformer(MemberlessPerformer):
    """Performs the operations of a member whose queries never have a batch."""

    def list_folders(self, operation: fx.ListFolders) -> Incarnations:
        return []

    def make_folder(self, operation: fx.MakeFolder) -> fx.Done:
        return fx.DONE

    def start_query(self, operation: fx.StartQuery) -> None:
        return None

    def read_prepared(self, operation: fx.ReadPrepared) -> Prepared | None:
        return None

    def find_state(self, operation: fx.FindState) -> dict[str, str] | None:
        return {}

    def find_stored(self, operation: fx.FindStored) -> StoredFiles:
        return [], []


class Process:
    """One assembled member."""

    def __init__(self, config: Config) -> None:
        topology = Topology({f"stage_{m}": StageSpec(f"stage_{m}", (), m) for m in config.members})
        boot = f"b{os.getpid()}"
        store = LocalStore(Path(config.store))
        performer = BatchlessPerformer(store)
        options = RunConfig(every=config.interval_ms / 1000, timeout="1m")
        member_config = replace(options.for_member(store, is_alone=False), poll_ms=POLL_MS)
        self._member = Member(config.name, boot, topology, member_config, LocalWord)
        coordinator = options.leader(is_alone=False).coordinator
        self._leader = Leader(self._member, LeaderConfig(TIMEOUT_MS, TIMEOUT_MS // 3, coordinator))
        peers = (config.peer,) if config.peer is not None else ()
        cluster = ClusterConfig(listen=(config.listen,), peers=peers, secret="the members of a benchmark")
        self._links = Links(ZenohKv(cluster, "bench", config.name, boot))
        self._shell = Shell(
            self._member, partial(perform, performer), self._send, lambda name: None, lambda: None, self._fail
        )
        self._announced: dict[int, float] = {}

    def run(self) -> None:
        """Runs until the input ends."""
        self._links.start(self._on_message)
        self._shell.spawn("journal", self._member.follow_journal())
        self._shell.spawn("lead", self._leader.run())
        self._shell.spawn("beat", self._leader.beat())
        self._shell.spawn("provide", self._member.provide())
        self._shell.start()
        sys.stdin.read()
        self._shell.stop()
        self._links.close()

    def _fail(self, error: BaseException) -> None:
        print(f"{self._member.name}: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)

    def _send(self, send: fx.Send) -> None:
        message = send.message
        if isinstance(message, Announcement):
            self._time(message)
        if not isinstance(message, Reply):
            self._links.send(send.to, message)

    def _time(self, announcement: Announcement) -> None:
        if announcement.phase is Phase.PREPARE:
            self._announced.setdefault(announcement.checkpoint_id, time.perf_counter())
        elif announcement.phase is Phase.COMMIT:
            took_ms = (time.perf_counter() - self._announced.pop(announcement.checkpoint_id)) * 1000
            print(
                json.dumps({"epoch": announcement.epoch, "ms": took_ms, "leader": self._member.name}),
                flush=True,
            )

    def _on_message(self, sender: str, message: Heard) -> None:
        self._shell.call(lambda: self._deliver(sender, message))

    def _deliver(self, sender: str, message: Heard) -> None:
        match message:
            case Announcement():
                self._member.on_announcement(sender, message)
            case Heartbeat():
                self._member.on_heartbeat(message)
                self._leader.on_heartbeat(message)
            case LogGrown():
                self._member.on_log_grown(message)
            case Ack():
                self._leader.on_message(message)
            case AskRange() | FetchEntries() | HaveRange() | EntriesChunk() | Compacted():
                self._member.on_replay(sender, message)
            case SourcesDone():
                self._leader.on_sources_done(message)
            case Presence():
                self._member.on_presence(sender, message.is_present)
            case Request() | Reply() | Hint():
                pass
            case _:
                assert_never(message)


@contextmanager
def running(count: int, store: Path, interval_ms: int) -> Iterator[Iterator[float]]:
    """Starts `count` members, and yields the milliseconds of each checkpoint when it is committed."""
    names = [f"m{i:02}" for i in range(count)]
    endpoints = free_endpoints(count)
    processes: list[subprocess.Popen[bytes]] = []
    heard, said = os.pipe()  # one pipe for all, because any of them may lead
    try:
        for name, endpoint in zip(names, endpoints, strict=True):
            peer = endpoints[0] if processes else None
            config = Config(name, names, str(store), endpoint, peer, interval_ms)
            command = [sys.executable, "-m", "bench.members", msgspec.json.encode(config).decode()]
            processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=said))
        os.close(said)
        with open(heard) as lines:
            yield (json.loads(line)["ms"] for line in lines)
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.communicate()


if __name__ == "__main__":
    Process(msgspec.json.decode(sys.argv[1], type=Config)).run()
