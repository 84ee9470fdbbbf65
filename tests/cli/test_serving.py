"""The page, metrics and health beside a running member, from before its pipeline has a store or Spark."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cutwater.cli.serving import PageBeside
from cutwater.store.opening import open_store
from tests.support.live_member import members
from tests.support.spark_helpers import await_that


class Beside:
    """What the server beside a pipeline answers. `pipeline` stands in for the user's."""

    def __init__(self, store: Path) -> None:
        self.pipeline = SimpleNamespace(watched=None)
        self.page = PageBeside("127.0.0.1:0", "")
        pipeline: Any = self.pipeline
        self._place = self.page.start(pipeline, str(store)).removeprefix("http://")

    def get(self, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._place, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture
def beside(tmp_path: Path) -> Iterator[Beside]:
    made = Beside(tmp_path / "state")
    yield made
    made.page.stop()


def test_while_spark_starts_the_process_is_alive_not_ready_and_has_no_store_yet(beside: Beside) -> None:
    assert beside.get("/healthz") == (200, '{"ok":true}')
    status, text = beside.get("/readyz")
    assert (status, json.loads(text)["problems"]) == (503, ["the member is starting"])
    assert beside.get("/metrics")[0] == 503
    assert (beside.get("/")[0], beside.get("/app.js")[0]) == (200, 200)
    for path in ("pipeline", "events", "nothing-of-the-kind"):
        status, text = beside.get(f"/api/v1/{path}")
        assert (status, "the pipeline is starting" in json.loads(text)["error"]) == (503, True)


@pytest.mark.slow
def test_a_store_and_a_member_are_shown_as_soon_as_they_are_there(beside: Beside, tmp_path: Path) -> None:
    with members(open_store(str(tmp_path / "state"), create=True)) as group:
        await_that("the store is shown", lambda: beside.get("/api/v1/pipeline")[0] == 200, 30)
        beside.pipeline.watched = group.start("main")
        await_that("the member is ready", lambda: beside.get("/readyz")[0] == 200, 30)
        assert beside.get("/healthz")[0] == 200
        assert 'cutwater_member_running{member="main",pipeline="shop"} 1.0' in beside.get("/metrics")[1]
        shown = json.loads(beside.get("/api/v1/pipeline")[1])
        assert [member["member"] for member in shown["members"]] == ["main"]
        assert beside.get("/")[0] == 200
    beside.pipeline.watched = None
    assert beside.get("/readyz")[0] == 503
