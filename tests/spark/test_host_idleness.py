"""When a stage counts as idle, with a model of Spark."""

from __future__ import annotations

import time
from threading import Event
from typing import Any

import pytest

from cutwater.runtime.runtime import Runtime
from cutwater.spark.micro_batch import BatchWriter
from cutwater.spark.query import WAITING
from tests.support.hosted_pipeline import HostedPipeline, has_read, newest
from tests.support.spark_helpers import await_that


def test_a_stage_is_idle_when_spark_waits_and_it_has_been_silent_for_long(shop: HostedPipeline) -> None:
    made = shop.start(every_ms=3_600_000, idle_after_s=1.0)
    await_that("both are idle", lambda: len(_idle(made)) == 2, 30)
    newest(shop.source).status = {"message": WAITING, "isTriggerActive": True}
    shop.numbers.available = 4
    await_that("it is not idle with a new batch", lambda: "source" not in _idle(made), 30)
    await_that("and again when it is silent", lambda: len(_idle(made)) == 2, 30)


def test_a_stage_with_a_long_batch_is_not_idle(shop: HostedPipeline) -> None:
    began, go_on = Event(), Event()
    real = BatchWriter.__call__

    def slow(self: Any, frame: Any, batch: int) -> None:
        if self.stage == "source" and shop.numbers.available == 5:
            began.set()
            go_on.wait(30)
        real(self, frame, batch)

    made = shop.start(every_ms=3_600_000, idle_after_s=0.3)
    await_that("both are idle", lambda: len(_idle(made)) == 2, 30)
    stage = made.member.stages["source"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BatchWriter, "__call__", slow)
        shop.numbers.available = 5
        assert began.wait(30)
        await_that("it is not idle", lambda: not stage.idle, 30)
        time.sleep(1.0)
        assert not stage.idle
        assert not stage.may_be_idle
        go_on.set()
        await_that("it is idle again", lambda: stage.idle, 30)


def test_a_query_that_starts_slowly_is_not_idle_and_does_not_end_the_run(shop: HostedPipeline) -> None:
    """Its log has no position on the channel before its first batch."""
    go_on = Event()
    shop.copied.before_trigger = lambda: void(go_on.wait(30))
    made = shop.start(every_ms=3_600_000, idle_after_s=0.2)
    await_that("the source has a batch, and is idle", lambda: _idle(made) == {"source"}, 30)
    assert made.failure is None
    go_on.set()
    await_that("both are idle", lambda: len(_idle(made)) == 2, 30)
    assert has_read(shop, 3)


def void(_: object) -> None: ...


def _idle(made: Runtime) -> set[str]:
    return {name for name, stage in made.member.stages.items() if stage.idle}


def test_a_stage_becomes_idle_while_checkpoints_continue(shop: HostedPipeline) -> None:
    made = shop.start(every_ms=100, idle_after_s=1.0)
    shop.await_shown(3)
    await_that("both are idle", lambda: len(_idle(made)) == 2, 30)


def test_a_stage_in_its_first_slow_batch_says_so_and_is_not_idle(shop: HostedPipeline) -> None:
    go_on, waits = Event(), Event()

    def wait() -> None:
        waits.set()
        go_on.wait(30)

    shop.source.before_commit = wait
    made = shop.start(idle_after_s=0.05)
    assert waits.wait(30)

    def first_batch_s() -> float | None:
        return made.reporter.status().stages[0].first_batch_s

    await_that("it is in its first batch for a while", lambda: (first_batch_s() or 0) > 0.2, 30)
    assert made.reporter.status().stages[0].state == "running"
    go_on.set()
    await_that("that batch is over", lambda: first_batch_s() is None, 30)
    shop.await_shown(3)
