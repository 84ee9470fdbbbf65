"""`cutwater checkpoints`, `show` and `tables`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import cutwater
from cutwater.cli import checkpoints
from cutwater.documents import kept_checkpoints
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.support.builders import DIAMOND, pipeline, stage
from tests.support.command_helpers import call, document
from tests.support.written import Written


def test_checkpoints_lists_every_kept_checkpoint(folder: Path) -> None:
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


def test_abandoned_and_unpublished_checkpoints_are_marked(tmp_path: Path, history: Written) -> None:
    history.record(r.Restored(1, 2, 1, history.state.committed[1].cuts))
    history.write(tmp_path, unmarked=(3,))
    found = {c["epoch"]: c for c in document("checkpoints", "--store", tmp_path)["checkpoints"]}
    assert [e for e, c in found.items() if "abandoned" in c["flags"]] == [2, 3]
    assert found[3]["published"] == {"out": None}
    assert "not in out" in call("checkpoints", "--store", tmp_path).stdout


def test_show_lists_a_checkpoint_stage_by_stage(tmp_path: Path) -> None:
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
        "batch": 0, "unaligned": True, "consumed": {"a": 0}, "offsets": {}, "topics": {},
        "watermark": {"kind": "none", "at": None}, "state_files": 1,
        "state_bytes": len("stages/b/1/files/1/state/0"),
    }  # fmt: skip
    flights = {(f["from"], f["to"]): f for f in found["in_flight"]}
    assert len(flights["a", "b"]["files"]) == 1
    text = call("show", "latest", "--store", tmp_path).stdout
    assert "in flight  a → b: batches 1 to 1, 1 file" in text
    assert "table      out: version 102" in text


def test_show_refuses_a_checkpoint_that_is_not_kept(folder: Path) -> None:
    shown = call("show", "7", "--store", folder)
    assert shown.exit_code == 1
    assert "retained epochs: 1, 2, 3; savepoints: before-deploy" in shown.stderr


def test_tables_shows_the_newest_epoch_that_is_published_everywhere(tmp_path: Path, history: Written) -> None:
    history.write(tmp_path, unmarked=(3,))
    assert cutwater.tables(str(tmp_path)) == {"out": 102}
    assert cutwater.tables(open_store(str(tmp_path))) == {"out": 102}
    assert document("tables", "--store", tmp_path) == {
        "store": open_store(str(tmp_path)).url, "epoch": 2, "tables": {"out": 102},
    }  # fmt: skip
    assert document("tables", "--store", tmp_path, "--epoch", 1)["tables"] == {"out": 101}
    assert document("tables", "--store", tmp_path, "--epoch", "before-deploy")["epoch"] == 2
    for newest in (3, "latest"):
        assert (
            "has not published epoch 3 yet" in call("tables", "--store", tmp_path, "--epoch", newest).stderr
        )
    assert "savepoints: before-deploy" in call("tables", "--store", tmp_path, "--epoch", "nope").stderr


def test_an_epoch_whose_mark_is_gone_has_no_tables(folder: Path) -> None:
    store = open_store(str(folder))
    gone = paths.mark_name(read_journal(store).state.committed[2].index, "out")
    store.delete([gone])
    assert "is past epoch 2" in call("tables", "--store", folder, "--epoch", 2).stderr


def test_tables_shows_the_newest_epoch_that_every_sink_has(tmp_path: Path) -> None:
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


def test_a_checkpoint_without_its_manifest_is_marked_damaged(folder: Path) -> None:
    store = open_store(str(folder))
    checkpoint = read_journal(store).state.committed[1]
    store.delete([paths.manifest_name(1, checkpoint.checkpoint_id)])
    flags = {c["epoch"]: c["flags"] for c in document("checkpoints", "--store", folder)["checkpoints"]}
    assert "damaged" in flags[1]
    assert "damaged" not in flags[2] + flags[3]


@pytest.mark.usefixtures("utc")
def test_show_prints_everything_about_a_checkpoint(folder: Path) -> None:
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
def test_checkpoints_prints_a_table(folder: Path) -> None:
    shown = call("checkpoints", "--store", folder).stdout
    assert [line.rstrip() for line in shown.splitlines()] == [
        "epoch  savepoint      committed            took  gen  how      watermark  state  published",
        "    1  -              2026-01-01 00:00:12  12 s    1  aligned  -           78 B  everywhere",
        "    2  before-deploy  2026-01-01 00:00:12  12 s    1  full     -           78 B  everywhere",
        "    3  -              2026-01-01 00:00:12  12 s    1  aligned  -           78 B  everywhere",
    ]


def test_a_store_without_checkpoints_says_so(tmp_path: Path) -> None:
    Written().write(tmp_path / "state")
    assert (
        call("checkpoints", "--store", tmp_path / "state").stdout == "no checkpoint has been committed yet\n"
    )
    assert document("checkpoints", "--store", tmp_path / "state")["checkpoints"] == []
    assert "no checkpoint has been committed yet" in call("verify", "--store", tmp_path / "state").stdout


def test_show_lists_rows_in_flight_and_held_back_files(
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
        patch.setattr(
            checkpoints,
            "kept",
            lambda *of: msgspec.structs.replace(kept_checkpoints.kept(*of), manifest=changed),
        )
        shown = call("show", "1", "--store", tmp_path).stdout
    assert "in flight  a → b: batches 1 to 2, 2 files" in shown
    assert "b → c" not in shown
    assert "held       out: 2 files of windows that were still open" in shown
    assert "held       other" not in shown
    assert f"source at 7, source at {'x' * 37}..." in " ".join(shown.split())
    assert "unaligned" in shown
    store.delete([paths.manifest_name(1, history.state.committed[1].checkpoint_id)])
    gone = call("show", "1", "--store", tmp_path)
    assert gone.exit_code == 1
    assert "the manifest of epoch 1 is missing" in " ".join(gone.stdout.split())
    assert "the manifest of epoch 1 is missing" in call("explain", "1", "--store", tmp_path).stdout


def test_show_lists_positions_in_kafka_by_topic_and_partition(
    tmp_path: Path, history: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut = history.manifests[1]
    position = '{"orders":{"0":120,"10":7,"2":3},"payments":{"0":9}}'
    stages = {**cut.stages, "a": msgspec.structs.replace(cut.stages["a"], offsets={"0": position, "1": 7})}
    changed = msgspec.structs.replace(cut, stages=stages)
    history.write(tmp_path)
    monkeypatch.setattr(
        checkpoints,
        "kept",
        lambda *of: msgspec.structs.replace(kept_checkpoints.kept(*of), manifest=changed),
    )
    shown = call("show", "1", "--store", tmp_path).stdout
    assert "source     a: orders at 0:120, 2:3, 10:7" in shown
    assert "source     a: payments at 0:9" in shown
    assert "orders (3 partitions), payments (1 partition), source at 7" in " ".join(shown.split())
    topics = document("show", "1", "--store", tmp_path)["stages"]["a"]["topics"]
    assert topics == {"0": {"orders": {"0": 120, "2": 3, "10": 7}, "payments": {"0": 9}}}


def test_tables_is_refused_before_an_epoch_is_published_everywhere(tmp_path: Path, history: Written) -> None:
    history.write(tmp_path, unmarked=(1, 2, 3))
    assert "is published in every table yet" in call("tables", "--store", tmp_path).stderr
    assert "not in out" in call("checkpoints", "--store", tmp_path).stdout
    assert "table      out: not published" in call("show", "1", "--store", tmp_path).stdout


def test_a_pipeline_without_sinks_says_so(tmp_path: Path) -> None:
    history = Written(pipeline(stage("a")))
    history.checkpoint()
    history.write(tmp_path)
    assert "no sinks" in call("checkpoints", "--store", tmp_path).stdout
