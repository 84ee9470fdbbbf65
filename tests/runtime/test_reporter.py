"""When and where the status of a running member is reported."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cutwater.protocol.base.events import Event, OperationFailed
from cutwater.protocol.base.paths import status_name
from cutwater.runtime.member_status import Report
from cutwater.runtime.reporter import Reporter
from cutwater.store.local import LocalStore
from cutwater.store.overlay import Overlay
from cutwater.store.process_identity import this_process
from cutwater.store.status import REPORT_REMOTE_S, REPORT_S, Status, decode_status


class Reporting:
    """What a reporter needs; the statuses say little more than the reports."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.events: list[Event] = []
        self.shown: list[tuple[str, bytes]] = []
        self.measures: dict[str, Callable[[], None]] = {}
        self.links: Any = SimpleNamespace(ignored=4, show=lambda key, data: self.shown.append((key, data)))

    def reporter(self) -> Reporter:
        return Reporter(
            "main",
            "boot1",
            self.store,
            self.links,
            lambda build: build(),
            built,
            self.measures,
            self.events.append,
        )


def built(report: Report) -> Status:
    return Status(
        pipeline="shop", member="main", boot="boot1", host=report.host, pid=report.pid,
        state=report.state or "running", started_at=report.started_at, updated_at=report.updated_at,
        generation=1, term=1, epoch=None, epoch_at=None, epoch_s=None, open_epoch=None, open_since=None,
        watermark=None, every_s=5.0, stages=(), unpublished={}, process=report.process, beat=report.beat,
        report_s=report.report_s, ignored=report.ignored,
    )  # fmt: skip


@pytest.fixture
def reporting(tmp_path: Path) -> Reporting:
    return Reporting(LocalStore(tmp_path))


def stored(reporting: Reporting) -> Status | None:
    data = reporting.store.read(status_name("main"))
    return decode_status(data) if data is not None else None


def test_a_status_goes_to_the_store_and_to_the_other_members(reporting: Reporting) -> None:
    reporting.reporter().put(reporting.reporter().status())
    found = stored(reporting)
    assert found is not None
    assert reporting.shown == [("status", msgspec.json.encode(found))]


def test_a_store_that_fails_does_not_matter(reporting: Reporting, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str, data: bytes) -> None:
        raise OSError("full")

    monkeypatch.setattr(reporting.store, "put", fail)
    reporting.reporter().put(reporting.reporter().status())
    assert len(reporting.shown) == 1


def test_reports_are_counted(reporting: Reporting) -> None:
    reporter = reporting.reporter()
    assert [reporter.status().beat for _ in range(3)] == [1, 2, 3]


def test_a_status_names_its_process(reporting: Reporting) -> None:
    found = reporting.reporter().status()
    assert (found.host, found.pid, found.process) == (socket.gethostname(), os.getpid(), this_process())
    assert (found.report_s, found.ignored) == (REPORT_S, 4)


def test_object_stores_get_fewer_reports() -> None:
    assert Reporting(Overlay(None, "s3://b")).reporter().status().report_s == REPORT_REMOTE_S


@pytest.mark.parametrize(
    "state",
    ["stopped", "drained", "failed"],
)
def test_the_last_status_says_how_it_ended(reporting: Reporting, state: str) -> None:
    reporter = reporting.reporter()
    reporter.every_s = 0.01
    reporter.start()
    first = stored(reporting)
    assert first is not None
    reporter.stop(state)
    found = stored(reporting)
    assert found is not None
    assert found.state == state
    assert not any(thread.is_alive() for thread in reporter._threads)


def test_the_first_status_says_starting(reporting: Reporting) -> None:
    reporter = reporting.reporter()
    reporter.every_s = 60
    reporter.start()
    found = stored(reporting)
    reporter.stop("stopped")
    assert found is not None
    assert found.state == "starting"


@pytest.mark.parametrize(
    ("boot", "state", "stays"),
    [("boot2", "running", True), ("boot2", "stopped", False), ("boot1", "running", False)],
)
def test_the_status_of_a_successor_stays(reporting: Reporting, boot: str, state: str, stays: bool) -> None:
    other = msgspec.structs.replace(reporting.reporter().status(), boot=boot, state=state, pid=1)
    reporting.store.put(status_name("main"), msgspec.json.encode(other))
    reporting.reporter().stop("stopped")
    found = stored(reporting)
    assert (found == other) is stays


@pytest.mark.parametrize("trouble", ["a store that fails", "no status", "a damaged one"])
def test_without_a_readable_status_there_is_no_successor(
    reporting: Reporting, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    if trouble == "a damaged one":
        reporting.store.put(status_name("main"), b"{")
    if trouble == "a store that fails":
        monkeypatch.setattr(reporting.store, "read", lambda name: (_ for _ in ()).throw(OSError("no")))
    reporting.reporter().stop("stopped")
    assert len(reporting.shown) == 1


def test_a_report_that_fails_is_an_event_and_not_the_last(reporting: Reporting) -> None:
    reporter = reporting.reporter()
    reporter.every_s = 0.001
    tries: list[None] = []

    def task() -> None:
        tries.append(None)
        if len(tries) == 1:
            raise KeyError("x")
        reporter._stopped.set()

    reporter._repeat(task)
    assert len(tries) == 2
    assert reporting.events == [OperationFailed("reporting the status", "KeyError: 'x'")]


def test_a_report_that_fails_is_a_trouble_until_one_succeeds(reporting: Reporting) -> None:
    reporter = reporting.reporter()
    reporter.every_s = 0.001
    seen: list[str] = []

    def task() -> None:
        seen.append(reporter._troubles.latest)
        if len(seen) == 1:
            raise KeyError("x")
        if len(seen) == 3:
            reporter._stopped.set()

    reporter._repeat(task)
    assert seen == ["", "reporting the status: KeyError: 'x'", ""]


def test_a_stage_that_cannot_be_measured_keeps_no_other_from_being_measured(reporting: Reporting) -> None:
    measured: list[str] = []

    def fails() -> None:
        raise KeyError("x")

    reporting.measures |= {"clean": fails, "total": lambda: measured.append("total")}
    reporting.reporter()._measure_each()
    assert measured == ["total"]
    assert reporting.events == [OperationFailed("asking Spark about stage 'clean'", "KeyError: 'x'")]
