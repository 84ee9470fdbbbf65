"""A stopped pipeline, and a client of its web server."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from cutwater.protocol.base.barrier import Flags
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from cutwater.web.server import WebServer
from tests.support.builders import DIAMOND
from tests.support.written import Written

TOKEN = "correct-horse-battery-staple"
LISTEN = "127.0.0.1:8080"
LOCAL = f"http://{LISTEN}"


def _history() -> Written:
    """Three checkpoints, the second a savepoint; then one that was aborted."""
    play = Written(DIAMOND)
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
    folder = tmp_path_factory.mktemp("web") / "state"
    _history().write(folder)
    return folder


@pytest.fixture
def store(tmp_path: Path, written: Path) -> Store:
    shutil.copytree(written, tmp_path / "state")
    return open_store(str(tmp_path / "state"))


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    """A client of a server without a token."""
    with TestClient(WebServer(store, LISTEN).app, LOCAL) as made:
        yield made


@pytest.fixture
def trusted(store: Store) -> Iterator[TestClient]:
    """A client that has the server's token."""
    with TestClient(
        WebServer(store, LISTEN, TOKEN).app, LOCAL, headers={"authorization": f"Bearer {TOKEN}"}
    ) as made:
        yield made
