"""The effects of a running member: on tables that it hosts or not, in Spark's folders, and with its hosts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.events import Event, SinkNotRewound
from cutwater.runtime import effects
from cutwater.runtime.effects import MemberPerformer
from cutwater.spark.checkpoint import new_folder, stage_files
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.source_logs import DEFAULT_INTERVAL, SETTING
from cutwater.store.local import LocalStore


class Host:
    def __init__(self) -> None:
        self.started: list[fx.StartQuery] = []

    def start(self, operation: fx.StartQuery) -> None:
        self.started.append(operation)

    def move(self, recorded: Any, positions: Any) -> Any:
        return recorded, positions


class Setting:
    """A performer on a local store, with stub sinks."""

    def __init__(self, folder: Path, **sinks: Any) -> None:
        self.host = Host()
        self.cache = Cache()
        self.events: list[Event] = []
        self.settings: dict[str, str] = {}
        self.store = LocalStore(folder)
        self.performer = MemberPerformer(
            self.store,
            sinks,
            {"s": self.host},
            self.settings.get,
            self.events.append,
            {"s": self.cache},
        )


@pytest.mark.parametrize(("stays", "version", "count"), [(True, 5, 1), (False, 5, 0), (True, None, 0)])
def test_a_sink_that_cannot_be_rewound_is_an_event(
    tmp_path: Path, stays: bool, version: int | None, count: int
) -> None:
    undo = Mock(return_value=stays)
    out = SimpleNamespace(name="out", cannot_undo=undo, rewind=Mock(return_value=version))
    setting = Setting(tmp_path, out=out)
    assert setting.performer.rewind_table(fx.RewindTable("out", 1, 2, 3, True)) == version
    assert setting.events == [SinkNotRewound("out")] * count
    out.rewind.assert_called_once_with(1, 2, 3, True)
    undo.assert_called_once_with(3)


def test_the_last_error_of_a_table_is_known(tmp_path: Path) -> None:
    out = SimpleNamespace(
        name="out", cannot_undo=lambda version: False, publish=Mock(side_effect=OSError("no such table")),
        rewind=Mock(side_effect=OSError("nor a history")), head=Mock(side_effect=OSError("it is down")),
    )  # fmt: skip
    performer = Setting(tmp_path, out=out).performer
    for operation, said in (
        (lambda: performer.publish_table(fx.PublishTable("out", 1, 2, (), 3)), "no such table"),
        (lambda: performer.rewind_table(fx.RewindTable("out", 1, 2, 3)), "nor a history"),
        (lambda: performer.read_table(fx.ReadTable("out")), "it is down"),
    ):
        with pytest.raises(OSError, match=said):
            operation()
        assert performer.table_errors == {"out": said}


def test_a_leader_queries_the_tables_of_its_own_and_of_other_sinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, other = fx.TableHistory(5, 1), fx.TableHistory(5, 2)
    own = SimpleNamespace(find=lambda transaction: transaction + 1, history=lambda transaction: mine)
    performer = Setting(tmp_path, own=own).performer
    monkeypatch.setattr(effects, "find_version", lambda store, sink, transaction: len(sink) + transaction)
    monkeypatch.setattr(effects, "read_history", lambda store, sink, transaction: other)
    assert performer.find_table_version(fx.FindTableVersion("own", 5)) == 6
    assert performer.find_table_version(fx.FindTableVersion("theirs", 5)) == 11
    assert performer.read_table_history(fx.ReadTableHistory("own", 5)) is mine
    assert performer.read_table_history(fx.ReadTableHistory("theirs", 5)) is other


def test_a_table_receives_the_epoch_of_the_operation(tmp_path: Path) -> None:
    published: list[Any] = []
    out = SimpleNamespace(publish=lambda *args, epoch: published.append((*args, epoch)))
    Setting(tmp_path, out=out).performer.publish_table(fx.PublishTable("out", 1, 2, ("f",), 7))
    assert published == [(1, 2, ("f",), 7)]


def test_only_user_functions_are_called_on_their_own_thread(tmp_path: Path) -> None:
    sinks = {"own": SimpleNamespace(publishes_apart=False), "theirs": SimpleNamespace(publishes_apart=True)}
    apart = Setting(tmp_path, **sinks).performer.apart
    assert apart(fx.PublishTable("theirs", 1, 2, (), 1)) == "call-theirs"
    assert apart(fx.PublishTable("own", 1, 2, (), 1)) is None
    assert apart(fx.RewindTable("theirs", 1, 2, 0)) is None


def test_a_query_is_started_by_the_host_of_its_stage(tmp_path: Path) -> None:
    setting = Setting(tmp_path)
    start = fx.StartQuery("s", 1, 2, {"a": 3}, fx.Pace.OWN)
    setting.performer.start_query(start)
    assert setting.host.started == [start]


@pytest.mark.parametrize(("interval", "used"), [(None, DEFAULT_INTERVAL), ("7", 7), ("0", 1)])
def test_a_folder_is_made_as_the_operation_specifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interval: str | None, used: int
) -> None:
    made: list[Any] = []
    monkeypatch.setattr(new_folder, "make_folder", lambda *args: made.append(args))
    setting = Setting(tmp_path)
    if interval is not None:
        setting.settings[SETTING] = interval
    operation = fx.MakeFolder("s", 1, 5, 4, None, 12, "checksum", True)
    assert setting.performer.make_folder(operation) is fx.DONE
    wanted = (setting.store, "s", 1, 5, 4, None, 12, used, "checksum", True, setting.cache, setting.host.move)
    assert made == [wanted]


def test_stored_files_are_found_for_the_incarnation_of_the_operation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = Mock(return_value=([], []))
    monkeypatch.setattr(stage_files, "find_stored", find)
    setting = Setting(tmp_path)
    for _ in range(2):
        assert setting.performer.find_stored(fx.FindStored("s", 1, 5)) == ([], [])
    first, second = (call.args for call in find.call_args_list)
    assert first[:-1] == second[:-1] == (setting.store, "s", 1, 5)
    assert first[-1] is second[-1], "one cache for all calls: it knows since when a snapshot is there"
