"""What the reader remembers of a store, and when it forgets it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cutwater.store.opening import open_store
from cutwater.web.reader import StoreReader
from tests.support.builders import DIAMOND
from tests.support.written import Written


def _write(folder: Path, checkpoints: int) -> Written:
    """Another pipeline: the nonces of its entries are the same, so its graph and its epochs must differ."""
    play = Written(DIAMOND)
    play.begin()
    play.abort()
    for _ in range(checkpoints):
        play.checkpoint()
    play.write(folder)
    return play


@pytest.mark.parametrize("checkpoints", [1, 3, 12])
def test_a_store_that_was_created_again_is_read_from_the_start(
    tmp_path: Path, written: Path, checkpoints: int
) -> None:
    folder = tmp_path / "state"
    shutil.copytree(written, folder)
    reader = StoreReader(open_store(str(folder)))
    before = reader.look()
    assert reader.checkpoints(before, 50, None)["head"] == 3
    reader.timeline(before, 50)
    shutil.rmtree(folder)
    _write(folder, checkpoints)
    now = reader.look()
    fresh = StoreReader(open_store(str(folder)))
    assert now.version > before.version
    assert reader.checkpoints(now, 50, None) == fresh.checkpoints(fresh.look(), 50, None)
    assert reader.tables(now, 50, None) == fresh.tables(fresh.look(), 50, None)
    assert reader.timeline(now, 50) == fresh.timeline(fresh.look(), 50)


def test_what_was_read_is_kept_while_the_store_is_the_same(tmp_path: Path, written: Path) -> None:
    folder = tmp_path / "state"
    shutil.copytree(written, folder)
    reader = StoreReader(open_store(str(folder)))
    history = reader.history
    before = reader.look()
    assert reader.look() is before
    shutil.rmtree(folder / "explain")
    reader.look()
    assert reader.history is history
    assert history.epochs.keys() >= {1, 2, 3}
