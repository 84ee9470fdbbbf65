"""What the status of a member says, and where it goes; with stubs for all that it reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cutwater.protocol.base.events import Event, OperationFailed
from cutwater.protocol.base.paths import status_name
from cutwater.protocol.base.watermark import NONE, UNKNOWN, Watermark, known
from cutwater.protocol.leader.leader import LeaderPhase
from cutwater.runtime import reporter as module
from cutwater.runtime.reporter import Reporter
from cutwater.store.local import LocalStore
from cutwater.store.overlay import Overlay
from cutwater.store.stage_status import StageStatus
from cutwater.store.status import REPORT_REMOTE_S, REPORT_S, Status, decode_status
from tests.support.builders import batch, pipeline, stage


class Query:
    def __init__(self, progress: Any, is_active: bool = True) -> None:
        self.lastProgress = progress
        self.isActive = is_active


class Stage:
    """A stage of the core, as far as its status shows it."""

    def __init__(self, last: int = 4, mark: Watermark = NONE, phase: str = "running") -> None:
        self.log = SimpleNamespace(state=SimpleNamespace(last=last, consumed={"in": 1}, watermark=mark))
        self.phase = SimpleNamespace(value=phase)
        self.idle = False
        self.draining = False
        self.busy_ms: int | None = 2_500
        self.activity = SimpleNamespace(busy_ms=lambda last, now_ms: self.busy_ms)


class Running:
    """A member with one stage `s` that reads `in`."""

    def __init__(self, store: Any) -> None:
        self.boot = "boot1"
        self.events: list[Event] = []
        self.shown: list[tuple[str, bytes]] = []
        self.store = store
        self.stage = Stage()
        host = SimpleNamespace(
            name="s",
            query=None,
            feeds={},
            planned=SimpleNamespace(inputs=("in",), has_native_source=False),
        )
        self.host: Any = host
        self.hosts: dict[str, Any] = {"s": host}
        self.producer = SimpleNamespace(
            last=4, batches={n: batch(n, () if n == 3 else ("f",)) for n in range(5)}
        )
        self.journal = SimpleNamespace(
            open={}, committed={}, head=None, leader="main", generation=2, term=3, watermark=9
        )
        self.member = SimpleNamespace(
            name="main",
            journal=SimpleNamespace(state=self.journal),
            stages={"s": self.stage},
            ending=SimpleNamespace(published={}),
            sources_done=False,
            failures={},
            tries={},
            now_ms=0,
            log=lambda name: SimpleNamespace(state=self.producer),
        )
        self.leader = SimpleNamespace(phase=LeaderPhase.LEADING)
        self.planned = SimpleNamespace(
            name="shop", topology=pipeline(stage("s", member="main")), stages={"s": None, "theirs": None}
        )
        self.facts = SimpleNamespace(
            last_commit=None,
            trouble="",
            stage_errors={"s": "it broke"},
            open_since=lambda epoch: 100.0 + epoch,
        )
        self.settings = SimpleNamespace(
            leader=SimpleNamespace(coordinator=SimpleNamespace(interval_ms=5_000))
        )
        self.sinks: dict[str, Any] = {}
        self.failure: BaseException | None = None
        self.drained = False
        self.links = SimpleNamespace(ignored=0, show=lambda key, data: self.shown.append((key, data)))
        self.shell = SimpleNamespace(look=lambda task: task())
        self.dispatcher = SimpleNamespace(emit=self.events.append)

    def reporter(self) -> Reporter:
        return Reporter(self)  # type: ignore[arg-type]

    def status(self) -> Status:
        return self.reporter().status()

    def of_stage(self) -> StageStatus:
        (found,) = self.status().stages
        return found


@pytest.fixture
def running(tmp_path: Path) -> Running:
    return Running(LocalStore(tmp_path))


# --- the member -------------------------------------------------------------------------------------------


def test_what_a_status_says_of_the_member(running: Running) -> None:
    found = running.status()
    assert (found.pipeline, found.member, found.boot, found.pid) == ("shop", "main", "boot1", os.getpid())
    assert (found.generation, found.term, found.watermark, found.every_s) == (2, 3, 9, 5.0)
    assert (found.epoch, found.epoch_at, found.epoch_s, found.open_epoch, found.open_since) == (None,) * 5
    assert (found.leads, found.ignored, found.trouble) == (True, 0, "")
    assert [s.name for s in found.stages] == ["s"], "not those of other members"
    assert found.report_s == REPORT_S


def test_the_newest_open_epoch_and_the_last_commit_are_shown(running: Running) -> None:
    running.journal.open = {7: 1, 6: 1}
    running.facts.last_commit = SimpleNamespace(at=50.0, duration_s=1.5)
    running.journal.head = 5
    found = running.status()
    assert (found.open_epoch, found.open_since) == (7, 107.0)
    assert (found.epoch, found.epoch_at, found.epoch_s) == (5, 50.0, 1.5)


def test_reports_are_counted(running: Running) -> None:
    reporter = running.reporter()
    assert [reporter.status().beat for _ in range(3)] == [1, 2, 3]


def leads_not(running: Running) -> None:
    running.leader.phase = LeaderPhase.FOLLOWING


def has_no_stages(running: Running) -> None:
    running.member.stages = {}


def is_draining(running: Running) -> None:
    running.stage.draining = True


def has_peers(running: Running) -> None:
    running.leader.phase = LeaderPhase.FOLLOWING
    running.planned.topology = pipeline(stage("s", member="main"), stage("t", member="other"))


def has_silent_peers(running: Running) -> None:
    has_peers(running)
    running.journal.leader = None


STATES: list[tuple[Callable[[Running], None], str]] = [
    (lambda running: None, "running"),
    (leads_not, "starting"),
    (has_no_stages, "starting"),
    (is_draining, "draining"),
    (has_peers, "running"),
    (has_silent_peers, "starting"),
]


@pytest.mark.parametrize(("change", "state"), STATES)
def test_the_state_of_a_member(running: Running, change: Callable[[Running], None], state: str) -> None:
    change(running)
    assert running.status().state == state
    assert running.reporter().status("failed").state == "failed"


def test_what_is_not_published_is_counted_by_sink(running: Running) -> None:
    running.sinks = dict.fromkeys(("done", "late", "new"))
    running.member.ending.published = {"done": 30, "late": 10}
    assert running.status().unpublished == {}
    running.journal.committed = {n: SimpleNamespace(index=10 * n) for n in (1, 2, 3)}
    running.journal.head = 3
    assert running.status().unpublished == {"late": 2, "new": 3}


def test_a_sink_that_has_the_newest_epoch_waits_for_nothing(running: Running) -> None:
    """Epoch 4 lies on another branch, which a restore has left."""
    running.sinks = {"out": None}
    running.member.ending.published = {"out": 30}
    running.journal.committed = {3: SimpleNamespace(index=30), 4: SimpleNamespace(index=40)}
    running.journal.head = 3
    assert running.status().unpublished == {}


def test_the_failure_of_a_run_is_its_trouble(running: Running) -> None:
    running.facts.trouble = "the store is slow"
    assert running.status().trouble == "the store is slow"
    running.failure = OSError("the store is gone")
    assert running.status().trouble == "the store is gone"


# --- its stages -------------------------------------------------------------------------------------------


def test_a_stage_that_does_not_exist_yet_waits(running: Running) -> None:
    running.member.stages = {}
    found = running.of_stage()
    assert (found.state, found.batch, found.rows_per_s, found.batch_s) == ("waiting", -1, 0, 0)
    assert (found.lag_batches, found.lag_rows, found.watermark) == (0, 0, None)


def test_unread_batches_with_rows_are_counted(running: Running) -> None:
    """Read up to batch 1; of 2, 3 and 4 the third has no rows."""
    running.producer.batches = {
        n: msgspec.structs.replace(b, rows=10) for n, b in running.producer.batches.items()
    }
    found = running.of_stage()
    assert (found.lag_batches, found.lag_rows) == (2, 20)
    running.stage.log.state.consumed = {}
    assert running.of_stage().lag_batches == 4
    running.stage.log.state.consumed = {"in": 4}
    assert running.of_stage().lag_batches == 0


@pytest.mark.parametrize(("limit", "consumed", "waits"), [(3, 1, "in"), (4, 1, ""), (3, 4, "")])
def test_an_input_that_a_barrier_holds_back_is_named(
    running: Running, limit: int, consumed: int, waits: str
) -> None:
    running.host.feeds = {"in": SimpleNamespace(limit=limit)}
    running.stage.log.state.consumed = {"in": consumed}
    assert running.of_stage().waits_for == waits


def test_the_state_of_a_stage(running: Running) -> None:
    assert running.of_stage().state == "running"
    running.stage.idle = True
    assert running.of_stage().state == "idle"
    running.stage.phase.value = "cut"
    assert running.of_stage().state == "cut"
    running.member.tries = {"s": 2}
    found = running.of_stage()
    assert (found.state, found.restarts, found.error) == ("restarting", 2, "it broke")
    running.member.failures = {"s": "x"}
    assert running.of_stage().state == "failed"


def test_an_error_that_is_over_is_not_shown(running: Running) -> None:
    assert running.of_stage().error == ""


@pytest.mark.parametrize(
    ("mark", "ms", "kind"),
    [(NONE, None, "none"), (UNKNOWN, UNKNOWN.ms, UNKNOWN.kind.value), (known(7), 7, "known")],
)
def test_the_watermark_of_a_stage(running: Running, mark: Watermark, ms: int | None, kind: str) -> None:
    running.stage.log.state.watermark = mark
    found = running.of_stage()
    assert (found.watermark, found.watermark_kind) == (ms, kind)


def test_the_first_batch_shows_how_long_it_takes(running: Running) -> None:
    assert running.of_stage().first_batch_s is None, "it is not the first"
    running.stage.log.state.last = 0
    assert running.of_stage().first_batch_s is None
    running.stage.log.state.last = -1
    assert running.of_stage().first_batch_s == 2.5
    running.stage.phase.value = "starting"
    assert running.of_stage().first_batch_s is None
    running.stage.phase.value, running.stage.busy_ms = "running", None
    assert running.of_stage().first_batch_s is None


# --- queries ----------------------------------------------------------------------------------------------


def test_rates_come_from_the_last_progress(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "source_lags", lambda query, progress: pytest.fail("it reads no source"))
    reporter = running.reporter()
    reporter._measure()
    assert reporter.status().stages[0].rows_per_s == 0
    running.host.query = Query({"processedRowsPerSecond": 12.34, "batchDuration": 250})
    reporter._measure()
    (found,) = reporter.status().stages
    assert (found.rows_per_s, found.batch_s) == (12.3, 0.25)
    running.stage.idle = True
    assert reporter.status().stages[0].rows_per_s == 0
    running.stage.idle = False
    running.host.query = Query({"processedRowsPerSecond": 99, "batchDuration": 99}, is_active=False)
    reporter._measure()
    assert reporter.status().stages[0].rows_per_s == 12.3, "of a query that has ended nothing is known"
    running.host.query = Query({})
    reporter._measure()
    (found,) = reporter.status().stages
    assert (found.rows_per_s, found.batch_s) == (0, 0)


def test_a_query_that_cannot_be_asked_keeps_nobody_from_reporting(running: Running) -> None:
    class Gone:
        isActive = True

        @property
        def lastProgress(self) -> Any:
            raise ConnectionError("the JVM is gone")

    running.host.query = Gone()
    running.hosts["t"] = SimpleNamespace(
        name="t", query=Query({"batchDuration": 500}), planned=SimpleNamespace(has_native_source=False)
    )
    reporter = running.reporter()
    reporter._measure()
    assert reporter._rates == {"t": (0.0, 0.5)}


def test_lags_are_those_of_native_sources(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    behind: Any = ("three records behind",)
    monkeypatch.setattr(module, "source_lags", lambda query, progress, now_s: behind)
    running.host.planned.has_native_source = True
    running.host.query = Query({"batchDuration": 1})
    reporter = running.reporter()
    assert reporter.status().stages[0].sources == ()
    reporter._measure()
    assert reporter.status().stages[0].sources == behind


# --- where it goes ----------------------------------------------------------------------------------------


def stored(running: Running) -> Status | None:
    data = running.store.read(status_name("main"))
    return decode_status(data) if data is not None else None


def test_a_status_goes_to_the_store_and_to_the_other_members(running: Running) -> None:
    running.reporter().put(running.status())
    found = stored(running)
    assert found is not None
    assert running.shown == [("status", msgspec.json.encode(found))]


def test_a_store_that_fails_does_not_matter(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, data: bytes) -> None:
        raise OSError("full")

    monkeypatch.setattr(running.store, "put", fail)
    running.reporter().put(running.status())
    assert len(running.shown) == 1


def test_object_stores_get_fewer_reports() -> None:
    assert Running(Overlay(None, "s3://b")).status().report_s == REPORT_REMOTE_S


@pytest.mark.parametrize(
    ("drained", "state", "shown"),
    [(False, "stopped", "stopped"), (True, "stopped", "drained"), (True, "failed", "failed")],
)
def test_the_last_status_says_how_it_ended(running: Running, drained: bool, state: str, shown: str) -> None:
    running.drained = drained
    reporter = running.reporter()
    reporter.every_s = 0.01
    reporter.start()
    first = stored(running)
    assert first is not None
    reporter.stop(state)
    found = stored(running)
    assert found is not None
    assert found.state == shown
    assert not any(thread.is_alive() for thread in reporter._threads)


def test_it_begins_with_starting(running: Running) -> None:
    reporter = running.reporter()
    reporter.every_s = 60
    reporter.start()
    found = stored(running)
    reporter.stop("stopped")
    assert found is not None
    assert found.state == "starting"


@pytest.mark.parametrize(
    ("boot", "state", "stays"),
    [("boot2", "running", True), ("boot2", "stopped", False), ("boot1", "running", False)],
)
def test_the_status_of_a_successor_stays(running: Running, boot: str, state: str, stays: bool) -> None:
    other = msgspec.structs.replace(running.status(), boot=boot, state=state, pid=1)
    running.store.put(status_name("main"), msgspec.json.encode(other))
    running.reporter().stop("stopped")
    found = stored(running)
    assert (found == other) is stays


@pytest.mark.parametrize("trouble", ["a store that fails", "no status", "a damaged one"])
def test_without_a_readable_status_there_is_no_successor(
    running: Running, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    if trouble == "a damaged one":
        running.store.put(status_name("main"), b"{")
    if trouble == "a store that fails":
        monkeypatch.setattr(running.store, "read", lambda name: (_ for _ in ()).throw(OSError("no")))
    running.reporter().stop("stopped")
    assert len(running.shown) == 1


def test_a_report_that_fails_is_an_event_and_not_the_last(running: Running) -> None:
    reporter = running.reporter()
    reporter.every_s = 0.001
    tries: list[None] = []

    def task() -> None:
        tries.append(None)
        if len(tries) == 1:
            raise KeyError("x")
        reporter._stopped.set()

    reporter._repeat(task)
    assert len(tries) == 2
    assert running.events == [OperationFailed("reporting the status", "KeyError: 'x'")]
