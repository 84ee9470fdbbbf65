"""`cutwater verify`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cutwater.cli.verify import SHOWN, Findings, _text
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.paths import entry_name
from tests.support.builders import pipeline, stage
from tests.support.command_helpers import call, document
from tests.support.written import Written


def test_verify_accepts_an_intact_store(folder: Path) -> None:
    found = document("verify", "--store", folder)
    assert found["damaged"] is False
    assert all(c["restorable"] for c in found["checkpoints"].values())
    assert (
        "epoch 2 (savepoint 'before-deploy')  can be restored  3 objects"
        in call("verify", "--store", folder).stdout
    )


def test_verify_reports_damage_for_the_checkpoints_that_need_the_file(folder: Path) -> None:
    (folder / "stages/b/1/files/1/state/1").write_bytes(b"bad")
    (folder / "stages/c/1/files/1/state/2").unlink()
    found = document("verify", "--store", folder, code=1)["checkpoints"]
    assert found["1"] == {"restorable": True, "problems": []}
    assert found["2"]["problems"] == ["stages/b/1/files/1/state/1 is damaged (its checksum differs)"]
    assert found["3"]["problems"] == ["stages/c/1/files/1/state/2 is missing"]
    assert call("verify", "1", "--store", folder).exit_code == 0
    assert call("verify", "2", "--store", folder).exit_code == 1


@pytest.mark.parametrize("place", ["journal/", "stages/b/1/log/", "manifest", "mark"])
def test_verify_finds_damaged_records(place: str, folder: Path, history: Written) -> None:
    head = history.state.committed[3]
    name = {
        "manifest": paths.manifest_name(3, head.checkpoint_id),
        "mark": paths.mark_name(head.index, "out"),
    }
    (folder / name.get(place, entry_name(place, 2))).write_bytes(b"{}")
    shown = call("verify", "--store", folder)
    assert shown.exit_code == 1
    assert document("verify", "--store", folder, code=1)["damaged"] is True
    assert "cutwater verify" not in shown.stdout, "the advice is to run what was just run"


@pytest.mark.parametrize("lost", ["journal", "manifest"])
def test_verify_says_what_to_do_about_what_is_lost(lost: str, folder: Path, history: Written) -> None:
    head = history.state.committed[3]
    manifest = paths.manifest_name(3, head.checkpoint_id)
    (folder / (manifest if lost == "manifest" else entry_name("journal/", 2))).unlink()
    shown = " ".join(call("verify", "--store", folder).stdout.split())
    advice = {"journal": "restore the store from a copy", "manifest": "; restore another checkpoint"}
    assert advice[lost] in shown
    assert "cutwater verify" not in shown


def test_verify_shows_a_few_problems_and_counts_the_rest(tmp_path: Path) -> None:
    history = Written(pipeline(*[stage(name) for name in "abcdefg"]))
    history.checkpoint()
    store = history.write(tmp_path)
    store.delete(history.manifests[1].objects())
    found = document("verify", "--store", tmp_path, code=1)["checkpoints"]["1"]["problems"]
    assert len(found) > SHOWN
    shown = call("verify", "--store", tmp_path).stdout.splitlines()
    assert shown[-1] == f"    and {len(found) - SHOWN} more (--json lists them all)"
    assert sum(line.startswith("    ") for line in shown) == SHOWN + 1


def test_verify_prints_what_it_has_checked(folder: Path) -> None:
    assert call("verify", "--store", folder).stdout.splitlines() == [
        "journal intact; read 3 stage logs of generation 1",
        "epoch 1  can be restored  3 objects checked",
        "epoch 2 (savepoint 'before-deploy')  can be restored  3 objects checked",
        "epoch 3  can be restored  3 objects checked",
    ]


def test_verify_reports_only_damage_that_a_second_pass_confirms(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = []

    def damaged(*_: object) -> dict[str, str]:
        looks.append(1)
        return {"a folder": "it is gone", f"look {len(looks)}": "only now"} if len(looks) < 3 else {}

    monkeypatch.setattr("cutwater.inspection.integrity.folder_problems", damaged)
    first = call("verify", "--store", folder, "--json")
    assert json.loads(first.stdout)["damage"] == {"a folder": "it is gone"}, "only what both passes found"
    assert (first.exit_code, len(looks)) == (1, 2)
    looks.append(1)
    assert call("verify", "--store", folder).exit_code == 0


def test_a_sink_that_the_store_no_longer_knows_is_missed(folder: Path) -> None:
    name = paths.sink_id_name("out")
    (folder / name).unlink()
    found = document("verify", "--store", folder, code=1)
    assert found["damage"].keys() == {name}
    assert f"\n{name}: " in call("verify", "--store", folder).stdout
    assert "it is not known which transactions in the target belong to sink out" in found["damage"][name]


def test_a_store_that_has_no_graph_yet_is_whole() -> None:
    assert _text(Findings(r.JournalState(), {}, {}, {})) == [
        "journal intact; read 0 stage logs of generation 1", "no checkpoint has been committed yet",
    ]  # fmt: skip
