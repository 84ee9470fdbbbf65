"""Metrics, alert rules and dashboard with a real Prometheus."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cutwater.telemetry.definitions import METRICS, Kind
from cutwater.telemetry.routes import routes
from tests.support.hosted_pipeline import HostedPipeline
from tests.support.prometheus import MISSING, Prometheus, promtool, scraping
from tests.support.spark_helpers import await_that
from tests.support.web_server import serving

pytestmark = [
    pytest.mark.prometheus,
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]
DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
MAY_BE_ABSENT = {
    "cutwater_checkpoint_failures_total",
    "cutwater_operation_errors_total",
    "cutwater_sink_rewinds_total",
    "cutwater_watermark_timestamp_seconds",
    "cutwater_stage_watermark_timestamp_seconds",
    *(f"cutwater_source_lag_{unit}" for unit in ("rows", "files", "bytes", "seconds")),
}
"""Metrics that a healthy pipeline without event time and without measurable sources does not have."""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostedPipeline]:
    made = HostedPipeline(tmp_path_factory.mktemp("shop"))
    made.start(every_ms=200)
    yield made
    made.stop()


@pytest.fixture(scope="module")
def prometheus(shop: HostedPipeline, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped the pipeline a few times."""
    with (
        serving(routes(lambda: shop.up)) as address,
        scraping(tmp_path_factory.mktemp("p"), address, RULES) as made,
    ):
        sized = "cutwater_last_checkpoint_bytes"
        await_that("the pipeline was scraped", lambda: made.query(sized), 60)
        yield made


def test_the_rules_are_valid_and_alert_when_they_should() -> None:
    promtool("check", "rules", RULES)
    promtool("test", "rules", RULES.with_name("alerts.test.yml"))


def test_prometheus_has_every_metric_with_its_type_and_help(prometheus: Prometheus) -> None:
    known = prometheus.get("metadata")
    for metric in METRICS.values():
        (told,) = known[metric.name.removesuffix("_total")]  # as OpenMetrics names it
        assert (told["type"], told["help"]) == (metric.kind.value, metric.help)
        if metric.name not in MAY_BE_ABSENT:
            name = f"{metric.name}_bucket" if metric.kind is Kind.HISTOGRAM else metric.name
            assert prometheus.query(name), name


def test_no_series_is_added_while_epochs_go_by(prometheus: Prometheus, shop: HostedPipeline) -> None:
    def series() -> int:
        (found,) = prometheus.query('scrape_samples_scraped{job="cutwater"}')
        return int(found["value"][1])

    assert shop.up is not None
    before, head = series(), shop.up.member.journal.state.head or 0
    await_that("ten epochs", lambda: (shop.up.member.journal.state.head or 0) > head + 10, 60)  # type: ignore[union-attr]
    assert series() == before


def test_a_healthy_pipeline_raises_no_alert_and_no_rule_fails(prometheus: Prometheus) -> None:
    (group,) = prometheus.get("rules")["groups"]
    assert [rule["name"] for rule in group["rules"] if rule["health"] != "ok"] == []
    assert len(group["rules"]) >= 8
    assert prometheus.get("alerts")["alerts"] == []


def test_every_panel_of_the_dashboard_shows_something(prometheus: Prometheus) -> None:
    empty = []
    for panel, expression in queries():
        concrete = expression.replace("$pipeline", "shop").replace("$__rate_interval", "30s")
        found = prometheus.query(concrete)
        if not found and not any(name in expression for name in MAY_BE_ABSENT):
            empty.append((panel, concrete))
    assert empty == []


def queries() -> list[tuple[str, str]]:
    board: Any = json.loads((DEPLOY / "grafana" / "cutwater.json").read_text("utf-8"))
    return [(p["title"], t["expr"]) for p in board["panels"] for t in p.get("targets", ())]


def test_alerts_follow_a_stage_that_is_given_up(tmp_path: Path) -> None:
    """The whole way from the member's state over its metrics to Prometheus' alert."""
    shop = HostedPipeline(tmp_path / "failing")
    shop.start(every_ms=200)
    try:
        with (
            serving(routes(lambda: shop.up)) as address,
            scraping(tmp_path / "p", address, RULES) as prometheus,
        ):
            await_that("it is scraped", lambda: prometheus.query("cutwater_stage_up"), 60)
            assert shop.up is not None
            member = shop.up.member
            shop.up.shell.call(lambda: member.failures.update({"copied": "boom"}))
            alerts = await_that("an alert", lambda: prometheus.get("alerts")["alerts"], 60)
            assert {(a["labels"]["alertname"], a["labels"]["stage"]) for a in alerts} == {
                ("CutwaterStageGivenUp", "copied")
            }
    finally:
        shop.stop()


def test_rules_and_dashboard_name_metrics_that_exist() -> None:
    texts = [RULES.read_text("utf-8"), *(expression for _, expression in queries())]
    named = {name for text in texts for name in re.findall(r"\bcutwater_\w+", text)}
    assert {re.sub(r"_bucket$", "", name) for name in named} <= METRICS.keys()
    assert len(named) > 25
