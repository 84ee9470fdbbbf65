"""How fast the page of a large store is served: 10,000 epochs of history, 200 stages.

A store is written with the journal's snapshot of 10,000 kept checkpoints, their manifests, marks and timings. A real
server serves it. A load of the page is everything that the browser asks for: the files of the page and the documents of
one view. It is compared with reading the same objects raw: the objects of the store that the answers are made from.
Then a browser's requests are repeated, to see whether the server's memory grows.

    python -m bench.page [--epochs 10000] [--stages 200] [--rounds 200]
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import http.client
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import Entry
from cutwater.protocol.base.log import append
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.member.journal import Journal
from cutwater.runtime.timings import EpochTimes, StageTime
from cutwater.store.at_rest import drive
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from cutwater.store.stage_status import ChannelLag, StageStatus
from cutwater.store.status import Status
from cutwater.web.server import WebServer

SINKS = 10
STATEFUL = 20
NOW = 1_767_225_600.0
MODULES = (
    "app", "api", "dom", "format", "shared", "graph", "pipeline", "checkpoints", "checkpoint", "timeline", "tables",
    "members", "actions",
)  # fmt: skip
FILES = ("/", "/style.css", "/icon.svg", *(f"/{name}.js" for name in MODULES))
VIEWS = {
    "pipeline": ("pipeline", "tables?limit=1"),
    "checkpoints": ("pipeline", "checkpoints"),
    "checkpoint": ("pipeline", "checkpoints/latest", "checkpoints/latest/explain"),
    "timeline": ("pipeline", "timeline"),
    "tables": ("pipeline", "tables"),
    "members": ("members",),
}
TARGET_MS, TARGET_RATIO = 300.0, 3.0


def topology(stages: int) -> r.Topology:
    """Chains of ten stages that read each other, the last of some with a table."""
    found = {}
    for number in range(stages):
        inputs = (f"s{number - 1:03d}",) if number % 10 else ()
        sinks = (r.SinkSpec(f"t{number // 10}"),) if number % 10 == 9 and number // 10 < SINKS else ()
        found[f"s{number:03d}"] = r.StageSpec(f"s{number:03d}", inputs, f"m{number % 4}", sinks)
    return r.Topology(found)


def put(folder: Path, name: str, data: bytes) -> None:
    """Without a sync: a bench may lose its store."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def manifest_of(epoch: int, graph: r.Topology, folder: Path) -> r.Manifest:
    stages = {}
    for number, (name, spec) in enumerate(graph.stages.items()):
        state = {}
        if number < STATEFUL:
            file = f"{paths.spark_prefix(name, 1, 1)}state/0/0/{epoch // 5}.delta"
            state = {file: hashlib.sha256(file.encode()).hexdigest()}
            if epoch % 5 == 0 or epoch == 1:
                put(folder, file, b"x" * 100)
        stages[name] = r.StageReport(
            name, 1, epoch, False, consumed=dict.fromkeys(spec.inputs, epoch),
            offsets={} if spec.inputs else {"0": epoch}, watermark=NONE, state=state,
        )  # fmt: skip
    return r.Manifest(epoch, epoch * 2, 1, 1, 0, None, "h", stages, (), {}, {}, None)


def write(folder: Path, epochs: int, stages: int) -> LocalStore:
    store = open_store(str(folder), create=True)
    assert isinstance(store, LocalStore)
    graph = topology(stages)
    state = r.JournalState(term=1, leader="m0", topology=graph, topology_hash="h", next_epoch=epochs + 1)
    for epoch in range(1, epochs + 1):
        manifest = r.encode(manifest_of(epoch, graph, folder))
        put(folder, paths.manifest_name(epoch, epoch * 2), manifest)
        cuts = dict.fromkeys(graph.stages, epoch)
        index = epoch * 2 + 1
        digest = hashlib.sha256(manifest).hexdigest()
        state.committed[epoch] = r.Checkpoint(
            epoch, epoch * 2, 1, index, 0, digest, None, cuts, epoch - 1 if epoch > 1 else None
        )
        for sink in graph.sinks():
            mark = r.Published(epoch, sink, index, epoch, index, 0)
            put(folder, paths.mark_name(index, sink), r.encode(mark))
        times = EpochTimes(
            epoch, epoch * 2, NOW + epoch, 0,
            stages={n: StageTime(0.001 * k, epoch, False) for k, n in enumerate(graph.stages)},
            captured_s=0.21, manifest_s=0.22, committed_s=0.3 + 0.001 * (epoch % 100),
            published_s=dict.fromkeys(graph.sinks(), 0.5),
        )  # fmt: skip
        put(folder, paths.notes_name(epoch), msgspec.json.encode(times))
    state.head, state.head_cuts = epochs, dict.fromkeys(graph.stages, epochs)
    journal = Journal()
    for body in (r.Leader(1, "m0"), r.Snapshot(1, 1, state)):
        sealed = journal.view.seal(body, "n", snapshot=isinstance(body, r.Snapshot))
        drive(store, append(journal.view, sealed))
    for member in graph.members():
        own = [spec for spec in graph.stages.values() if spec.member == member]
        found = tuple(_status(spec, epochs) for spec in own)
        status = Status(
            "bench", member, "b", "host", 1, "stopped", NOW, NOW, 1, 1, epochs, NOW, 0.3, None, None, None, 1.0, found, {}
        )  # fmt: skip
        store.put(paths.status_name(member), msgspec.json.encode(status))
    return store


