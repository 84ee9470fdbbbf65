"""What a running member writes down."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from cutwater import recording as rec
from cutwater import runtime
from cutwater.protocol import effects as fx
from cutwater.protocol.coordinator_actions import CoordinatorConfig
from cutwater.protocol.leader import LeaderConfig
from cutwater.protocol.member import Member, MemberConfig
from cutwater.protocol.records import SinkSpec, StageSpec, Topology
from cutwater.stores import LocalStore
from cutwater.words import LocalWord

TOPOLOGY = Topology(
    {
        "orders": StageSpec("orders", (), "main"),
        "paid": StageSpec("paid", ("orders",), "main", (SinkSpec("table"),)),
    }
)
CONFIG = LeaderConfig(100, 50, CoordinatorConfig(interval_ms=40, retained=1))


@pytest.fixture
def traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "trace"
    monkeypatch.setenv("CUTWATER_TRACE", str(folder))
    return folder


# --- the recorder ----------------------------------------------------------------------------------------


def a_member() -> Member:
    return Member("main", "boot", TOPOLOGY, MemberConfig(), LocalWord)


def lines(folder: Path) -> list[rec.AnyLine]:
    (path,) = rec.files_of(folder)
    found = [line for _, line in rec.read(path)]
    assert None not in found
    return [line for line in found if line is not None]


def test_nothing_is_recorded_unless_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUTWATER_TRACE", raising=False)
    assert rec.from_environment(a_member()) is None

    def perform(effect: fx.Effect) -> Any:
        return None

    def send(effect: fx.Send) -> None:
        return None

    assert rec.watched(None, perform, send) == (perform, send)


def test_an_error_is_recorded_as_an_answer_that_says_nothing_and_goes_on(traced: Path) -> None:
    recorder = rec.from_environment(a_member())

    def perform(effect: fx.Effect) -> Any:
        raise OSError("no route")

    watched, _ = rec.watched(recorder, perform, lambda send: None)
    for effect in (
        fx.Create("journal/1", b"{}"),
        fx.Delete(("a",)),
        fx.PublishTable("t", 1, 2, ()),
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


def test_a_damaged_record_is_written_down_by_its_hash_alone(traced: Path) -> None:
    recorder = rec.from_environment(a_member())
    watched, _ = rec.watched(recorder, lambda effect: b'{"index":', lambda send: None)
    watched(fx.Read("journal/000000000001.json"))
    _, line = lines(traced)
    assert isinstance(line, rec.Reading)
    assert line.hash is not None
    assert line.record == rec.NOTHING


def test_a_full_disk_ends_the_record_and_not_the_work() -> None:
    written: list[bytes] = []

    def write(data: bytes) -> None:
        if len(written) == 2:
            raise OSError("no space left")
        written.append(data)

    recorder = rec.Recorder(write, a_member(), lambda: 0)
    watched, _ = rec.watched(recorder, lambda effect: fx.CREATED, lambda send: None)
    assert [watched(fx.Create("a", b"{}")) for _ in range(3)] == [fx.CREATED] * 3
    assert len(written) == 2


def test_the_runtime_records_what_its_shell_performs_and_sends(
    traced: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("StageHost", "Mailbox", "Reporter"):
        monkeypatch.setattr(runtime, name, MagicMock())
    built: Any = SimpleNamespace(topology=TOPOLOGY, sinks={}, stages={"orders": None, "paid": None})
    (tmp_path / "store").mkdir()
    settings = runtime.Settings(CONFIG, MemberConfig())
    running = runtime.Runtime(built, LocalStore(tmp_path / "store"), "main", settings, print)
    running.shell._perform(fx.Create("a", b"{}"))
    running.shell._send(fx.Send(None, MagicMock(__struct_config__=SimpleNamespace(tag="x"))))
    running.stop()
    assert [type(line) for line in lines(traced)] == [rec.Began, rec.Creation, rec.Sent, rec.Ended]
