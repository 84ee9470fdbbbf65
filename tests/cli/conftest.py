"""A stopped pipeline for the commands to work on."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cutwater.protocol.base.barrier import Flags
from tests.support.written import Written


def _history() -> Written:
    """Three checkpoints, the second a savepoint; then one that was aborted."""
    play = Written()
    play.checkpoint()
    play.checkpoint(Flags.FULL_SNAPSHOT, "before-deploy")
    play.checkpoint()
    play.begin()
    play.abort()
    return play


@pytest.fixture
def history() -> Written:
    return _history()


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with this history, written once: every write is synced."""
    folder = tmp_path_factory.mktemp("cli") / "state"
    _history().write(folder)
    return folder


@pytest.fixture
def folder(tmp_path: Path, written: Path) -> Path:
    """A store with this history."""
    shutil.copytree(written, tmp_path / "state")
    return tmp_path / "state"


@pytest.fixture
def utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()
