"""A store that is removed and written anew while it is followed."""

from __future__ import annotations

import shutil
from pathlib import Path
from threading import Timer

import pytest

import cutwater as cw
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.paths import follower_prefix
from cutwater.store.opening import open_store
from tests.support.builders import DIAMOND
from tests.support.written import Written


def _write(folder: Path, checkpoints: int, aborted: int = 0) -> None:
    play = Written(DIAMOND)
    for _ in range(aborted):
        play.begin()
        play.abort()
    for _ in range(checkpoints):
        play.checkpoint()
    play.write(folder)


@pytest.mark.slow
@pytest.mark.parametrize("checkpoints", [1, 5])
def test_a_follower_of_a_store_that_was_replaced_ends_and_keeps_no_position_in_the_new_one(
    tmp_path: Path, checkpoints: int
) -> None:
    folder, other = tmp_path / "state", tmp_path / "other"
    _write(folder, 2)
    _write(other, checkpoints, aborted=1)

    def replace() -> None:
        folder.rename(tmp_path / "old")
        shutil.copytree(other, folder, dirs_exist_ok=True)

    with cw.follow(str(folder), name="cache") as named, cw.follow(str(folder)) as plain:
        assert [next(plain).epoch for _ in range(2)] == [1, 2]
        assert next(named).epoch == 1
        Timer(0.2, replace).start()
        with pytest.raises(UserError, match="the store was replaced"):
            next(plain)  # waits for the third
        with pytest.raises(UserError, match="Start the follower again"):
            next(named)
    assert open_store(str(folder)).list(follower_prefix("cache")) == []
    with cw.follow(str(folder), name="cache") as again:
        assert next(again).epoch == 2  # the first one that was committed there
