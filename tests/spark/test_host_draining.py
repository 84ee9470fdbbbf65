"""Draining the queries of a member, with a model of Spark."""

from __future__ import annotations

import time
from threading import Event

import pytest

from cutwater.protocol.base.wire import RequestKind
from cutwater.spark import news
from cutwater.spark.checkpoint import prepared
from tests.support.hosted_pipeline import HostedPipeline, has_read, has_rows, newest
from tests.support.spark_helpers import await_that


def test_a_drain_processes_the_existing_input_and_ends_the_run(shop: HostedPipeline) -> None:
    made = shop.start(every_ms=3_600_000)
    await_that("the first rows", lambda: has_rows(shop), 30)
    shop.numbers.available = 9
    made.come_to_rest()
    assert made.wait(30)
    assert made.failure is None
    assert shop.shown() == list(range(9))
    assert len(shop.source.queries) == 1, "it fell silent by itself"


def test_a_query_that_waits_is_woken_by_rows_by_a_drain_and_by_the_end(
    shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(news, "WAIT_S", 3_600.0)
    made = shop.start(every_ms=3_600_000)

    def waits() -> bool:
        query = made.hosts["copied"]._current
        return query is not None and query.news.is_awaited

    await_that("the reader waits", waits, 30)
    shop.numbers.available = 5
    await_that("it reads what is new", lambda: has_read(shop, 5), 30)
    await_that("and waits again", waits, 30)
    shop.ask(RequestKind.DRAIN)
    assert made.wait(30)
    shop.await_shown(5)
    made.stop()
    made = shop.start(every_ms=3_600_000)
    await_that("the reader of the next run waits", waits, 30)
    made.stop()
    assert not newest(shop.copied).is_active


def test_a_source_that_never_falls_silent_is_drained(shop: HostedPipeline) -> None:
    shop.numbers.grows = True
    made = shop.start(every_ms=3_600_000, rest_within_ms=300)
    await_that("the first rows", lambda: has_rows(shop), 30)
    made.come_to_rest()
    assert made.wait(30)
    assert newest(shop.source).said["trigger"] == {"availableNow": True}
    assert len(shop.source.queries) == 2
    assert len(shop.copied.queries) == 1, "only sources are restarted for a drain"
    assert shop.shown() == list(range(len(shop.shown())))


def test_a_drained_pipeline_continues_with_the_next_start(shop: HostedPipeline) -> None:
    made = shop.start(once=True, every_ms=3_600_000)
    assert made.wait(30)
    shop.stop()
    shop.numbers.available = 5
    made = shop.start()
    shop.await_shown(5)
    assert not made.drained


def test_no_stage_is_quiet_before_its_last_batch_is_logged(
    shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_seen, real = Event(), prepared.committed
    monkeypatch.setattr(prepared, "committed", lambda *batch: real(*batch) if is_seen.is_set() else None)
    made = shop.start(once=True, every_ms=3_600_000)
    await_that("the source is finished", lambda: made.member.sources_done, 30)
    await_that("a drain is in progress", lambda: made.member.journal.state.open, 30)
    stage = made.member.stages["source"]
    assert not stage.quiet
    time.sleep(0.5)
    assert not stage.quiet
    is_seen.set()
    assert made.wait(30)
    assert shop.shown() == [0, 1, 2]


def test_the_pipeline_continues_after_a_cancelled_drain(shop: HostedPipeline) -> None:
    held, let_go = Event(), Event()

    def wait() -> None:
        if shop.numbers.grows:
            held.set()
            let_go.wait(30)

    made = shop.start(every_ms=3_600_000, rest_within_ms=300)
    await_that("the first rows", lambda: has_rows(shop), 30)
    shop.copied.before_batch = wait
    shop.numbers.grows = True
    assert held.wait(30)
    made.come_to_rest()
    await_that("the source runs with AvailableNow", lambda: len(shop.source.queries) > 1, 30)
    shop.numbers.grows = False
    assert shop.ask(RequestKind.CANCEL).ok
    let_go.set()
    await_that(
        "the source runs as before", lambda: "availableNow" not in newest(shop.source).said["trigger"], 30
    )
    shop.numbers.available += 5
    total = shop.numbers.available
    await_that("its new rows", lambda: has_read(shop, total), 30)
    assert shop.ask(RequestKind.CHECKPOINT).ok
    shop.await_shown(total)
    assert not any(stage.quiet for stage in made.member.stages.values())
