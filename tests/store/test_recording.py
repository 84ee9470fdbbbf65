"""What a running member records: a shell over a real store, with stand-ins for Spark and the tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from cutwater.cluster.open_links import open_links
from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.performer import Incarnations, StoredFiles, perform
from cutwater.protocol.base.records import Prepared, SinkSpec, StagedFile, StageSpec, Topology
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.base.wire import Ack, LogGrown
from cutwater.protocol.leader.leader import Leader
from cutwater.protocol.member import channel
from cutwater.protocol.member.member import Member
from cutwater.protocol.member.stage import StagePhase
from cutwater.runtime import runtime
from cutwater.runtime.local_word import LocalWord
from cutwater.runtime.settings import Settings
from cutwater.runtime.shell import Shell
from cutwater.sim.checker import Report, check_recording
from cutwater.sim.store import SimTable, TableVersion
from cutwater.store import recording as rec
from cutwater.store.local import LocalStore
from cutwater.store.perform import MemberlessPerformer
from tests.support.configs import leader_config, member_config

TOPOLOGY = Topology(
    {
        "orders": StageSpec("orders", (), "main"),
        "paid": StageSpec("paid", ("orders",), "main", (SinkSpec("table"),)),
    }
)
CONFIG = leader_config(100, 50, interval_ms=40, retained=1)


class Outside(MemberlessPerformer):
    """What survives a process: the store, the table, and Spark's progress."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.store = LocalStore(folder)
        self.table = SimTable()
        self.prepared: dict[str, dict[int, Prepared]] = {"orders": {}, "paid": {}}
        self.folders: dict[str, list[int]] = {"orders": [], "paid": []}
        super().__init__(
            self.store, lambda sink, transaction: self.table.find(transaction), head=self.table.head
        )

    def publish_table(self, operation: fx.PublishTable) -> int | None:
        self.table.versions.append(TableVersion(operation.transaction, {}))
        return self.table.head().version

    def list_folders(self, operation: fx.ListFolders) -> Incarnations:
        return self.folders[operation.stage]

    def make_folder(self, operation: fx.MakeFolder) -> fx.Done:
        self.folders[operation.stage].append(operation.incarnation)
        return fx.DONE

    def start_query(self, operation: fx.StartQuery) -> None:
        return None

    def read_prepared(self, operation: fx.ReadPrepared) -> Prepared | None:
        return self.prepared[operation.stage].get(operation.batch)

    def find_state(self, operation: fx.FindState) -> dict[str, str] | None:
        return {}

    def find_stored(self, operation: fx.FindStored) -> StoredFiles:
        return [], []


class Running:
    """One process of the member, assembled as in the runtime."""

    def __init__(self, outside: Outside, boot: str) -> None:
        self.outside = outside
        self.failures: list[BaseException] = []
        self._next_ms: dict[str, int] = {}
        config = member_config(poll_ms=20, resend_ms=50, compact_after=12)
        self.member = Member("main", boot, TOPOLOGY, config, LocalWord)
        self.leader = Leader(self.member, CONFIG)
        self.recorder = rec.from_environment(self.member)
        act, send = rec.watched(self.recorder, partial(perform, outside), self._send)
        self.shell = Shell(self.member, act, send, lambda name: None, self._run_queries, self.failures.append)
        self.shell.spawn("journal", self.member.follow_journal())
        self.shell.spawn("lead", self.leader.run())
        self.shell.spawn("beat", self.leader.beat())
        self.shell.start()

    def _send(self, effect: fx.Send) -> None:
        if isinstance(effect.message, Ack):
            self.leader.on_message(effect.message)

    def _run_queries(self) -> None:
        """Runs a batch for every stage whose last batch is in its log and that has something to read."""
        for name, stage in self.member.stages.items():
            state = stage.log.state
            batch = state.last + 1
            rests = self.member.now_ms < self._next_ms.get(name, 0)
            if rests or stage.phase is not StagePhase.RUNNING or batch in self.outside.prepared[name]:
                continue
            consumed: dict[str, int] = {}
            if name == "paid":
                upto = channel.readable(self.member.journal.state, state, self.member.log("orders").state)
                if upto <= state.consumed["orders"]:
                    continue
                consumed = {"orders": upto}
            staged: tuple[StagedFile, ...] = (StagedFile(f"tables/{batch}"),)
            sinks = {"table": staged} if name == "paid" else {}
            files = (f"stages/orders/1/data/{batch}",) if name == "orders" else ()
            self.outside.prepared[name][batch] = Prepared(
                batch, files, sinks, consumed=consumed, offsets={}, watermark=NONE
            )
            self._next_ms[name] = self.member.now_ms + 30
            self.shell.poke(f"stage {name}")

    def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert not self.failures, self.failures
            assert time.monotonic() < deadline, "it takes too long"
            time.sleep(0.005)

    @property
    def published(self) -> int:
        return len(self.outside.table.versions) - 1


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "trace"
    monkeypatch.setenv("CUTWATER_TRACE", str(folder))
    return folder


