"""What Spark says about a query."""

from __future__ import annotations

from typing import Any

import pytest

from cutwater.spark import query_meter
from cutwater.spark.internals.borders import PREFIX
from cutwater.spark.query_meter import QueryFacts, QueryMeter


class Query:
    def __init__(self, progress: Any, is_active: bool = True) -> None:
        self.lastProgress = progress
        self.isActive = is_active


def test_rates_come_from_the_last_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_meter, "source_lags", lambda *_: pytest.fail("it reads no source"))
    meter = QueryMeter()
    meter.measure(None, False)
    assert meter.facts == QueryFacts()
    meter.measure(Query({"processedRowsPerSecond": 12.34, "batchDuration": 250}), False)
    assert meter.facts == QueryFacts(rows_per_s=12.34, batch_s=0.25)
    meter.measure(Query({"processedRowsPerSecond": 99, "batchDuration": 99}, is_active=False), False)
    assert meter.facts.rows_per_s == 12.34, "of a query that has ended nothing is known"
    meter.measure(Query({}), False)
    assert meter.facts == QueryFacts()


def test_the_time_that_a_query_has_slept_is_not_part_of_its_batch() -> None:
    meter = QueryMeter()
    progress = {
        "processedRowsPerSecond": 100.0, "batchDuration": 1000, "durationMs": {"latestOffset": 800, "addBatch": 150}
    }  # fmt: skip
    meter.measure(Query(progress), False, awaits_news=True)
    assert meter.facts.rows_per_s == pytest.approx(500)
    assert meter.facts.batch_s == pytest.approx(0.2)
    meter.measure(Query(progress), False)
    assert meter.facts == QueryFacts(rows_per_s=100, batch_s=1), "what a native source takes is work"
    meter.measure(Query({"batchDuration": 5, "durationMs": {"latestOffset": 5}}), False, awaits_news=True)
    assert meter.facts == QueryFacts()


def test_a_query_that_does_not_answer_does_not_prevent_reports() -> None:
    class Gone:
        isActive = True

        @property
        def lastProgress(self) -> Any:
            raise ConnectionError("the JVM is gone")

    meter = QueryMeter()
    meter.measure(Query({"batchDuration": 500}), False)
    meter.measure(Gone(), True)
    assert meter.facts == QueryFacts(batch_s=0.5)


def test_lags_are_those_of_native_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    behind: Any = ("three records behind",)
    monkeypatch.setattr(query_meter, "source_lags", lambda query, progress, now_s: behind)
    meter = QueryMeter()
    meter.measure(Query({"batchDuration": 1}), False)
    assert meter.facts.lags == ()
    meter.measure(Query({"batchDuration": 1}), True)
    assert meter.facts.lags == behind
    meter.measure(Query({"batchDuration": 2}, is_active=False), True)
    assert meter.facts.lags == behind


def test_the_rows_of_chained_stages_are_not_confused_with_what_the_user_observes() -> None:
    mine = {"rows of clean": {"n": 1}, f"{PREFIX}the day": {"n": 1}}
    metrics = {**mine, f"{PREFIX}clean": {"rows": 6}, f"{PREFIX}parts": None}
    meter = QueryMeter()
    meter.measure(
        Query({"batchDuration": 2000, "observedMetrics": metrics}), False, chained=("clean", "parts")
    )
    assert meter.facts.chained_rows_per_s == {"clean": 3.0, "parts": 0.0}
