"""What Spark says about a query, on a model of Spark's Java side."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]

from cutwater.protocol.base.paths import batch_file_name, spark_prefix
from cutwater.spark.news import News
from cutwater.spark.query import WAITING, Query
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.modelled_query import Starter

FOLDER = spark_prefix("s", 1, 1)


def query(executor: str = "SingleBatchExecutor", looked: bool = False, last: int | None = 0) -> Query:
    """A query with AvailableNow that has prepared batch `last`, and whose commit 0 is in the store."""
    store = open_store("memory://")
    store.put(FOLDER + batch_file_name("offsets", 0), b"")
    store.put(FOLDER + batch_file_name("commits", 0), b"")
    writer: Any = SimpleNamespace(store=store, folder=FOLDER, last=last, base=-1)
    made = Query(writer, takes_all=True, news=News())
    kind = SimpleNamespace(getClass=lambda: SimpleNamespace(getSimpleName=lambda: executor))
    execution = SimpleNamespace(noNewData=lambda: looked, triggerExecutor=lambda: kind)
    made.spark = SimpleNamespace(_jsq=SimpleNamespace(streamingQuery=lambda: execution))
    return made


@pytest.mark.parametrize(
    ("status", "waits"),
    [
        ({"message": WAITING, "isTriggerActive": False}, True),
        ({"message": WAITING, "isTriggerActive": True}, False),
        ({"message": "Processing new data", "isTriggerActive": False}, False),
        (None, False),
    ],
)
def test_a_query_is_waiting_when_spark_says_so_and_it_has_not_ended(status: Any, waits: bool) -> None:
    made = query()
    made.spark = SimpleNamespace(status=status)
    assert made.waits() is waits


def test_a_source_that_is_read_in_one_batch_is_finished_when_that_batch_is_committed() -> None:
    assert query().has_taken_all()
    assert query("MultiBatchExecutor", looked=True).has_taken_all()
    assert not query("MultiBatchExecutor").has_taken_all()
    planned = query()
    planned.writer.store.put(FOLDER + batch_file_name("offsets", 1), b"planned, and not committed")
    assert not planned.has_taken_all()
    assert not query(last=1).has_taken_all(), "its last batch is not committed"
    assert not query(last=None).has_taken_all(), "it has prepared nothing"


class Started:
    """A query of Spark's that only notes what it is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.when_asked: Callable[[], None] = lambda: None
        self.fails: BaseException | None = None
        self.ended = Event()

    def processAllAvailable(self) -> None:
        self._note("all")

    def stop(self) -> None:
        self._note("stop")

    def awaitTermination(self) -> None:
        assert self.ended.wait(20)
        self._note("end")

    def _note(self, what: str) -> None:
        self.asked.append(what)
        self.when_asked()
        if self.fails is not None:
            raise self.fails


def test_a_query_that_waits_for_news_is_waiting_although_spark_sees_a_trigger() -> None:
    made = query()
    made.spark = SimpleNamespace(status={"message": "Getting offsets from a", "isTriggerActive": True})
    assert not made.waits()
    made.news = SimpleNamespace(is_awaited=True)  # type: ignore[assignment]
    assert made.waits()


def test_a_query_that_is_closed_does_not_wait_for_news() -> None:
    made = query()
    made.close()
    assert made.news._closed


@pytest.fixture
def started() -> Started:
    return Started()


def plain(started: Started, base: int = -1) -> Query:
    made = query()
    made.spark, made.takes_all, made.writer.base = started, False, base
    return made


@pytest.mark.parametrize(
    ("takes_all", "trigger"),
    [(True, {"availableNow": True}), (False, {"processingTime": "250 milliseconds"})],
)
def test_a_query_is_started_in_its_folder_at_its_pace(takes_all: bool, trigger: dict[str, Any]) -> None:
    made = query()
    made.takes_all = takes_all
    frame = SimpleNamespace(queries=[], store=made.writer.store)
    starter = Starter(frame)  # type: ignore[arg-type]
    starter.start = lambda: SimpleNamespace(said=starter.said)  # type: ignore[assignment, method-assign, return-value]
    planned: Any = SimpleNamespace(frame=SimpleNamespace(writeStream=starter), output_mode="update")
    made.start(planned, "shop.s", 0.25, print)
    assert made.spark.said == {
        "function": print, "mode": "update", "name": "shop.s", "trigger": trigger,
        "checkpointLocation": made.writer.store.spark_url(FOLDER.rstrip("/")),
    }  # fmt: skip


def test_a_query_rests_when_spark_finds_nothing_to_do_and_no_batch_has_begun_meanwhile(
    started: Started,
) -> None:
    made = plain(started, base=9)

    def begin() -> None:
        made.began = min(made.began + 1, 1)

    started.when_asked = begin
    assert made.await_rest() == 10, "Spark's batch 0 is the log's batch 10"
    assert started.asked == ["all"] * 3, "twice a batch has begun meanwhile"


def test_a_query_that_has_ended_or_is_not_wanted_does_not_report_rest(started: Started) -> None:
    made = plain(started)
    started.fails = RuntimeError("ended")
    assert made.await_rest() is None
    made.close()
    assert made.await_rest() is None
    assert started.asked == ["all"]
    assert made.writer.stopping


def test_what_is_committed_is_known_when_the_store_answers_again(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plain(started, base=4)
    store = made.writer.store
    monkeypatch.setattr("cutwater.spark.query.LOOK_AGAIN_S", 0)
    troubles: list[Store] = []

    def trouble(prefix: str) -> list[str]:
        troubles.append(store)
        if len(troubles) == 3:
            monkeypatch.undo()
        raise OSError("no answer")

    store.put(FOLDER + "commits/.1.tmp", b"not one of them")
    monkeypatch.setattr(store, "list", trouble)
    assert made.last_committed() == 5
    assert len(troubles) == 3
    store.delete([FOLDER + batch_file_name("commits", 0)])
    assert made.last_committed() == 4, "none of its own: the one that it began behind"


def test_nobody_waits_for_a_store_for_a_query_that_is_not_wanted(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = plain(started)

    def trouble(prefix: str) -> list[str]:
        made.close()
        raise OSError("no answer")

    monkeypatch.setattr(made.writer.store, "list", trouble)
    assert made.last_committed() == -1


@pytest.mark.parametrize("error", [None, RuntimeError("no disk")])
def test_the_watcher_of_a_query_is_notified_how_it_ended(
    started: Started, error: BaseException | None
) -> None:
    made = plain(started)
    reported: list[BaseException | None] = []
    is_told = Event()

    def report(how: BaseException | None) -> None:
        reported.append(how)
        is_told.set()

    made.watch(report)
    assert reported == []
    started.fails = error
    started.ended.set()
    assert is_told.wait(20)
    assert reported == [error]


@pytest.mark.parametrize("error", [None, Py4JError("gone"), ConnectionError("gone")])
def test_a_query_is_stopped_and_begins_nothing_even_if_spark_is_gone(
    started: Started, error: BaseException | None
) -> None:
    made = plain(started)
    started.fails = error
    made.stop()
    assert started.asked == ["stop"]
    assert made.writer.stopping
    unstarted = plain(started)
    unstarted.spark = None
    unstarted.stop()
    assert unstarted.writer.stopping
