"""`cutwater savepoint` and `restore` while no pipeline is running, and requests that need one."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.runtime.restore import whole_checkpoint
from cutwater.runtime.timings import read_times
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.support.command_helpers import call, document
from tests.support.written import Written


def test_a_kept_checkpoint_can_be_named_and_the_name_removed(folder: Path) -> None:
    store = open_store(str(folder))
    assert document("savepoint", "good", "--epoch", "latest", "--store", folder) == {
        "savepoint": "good",
        "epoch": 3,
    }
    assert read_journal(store).state.savepoints["good"] == 3
    assert "already exists (epoch 3)" in call("savepoint", "good", "--epoch", "1", "--store", folder).stderr
    assert call("savepoint", "good", "--forget", "--store", folder).exit_code == 0
    assert "good" not in read_journal(store).state.savepoints
    assert "there are: before-deploy" in call("savepoint", "good", "--forget", "--store", folder).stderr


@pytest.mark.parametrize(
    "words", [("checkpoint",), ("drain",), ("cancel",), ("savepoint", "x")], ids=lambda w: w[0]
)
def test_requests_need_a_running_pipeline(words: tuple[str, ...], folder: Path) -> None:
    shown = call(*words, "--store", folder)
    assert shown.exit_code == 1
    assert "no pipeline is running on" in shown.stderr
    assert "one that is still starting does not answer yet" in shown.stderr
    assert open_store(str(folder)).list("requests/") == []


def test_a_restore_of_a_stopped_pipeline_takes_effect_with_the_next_run(folder: Path) -> None:
    store = open_store(str(folder))
    shown = call("restore", "before-deploy", "--store", folder)
    assert shown.exit_code == 0
    assert "the next run starts there" in shown.stdout
    state = read_journal(store).state
    assert (state.generation, state.head) == (2, 2)
    assert not state.generations[2].force
    assert call("restore", "1", "--force", "--reset", "b", "--store", folder).exit_code == 0
    state = read_journal(store).state
    assert state.generations[3].reset == ("b",)
    assert state.generations[3].force


def test_a_damaged_checkpoint_is_not_restored(folder: Path) -> None:
    (folder / "stages/b/1/files/1/state/1").unlink()
    shown = call("restore", "2", "--store", folder)
    assert shown.exit_code == 1
    assert "stages/b/1/files/1/state/1 is missing" in shown.stderr
    assert read_journal(open_store(str(folder))).state.generation == 1


def test_restoring_latest_skips_damaged_checkpoints_and_says_so(folder: Path, history: Written) -> None:
    store, log_lines = open_store(str(folder)), list[str]()
    state = read_journal(store).state
    assert whole_checkpoint(store, state, "latest", log_lines.append).epoch == 3
    assert log_lines == []
    (folder / "stages/c/1/files/1/state/2").unlink()
    assert whole_checkpoint(store, state, "latest", log_lines.append).epoch == 2
    lost = "epoch 3 cannot be restored: stages/c/1/files/1/state/2 is missing"
    assert log_lines == [f"falling back to epoch 2: {lost}"]
    with pytest.raises(StoreError, match=f"^{lost}. Nothing was changed"):
        whole_checkpoint(store, state, "3", log_lines.append)
    store.delete([paths.manifest_name(2, history.state.committed[2].checkpoint_id)])
    assert whole_checkpoint(store, state, "latest", log_lines.append).epoch == 1
    assert "the manifest of epoch 2 is missing" in log_lines[-1]
    assert len(log_lines) == 2
    with pytest.raises(UserError, match="there is no checkpoint yet"):
        whole_checkpoint(store, r.JournalState(), "latest", log_lines.append)


def test_a_stage_can_be_dropped_only_if_no_other_stage_reads_it(folder: Path) -> None:
    assert "reads a" in call("restore", "latest", "--drop", "a", "--store", folder).stderr
    assert "there is no such stage" in call("restore", "latest", "--drop", "z", "--store", folder).stderr
    assert call("restore", "latest", "--drop", "c", "--store", folder).exit_code == 0
    topology = read_journal(open_store(str(folder))).state.topology
    assert topology is not None
    assert sorted(topology.stages) == ["a", "b"]


def test_forget_and_epoch_exclude_each_other(folder: Path) -> None:
    shown = call("savepoint", "before-deploy", "--forget", "--epoch", "1", "--store", folder)
    assert shown.exit_code == 1
    assert "use one of them" in shown.stderr
    assert read_journal(open_store(str(folder))).state.savepoints == {"before-deploy": 2}


def test_a_restore_of_a_stopped_pipeline_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutwater.sinks.registry.find_version", lambda *_: 0)
    found = document("restore", "2", "--store", folder)
    assert (found["epoch"], found["running"]) == (2, False)
    assert found["news"] == [
        "restored epoch 2: generation 2 begins there",
        "the next run starts there and rolls the tables back",
    ]


@pytest.mark.parametrize("name", ["latest", "12"])
@pytest.mark.parametrize("epoch", [("--epoch", "1"), ()])
def test_a_savepoint_is_not_named_as_an_epoch_is(folder: Path, name: str, epoch: tuple[str, ...]) -> None:
    shown = call("savepoint", name, *epoch, "--store", folder)
    assert shown.exit_code == 1
    assert f"'{name}'" in shown.stderr
    assert "no pipeline runs" not in shown.stderr
    assert name not in read_journal(open_store(str(folder))).state.savepoints


@pytest.fixture
def timed(folder: Path) -> Path:
    """A store whose three epochs were committed ten seconds apart, the first at 2026-01-01 00:00:12.3 UTC."""
    store = open_store(str(folder))
    for epoch in (1, 2, 3):
        times = read_times(store, epoch)
        assert times is not None
        times.begun_at += 10 * (epoch - 1)
        store.put(paths.notes_name(epoch), msgspec.json.encode(times))
    return folder


@pytest.mark.parametrize(
    ("at", "epoch"),
    [
        ("2026-01-01 00:00:13Z", 1),
        ("2026-01-01T01:00:22.300+01:00", 2),
        ("2026-01-01 00:00:22Z", 1),
        ("2027-01-01 00:00", 3),
    ],
)
def test_a_restore_can_name_a_time(timed: Path, at: str, epoch: int) -> None:
    found = document("restore", "--at", at, "--store", timed)
    assert found["epoch"] == epoch
    assert read_journal(open_store(str(timed))).state.head == epoch


def test_a_time_without_an_offset_is_local(timed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        shown = call("restore", "--at", "2026-01-01 09:00:13", "--store", timed)
        assert "epoch 1 is the newest checkpoint at 2026-01-01 09:00:13 JST" in shown.stdout
        shown = call("restore", "--at", "2026-01-01 09:00", "--store", timed)
    finally:
        monkeypatch.undo()
        time.tzset()
    assert shown.exit_code == 1
    assert (
        "no kept checkpoint was committed at or before 2026-01-01 09:00:00 JST; the oldest, epoch 1, was committed at "
        "2026-01-01 09:00:12 JST"
    ) in shown.stderr


def test_a_checkpoint_whose_time_is_unknown_is_named(folder: Path) -> None:
    store = open_store(str(folder))
    store.delete(store.list("explain/"))
    shown = call("restore", "--at", "2026-01-01 09:00", "--store", folder)
    assert "the time of epoch 1, 2, 3 is unknown: restore it by number" in shown.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "say what to restore"),
        (("9", "--at", "2026-01-01"), "both '9' and --at 2026-01-01 were given: leave out one of them"),
        (("--at", "noon"), "'noon' is not a time"),
        (("--at", "0001-01-01"), "'0001-01-01' is too long ago"),
    ],
)
def test_a_restore_needs_one_checkpoint_or_one_time(folder: Path, words: tuple[str, ...], said: str) -> None:
    shown = call("restore", *words, "--store", folder)
    assert shown.exit_code == 1
    assert said in shown.stderr
    assert read_journal(open_store(str(folder))).state.generation == 1