def test_recordings_of_running_processes_are_accepted_like_those_of_the_simulator(
    traced: Path, tmp_path: Path
) -> None:
    outside = Outside(tmp_path / "store")
    for boot, versions in (("first", 4), ("second", 8)):
        process = Running(outside, boot)
        process.until(lambda process=process, versions=versions: process.published >= versions)  # type: ignore[misc]
        process.shell.stop()  # as abruptly as a kill: operations in progress are never answered
        process.shell._pool.join()
    report = accepted(traced)
    assert sorted(path.name for path in traced.iterdir()) == ["main-first.jsonl", "main-second.jsonl"]
    assert report.counts["processes"] == 2
    assert report.counts["terms"] == 2
    assert report.counts["epochs committed"] >= 8
    assert report.counts["publishes"] >= 8
    assert report.counts["marks"] >= 7
    assert report.counts["deletions"] > 0
    assert report.not_recorded == {}
    with (traced / "main-first.jsonl").open("ab") as file:
        file.write(b'{"type":"create","process":"main-fi')
    assert accepted(traced).counts == report.counts
    (traced / "main-first.jsonl").unlink()
    assert accepted(traced).not_recorded["process that wrote an entry"] == 1


def accepted(folder: Path) -> Report:
    report = check_recording(folder)
    assert report.problems == [], [(p.rule, p.what, [str(at) for at in p.lines]) for p in report.problems]
    return report


# --- the recorder ----------------------------------------------------------------------------------------


def a_member() -> Member:
    return Member("main", "boot", TOPOLOGY, member_config(), LocalWord)


def lines(folder: Path) -> list[rec.AnyLine]:
    (path,) = rec.files_of(folder)
    found = [line for _, line in rec.read(path)]
    assert None not in found
    return [line for line in found if line is not None]


def test_nothing_is_recorded_unless_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTWATER_TRACE", raising=False)
    assert rec.from_environment(a_member()) is None

    def perform(effect: fx.Effect) -> Any:
        return None

    def send(effect: fx.Send) -> None:
        return None

    assert rec.watched(None, perform, send) == (perform, send)


def test_an_error_is_recorded_as_an_inconclusive_answer_and_raised(traced: Path) -> None:
    recorder = rec.from_environment(a_member())

    def perform(effect: fx.Effect) -> Any:
        raise OSError("no route")

    watched, _ = rec.watched(recorder, perform, lambda send: None)
    for effect in (
        fx.Create("journal/1", b"{}"),
        fx.Delete(("a",)),
        fx.PublishTable("t", 1, 2, (), 1),
        fx.Read("x"),
    ):
        with pytest.raises(OSError, match="no route"):
            watched(effect)
    assert [(type(line), getattr(line, "answer", None)) for line in lines(traced)] == [
        (rec.Began, None),
        (rec.Creation, "failed"),
        (rec.Deletion, "failed"),
        (rec.Publishing, "failed"),
    ]


def test_a_damaged_record_is_recorded_only_by_its_hash(traced: Path) -> None:
    recorder = rec.from_environment(a_member())
    watched, _ = rec.watched(recorder, lambda effect: b'{"index":', lambda send: None)
    watched(fx.Read("journal/000000000001.json"))
    _, line = lines(traced)
    assert isinstance(line, rec.Reading)
    assert line.hash is not None
    assert line.record == rec.NOTHING
    assert check_recording(traced).problems == []


def test_a_full_disk_ends_the_recording_but_not_the_work() -> None:
    written: list[bytes] = []

    def write(data: bytes) -> None:
        if len(written) == 2:
            raise OSError("no space left")
        written.append(data)

    recorder = rec.Recorder.of_member(write, a_member(), lambda: 0)
    watched, _ = rec.watched(recorder, lambda effect: fx.CREATED, lambda send: None)
    assert [watched(fx.Create("a", b"{}")) for _ in range(3)] == [fx.CREATED] * 3
    assert len(written) == 2


def test_the_runtime_records_what_its_shell_performs_and_sends(
    traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("StageHost", "Mailbox", "Reporter"):
        monkeypatch.setattr(runtime, name, MagicMock())
    stages = {"orders": MagicMock(trigger_s=0.0), "paid": MagicMock(trigger_s=0.0)}
    planned: Any = SimpleNamespace(name="p", spark=MagicMock(), topology=TOPOLOGY, sinks={}, stages=stages)
    (tmp_path / "store").mkdir()
    settings = Settings(CONFIG, member_config())
    links = open_links(None, "p", "main", "1", print)
    running = runtime.Runtime(planned, LocalStore(tmp_path / "store"), "main", "1", settings, print, links)
    running.shell._perform(fx.Create("a", b"{}"))
    running.shell._send(fx.Send(None, LogGrown("orders", 1, 1)))
    running.stop()
    assert [type(line) for line in lines(traced)] == [rec.Began, rec.Creation, rec.Sent, rec.Ended]
