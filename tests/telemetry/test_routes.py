"""What a web server shows of a running member. The member is real; only Spark's queries are modelled."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from cutwater.telemetry.definitions import METRICS
from cutwater.telemetry.routes import Watched, routes
from tests.support.hosted_pipeline import HostedPipeline
from tests.support.spark_helpers import await_that
from tests.support.web_server import serving

pytestmark = pytest.mark.slow


class Answer(NamedTuple):
    status_code: int
    content_type: str
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class Web:
    """A client of a server with the routes of `current`."""

    def __init__(self, current: Callable[[], Watched | None]) -> None:
        self._serving = serving(routes(current))
        self._address = self._serving.__enter__()

    def get(self, path: str) -> Answer:
        connection = HTTPConnection(self._address, timeout=30)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers["content-type"], answer.read().decode())
        finally:
            connection.close()

    def close(self) -> None:
        self._serving.__exit__(None, None, None)


@pytest.fixture
def client() -> Iterator[Callable[[Callable[[], Watched | None]], Web]]:
    made: list[Web] = []

    def serve(current: Callable[[], Watched | None]) -> Web:
        made.append(Web(current))
        return made[-1]

    yield serve
    for web in made:
        web.close()


Client = Callable[[Callable[[], Watched | None]], Web]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[HostedPipeline]:
    made = HostedPipeline(tmp_path)
    yield made
    made.stop()


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """The samples of a scrape, by name and the values of the labels besides pipeline and member."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert (sample.labels.pop("pipeline"), sample.labels.pop("member")) == ("shop", "main")
            found[sample.name, tuple(sample.labels.values())] = sample.value
    return found


def test_a_scrape_shows_what_the_pipeline_does(shop: HostedPipeline, client: Client) -> None:
    up = shop.start(every_ms=100)
    web = client(lambda: up)
    shop.await_shown(3)

    def scraped() -> dict[tuple[str, tuple[str, ...]], float]:
        answer = web.get("/metrics")
        assert answer.status_code == 200
        assert answer.content_type.startswith("text/plain; version=0.0.4")
        return samples(answer.text)

    wanted = "cutwater_last_checkpoint_bytes", ()
    found = await_that("the size of a checkpoint was measured", lambda: wanted in (s := scraped()) and s, 20)
    assert found["cutwater_checkpoints_total", ("committed",)] >= 2
    assert found["cutwater_checkpoints_total", ("aborted",)] == 0
    assert found["cutwater_stage_rows_total", ("copied",)] == 3
    assert found["cutwater_stage_up", ("source",)] == found["cutwater_leader", ()] == 1
    assert found["cutwater_publish_lag_epochs", ("out",)] <= 1
    assert found["cutwater_published_epochs_total", ("out",)] >= 1
    assert found["cutwater_stage_alignment_seconds", ("copied",)] >= 0
    assert found["cutwater_last_checkpoint_full_bytes", ()] >= found[wanted]
    assert time.time() - found["cutwater_last_checkpoint_completed_timestamp_seconds", ()] < 20
    assert found["cutwater_checkpoint_interval_seconds", ()] == 0.1
    shown = {family.name for family in text_string_to_metric_families(web.get("/metrics").text)}
    assert shown == {name.removesuffix("_total") for name in METRICS}


def test_sizes_are_measured_only_while_somebody_reads_them(shop: HostedPipeline) -> None:
    up = shop.start(every_ms=100)
    shop.await_shown(3)
    await_that("some commits", lambda: (up.member.journal.state.head or 0) > 3, 20)
    assert "cutwater_last_checkpoint_full_bytes" not in up.measures.values()[0]


def test_before_there_is_a_member_the_process_is_alive_and_not_ready(client: Client) -> None:
    web = client(lambda: None)
    assert web.get("/metrics").status_code == 503
    assert web.get("/healthz").status_code == 200
    ready = web.get("/readyz")
    assert (ready.status_code, ready.json()) == (503, {"ok": False, "problems": ["the member is starting"]})
    assert web.get("/readyz?intervals=x").status_code == 400


def test_a_running_member_is_alive_and_ready(shop: HostedPipeline, client: Client) -> None:
    up = shop.start()
    web = client(lambda: up)
    await_that("it is ready", lambda: web.get("/readyz").status_code == 200, 30)
    assert web.get("/healthz").json() == {"ok": True}
    shop.stop()
    assert web.get("/readyz").json() == {"ok": False, "problems": ["the member has ended: stopped"]}


def test_a_member_whose_turn_does_not_end_is_not_alive(
    shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    up = shop.start()
    web = client(lambda: up)
    await_that("it runs", lambda: web.get("/healthz").status_code == 200, 30)
    begun, go_on = Event(), Event()

    def turn() -> None:
        begun.set()
        go_on.wait(60)

    up.shell.call(turn)
    assert begun.wait(10)
    monkeypatch.setattr("cutwater.telemetry.health.turn_problem.__defaults__", (0.2,))
    stuck = web.get("/healthz")
    began = time.monotonic()
    assert web.get("/metrics").status_code == 200  # a scrape does not wait for the turn
    assert time.monotonic() - began < 1
    go_on.set()
    assert stuck.status_code == 503
    assert "turn" in stuck.json()["problems"][0]


def test_a_member_whose_shell_has_failed_is_not_alive(
    shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch, client: Client
) -> None:
    up = shop.start()
    web = client(lambda: up)
    await_that("it runs", lambda: web.get("/healthz").status_code == 200, 30)
    monkeypatch.setattr("cutwater.telemetry.health.turn_problem.__defaults__", (0.2,))

    def fail() -> None:
        raise RuntimeError("boom")

    up.shell.call(fail)
    await_that("it does not live", lambda: web.get("/healthz").status_code == 503, 10)


def test_a_member_that_has_not_reported_yet_has_no_metrics(client: Client) -> None:
    starting: Any = SimpleNamespace(latest_status=(None, 0.0))
    assert client(lambda: starting).get("/metrics").status_code == 503
