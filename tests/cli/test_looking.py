"""The `cutwater` command, on stores on which no pipeline runs."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner, Result

import cutwater
from cutwater.cli import checkpoint_facts as facts
from cutwater.cli import checkpoints as looking
from cutwater.cli.checkpoints import watermark_words
from cutwater.cli.explain import timeline_of, watermark_hints
from cutwater.cli.gc import _only_of
from cutwater.cli.main import app
from cutwater.cli.output import local, plural, size
from cutwater.cli.status import _absent, _ask_members, _gone, _journal, _journal_lines
from cutwater.cli.verify import SHOWN, Findings, _text
from cutwater.cluster.config import ClusterConfig
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.paths import entry_name, notes_name
from cutwater.protocol.base.watermark import Watermark, WatermarkKind
from cutwater.runtime.restore import whole_checkpoint
from cutwater.runtime.timings import EpochTimes, StageTime
from cutwater.sinks import parquet
from cutwater.sinks.registry import open_sink
from cutwater.store import presence
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from cutwater.store.presence import Presence, Seen
from cutwater.store.process_identity import ProcessId, this_process
from tests.support.builders import DIAMOND, manifest, pipeline, stage
from tests.support.sink_helpers import ROWS
from tests.support.written import Written, beating, put_status

WHO_AM_I = (
    "import sys, msgspec; from cutwater.store.process_identity import this_process\n"
    "sys.stdout.buffer.write(msgspec.json.encode(this_process()))"
)


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def document(*words: object, code: int = 0) -> Any:
    """What a command prints with --json: one document, and nothing else."""
    found = call(*words, "--json")
    assert found.exit_code == code, found.output
    assert found.stdout.count("\n") == 1
    return json.loads(found.stdout)


@pytest.fixture
def history() -> Written:
    """Three checkpoints: plain, a savepoint, plain; then one that was aborted."""
    play = Written()
    play.checkpoint()
    play.checkpoint(Flags.FULL_SNAPSHOT, "before-deploy")
    play.checkpoint()
    play.begin()
    play.abort()
    return play


@pytest.fixture
def folder(tmp_path: Path, history: Written) -> Path:
    history.write(tmp_path / "state")
    return tmp_path / "state"


def test_the_command_tells_its_version() -> None:
    shown = call("--version")
    assert shown.exit_code == 0
    assert version("cutwater") in shown.output


def test_looking_at_a_store_needs_no_spark(folder: Path) -> None:
    code = (
        "import sys; from cutwater.cli.main import app\n"
        f"app(['status', '--store', {str(folder)!r}], standalone_mode=False)\n"
        "sys.exit('pyspark' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], stdout=subprocess.DEVNULL, check=False).returncode == 0
    )


@pytest.mark.parametrize(
    "words",
    [
        ("checkpoints",), ("show", "latest"), ("status",), ("explain", "1"), ("tables",), ("verify",),
        ("gc", "--dry-run"), ("restore", "latest"), ("savepoint", "x", "--epoch", "latest"), ("drain",),
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_a_store_that_is_not_there_is_an_error_with_advice(words: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    missing, empty = call(*words, "--store", tmp_path / "no"), call(*words, "--store", tmp_path / "empty")
    for shown in (missing, empty):
        assert shown.exit_code == 1
        assert shown.stderr.splitlines()[-1].startswith("error: ")
        assert shown.stdout == ""
    assert list(document(*words, "--store", tmp_path / "no", code=1)) == ["error"]


def test_a_typing_error_in_the_store_is_answered_with_what_was_meant(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(
        tmp_path_factory.mktemp("elsewhere")
    )  # below here the store would be told by a short name
    for given in (folder.parent / "sate", folder / "journal", folder.parent, folder.parent.as_uri()):
        shown = call("checkpoints", "--store", given)
        assert shown.exit_code == 1
        assert shown.stderr.endswith(f"Did you mean --store {folder}?\n"), shown.stderr
    assert (
        "with --store, or CUTWATER_STORE" in call("status", "--store", folder.parent / "no" / "where").stderr
    )
    assert "Did you mean" not in call("explain", "99", "--store", folder).stderr


@pytest.mark.parametrize("words", [("explain", "many"), ("explain",), ("frobnicate",)], ids=" ".join)
def test_with_json_wrong_usage_is_told_in_json_too(words: tuple[str, ...]) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "cutwater", *words, "--json"], capture_output=True, check=False
    )
    assert (shown.returncode, shown.stderr) == (2, b"")
    assert list(json.loads(shown.stdout)) == ["error"]


@pytest.mark.parametrize("options", [(), ("--json",)], ids=["text", "json"])
def test_whoever_does_not_read_on_causes_no_fuss(folder: Path, options: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "cutwater", "checkpoints", "--store", str(folder), *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(60) == 1


def test_ctrl_c_while_it_looks_ends_without_a_fuss(folder: Path) -> None:
    put_status(open_store(str(folder)), report_s=60.0)
    command = [sys.executable, "-m", "cutwater", "gc", "--store", str(folder)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == "looking whether the pipeline is running ...\n"
    process.send_signal(signal.SIGINT)
    assert process.stderr.read() == "error: interrupted\n"
    assert process.wait(60) == 130


# --- looking ------------------------------------------------------------------------------------------


def test_checkpoints_are_listed_with_what_is_known_of_them(folder: Path) -> None:
    shown = call("checkpoints", "--store", folder)
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert len(lines) == 4
    assert "before-deploy" in lines[2]
    assert "full" in lines[2]
    assert all("everywhere" in line and "12 s" in line for line in lines[1:])
    found = document("checkpoints", "--store", folder)["checkpoints"]
    assert [c["epoch"] for c in found] == [1, 2, 3]
    assert [c["savepoints"] for c in found] == [[], ["before-deploy"], []]
    assert found[0]["committed_at"] == "2026-01-01T00:00:12.300+00:00"
    assert found[0]["published"] == {"out": 101}
    assert found[0]["state_files"] == 3
    assert found[0]["state_bytes"] > 0


def test_what_a_restore_abandoned_and_what_is_not_published_is_marked(
    tmp_path: Path, history: Written
) -> None:
    history.record(r.Restored(1, 2, 1, history.state.committed[1].cuts))
    history.write(tmp_path, unmarked=(3,))
    found = {c["epoch"]: c for c in document("checkpoints", "--store", tmp_path)["checkpoints"]}
    assert [e for e, c in found.items() if "abandoned" in c["flags"]] == [2, 3]
    assert found[3]["published"] == {"out": None}
    assert "not in out" in call("checkpoints", "--store", tmp_path).stdout


def test_one_checkpoint_is_shown_stage_by_stage(tmp_path: Path) -> None:
    play = Written(DIAMOND)
    play.checkpoint()
    play.batch("a")
    play.begin()
    play.cut_all(unaligned=["b", "c", "d"])
    play.commit()
    play.write(tmp_path)
    found = document("show", "latest", "--store", tmp_path)
    assert found["flags"] == ["unaligned"]
    assert found["stages"]["a"]["batch"] == 1
    assert found["stages"]["b"] == {
        "batch": 0, "unaligned": True, "consumed": {"a": 0}, "offsets": {},
        "watermark": {"kind": "none", "at": None}, "state_files": 1,
        "state_bytes": len("stages/b/1/files/1/state/0"),
    }  # fmt: skip
    flights = {(f["from"], f["to"]): f for f in found["in_flight"]}
    assert len(flights["a", "b"]["files"]) == 1
    text = call("show", "latest", "--store", tmp_path).stdout
    assert "in flight  a → b: batches 1 to 1, 1 file" in text
    assert "table      out: version 102" in text


def test_a_checkpoint_that_is_not_kept_cannot_be_shown(folder: Path) -> None:
    shown = call("show", "7", "--store", folder)
    assert shown.exit_code == 1
    assert "epochs that are kept: 1, 2, 3; savepoints: before-deploy" in shown.stderr


def test_status_without_a_run_says_what_the_journal_says(folder: Path) -> None:
    text = call("status", "--store", folder).stdout
    assert "no pipeline has run" in text
    assert "before-deploy (epoch 2)" in text
    assert "epoch 3 everywhere" in text
    assert document("status", "--store", folder)["running"] is False


def test_status_says_which_checkpoint_was_restored(tmp_path: Path, history: Written) -> None:
    before = history.write(tmp_path / "before")
    assert "timeline     generation 1\n" in call("status", "--store", before.url).stdout
    history.record(r.Restored(1, 2, 2, history.state.committed[2].cuts))
    after = history.write(tmp_path / "after")
    assert "timeline     generation 2, restored from epoch 2\n" in call("status", "--store", after.url).stdout


@pytest.mark.parametrize(
    ("presence", "said"),
    [
        (Presence.ENDED, "and is gone; start it again"),
        (Presence.SILENT, "seems to be gone; start it again"),
    ],
)
def test_status_says_of_whom_nothing_is_heard(tmp_path: Path, presence: Presence, said: str) -> None:
    store = open_store(str(tmp_path), create=True)
    alone = put_status(store)
    shown = _gone(Seen(alone, presence, False)).plain
    assert shown.startswith(
        "chain does not run: process 4711 on elsewhere was running when it last gave a sign"
    )
    assert said in shown
    named = put_status(store, member="b")
    assert _gone(Seen(named, presence, False)).plain.startswith("chain, member 'b' does not run: ")
    here = put_status(store, process=this_process())
    if this_process() is not None and presence is Presence.SILENT:
        assert "is there, but has given no sign for" in _gone(Seen(here, presence, False)).plain
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
    child = subprocess.run([sys.executable, "-c", WHO_AM_I], capture_output=True, check=True)
    put_status(store, process=msgspec.json.decode(child.stdout, type=ProcessId))
    assert "is gone; start it again" in call("status", "--store", folder).stdout
    put_status(store, process=this_process())
    assert "is paused or stuck" in call("status", "--store", folder).stdout


# --- tables -------------------------------------------------------------------------------------------


def test_tables_are_those_of_the_newest_epoch_that_is_published_everywhere(
    tmp_path: Path, history: Written
) -> None:
    history.write(tmp_path, unmarked=(3,))
    assert cutwater.tables(str(tmp_path)) == {"out": 102}
    assert document("tables", "--store", tmp_path) == {
        "store": open_store(str(tmp_path)).url, "epoch": 2, "tables": {"out": 102},
    }  # fmt: skip
    assert document("tables", "--store", tmp_path, "--epoch", 1)["tables"] == {"out": 101}
    assert "has not published epoch 3 yet" in call("tables", "--store", tmp_path, "--epoch", 3).stderr


def test_an_epoch_whose_mark_is_gone_has_no_tables(folder: Path) -> None:
    store = open_store(str(folder))
    gone = paths.mark_name(read_journal(store).state.committed[2].index, "out")
    store.delete([gone])
    assert "has gone past epoch 2" in call("tables", "--store", folder, "--epoch", 2).stderr


# --- explain ------------------------------------------------------------------------------------------


def test_explain_says_where_the_time_went(folder: Path) -> None:
    text = call("explain", "1", "--store", folder).stdout
    lines = text.splitlines()
    assert lines[0].startswith("epoch 1  committed in 12 s")
    stages = [line.split()[0] for line in lines if "cut at batch" in line]
    assert stages == ["a", "b", "c"]
    assert "10 s after b" in text
    assert "hint: most of the time stage 'c'" in text
    steps = {s["step"]: s for s in document("explain", "1", "--store", folder)["steps"]}
    assert (steps["c"]["from_s"], steps["c"]["to_s"]) == (2.0, 12.0)
    assert steps["in out"]["to_s"] == 12.5


def test_explain_says_why_an_epoch_failed_and_what_to_do(folder: Path) -> None:
    text = call("explain", "4", "--store", folder).stdout
    assert "epoch 4  aborted" in text
    assert "why:    deadline" in text
    assert "give checkpoints more time" in text
    assert document("explain", "4", "--store", folder)["reason"] == "deadline"


def test_explain_knows_nothing_of_an_epoch_that_never_was(folder: Path) -> None:
    assert "the last that was begun is 4" in call("explain", "9", "--store", folder).stderr


# --- verify -------------------------------------------------------------------------------------------


def test_a_whole_store_verifies(folder: Path) -> None:
    found = document("verify", "--store", folder)
    assert found["damaged"] is False
    assert all(c["restorable"] for c in found["checkpoints"].values())
    assert (
        "epoch 2 (savepoint 'before-deploy')  can be restored  3 objects"
        in call("verify", "--store", folder).stdout
    )


def test_damage_is_found_and_blamed_on_the_checkpoints_that_need_it(folder: Path) -> None:
    (folder / "stages/b/1/files/1/state/1").write_bytes(b"bad")
    (folder / "stages/c/1/files/1/state/2").unlink()
    found = document("verify", "--store", folder, code=1)["checkpoints"]
    assert found["1"] == {"restorable": True, "problems": []}
    assert found["2"]["problems"] == ["stages/b/1/files/1/state/1 is damaged (its checksum differs)"]
    assert found["3"]["problems"] == ["stages/c/1/files/1/state/2 is missing"]
    assert call("verify", "1", "--store", folder).exit_code == 0
    assert call("verify", "2", "--store", folder).exit_code == 1


@pytest.mark.parametrize("place", ["journal/", "stages/b/1/log/", "manifest", "mark"])
def test_damaged_records_are_found(place: str, folder: Path, history: Written) -> None:
    head = history.state.committed[3]
    name = {
        "manifest": paths.manifest_name(3, head.checkpoint_id),
        "mark": paths.mark_name(head.index, "out"),
    }
    (folder / name.get(place, entry_name(place, 2))).write_bytes(b"{}")
    shown = call("verify", "--store", folder)
    assert shown.exit_code == 1
    assert document("verify", "--store", folder, code=1)["damaged"] is True


def test_a_sink_that_the_store_no_longer_knows_is_missed(folder: Path) -> None:
    name = paths.sink_id_name("out")
    (folder / name).unlink()
    found = document("verify", "--store", folder, code=1)
    assert found["damage"].keys() == {name}
    assert f"\n{name}: " in call("verify", "--store", folder).stdout
    assert "it is not known which transactions in the target of sink out are its own" in found["damage"][name]


def test_a_store_that_has_no_graph_yet_is_whole() -> None:
    assert _text(Findings(r.JournalState(), {}, {}, {})) == [
        "journal whole; 0 stage logs of generation 1 read", "no checkpoint has been committed yet",
    ]  # fmt: skip


# --- steering a store without a run ---------------------------------------------------------------------


def test_a_kept_checkpoint_is_named_and_its_name_forgotten(folder: Path) -> None:
    store = open_store(str(folder))
    assert document("savepoint", "good", "--epoch", "latest", "--store", folder) == {
        "savepoint": "good",
        "epoch": 3,
    }
    assert read_journal(store).state.savepoints["good"] == 3
    assert "already (epoch 3)" in call("savepoint", "good", "--epoch", "1", "--store", folder).stderr
    assert call("savepoint", "good", "--forget", "--store", folder).exit_code == 0
    assert "good" not in read_journal(store).state.savepoints
    assert "there are: before-deploy" in call("savepoint", "good", "--forget", "--store", folder).stderr


@pytest.mark.parametrize(
    "words", [("checkpoint",), ("drain",), ("cancel",), ("savepoint", "x")], ids=lambda w: w[0]
)
def test_what_only_a_running_pipeline_can_do_is_refused(words: tuple[str, ...], folder: Path) -> None:
    shown = call(*words, "--store", folder)
    assert shown.exit_code == 1
    assert "no pipeline runs on" in shown.stderr
    assert open_store(str(folder)).list("requests/") == []


def test_a_restore_without_a_run_takes_effect_with_the_next(folder: Path) -> None:
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


@pytest.mark.parametrize("name", ["latest", "12"])
@pytest.mark.parametrize("epoch", [("--epoch", "1"), ()])
def test_a_savepoint_is_not_named_as_an_epoch_is(folder: Path, name: str, epoch: tuple[str, ...]) -> None:
    shown = call("savepoint", name, *epoch, "--store", folder)
    assert shown.exit_code == 1
    assert f"'{name}'" in shown.stderr
    assert "no pipeline runs" not in shown.stderr
    assert name not in read_journal(open_store(str(folder))).state.savepoints


def test_a_damaged_checkpoint_is_not_restored(folder: Path) -> None:
    (folder / "stages/b/1/files/1/state/1").unlink()
    shown = call("restore", "2", "--store", folder)
    assert shown.exit_code == 1
    assert "stages/b/1/files/1/state/1 is missing" in shown.stderr
    assert read_journal(open_store(str(folder))).state.generation == 1


def test_latest_goes_back_past_damaged_checkpoints_and_says_so(folder: Path, history: Written) -> None:
    store, told = open_store(str(folder)), list[str]()
    state = read_journal(store).state
    assert whole_checkpoint(store, state, "latest", told.append).epoch == 3
    assert told == []
    (folder / "stages/c/1/files/1/state/2").unlink()
    assert whole_checkpoint(store, state, "latest", told.append).epoch == 2
    lost = "epoch 3 cannot be restored: stages/c/1/files/1/state/2 is missing"
    assert told == [f"falling back to epoch 2: {lost}"]
    with pytest.raises(StoreError, match=f"^{lost}. Nothing was changed"):
        whole_checkpoint(store, state, "3", told.append)
    store.delete([paths.manifest_name(2, history.state.committed[2].checkpoint_id)])
    assert whole_checkpoint(store, state, "latest", told.append).epoch == 1
    assert "the manifest of epoch 2 is missing" in told[-1]
    assert len(told) == 2
    with pytest.raises(UserError, match="there is no latest one"):
        whole_checkpoint(store, r.JournalState(), "latest", told.append)


def test_a_stage_is_dropped_only_if_nobody_reads_it(folder: Path) -> None:
    assert "reads a" in call("restore", "latest", "--drop", "a", "--store", folder).stderr
    assert "there is no such stage" in call("restore", "latest", "--drop", "z", "--store", folder).stderr
    assert call("restore", "latest", "--drop", "c", "--store", folder).exit_code == 0
    topology = read_journal(open_store(str(folder))).state.topology
    assert topology is not None
    assert sorted(topology.stages) == ["a", "b"]


def test_tables_are_told_of_the_newest_epoch_that_all_of_them_have(tmp_path: Path) -> None:
    graph = pipeline(stage("a", sinks=[r.SinkSpec("here")]), stage("b", "a", sinks=[r.SinkSpec("there")]))
    history = Written(graph)
    for _ in range(3):
        history.checkpoint()
    store = history.write(tmp_path)
    store.delete([paths.mark_name(history.state.committed[3].index, "there")])
    assert cutwater.tables(store.url) == {"here": 102, "there": 102}
    shown = call("tables", "--store", tmp_path).stdout
    assert shown.splitlines()[0] == "epoch 2"
    assert [line.split() for line in shown.splitlines()[-2:]] == [["here", "102"], ["there", "102"]]


# --- gc -----------------------------------------------------------------------------------------------


def test_of_many_problems_verify_shows_some_and_counts_the_others(tmp_path: Path) -> None:
    history = Written(pipeline(*[stage(name) for name in "abcdefg"]))
    history.checkpoint()
    store = history.write(tmp_path)
    store.delete(history.manifests[1].objects())
    found = document("verify", "--store", tmp_path, code=1)["checkpoints"]["1"]["problems"]
    assert len(found) > SHOWN
    shown = call("verify", "--store", tmp_path).stdout.splitlines()
    assert shown[-1] == f"    and {len(found) - SHOWN} more (--json lists them all)"
    assert sum(line.startswith("    ") for line in shown) == SHOWN + 1


def test_gc_removes_what_is_over_and_nothing_that_is_kept(tmp_path: Path, history: Written) -> None:
    store = history.write(tmp_path)
    before = store.list("")
    left = [f"{paths.checkpoint_prefix(4, 99)}{name}" for name in ("channels/a/1/x", "manifest.json")]
    for name in left:
        store.create(name, b"12345")
    found = document("gc", "--dry-run", "--retained", "1", "--store", tmp_path)
    assert found["leftovers"]["of epochs that are over"] == {"objects": 2, "bytes": 10}
    assert found["retention"]["epochs"] == [1]
    assert found["retention"]["objects"] == 3
    assert store.list("") == sorted(before + left)
    assert call("gc", "--store", tmp_path).exit_code == 0
    assert store.list("") == before
    assert call("verify", "--store", tmp_path).exit_code == 0


def test_of_what_retention_will_remove_only_files_of_the_store_are_counted() -> None:
    """Rows that wait for a watermark lie with their table."""
    state = dict.fromkeys(("stages/a/1/spark/1/x", "stages/a/1/spark/1/y"), "")
    report = r.StageReport("a", 1, 1, False, {}, {}, Watermark(WatermarkKind.NONE), state)
    copy = f"{paths.checkpoint_prefix(1, 1)}channels/a/1/x"
    flight = r.InFlight("a", "b", 0, 1, {1: (copy,)})
    held: dict[str, tuple[r.StagedFile, ...]] = {"out": (r.StagedFile("_cutwater/staged/z"),)}
    manifests = {
        1: manifest(1, 1, [report], [flight], held=held),
        2: manifest(2, 2, [msgspec.structs.replace(report, state={"stages/a/1/spark/1/y": ""})]),
    }
    assert _only_of(manifests, (1,)) == [copy, "stages/a/1/spark/1/x"]
    assert _only_of(manifests, ()) == []


def test_gc_says_what_it_has_removed_and_what_retention_will(tmp_path: Path, history: Written) -> None:
    store = history.write(tmp_path)
    left = [f"{paths.checkpoint_prefix(4, 99)}{name}" for name in ("channels/a/1/x", "manifest.json")]
    for name in left:
        store.create(name, b"12345")

    would = call("gc", "--dry-run", "--retained", "1", "--store", tmp_path).stdout.splitlines()
    assert would[0] == "2 objects would be removed"
    assert [line.split() for line in would[1:4]] == [
        ["what", "objects", "size"],
        ["of", "epochs", "that", "are", "over", "2", "10", "B"],
        ["of", "generations", "that", "are", "expired", "0", "0", "B"],
    ]
    assert would[4] == ("retention will expire 1 checkpoint (1) at the next commit of a run: 3 objects, 78 B")
    did = call("gc", "--store", tmp_path).stdout.splitlines()
    assert (did[0], did[-1]) == ("2 objects removed", "retention has nothing to expire")


def test_gc_removes_generations_that_are_expired(tmp_path: Path, history: Written) -> None:
    history.record(r.Restored(1, 2, 3, history.state.committed[3].cuts))
    history.record(r.Restored(1, 3, 3, history.state.committed[3].cuts))
    store = history.write(tmp_path)
    kept, gone = "stages/a/1/log/extra", "stages/a/2/log/x"
    store.create(kept, b"")
    store.create(gone, b"")
    assert call("gc", "--store", tmp_path).exit_code == 0
    assert store.exists(gone)  # the journal has not expired the generation
    history.record(r.Expired(1, 3, (), (2,), {}, ()))
    store = history.write(tmp_path / "later")
    store.create(kept, b"")
    store.create(gone, b"")
    assert call("gc", "--store", tmp_path / "later").exit_code == 0
    assert not store.exists(gone)
    assert store.exists(kept)


def test_gc_removes_nothing_while_a_kept_checkpoint_cannot_be_read(folder: Path, history: Written) -> None:
    store = open_store(str(folder))
    left = f"{paths.checkpoint_prefix(4, 99)}manifest.json"
    store.create(left, b"")
    store.delete([paths.manifest_name(1, history.state.committed[1].checkpoint_id)])
    assert "nothing is removed" in call("gc", "--store", folder).stderr
    assert store.exists(left)


def test_gc_leaves_a_running_pipeline_alone(folder: Path) -> None:
    store = open_store(str(folder))
    left = f"{paths.checkpoint_prefix(4, 99)}manifest.json"
    store.create(left, b"12345")
    with beating(store, clock_s=-4 * 3600):
        shown = call("gc", "--store", folder)
        assert call("gc", "--dry-run", "--store", folder).exit_code == 0
    assert shown.exit_code == 1
    assert "cleans up by itself" in shown.stderr
    assert store.exists(left)


def test_a_name_is_not_given_and_taken_away_at_once(folder: Path) -> None:
    shown = call("savepoint", "before-deploy", "--forget", "--epoch", "1", "--store", folder)
    assert shown.exit_code == 1
    assert "use one of them" in shown.stderr
    assert read_journal(open_store(str(folder))).state.savepoints == {"before-deploy": 2}


def test_a_restore_without_a_running_pipeline_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cutwater.sinks.registry.find_version", lambda *_: 0)
    found = document("restore", "2", "--store", folder)
    assert (found["epoch"], found["running"]) == (2, False)
    assert found["news"] == [
        "restored epoch 2: generation 2 begins there",
        "the next run starts there, and takes the tables back",
    ]


def test_a_checkpoint_whose_manifest_is_gone_is_called_damaged(folder: Path) -> None:
    store = open_store(str(folder))
    checkpoint = read_journal(store).state.committed[1]
    store.delete([paths.manifest_name(1, checkpoint.checkpoint_id)])
    flags = {c["epoch"]: c["flags"] for c in document("checkpoints", "--store", folder)["checkpoints"]}
    assert "damaged" in flags[1]
    assert "damaged" not in flags[2] + flags[3]


def test_a_command_that_is_interrupted_says_so_and_ends_with_130(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cutwater.cli.checkpoints.read_journal", interrupt)
    shown = call("tables", "--store", folder)
    assert (shown.exit_code, shown.stderr) == (130, "error: interrupted\n")


# --- what is printed, whole -------------------------------------------------------------------------------------


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("utc")
def test_explain_draws_when_what_happened(folder: Path) -> None:
    shown = call("explain", "2", "--store", folder).stdout
    assert [line.rstrip() for line in shown.splitlines()[:10]] == [
        "epoch 2  committed in 12 s, begun 2026-01-01 00:00:00  (full)",
        "",
        "              at",
        "a          1.0 s  ━━······················  cut at batch 1",
        "b          2.0 s  ··━━····················  cut at batch 1, 1.0 s after a",
        "c           12 s  ····━━━━━━━━━━━━━━━━━━━·  cut at batch 1, 10 s after b",
        "captured    12 s  ·······················━",
        "manifest    12 s  ·······················━",
        "committed   12 s  ·······················━",
        "in out      12 s  ·······················━  published",
    ]
    assert shown.splitlines()[11].startswith("hint: most of the time stage 'c' worked off the rows")
    found = document("explain", "2", "--store", folder)
    assert [hint.partition(" worked")[0] for hint in found["hints"]] == ["most of the time stage 'c'"]
    steps = found["steps"]
    assert [(s["from_s"], s["to_s"]) for s in steps] == [
        (0.0, 1.0), (1.0, 2.0), (2.0, 12.0), (12.0, 12.1), (12.1, 12.2), (12.2, 12.3), (12.3, 12.5),
    ]  # fmt: skip


def test_explain_without_notes_says_that_there_are_none(folder: Path) -> None:
    open_store(str(folder)).delete([notes_name(2)])
    text = call("explain", "2", "--store", folder).stdout
    assert "when what happened was not noted, or the notes are gone" in text
    assert "not noted" not in call("explain", "4", "--store", folder).stdout, "it was aborted, and says why"


@pytest.mark.usefixtures("utc")
def test_show_tells_all_of_a_checkpoint(folder: Path) -> None:
    shown = call("show", "2", "--store", folder).stdout
    assert [line.rstrip() for line in shown.splitlines()] == [
        "epoch 2  full  savepoint 'before-deploy'",
        "committed 2026-01-01 00:00:12, generation 1, checkpoint id 5, watermark -",
        "",
        "stage  batch  cut      reads up to  watermark  files  state",
        "a          1  aligned  -            none           1   26 B",
        "b          1  aligned  a 1          none           1   26 B",
        "c          1  aligned  b 1          none           1   26 B",
        "",
        "table      out: version 102",
    ]
    found = document("show", "2", "--store", folder)
    assert (found["state_files"], found["state_bytes"], found["problem"]) == (3, 78, None)
    assert found["stages"]["b"]["consumed"] == {"a": 1}
    assert (found["in_flight"], found["held"]) == ([], {})


@pytest.mark.usefixtures("utc")
def test_checkpoints_are_listed_one_by_one(folder: Path) -> None:
    shown = call("checkpoints", "--store", folder).stdout
    assert [line.rstrip() for line in shown.splitlines()] == [
        "epoch  savepoint      committed            took  gen  how      watermark  state  published",
        "    1  -              2026-01-01 00:00:12  12 s    1  aligned  -           78 B  everywhere",
        "    2  before-deploy  2026-01-01 00:00:12  12 s    1  full     -           78 B  everywhere",
        "    3  -              2026-01-01 00:00:12  12 s    1  aligned  -           78 B  everywhere",
    ]


def test_verify_says_what_it_has_looked_at(folder: Path) -> None:
    assert call("verify", "--store", folder).stdout.splitlines() == [
        "journal whole; 3 stage logs of generation 1 read",
        "epoch 1  can be restored  3 objects checked",
        "epoch 2 (savepoint 'before-deploy')  can be restored  3 objects checked",
        "epoch 3  can be restored  3 objects checked",
    ]


@pytest.mark.parametrize(
    ("count", "said"),
    [(None, "-"), (0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (99_900, "99.9 kB"), (100_000, "100 kB"),
     (5 * 10**6, "5.0 MB"), (10**9, "1.0 GB"), (2 * 10**12, "2.0 TB")],
)  # fmt: skip
def test_a_size_is_told_in_the_unit_that_one_reads_best(count: int | None, said: str) -> None:
    assert size(count) == said


@pytest.mark.parametrize(
    ("mark", "said"),
    [
        (Watermark(WatermarkKind.NONE), "none"),
        (Watermark(WatermarkKind.UNKNOWN), "no event yet"),
        (Watermark(WatermarkKind.KNOWN, 1_767_225_600_000), "2026-01-01 00:00:00"),
        (Watermark(WatermarkKind.IDLE, 1_767_225_600_000), "2026-01-01 00:00:00 (idle)"),
    ],
)
@pytest.mark.usefixtures("utc")
def test_a_watermark_is_told_in_words(mark: Watermark, said: str) -> None:
    assert watermark_words(mark) == said


def test_a_moment_of_today_is_told_without_its_date() -> None:
    now = time.time()
    assert local(now) == time.strftime("%H:%M:%S", time.localtime(now))
    assert local(now - 2 * 86_400) == time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now - 2 * 86_400))
    assert local(None) == "-"


def test_notes_names_who_holds_the_watermark_back() -> None:
    marks = {
        "known": Watermark(WatermarkKind.KNOWN, 5), "none": Watermark(WatermarkKind.NONE),
        "late": Watermark(WatermarkKind.UNKNOWN), "resting": Watermark(WatermarkKind.IDLE, 7),
    }  # fmt: skip
    found = manifest(1, 1, [r.StageReport(n, 1, 0, False, {}, {}, mark, {}) for n, mark in marks.items()])
    unknown, idle = watermark_hints(found)
    assert unknown.startswith("no event time seen yet by late: ")
    assert idle == "idle, and holding back no watermark: resting"
    drained = msgspec.structs.replace(found, flags=int(Flags.DRAIN))
    assert watermark_hints(drained) == [unknown]


def test_status_gives_programs_the_watermarks_of_stages_as_moments(folder: Path) -> None:
    with beating(open_store(str(folder))):
        (member,) = document("status", "--store", folder)["members"]
    assert [stage["watermark"] for stage in member["stages"]] == [None, "2026-01-01T00:00:00.000+00:00", None]


def test_a_store_without_a_checkpoint_says_so(tmp_path: Path) -> None:
    Written().write(tmp_path / "state")
    assert (
        call("checkpoints", "--store", tmp_path / "state").stdout == "no checkpoint has been committed yet\n"
    )
    assert document("checkpoints", "--store", tmp_path / "state")["checkpoints"] == []
    assert "no checkpoint has been committed yet" in call("verify", "--store", tmp_path / "state").stdout


def test_a_sink_that_is_opened_by_name_has_that_name(tmp_path: Path, folder: Path) -> None:
    store = open_store(str(folder))
    parquet(str(tmp_path / "rows")).bind(store, "out", ROWS)
    assert open_sink(store, "out").name == "out"


def test_stages_that_were_cut_at_once_are_told_with_their_inputs_first() -> None:
    stages = {name: StageTime(1.0, 0, False) for name in "dcba"}
    stages["a"] = StageTime(3.0, 0, False)
    times = EpochTimes(1, 1, 0.0, 0, stages=stages, committed_s=8.0)
    graph = pipeline(stage("d"), stage("b", "d"), stage("c"), stage("a", "b c"))
    assert [step[:3] for step in timeline_of(times, graph)] == [
        ("c", 0.0, 1.0), ("d", 0.0, 1.0), ("b", 1.0, 1.0), ("a", 1.0, 3.0), ("committed", 3.0, 8.0),
    ]  # fmt: skip


@pytest.mark.parametrize("ref", ["²", "-1", "later"])
def test_a_reference_that_names_no_checkpoint_is_an_error_that_lists_those_there_are(
    folder: Path, ref: str
) -> None:
    result = CliRunner().invoke(app, ["show", "--store", str(folder), "--", ref])
    assert result.exit_code == 1
    assert f"there is no checkpoint '{ref}'" in result.output.replace("\n", " ")


def test_one_thing_is_not_told_as_many() -> None:
    assert [plural(count, "object") for count in (0, 1, 2)] == ["0 objects", "1 object", "2 objects"]
    assert [plural(count, "batch") for count in (1, 2000)] == ["1 batch", "2,000 batches"]


def test_what_a_running_pipeline_has_removed_meanwhile_is_no_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def damaged(*_: object) -> dict[str, str]:
        looks.append(1)
        return {"a folder": "it is gone", f"look {len(looks)}": "only now"} if len(looks) < 3 else {}

    monkeypatch.setattr("cutwater.inspection.wholeness.folder_problems", damaged)
    first = call("verify", "--store", folder, "--json")
    assert json.loads(first.stdout)["damage"] == {"a folder": "it is gone"}, "which both looks have found"
    assert (first.exit_code, len(looks)) == (1, 2)
    looks.append(1)
    assert call("verify", "--store", folder).exit_code == 0


def test_show_tells_what_was_under_way_and_what_waits(
    tmp_path: Path, history: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = history.manifests[1]
    flights = (
        r.InFlight("a", "b", 0, 2, {1: ("stages/a/1/data/x",), 2: ("stages/a/1/data/y",)}),
        r.InFlight("b", "c", 1, 2, {2: ()}),
    )
    stages = dict(cut.stages)
    stages["a"] = msgspec.structs.replace(stages["a"], offsets={"0": 7, "1": "x" * 50}, unaligned=True)
    held: dict[str, tuple[r.StagedFile, ...]] = {"out": (r.StagedFile("s"), r.StagedFile("t")), "other": ()}
    changed = msgspec.structs.replace(cut, in_flight=flights, stages=stages, held=held)
    store = history.write(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(looking, "kept", lambda *of: msgspec.structs.replace(facts.kept(*of), manifest=changed))
        shown = call("show", "1", "--store", tmp_path).stdout
    assert "in flight  a → b: batches 1 to 2, 2 files" in shown
    assert "b → c" not in shown
    assert "held       out: 2 files of windows that were not closed" in shown
    assert "held       other" not in shown
    assert f"source at 7, source at {'x' * 37}..." in " ".join(shown.split())
    assert "unaligned" in shown
    store.delete([paths.manifest_name(1, history.state.committed[1].checkpoint_id)])
    gone = call("show", "1", "--store", tmp_path)
    assert gone.exit_code == 1
    assert "the manifest of epoch 1 is missing" in " ".join(gone.stdout.split())
    assert "the manifest of epoch 1 is missing" in call("explain", "1", "--store", tmp_path).stdout


def test_before_anything_is_published_everywhere_there_are_no_tables(
    tmp_path: Path, history: Written
) -> None:
    history.write(tmp_path, unmarked=(1, 2, 3))
    assert "is published in every table yet" in call("tables", "--store", tmp_path).stderr
    assert "not in out" in call("checkpoints", "--store", tmp_path).stdout
    assert "table      out: not published" in call("show", "1", "--store", tmp_path).stdout


def test_a_pipeline_without_sinks_says_so(tmp_path: Path) -> None:
    history = Written(pipeline(stage("a")))
    history.checkpoint()
    history.write(tmp_path)
    assert "no sinks" in call("checkpoints", "--store", tmp_path).stdout


def test_explain_marks_cuts_that_did_not_wait_and_names_the_savepoint(
    tmp_path: Path, history: Written
) -> None:
    store = history.write(tmp_path)
    times = history.times(2)
    times.savepoint = "before-deploy"
    times.stages["b"] = StageTime(2.0, 1, True)
    store.put(notes_name(2), msgspec.json.encode(times))
    shown = call("explain", "2", "--store", tmp_path).stdout
    assert "savepoint 'before-deploy'" in shown
    assert "cut at batch 1, unaligned" in shown


def test_only_stages_are_blamed_for_a_checkpoint_that_took_long(tmp_path: Path, history: Written) -> None:
    store = history.write(tmp_path)
    times = history.times(2)
    times.captured_s, times.manifest_s, times.committed_s = 12.1, 40.0, 40.1
    store.put(notes_name(2), msgspec.json.encode(times))
    assert document("explain", "2", "--store", tmp_path)["hints"] == []


def test_members_of_a_store_on_which_nothing_has_run_cannot_be_asked(
    tmp_path: Path, history: Written
) -> None:
    store = history.write(tmp_path)
    with pytest.raises(UserError, match=r"no pipeline has run on .* yet, so its members cannot be asked"):
        _ask_members(store, ClusterConfig(), True)
    assert _journal_lines({**_journal(store, history.state)}, 1_767_225_600_000)[-2].startswith(
        "watermark    "
    )
