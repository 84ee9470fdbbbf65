"""`cutwater gc`."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cutwater.cli.gc import _only_of
from cutwater.protocol.base import paths
from cutwater.protocol.base import records as r
from cutwater.protocol.base.watermark import Watermark, WatermarkKind
from cutwater.protocol.base.wire import Request, RequestKind, encode_message
from cutwater.runtime import store_requests
from cutwater.store.opening import open_store
from tests.support.builders import manifest
from tests.support.command_helpers import call, document
from tests.support.written import Written, beating


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


def test_gc_counts_only_files_of_the_store() -> None:
    """Held-back rows are stored with their table."""
    state = dict.fromkeys(("stages/a/1/spark/1/x", "stages/a/1/spark/1/y"), "")
    report = r.StageReport(
        "a", 1, 1, False, consumed={}, offsets={}, watermark=Watermark(WatermarkKind.NONE), state=state
    )
    copy = f"{paths.checkpoint_prefix(1, 1)}channels/a/1/x"
    flight = r.InFlight("a", "b", 0, 1, {1: (copy,)})
    held: dict[str, tuple[r.StagedFile, ...]] = {"out": (r.StagedFile("_cutwater/staged/z"),)}
    manifests = {
        1: manifest(1, 1, [report], [flight], held=held),
        2: manifest(2, 2, [msgspec.structs.replace(report, state={"stages/a/1/spark/1/y": ""})]),
    }
    assert _only_of(manifests, (1,)) == [copy, "stages/a/1/spark/1/x"]
    assert _only_of(manifests, ()) == []


def test_gc_removes_expired_generations(tmp_path: Path, history: Written) -> None:
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
    assert "so nothing is removed" in call("gc", "--store", folder).stderr
    assert store.exists(left)


def test_gc_removes_requests_that_nobody_renews(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_requests, "RENEW_S", 0.01)
    store = open_store(str(folder))
    name = paths.request_name("aaa")
    store.create(name, encode_message(Request(RequestKind.CHECKPOINT, "aaa")))
    found = document("gc", "--dry-run", "--store", folder)["leftovers"]["requests that nobody waits for"]
    assert found["objects"] == 1
    assert store.exists(name)
    assert call("gc", "--store", folder).exit_code == 0
    assert not store.exists(name)


def test_gc_refuses_while_the_pipeline_is_running(folder: Path) -> None:
    store = open_store(str(folder))
    left = f"{paths.checkpoint_prefix(4, 99)}manifest.json"
    store.create(left, b"12345")
    with beating(store, clock_s=-4 * 3600):
        shown = call("gc", "--store", folder)
        assert call("gc", "--dry-run", "--store", folder).exit_code == 0
    assert shown.exit_code == 1
    assert "cleans up by itself" in shown.stderr
    assert store.exists(left)


def test_gc_says_what_it_has_removed_and_what_retention_will(tmp_path: Path, history: Written) -> None:
    store = history.write(tmp_path)
    left = [f"{paths.checkpoint_prefix(4, 99)}{name}" for name in ("channels/a/1/x", "manifest.json")]
    for name in left:
        store.create(name, b"12345")

    would = call("gc", "--dry-run", "--retained", "1", "--store", tmp_path).stdout.splitlines()
    assert would[0] == "2 objects would be removed"
    assert [line.split() for line in would[1:5]] == [
        ["what", "objects", "size"],
        ["of", "epochs", "that", "are", "over", "2", "10", "B"],
        ["of", "generations", "that", "are", "expired", "0", "0", "B"],
        ["requests", "that", "nobody", "waits", "for", "0", "0", "B"],
    ]
    assert would[5] == "with its next commit, a run will expire 1 checkpoint (1): 3 objects, 78 B"
    did = call("gc", "--store", tmp_path).stdout.splitlines()
    assert (did[0], did[-1]) == ("2 objects removed", "retention has nothing to expire")
