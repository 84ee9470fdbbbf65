"""The status of a running member is a consistent snapshot."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from cutwater.protocol.base.events import CatchingUp
from cutwater.store.local import LocalStore
from cutwater.store.status import Status, read_status
from tests.support.live_member import members
from tests.support.spark_helpers import await_that


def test_the_status_is_taken_between_two_turns(tmp_path: Path) -> None:
    """Intermediate states of a turn are not reported: here, that the member has no stages."""
    found: list[Status] = []
    begun, go_on = Event(), Event()
    with members(LocalStore(tmp_path)) as running:
        made = running.start("main")
        await_that("it runs", lambda: made.reporter.status().state == "running", 30)

        def turn() -> None:
            stages, made.member.stages = made.member.stages, {}
            begun.set()
            go_on.wait(10)
            made.member.stages = stages

        made.shell.call(turn)
        assert begun.wait(10)
        looking = Thread(target=lambda: found.append(made.reporter.status()))
        looking.start()
        looking.join(0.3)
        assert found == []
        go_on.set()
        looking.join(10)
        (status,) = found
        assert status.state == "running"
        assert status.stages[0].state != "waiting"


def test_a_stopped_member_can_still_report_how_it_ended(tmp_path: Path) -> None:
    with members(LocalStore(tmp_path)) as running:
        made = running.start("main")
        await_that("it runs", lambda: made.reporter.status().state == "running", 30)
    assert made.reporter.status("stopped").state == "stopped"


def test_a_turn_that_never_ends_does_not_prevent_a_member_from_stopping(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with members(LocalStore(tmp_path)) as running:
        made = running.start("main")
        monkeypatch.setattr("cutwater.runtime.shell.LOOK_S", 0.05)
        begun, go_on = Event(), Event()

        def turn() -> None:
            begun.set()
            go_on.wait(60)

        made.shell.call(turn)
        assert begun.wait(10)
        made.reporter.stop("stopped")
        go_on.set()


def test_the_progress_of_a_catch_up_is_reported_once_a_second(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[object] = []
    done = Event()
    with members(LocalStore(tmp_path)) as running:
        made = running.start("main")
        await_that("it runs", lambda: made.reporter.status().state == "running", 30)
        progress = SimpleNamespace(done=3, total=9, peers=2)

        def turn() -> None:
            with monkeypatch.context() as patch:
                patch.setattr(made.dispatcher, "emit", found.append)
                patch.setattr(made.member.catch_up, "session", SimpleNamespace(progress=lambda: progress))
                for later_ms in (0, 999, 1_000, 1_001):
                    patch.setattr(made.member, "now_ms", 1_000_000 + later_ms)
                    made._after_step()
            done.set()

        made.shell.call(turn)
        assert done.wait(10)
    assert found == [CatchingUp(3, 9, 2)]


@pytest.mark.parametrize("is_drained", [True, False])
def test_the_last_status_says_whether_the_member_has_drained(tmp_path: Path, is_drained: bool) -> None:
    store = LocalStore(tmp_path)
    with members(store) as running:
        made = running.start("main")
        await_that("it runs", lambda: made.reporter.status().state == "running", 30)
        if is_drained:
            made.come_to_rest()
            await_that("it has drained", lambda: made.drained, 30)
    assert [status.state for status in read_status(store)] == ["drained" if is_drained else "stopped"]
