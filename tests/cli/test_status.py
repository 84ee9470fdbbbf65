"""`cutwater status`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from cutwater.cli.status import _absent, _ask_members, _gone, _journal_lines, _late
from cutwater.cluster.config import ClusterConfig
from cutwater.documents.status import journal_document
from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import UserError
from cutwater.store import presence
from cutwater.store.opening import open_store
from cutwater.store.presence import Presence, Seen
from cutwater.store.process_identity import ProcessId, this_process
from tests.support.command_helpers import call, document
from tests.support.written import Written, beating, put_status

PRINT_PROCESS_ID = (
    "import sys, msgspec; from cutwater.store.process_identity import this_process\n"
    "sys.stdout.buffer.write(msgspec.json.encode(this_process()))"
)


def test_status_of_a_stopped_pipeline_shows_the_journal(folder: Path) -> None:
    text = call("status", "--store", folder).stdout
    assert "no member has reported a status" in text
    assert "before-deploy (epoch 2)" in text
    assert "epoch 3 everywhere" in text
    assert document("status", "--store", folder)["running"] is False


def test_status_names_the_restored_checkpoint(tmp_path: Path, history: Written) -> None:
    before = history.write(tmp_path / "before")
    assert "timeline     generation 1\n" in call("status", "--store", before.url).stdout
    history.record(r.Restored(1, 2, 2, history.state.committed[2].cuts))
    after = history.write(tmp_path / "after")
    assert "timeline     generation 2, restored from epoch 2\n" in call("status", "--store", after.url).stdout


@pytest.mark.parametrize(
    ("presence", "said"),
    [
        (Presence.ENDED, "and has ended since; start it again"),
        (Presence.SILENT, "seems to be gone; start it again"),
    ],
)
def test_status_reports_silent_and_ended_members(tmp_path: Path, presence: Presence, said: str) -> None:
    store = open_store(str(tmp_path), create=True)
    alone = put_status(store)
    shown = _gone(Seen(alone, presence, False)).plain
    assert shown.startswith(
        "chain is not running: process 4711 on elsewhere was running when it last reported"
    )
    assert said in shown
    named = put_status(store, member="b")
    assert _gone(Seen(named, presence, False)).plain.startswith("chain, member 'b' is not running: ")
    here = put_status(store, process=this_process())
    if this_process() is not None and presence is Presence.SILENT:
        assert "exists, but has not reported for" in _gone(Seen(here, presence, False)).plain
    failed = put_status(store, state="failed", trouble="no disk")
    assert _gone(Seen(failed, Presence.ENDED, False)).plain.endswith("(process 4711 on elsewhere): no disk")
    stopped = put_status(store, state="stopped", trouble="no disk")
    assert _gone(Seen(stopped, Presence.ENDED, False)).plain.endswith("(process 4711 on elsewhere)")
    assert [_absent(one) for one in (failed, alone)] == [Presence.ENDED, Presence.SILENT]


def test_status_shows_a_running_pipeline(folder: Path) -> None:
    with beating(open_store(str(folder))):
        text = call("status", "--store", folder).stdout
        found = document("status", "--store", folder)
    assert "chain  running for 1 min" in text
    assert "holds a" in text
    assert "5,000" in text
    assert "c: ValueError: no" in text
    assert "not yet published in out (2)" in text
    assert found["running"] is True
    assert found["members"][0]["stages"][1]["watermark"] == "2026-01-01T00:00:00.000+00:00"


@pytest.mark.slow
def test_status_says_when_a_process_ended_or_is_gone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "STUCK_S", 2.5)
    store = open_store(str(folder))
    ended = put_status(store, state="drained", clock_s=-300)
    at = time.strftime("%H:%M:%S", time.localtime(ended.updated_at))
    assert f"{at} by its clock (process 4711 on elsewhere)" in call("status", "--store", folder).stdout
    put_status(store, state="failed", trouble="no space left")
    assert "(process 4711 on elsewhere): no space left" in call("status", "--store", folder).stdout
    put_status(store)
    assert "seems to be gone" in call("status", "--store", folder).stdout
    child = subprocess.run([sys.executable, "-c", PRINT_PROCESS_ID], capture_output=True, check=True)
    put_status(store, process=msgspec.json.decode(child.stdout, type=ProcessId))
    assert "has ended since; start it again" in call("status", "--store", folder).stdout
    put_status(store, process=this_process())
    assert "is paused or stuck" in call("status", "--store", folder).stdout


def test_status_json_has_times_as_timestamps(folder: Path) -> None:
    put_status(
        open_store(str(folder)),
        state="stopped",
        started_at=0.0,
        updated_at=1.5,
        epoch_at=60.0,
        open_since=None,
    )
    (member,) = document("status", "--store", folder)["members"]
    times = [member[name] for name in ("started_at", "updated_at", "epoch_at", "open_since")]
    assert times == [f"1970-01-01T00:0{at}+00:00" for at in ("0:00.000", "0:01.500", "1:00.000")] + [None]


def test_status_json_has_watermarks_as_timestamps(folder: Path) -> None:
    with beating(open_store(str(folder))):
        (member,) = document("status", "--store", folder)["members"]
    assert [stage["watermark"] for stage in member["stages"]] == [None, "2026-01-01T00:00:00.000+00:00", None]


def test_status_with_peers_needs_a_store_on_which_a_pipeline_has_run(
    tmp_path: Path, history: Written
) -> None:
    store = history.write(tmp_path)
    with pytest.raises(
        UserError, match=r"no member has reported a status on .* yet, so there is nobody to ask"
    ):
        _ask_members(store, ClusterConfig(), True)
    assert _journal_lines(journal_document(history.state, _late(store, history.state)), 1_767_225_600_000)[
        -2
    ].startswith("watermark    ")
