"""One thread per host watches for Spark's commits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from cutwater.spark import commit_watcher
from cutwater.spark.commit_watcher import CommitWatcher
from cutwater.store.local import LocalStore
from tests.support.spark_helpers import await_that


class Watched:
    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.store = LocalStore(folder)
        self.committed = 0
        self.watcher = CommitWatcher(self.store, "s", self._on_commit)

    def _on_commit(self) -> None:
        self.committed += 1


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    made = Watched(tmp_path / "store")
    yield made
    made.watcher.close()


def has_committed(watched: Watched, count: int) -> bool:
    return watched.committed == count


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "cutwater-commits-s"]


def test_each_commit_is_reported_once_and_all_by_one_thread(watched: Watched) -> None:
    for batch in range(5):
        watched.watcher.watch(f"commits/{batch}")
        assert watched.committed == batch
        watched.store.create(f"commits/{batch}", b"x")
        await_that("it is reported", partial(has_committed, watched, batch + 1), 10)
        assert len(threads()) == 1


def test_a_commit_that_is_no_longer_wanted_is_not_reported(watched: Watched) -> None:
    watched.watcher.watch("commits/0")
    watched.watcher.forget()
    watched.store.create("commits/0", b"x")
    watched.watcher.watch("commits/1")
    watched.store.create("commits/1", b"x")
    await_that("the next one is reported", lambda: watched.committed, 10)
    assert watched.committed == 1


def test_a_failed_read_is_retried(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    failed, real = Event(), watched.store.exists

    def exists(name: str) -> bool:
        if not failed.is_set():
            failed.set()
            raise OSError("no answer")
        return real(name)

    monkeypatch.setattr(watched.store, "exists", exists)
    watched.store.create("commits/0", b"x")
    watched.watcher.watch("commits/0")
    await_that("it is reported", lambda: watched.committed == 1, 10)
    assert failed.is_set()


def test_a_watcher_gives_up_on_a_commit_after_a_while_and_takes_the_next(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_watcher, "GIVE_UP_S", 0.05)
    watched.watcher.watch("commits/0")
    await_that("it no longer looks", lambda: watched.watcher._wanted is None, 10)
    watched.store.create("commits/0", b"x")
    watched.store.create("commits/1", b"x")
    watched.watcher.watch("commits/1")
    await_that("the next one is reported", lambda: watched.committed == 1, 10)


def test_a_closed_watcher_has_no_thread(watched: Watched) -> None:
    watched.watcher.watch("commits/0")
    await_that("it looks", threads, 10)
    watched.watcher.close()
    await_that("its thread has ended", lambda: not threads(), 10)
    watched.watcher.watch("commits/1")
    assert not threads()
