"""Stores for tests of the commands: a correct history (`builders.Play`), written by the real classes."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import msgspec

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.log import append
from cutwater.protocol.base.paths import notes_name
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.member.stage_log import StageLog
from cutwater.runtime.timings import EpochTimes, StageTime
from cutwater.sinks.records import Identity
from cutwater.store.at_rest import drive
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from cutwater.store.stage_status import StageStatus
from cutwater.store.status import Status
from tests.support.builders import CHAIN, Play

BEGUN_AT = 1_767_225_600.0


class Written(Play):
    """A history whose state files contain their own name, with its checksum. They are in no Spark folder."""

    def __init__(self, topology: r.Topology = CHAIN) -> None:
        super().__init__(topology)

    def reports(self) -> dict[str, r.StageReport]:
        return {
            name: msgspec.structs.replace(
                report, state={file: _sha256(file) for file in _moved(report.state)}
            )
            for name, report in super().reports().items()
        }

    def checkpoint(self, flags: int = 0, savepoint: str | None = None) -> None:
        """Every stage runs a batch, then a checkpoint is taken."""
        for name in self.topology.stages:
            self.batch(name)
        self.begin(flags, savepoint)
        self.cut_all()
        self.commit()

    def write(self, folder: Path, unmarked: tuple[int, ...] = ()) -> Store:
        """Writes everything into a store, with marks (except for the epochs in `unmarked`) and timings."""
        store = open_store(str(folder), create=True)
        assert isinstance(store, LocalStore)
        journal = Journal()
        for number, body in enumerate(self.entries):
            drive(store, append(journal.view, journal.view.seal(body, f"n{number}")))
        for name, bodies in self.logs.items():
            view = StageLog(name, 1).view
            for number, entry in enumerate(bodies):
                drive(store, append(view, view.seal(entry, f"n{number}")))
        for epoch, manifest in self.manifests.items():
            checkpoint = self.state.committed[epoch]
            store.create(paths.manifest_name(epoch, checkpoint.checkpoint_id), r.encode(manifest))
            for file in manifest.objects():
                store.create(file, file.encode())
            for sink in self.topology.sinks():
                if epoch not in unmarked:
                    mark = r.Published(epoch, sink, checkpoint.index, epoch + 100)
                    store.create(paths.mark_name(checkpoint.index, sink), r.encode(mark))
            store.put(notes_name(epoch), msgspec.json.encode(self.times(epoch)))
        for sink in self.topology.sinks():
            store.create(f"sinks/{sink}.json", r.seal(Identity("written", sink)))
        return store

    def times(self, epoch: int) -> EpochTimes:
        """The timings of an epoch in which each stage is cut a second after the one before; the last takes ten."""
        cuts = {name: float(at) for at, name in enumerate(self.topology.stages, 1)}
        cuts[list(cuts)[-1]] = 12.0
        checkpoint = self.state.committed[epoch]
        return EpochTimes(
            epoch,
            checkpoint.checkpoint_id,
            BEGUN_AT,
            checkpoint.flags,
            stages={n: StageTime(s, checkpoint.cuts[n], False) for n, s in cuts.items()},
            captured_s=12.1,
            manifest_s=12.2,
            committed_s=12.3,
            published_s=dict.fromkeys(self.topology.sinks(), 12.5),
        )


def _sha256(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def _moved(names: Iterable[str]) -> list[str]:
    return [name.replace("/spark/", "/files/") for name in names]


def put_status(store: Store, *, clock_s: float = 0.0, **what: Any) -> Status:
    """Writes the status of a member on another host, whose clock is `clock_s` ahead; `what` overrides its fields."""
    now = time.time() + clock_s
    stages = (
        StageStatus("a", "running", 7, 1234.5, 0.5, 0, 0, None, "none"),
        StageStatus("b", "idle", 3, 0.0, 0.1, 2, 5_000, 1_767_225_600_000, "known", waits_for="a"),
        StageStatus(
            "c", "restarting", 1, 0.0, 0.1, 0, 0, None, "unknown", restarts=2, error="ValueError: no"
        ),
    )
    status = Status(
        "chain", "main", "b00t", "elsewhere", 4711, "running", now - 60, now, 1, 1, 4, now - 3, 0.5, None, None, None,
        5.0, stages, {"out": 2}, report_s=0.1,
    )  # fmt: skip
    status = msgspec.structs.replace(status, **what)
    store.put(f"status/{status.member}.json", msgspec.json.encode(status))
    return status


@contextmanager
def beating(store: Store, *, clock_s: float = 0.0, **what: Any) -> Iterator[Event]:
    """A running member, as seen in the store: it rewrites its status until the event is set."""
    over = Event()

    def beat() -> None:
        for number in itertools.count(1):
            put_status(store, clock_s=clock_s, beat=number, **what)
            if over.wait(0.05):
                return

    put_status(store, clock_s=clock_s, **what)
    thread = Thread(target=beat)
    thread.start()
    try:
        yield over
    finally:
        over.set()
        thread.join()
