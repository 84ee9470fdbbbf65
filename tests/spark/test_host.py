"""Starting, feeding, watching and stopping the queries of a member, with a model of Spark."""

from __future__ import annotations

import threading
from dataclasses import replace
from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.wire import RequestKind
from cutwater.protocol.member.next_query import QueryEnd
from cutwater.protocol.member.stage import Stage, StagePhase
from cutwater.spark import errors
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.host import StageHost
from cutwater.spark.kafka import KafkaLoss
from cutwater.spark.micro_batch import BatchWriter, StopAsked
from cutwater.spark.plan import Plan
from cutwater.spark.query_meter import QueryFacts
from cutwater.spark.split import RulesViolated
from tests.support.hosted_pipeline import HostedPipeline, has_rows, last_batch, newest
from tests.support.modelled_query import SPARK, Frame, Rows
from tests.support.spark_helpers import await_that


class AnalysisException(Exception):
    """As pyspark has it."""


def test_every_row_arrives_once(shop: HostedPipeline) -> None:
    shop.start()
    shop.await_shown(3)
    shop.numbers.available = 10
    shop.await_shown(10)
    assert newest(shop.source).said["trigger"] == {"processingTime": "0 milliseconds"}
    assert newest(shop.copied).said["name"] == "shop.copied"


def test_a_stopped_member_continues_where_it_stopped(shop: HostedPipeline) -> None:
    before = _threads()
    shop.start()
    shop.await_shown(3)
    shop.stop()
    await_that("all its threads have ended", lambda: not (_threads() - before), 30)
    assert not any(query.is_active for query in shop.source.queries + shop.copied.queries)
    shop.numbers.available = 7
    shop.start()
    shop.await_shown(7)


def test_once_processes_the_existing_input_and_ends(shop: HostedPipeline) -> None:
    made = shop.start(once=True, every_ms=3_600_000)
    assert made.wait(30)
    assert made.failure is None
    assert shop.shown() == [0, 1, 2]
    assert shop.source.queries[0].said["trigger"] == {"availableNow": True}
    assert "availableNow" not in shop.copied.queries[0].said["trigger"]
    assert len(shop.source.queries) == 1
    assert not [line for line in shop.log_lines if "lost its query" in line]


@pytest.mark.parametrize("which", ["source", "copied"])
def test_a_failed_query_is_restarted_and_no_row_is_lost(shop: HostedPipeline, which: str) -> None:
    made = shop.start()
    shop.await_shown(3)
    frame: Frame = getattr(shop, which)
    failed = newest(frame)
    failed.fails_with = ValueError("no such luck")
    await_that("the next incarnation", lambda: len(frame.queries) == 2, 30)
    shop.numbers.available = 6
    shop.await_shown(6)
    assert [line for line in shop.log_lines if "failed and restarts in" in line] == [
        f"stage '{which}' failed and restarts in 1 s (1 of 2): ValueError: no such luck"
    ]
    assert made.member.tries == {}, "a batch has succeeded since"
    assert made.failure is None


class KafkaThatLost:
    """The Kafka sources of a stage whose topic was deleted while its query ran."""

    is_gone = False

    def identified(self) -> tuple[Leaf, ...]:
        return ()

    def refuse_lost(self, *_: Any) -> None:
        if self.is_gone:
            raise KafkaLoss("the topic 't' is gone")


