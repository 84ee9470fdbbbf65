"""The check of a checkpoint's objects."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import digest
from cutwater.store.checkpoint_objects import checkpoint_problems, damaged_objects, needed
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.builders import manifest


def test_objects_with_and_without_a_checksum_are_checked(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "state"), create=True)
    named: Any = SimpleNamespace(held={}, objects=lambda: {"plain": None, "summed": digest(b"x")})
    gone = {"plain": "plain is missing", "summed": "summed is missing"}
    assert damaged_objects(store, [named]) == gone
    store.put("plain", b"anything")
    store.put("summed", b"x")
    assert damaged_objects(store, [named]) == {}
    store.put("summed", b"y")
    found = damaged_objects(store, [named])
    assert found == {"summed": "summed is damaged (its checksum differs)"}


def test_files_that_a_sink_holds_back_are_checked_with_its_table(tmp_path: Path) -> None:
    """The files are with the table, not in the store."""
    held = r.StagedFile("somewhere/part-0.parquet", 5)
    found = manifest(1, 1, release={"out": ("a.parquet",)}, held={"out": (held,)})
    assert held.name not in needed(found)


def test_an_object_that_several_checkpoints_name_is_read_once(tmp_path: Path) -> None:
    class Counting(LocalStore):
        reads = 0

        def checksum(self, name: str) -> str | None:
            self.reads += 1
            return super().checksum(name)

    open_store(str(tmp_path), create=True)
    store = Counting(tmp_path)
    named: Any = SimpleNamespace(held={}, objects=lambda: {"summed": digest(b"x")})
    store.put("summed", b"x")
    log_lines: list[str] = []
    assert damaged_objects(store, [named, named], log_lines.append) == {}
    assert (store.reads, log_lines) == (1, ["checking objects: 1 of 1"])


def test_a_checkpoint_without_its_manifest_cannot_be_restored(tmp_path: Path) -> None:
    store = open_store(str(tmp_path), create=True)
    gone = r.Checkpoint(3, 7, 1, 9, 0, digest(b""), None, {}, None)
    (problem,) = checkpoint_problems(store, gone)
    assert "the manifest of epoch 3 is missing" in problem
