"""How fast a follower learns what it has missed: `python -m bench.follow [--epochs 100000] [--rounds 3]`.

A follower that was away while so many epochs were committed, published and expired gets the journal from three members,
compared with one: real processes over Zenoh, each answering after 50 ms as from another region. The time is that from
its start until it has been given every epoch. `speedup` is the time with one member relative to that with three; side by
side, alternating.

The last line is JSON; `ratio` is that of target to result.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from bench.peers import cluster, serving
from cutwater.cluster.links import Presence
from cutwater.cluster.observer import ForCatchUp, Observer, now_ms
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import GENESIS, Entry
from cutwater.protocol.base.paths import JOURNAL_PREFIX, entry_name, mark_name
from cutwater.protocol.base.wire import Announcement, Heartbeat
from cutwater.protocol.follower.followed import Followed
from cutwater.protocol.follower.follower import Follower, FollowerConfig
from cutwater.store.overlay import Overlay

SPEEDUP_TARGET = 2.0
DELAY_S = 0.05
"""As members in another region answer. With 5 ms the follower itself, which checks every hash, is what takes the time."""
WAIT_S = 60.0
RETAINED = 3
GRAPH = r.Topology({"a": r.StageSpec("a", (), "peer-0", (r.SinkSpec("out"),))})


class Journal:
    """A journal without snapshots, which no pipeline leaves behind: each epoch begins, commits, and expires later."""

    def __init__(self, epochs: int) -> None:
        self.log: list[bytes] = []
        self.commits: list[int] = []
        """The index of each commit."""
        self._prev = GENESIS
        self._add(r.Leader(1, "peer-0"))
        self._add(r.TopologySet(1, 1, "h", GRAPH))
        for epoch in range(1, epochs + 1):
            begun = self._add(r.Begun(1, 1, epoch, len(self.log) + 1, 0, "h"))
            self.commits.append(self._add(r.Committed(1, 1, epoch, begun, "m" * 64, epoch, {"a": epoch})))
            if epoch > RETAINED:
                self._add(r.Expired(1, 1, (epoch - RETAINED,), (), {"a": epoch - RETAINED}, ()))

    def _add(self, body: r.JournalBody) -> int:
        index = len(self.log) + 1
        sealed = r.JOURNAL.seal(Entry(index, self._prev, 0, f"n{index}", body))
        self.log.append(sealed.data)
        self._prev = sealed.hash
        return index


class JournalStore(Overlay):
    """The journal in memory, and the newest mark."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(None, "memory:///")
        self._entries = {entry_name(JOURNAL_PREFIX, i): data for i, data in enumerate(journal.log, 1)}
        self._names = sorted(self._entries)
        last, epoch = journal.commits[-1], len(journal.commits)
        self.put(mark_name(last, "out"), r.seal(r.Published(epoch, "out", last, epoch, last)))

    def read(self, name: str) -> bytes | None:
        return self._entries.get(name) or super().read(name)

    def read_many(self, names: Sequence[str]) -> list[bytes | None]:
        return [self.read(name) for name in names]

    def list(self, prefix: str, after: str = "") -> list[str]:
        if prefix != JOURNAL_PREFIX:
            return super().list(prefix, after)
        return self._names[max(bisect_left(self._names, prefix), bisect_right(self._names, after)) :]


def follow(journal: Journal, store: JournalStore, file: Path, peers: int, delay_s: float) -> float:
    """Seconds until a follower that knows the first epoch was given all others."""
    with ExitStack() as opened:
        endpoints = opened.enter_context(serving(peers, file, delay_s))
        config = cluster(None, list(endpoints.values()))
        with Observer(config, "bench", lambda line: None) as observer:
            deadline = time.monotonic() + WAIT_S
            while len(observer.members()) < peers:
                if time.monotonic() > deadline:
                    raise SystemExit(f"only {observer.members()} joined within {WAIT_S:g} s")
                time.sleep(0.01)
            began_s = time.perf_counter()
            polling = FollowerConfig(poll_ms=10_000, mark_poll_ms=50)
            follower = Follower(None, "bench", observer.members(), polling, now_ms)

            def tell(sender: str, message: ForCatchUp) -> None:
                if not isinstance(message, Announcement | Heartbeat | Presence):
                    follower.on_replay(sender, message)

            first = Followed(epoch=1, generation=1, tables={}, watermark=1, position=journal.commits[0])
            observer.drive(store, follower.begin(first), tell)
            for index in journal.commits[1:]:
                found = observer.drive(store, follower.next(), tell)
                assert found.position == index
                assert not found.after_gap
            return time.perf_counter() - began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--delay", type=float, default=DELAY_S, help="after how many seconds a member answers"
    )
    options = parser.parse_args()
    journal = Journal(options.epochs)
    store = JournalStore(journal)
    size = sum(map(len, journal.log))
    print(f"{options.epochs:,} epochs, {len(journal.log):,} entries, {size / 1e6:.0f} MB")
    one, three = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log"
        file.write_bytes(msgspec.msgpack.encode(journal.log))
        for number in range(1, options.rounds + 1):
            one.append(follow(journal, store, file, 1, options.delay))
            three.append(follow(journal, store, file, 3, options.delay))
            print(f"round {number}: 1 member {one[-1]:.2f} s, 3 members {three[-1]:.2f} s", flush=True)
    speedup = statistics.median(a / b for a, b in zip(one, three, strict=True))
    figures = {
        "bench": "follow",
        "epochs": options.epochs,
        "bytes": size,
        "delay_seconds": options.delay,
        "one_member_seconds": round(statistics.median(one), 3),
        "three_members_seconds": round(statistics.median(three), 3),
        "speedup": round(speedup, 3),
        "speedup_target": SPEEDUP_TARGET,
        "ratio": round(SPEEDUP_TARGET / speedup, 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