def test_a_query_that_fails_because_kafka_has_lost_records_says_which(
    shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shop.start()
    shop.await_shown(3)
    kafka = KafkaThatLost()
    kafka.is_gone = True
    monkeypatch.setattr(made.hosts["source"], "kafka", kafka)
    newest(shop.source).fails_with = RuntimeError("some data are not available in Kafka any more")
    await_that("it says which", lambda: any("the topic 't' is gone" in line for line in shop.log_lines), 30)


def test_bad_rows_in_a_stage_that_must_not_have_any_end_the_run_without_another_try(
    shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise RulesViolated("stage 'source' has 2 bad rows")

    monkeypatch.setattr(BatchWriter, "_write", refuse)
    made = shop.start()
    assert made.wait(30)
    assert isinstance(made.failure, UserError)
    assert str(made.failure) == "stage 'source' has 2 bad rows"
    assert len(shop.source.queries) <= 1


def test_a_query_that_others_stop_is_restarted(shop: HostedPipeline) -> None:
    shop.start()
    shop.await_shown(3)
    newest(shop.copied).stop()
    shop.numbers.available = 6
    shop.await_shown(6)
    assert any(f"lost its query and restarts in 1 s (1 of 2): {errors.STOPPED}" in t for t in shop.log_lines)


def test_a_query_that_keeps_failing_is_given_up(shop: HostedPipeline) -> None:
    def fail() -> None:
        raise ValueError("never")

    shop.copied.before_batch = fail
    shop.start(restarts=1)
    await_that("it is given up", lambda: any("is given up after" in line for line in shop.log_lines), 30)
    assert len(shop.copied.queries) == 2


def test_a_query_whose_state_does_not_fit_the_code_is_not_restarted(shop: HostedPipeline) -> None:
    def fail() -> None:
        raise ValueError("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] other columns")

    shop.copied.before_batch = fail
    shop.start()
    log_lines = await_that("it is given up", lambda: [t for t in shop.log_lines if "is given up" in t], 30)
    assert "--restore REF --reset copied" in log_lines[0]
    assert len(shop.copied.queries) == 1


def test_a_query_that_cannot_run_ends_the_run_at_once(shop: HostedPipeline) -> None:
    def refuse() -> None:
        raise AnalysisException("Sorting is not supported")

    shop.copied.before_start = refuse
    made = shop.start(every_ms=3_600_000)
    assert made.wait(30)
    assert str(made.failure).startswith("stage 'copied' cannot run, now or later: Sorting is not supported")
    assert shop.copied.queries == []
    assert not [line for line in shop.log_lines if "restarts in" in line]


def test_a_query_that_has_worked_is_restarted_after_the_same_error(shop: HostedPipeline) -> None:
    shop.start()
    shop.await_shown(3)
    calls = iter([AnalysisException("the catalog does not answer")])

    def refuse_once() -> None:
        for error in calls:
            raise error

    shop.copied.before_start = refuse_once
    newest(shop.copied).stop()
    shop.numbers.available = 6
    shop.await_shown(6)


def test_a_host_looks_at_its_stage_only_in_a_turn(shop: HostedPipeline) -> None:
    made = shop.start()
    shop.await_shown(3)
    outside: list[str] = []
    turn: Any = made.shell._turn

    def find(name: str) -> Stage | None:
        if not turn._is_owned():
            outside.append(name)
        return made.member.stages.get(name)

    for host in made.hosts.values():
        host._context = replace(host._context, find=find)
    newest(shop.copied).stop()
    shop.numbers.available = 6
    shop.await_shown(6)
    assert outside == []


def test_a_run_ends_with_an_error_when_spark_is_gone(shop: HostedPipeline) -> None:
    made = shop.start()
    shop.await_shown(3)
    newest(shop.source).fails_with = Py4JNetworkError("Answer from Java side is empty")
    assert made.wait(30)
    assert isinstance(made.failure, UserError)
    assert "Spark's process has ended during this run" in str(made.failure)


def test_a_batch_that_was_prepared_but_not_committed_runs_again_and_counts_once(shop: HostedPipeline) -> None:
    died = Event()

    def die() -> None:
        if not died.is_set():
            died.set()
            raise ValueError("before the commit")

    shop.copied.before_commit = die
    shop.start()
    shop.await_shown(3)
    assert died.is_set()


def test_a_restore_rolls_the_table_back_and_the_queries_continue_from_there(shop: HostedPipeline) -> None:
    shop.start(every_ms=3_600_000)
    assert await_that("rows to cut behind", lambda: has_rows(shop), 30)
    first = shop.ask(RequestKind.CHECKPOINT)
    assert first.ok
    shop.await_shown(3)
    shop.numbers.available = 8
    await_that("a further batch", lambda: last_batch(shop, "source") >= 1, 30)
    assert shop.ask(RequestKind.CHECKPOINT).ok
    shop.await_shown(8)
    ended = newest(shop.copied)
    assert shop.ask(RequestKind.RESTORE, epoch=first.epoch).ok
    await_that("the query of the old generation has ended", lambda: not ended.is_active, 30)
    await_that("the rows come again", lambda: last_batch(shop, "source") >= 1, 30)
    assert shop.ask(RequestKind.CHECKPOINT).ok
    shop.await_shown(8)


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("cutwater")}


def test_a_query_that_is_stopped_in_a_later_batch_is_not_taken_for_finished(shop: HostedPipeline) -> None:
    """It ends without an error, like a finished one."""
    shop.numbers.available, shop.numbers.step = 6, 2
    stopped = Event()

    def stop() -> None:
        query = newest(shop.source)
        if not stopped.is_set() and query._last("commits") == 0:
            stopped.set()
            query._stopped.set()
            raise ValueError("it is stopped")

    shop.source.before_commit = stop
    made = shop.start(once=True, every_ms=3_600_000)
    assert made.wait(60)
    assert stopped.is_set()
    assert shop.shown() == list(range(6))


def test_a_run_ends_with_an_error_when_spark_is_gone_from_the_start(
    shop: HostedPipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: str) -> None:
        raise Py4JNetworkError("Error while sending or receiving")

    monkeypatch.setattr(SPARK.sparkContext, "setLocalProperty", refuse)
    made = shop.start()
    assert made.wait(30)
    assert isinstance(made.failure, UserError)
    assert "Spark's process has ended during this run" in str(made.failure)


def test_a_plan_whose_sources_do_not_match_its_positions_is_given_up(shop: HostedPipeline) -> None:
    shop.start()
    shop.await_shown(3)
    shop.stop()
    shop.leaves = (Leaf(format="others", log=0),)
    shop.start()
    log_lines = await_that(
        "it is given up", lambda: [t for t in shop.log_lines if "stage 'source' is given up" in t], 30
    )
    assert "it now reads the source others, but its position is that of the source numbers" in log_lines[0]
    assert "--restore REF --drop source" in log_lines[0]


def test_a_closed_host_starts_no_query(shop: HostedPipeline) -> None:
    made = shop.start()
    shop.await_shown(3)
    hosting, stage = made.hosts["source"], made.member.stages["source"]
    shop.stop()
    hosting.start(fx.StartQuery("source", 1, stage.incarnation, {}, stage.pace))
    assert len(shop.source.queries) == 1


def test_a_stopped_query_begins_no_batch(shop: HostedPipeline) -> None:
    made = shop.start()
    shop.await_shown(3)
    query = newest(shop.source)
    made.hosts["source"].join()
    with pytest.raises(StopAsked):
        query.said["function"](Rows(pa.table({"id": [3]})), 1)


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (None, QueryEnd.STOPPED, errors.STOPPED),
        (ValueError("no"), QueryEnd.FAILED, "no"),
        (RuntimeError("StopAsked"), QueryEnd.ASKED, "StopAsked"),
    ],
)
def test_the_end_of_a_query_is_reported_to_its_stage_unless_that_is_over(
    error: BaseException | None, kind: QueryEnd, why: str
) -> None:
    ended: list[tuple[QueryEnd, str]] = []
    stage: Any = SimpleNamespace(query_ended=lambda *how: ended.append(how))
    context: Any = SimpleNamespace(store=None, spark=None, find={"s": stage}.get)
    planned: Any = SimpleNamespace(
        name="s",
        channels={},
        max_rows=None,
        has_native_source=False,
        awaits_news=True,
        plan=Plan((), False),
        chained=(),
        code={},
    )
    hosting = StageHost(context, planned)
    hosting._on_end(stage, error)
    predecessor: Any = SimpleNamespace()
    hosting._on_end(predecessor, error)
    hosting.close()
    hosting._on_end(stage, error)
    assert ended == [(kind, why)]