def _status(spec: r.StageSpec, batch: int) -> StageStatus:
    channels = tuple(ChannelLag(name, 1, 5) for name in spec.inputs)
    return StageStatus(spec.name, "running", batch, 10.0, 0.1, 0, 0, None, "none", channels=channels)


class Page:
    """A browser with one connection."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=600)

    def get(self, path: str) -> int:
        self._connection.request("GET", path, headers={"accept-encoding": "gzip"})
        answer = self._connection.getresponse()
        data = answer.read()
        assert answer.status == 200, (path, answer.status, data[:300])
        return len(data)

    def load(self, view: str) -> int:
        files = [*FILES, *(f"/api/v1/{path}" for path in VIEWS[view])]
        return sum(self.get(path) for path in files)


def raw(folder: Path, epochs: int, graph: r.Topology) -> None:
    """Reads and decodes the objects behind a first view of the checkpoints, and nothing else."""
    for name in sorted((folder / "journal").iterdir()):
        msgspec.json.decode(name.read_bytes(), type=Entry)
    for name in sorted((folder / "status").iterdir()):
        msgspec.json.decode(name.read_bytes(), type=Status)
    for name in sorted((folder / "explain").iterdir()):
        msgspec.json.decode(name.read_bytes(), type=EpochTimes)
    for epoch in range(epochs, max(0, epochs - 51), -1):
        data = (folder / paths.manifest_name(epoch, epoch * 2)).read_bytes()
        for report in msgspec.json.decode(data, type=r.Manifest).stages.values():
            for state in report.state:
                (folder / state).stat()
        for sink in graph.sinks():
            msgspec.json.decode(
                (folder / paths.mark_name(epoch * 2 + 1, sink)).read_bytes(), type=r.Published
            )


class Timed(msgspec.Struct):
    """Elapsed time, and the processor's time of this process: other load does not count in the latter."""

    ms: float
    cpu_ms: float


def timed(work: Callable[[], object]) -> Timed:
    began, busy = time.perf_counter(), time.process_time()
    work()
    return Timed((time.perf_counter() - began) * 1000, (time.process_time() - busy) * 1000)


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10_000)
    parser.add_argument("--stages", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=200)
    arguments = parser.parse_args()
    graph = topology(arguments.stages)
    with tempfile.TemporaryDirectory(prefix="bench-page-") as name:
        folder = Path(name)
        written = timed(lambda: write(folder, arguments.epochs, arguments.stages))
        print(f"written in {written.ms / 1000:.0f} s", flush=True)
        raws = [timed(lambda: raw(folder, arguments.epochs, graph)) for _ in range(3)]
        server = WebServer(open_store(str(folder)), "127.0.0.1:0")
        looked = timed(lambda: server.reader.look())
        server.start()
        page = Page(server.url)
        first = timed(lambda: page.load("checkpoints"))
        raws += [timed(lambda: raw(folder, arguments.epochs, graph)) for _ in range(3)]
        server.reader.prepare()
        results = {}
        for view in VIEWS:
            page.load(view)
            found = [timed(lambda view=view: page.load(view)) for _ in range(9)]  # type: ignore[misc]
            results[view] = {
                "ms": round(statistics.median(one.ms for one in found), 1),
                "cpu_ms": round(statistics.median(one.cpu_ms for one in found), 1),
            }
            print(view, results[view], flush=True)
        memory = []
        for number in range(arguments.rounds):
            page.load(list(VIEWS)[number % len(VIEWS)])
            if number % max(1, arguments.rounds // 5) == 0:
                gc.collect()
                memory.append(round(resident_mb()))
        memory.append(round(resident_mb()))
        server.stop()
        raw_cpu = statistics.median(one.cpu_ms for one in raws)
        print(
            json.dumps(
                {
                    "bench": "page", "epochs": arguments.epochs, "stages": arguments.stages, "views": results,
                    "worst_ms": max(one["ms"] for one in results.values()),
                    "worst_cpu_ms": max(one["cpu_ms"] for one in results.values()), "target_ms": TARGET_MS,
                    "first_ms": round(looked.ms + first.ms), "raw_ms": round(statistics.median(one.ms for one in raws)),
                    "first_ratio_cpu": round((looked.cpu_ms + first.cpu_ms) / raw_cpu, 2), "target_ratio": TARGET_RATIO,
                    "memory_mb": memory,
                }
            )
        )  # fmt: skip


if __name__ == "__main__":
    main()