@pytest.mark.parametrize("phase", list(StagePhase))
def test_the_query_of_a_stage_that_is_over_is_stopped(phase: StagePhase) -> None:
    stopped: list[str] = []
    context: Any = SimpleNamespace(store=None, spark=None, work=lambda task: task())
    planned: Any = SimpleNamespace(name="s", channels={}, max_rows=None, plan=Plan((), False))
    hosting = StageHost(context, planned)
    query: Any = SimpleNamespace(stop=lambda: stopped.append("stopped"))
    hosting._current, hosting._incarnation = query, 1
    stage: Any = SimpleNamespace(phase=phase, incarnation=2)
    hosting.attend(stage)
    hosting.attend(stage)
    is_over = phase in (StagePhase.STOPPED, StagePhase.FENCED)
    assert stopped == (["stopped"] if is_over else [])


def test_a_host_says_how_far_its_query_may_read_and_what_spark_said() -> None:
    context: Any = SimpleNamespace(store=None, spark=None)
    planned: Any = SimpleNamespace(
        name="s",
        channels={},
        max_rows=None,
        has_native_source=False,
        awaits_news=True,
        plan=Plan((), False),
        chained=(),
        code={},
    )
    hosting = StageHost(context, planned)
    hosting.measure()
    assert hosting.facts() == QueryFacts()
    feed: Any = SimpleNamespace(limit=3)
    hosting._feed_updater.feeds = {"in": feed}
    progress = {"processedRowsPerSecond": 20, "batchDuration": 500}
    query: Any = SimpleNamespace(spark=SimpleNamespace(isActive=True, lastProgress=progress))
    hosting._current = query
    hosting.measure()
    assert hosting.facts() == QueryFacts(limits={"in": 3}, rows_per_s=20, batch_s=0.5)
