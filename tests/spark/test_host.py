"""How the queries of a member are started, fed, watched, brought to rest and stopped. Everything is the product's own
but Spark, whose queries are modelled."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql.types import LongType, StructField, StructType

from cutwater.cluster.kv import MemoryCluster
from cutwater.cluster.links import Hint, Links
from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.errors import CutwaterError, StoreError, UserError
from cutwater.protocol.base.records import SinkSpec, StageSpec, Topology
from cutwater.protocol.base.replay_wire import AskRange, Compacted, EntriesChunk, FetchEntries, HaveRange
from cutwater.protocol.base.watermark import NONE, WatermarkKind
from cutwater.protocol.base.wire import (
    Ack,
    Announcement,
    Heartbeat,
    LogGrown,
    Phase,
    Reply,
    Request,
    RequestKind,
    SourcesDone,
)
from cutwater.protocol.leader.coordinator_actions import CoordinatorConfig
from cutwater.protocol.leader.leader import LeaderConfig
from cutwater.protocol.member.config import MemberConfig
from cutwater.protocol.member.stage import QueryEnd, StagePhase
from cutwater.runtime import runtime
from cutwater.runtime.mailbox import new_id
from cutwater.runtime.runtime import Runtime
from cutwater.runtime.settings import Settings
from cutwater.sinks import parquet, parquet_files
from cutwater.spark import errors
from cutwater.spark.checkpoint import incarnations as folders
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.feed import Feed
from cutwater.spark.host import StageHost
from cutwater.spark.micro_batch import BatchWriter, StopAsked
from cutwater.spark.query import WAITING
from cutwater.store.at_rest import manifest_of
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.modelled_query import SPARK, Frame, Numbers, Query, Rows
from tests.support.spark_helpers import await_that

SCHEMA = StructType([StructField("id", LongType())])


class Running:
    """A pipeline of two stages: `source` gives numbers, `copied` reads them and puts them into a table."""

    def __init__(self, folder: Path) -> None:
        self.store = open_store(str(folder / "state"), create=True)
        assert isinstance(self.store, LocalStore)
        self.numbers = Numbers(3)
        self.told: list[str] = []
        self.table = folder / "out"
        self.source = Frame(self.store, self.numbers, None)
        self.channel = SimpleNamespace(name="source", feed=Feed("source", -1))
        self.copied = Frame(self.store, None, self.channel)
        self.leaves = (Leaf(format="numbers", log=0),)
        self.with_watermark: set[str] = set()
        self._boots = 0
        self.up: Runtime | None = None

    def start(
        self,
        *,
        every_ms: int = 200,
        once: bool = False,
        idle_after_s: float = 60.0,
        restarts: int = 2,
        rest_within_ms: int = 3_000,
    ) -> Runtime:
        made = self.make(every_ms, once, idle_after_s, restarts, rest_within_ms)
        made.start()
        return made

    def make(
        self,
        every_ms: int = 200,
        once: bool = False,
        idle_after_s: float = 60.0,
        restarts: int = 2,
        rest_within_ms: int = 3_000,
    ) -> Runtime:
        """A member that is not started."""
        self._boots += 1
        sink = parquet(str(self.table))
        sink.bind(self.store, "out", SCHEMA.json())
        stages = {
            "source": self._built("source", self.source, (), self.leaves, {}),
            "copied": self._built(
                "copied", self.copied, ("source",), (Leaf(channel="source"),), {"source": self.channel}, sink
            ),
        }
        specs = {
            "source": StageSpec("source", (), "main", ()),
            "copied": StageSpec("copied", ("source",), "main", (SinkSpec("out"),)),
        }
        built: Any = SimpleNamespace(
            name="shop", topology=Topology(specs), sinks={"out": sink}, stages=stages, spark=SPARK
        )
        coordinator = CoordinatorConfig(interval_ms=every_ms)
        settings = Settings(
            LeaderConfig(300, 100, coordinator),
            MemberConfig(poll_ms=50, restarts=restarts, rest_within_ms=rest_within_ms),
            idle_after_s,
            once,
        )
        boot = f"boot{self._boots}"
        links = Links(MemoryCluster().member("main", boot), self.told.append)
        self.up = Runtime(built, self.store, "main", boot, settings, self.told.append, links)
        self.up.reporter.every_s = 0.1
        return self.up

    def _built(
        self,
        name: str,
        frame: Frame,
        inputs: tuple[str, ...],
        leaves: tuple[Leaf, ...],
        channels: Any,
        *sinks: Any,
    ) -> Any:
        return SimpleNamespace(
            name=name, inputs=inputs, frame=frame, schema=SCHEMA, channels=channels, sinks=sinks,
            plan=SimpleNamespace(has_watermark=name in self.with_watermark, leaves=leaves), has_readers=not sinks,
            output_mode="append", trigger_s=0.0, max_rows=0, has_native_source=not inputs,
        )  # fmt: skip

    def stop(self) -> None:
        if self.up is not None:
            self.up.stop()

    def shown(self) -> list[int]:
        """The numbers in the table, sorted."""
        files = parquet_files(str(self.table)) if self.table.exists() else []
        return sorted(i for file in files for i in pq.ParquetFile(file).read()["id"].to_pylist())

    def await_shown(self, count: int) -> None:
        await_that(f"{count} rows, each once", lambda: self.shown() == list(range(count)), 30)

    def ask(self, kind: RequestKind, **what: Any) -> Reply:
        assert self.up is not None
        return self.up.request(Request(kind, new_id(), **what), 30)


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.stop()
    failure = made.up.failure if made.up is not None else None
    assert failure is None or isinstance(failure, CutwaterError), "an error that nobody foresaw"


def newest(frame: Frame) -> Query:
    return frame.queries[-1]


# --- what reaches whom ----------------------------------------------------------------------------------------


REPLAY = (AskRange(1), HaveRange(1, 2, 3), FetchEntries(1, 2, 3, 4), EntriesChunk(1, 2, []), Compacted(1, 2))


@pytest.mark.parametrize(
    ("message", "heard"),
    [
        (Announcement(Phase.COMMIT, 1, 1_000, 1, 1, 0, 5), ["on_announcement"]),
        (Heartbeat("b", "boot", 1, 2), ["on_heartbeat", "lead_on_heartbeat"]),
        (LogGrown("s", 1, 2), ["on_log_grown"]),
        (Ack("b", "boot", 1, 1_000, 1, True, None, NONE, {}), ["lead_on_message"]),
        (SourcesDone("b", "boot", 1), ["lead_on_sources_done"]),
        *((message, ["on_replay"]) for message in REPLAY),
        (Request(RequestKind.DRAIN, "r"), []),
        (Reply("r", True), []),
        (Hint("requests"), ["look"]),
    ],
)
def test_a_message_reaches_whom_it_is_for(
    shop: Running, monkeypatch: pytest.MonkeyPatch, message: Any, heard: list[str]
) -> None:
    made = shop.make()
    calls: list[tuple[str, Any]] = []

    def watch(thing: object, name: str, shown: str) -> None:
        monkeypatch.setattr(thing, name, lambda *what: calls.append((shown, what[-1] if what else message)))

    for name in ("on_announcement", "on_heartbeat", "on_log_grown", "on_replay"):
        watch(made.member, name, name)
    for name in ("on_message", "on_heartbeat", "on_sources_done"):
        watch(made.leader, name, f"lead_{name}")
    watch(made.mailbox, "look", "look")
    made._take("b", message)
    assert calls == [(name, message) for name in heard]


def test_a_member_knows_of_its_stages_what_their_plans_say(shop: Running) -> None:
    shop.with_watermark = {"copied"}
    made = shop.make(once=True, idle_after_s=1.5)
    assert made.member.timeless == {"source"}
    assert made.member.native == {"source"}
    assert made.member.triggers_ms == {"source": 0, "copied": 0}
    assert (made.member.config.once, made.member.config.idle_after_ms) == (True, 1_500)
    assert made.hosts.keys() == {"source", "copied"}
    assert not made.wait(0)


def test_the_first_error_is_the_one_that_ended_a_run(shop: Running) -> None:
    made = shop.make()
    first = StoreError("no manifest")
    made._on_failure(first)
    made._on_failure(ValueError("after that"))
    assert made.failure is first
    assert made.wait(0)
    gone = shop.make()
    gone._on_failure(ConnectionRefusedError("no JVM"))
    assert isinstance(gone.failure, UserError)
    assert "Spark has gone away under this run (no JVM)" in str(gone.failure)


@pytest.mark.parametrize(
    ("is_hopeless", "failures", "told"),
    [
        (
            True,
            {"b": "y", "a": "x"},
            "no checkpoint can be taken, so the run ends. stage 'a' failed: x; stage 'b' failed: y",
        ),
        (False, {}, "too many checkpoints in a row have failed, so the run ends. late"),
    ],
)
def test_a_run_that_gives_up_says_why(
    shop: Running, is_hopeless: bool, failures: dict[str, str], told: str
) -> None:
    made = shop.make()
    made.member.hopeless, made.member.failures = is_hopeless, failures
    assert made._give_up_story("late") == told


# --- going on ---------------------------------------------------------------------------------------------


def test_every_row_comes_through_once(shop: Running) -> None:
    shop.start()
    shop.await_shown(3)
    shop.numbers.available = 10
    shop.await_shown(10)
    assert newest(shop.source).said["trigger"] == {"processingTime": "0 milliseconds"}
    assert newest(shop.copied).said["name"] == "shop.copied"


def test_a_member_that_is_stopped_goes_on_where_it_was(shop: Running) -> None:
    before = _threads()
    shop.start()
    shop.await_shown(3)
    shop.stop()
    await_that("all its threads have ended", lambda: not (_threads() - before), 30)
    assert not any(query.is_active for query in shop.source.queries + shop.copied.queries)
    shop.numbers.available = 7
    shop.start()
    shop.await_shown(7)


def test_once_takes_what_is_there_and_ends(shop: Running) -> None:
    made = shop.start(once=True, every_ms=3_600_000)
    assert made.wait(30)
    assert made.failure is None
    assert shop.shown() == [0, 1, 2]
    assert shop.source.queries[0].said["trigger"] == {"availableNow": True}
    assert "availableNow" not in shop.copied.queries[0].said["trigger"]
    assert len(shop.source.queries) == 1
    assert not [line for line in shop.told if "has lost its query" in line]


@pytest.mark.parametrize("which", ["source", "copied"])
def test_a_query_that_fails_is_started_again_and_no_row_is_lost(shop: Running, which: str) -> None:
    made = shop.start()
    shop.await_shown(3)
    frame: Frame = getattr(shop, which)
    failed = newest(frame)
    failed.fails_with = ValueError("no such luck")
    await_that("the next incarnation", lambda: len(frame.queries) == 2, 30)
    shop.numbers.available = 6
    shop.await_shown(6)
    assert [line for line in shop.told if "failed and is started again" in line] == [
        f"stage '{which}' failed and is started again in 1 s (1 of 2): ValueError: no such luck"
    ]
    assert made.hosts[which].restarts == 0, "a batch went well since"
    assert made.failure is None


def test_a_query_that_others_stop_is_missed(shop: Running) -> None:
    shop.start()
    shop.await_shown(3)
    newest(shop.copied).stop()
    shop.numbers.available = 6
    shop.await_shown(6)
    assert any(
        f"has lost its query and is started again in 1 s (1 of 2): {errors.STOPPED}" in t for t in shop.told
    )


def test_a_query_that_keeps_failing_is_given_up(shop: Running) -> None:
    def fail() -> None:
        raise ValueError("never")

    shop.copied.before_batch = fail
    shop.start(restarts=1)
    await_that("it is given up", lambda: any("is given up after" in line for line in shop.told), 30)
    assert len(shop.copied.queries) == 2


def test_a_query_whose_state_does_not_fit_the_code_is_not_tried_again(shop: Running) -> None:
    def fail() -> None:
        raise ValueError("[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] other columns")

    shop.copied.before_batch = fail
    shop.start()
    told = await_that("it is given up", lambda: [t for t in shop.told if "is given up" in t], 30)
    assert "--restore REF --reset copied" in told[0]
    assert len(shop.copied.queries) == 1


def test_a_run_whose_spark_is_gone_ends_and_says_so(shop: Running) -> None:
    made = shop.start()
    shop.await_shown(3)
    newest(shop.source).fails_with = Py4JNetworkError("Answer from Java side is empty")
    assert made.wait(30)
    assert isinstance(made.failure, UserError)
    assert "Spark has gone away under this run" in str(made.failure)


def test_a_batch_that_was_prepared_and_not_committed_is_run_again_and_counts_once(shop: Running) -> None:
    died = Event()

    def die() -> None:
        if not died.is_set():
            died.set()
            raise ValueError("before the commit")

    shop.copied.before_commit = die
    shop.start()
    shop.await_shown(3)
    assert died.is_set()


def test_a_restore_takes_the_table_back_and_the_queries_go_on_from_there(shop: Running) -> None:
    shop.start(every_ms=3_600_000)
    assert await_that("rows to cut behind", lambda: _has_rows(shop), 30)
    first = shop.ask(RequestKind.CHECKPOINT)
    assert first.ok
    shop.await_shown(3)
    shop.numbers.available = 8
    await_that("a further batch", lambda: _last(shop, "source") >= 1, 30)
    assert shop.ask(RequestKind.CHECKPOINT).ok
    shop.await_shown(8)
    ended = newest(shop.copied)
    assert shop.ask(RequestKind.RESTORE, epoch=first.epoch).ok
    await_that("the query of the old generation has ended", lambda: not ended.is_active, 30)
    await_that("the rows come again", lambda: _last(shop, "source") >= 1, 30)
    assert shop.ask(RequestKind.CHECKPOINT).ok
    shop.await_shown(8)


def _threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("cutwater")}


def _last(shop: Running, stage: str) -> int:
    assert shop.up is not None
    return shop.up.member.log(stage).state.last


def _has_rows(shop: Running) -> bool:
    """Whether the first rows have reached the log of the second stage."""
    assert shop.up is not None
    log = shop.up.member.log("copied").state
    return any(batch.rows for batch in log.batches.values())


# --- coming to rest -----------------------------------------------------------------------------------------


def test_a_drain_takes_what_is_there_and_ends_the_run(shop: Running) -> None:
    made = shop.start(every_ms=3_600_000)
    await_that("the first rows", lambda: _has_rows(shop), 30)
    shop.numbers.available = 9
    made.come_to_rest()
    assert made.wait(30)
    assert made.failure is None
    assert shop.shown() == list(range(9))
    assert len(shop.source.queries) == 1, "it fell silent by itself"


def test_a_source_that_never_falls_silent_is_brought_to_rest(shop: Running) -> None:
    shop.numbers.grows = True
    made = shop.start(every_ms=3_600_000, rest_within_ms=300)
    await_that("the first rows", lambda: _has_rows(shop), 30)
    made.come_to_rest()
    assert made.wait(30)
    assert newest(shop.source).said["trigger"] == {"availableNow": True}
    assert len(shop.source.queries) == 2
    assert len(shop.copied.queries) == 1, "only sources are started again for it"
    assert shop.shown() == list(range(len(shop.shown())))


def test_a_pipeline_that_was_drained_goes_on_with_the_next_start(shop: Running) -> None:
    made = shop.start(once=True, every_ms=3_600_000)
    assert made.wait(30)
    shop.stop()
    shop.numbers.available = 5
    made = shop.start()
    shop.await_shown(5)
    assert not made.drained


def test_no_stage_is_quiet_before_its_last_batch_is_logged(
    shop: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_seen, real = Event(), folders.committed
    monkeypatch.setattr(folders, "committed", lambda *batch: real(*batch) if is_seen.is_set() else None)
    made = shop.start(once=True, every_ms=3_600_000)
    await_that("the source has given all", lambda: made.sources_done, 30)
    await_that("a drain is under way", lambda: made.member.journal.state.open, 30)
    stage = made.member.stages["source"]
    assert not stage.quiet
    time.sleep(0.5)
    assert not stage.quiet
    is_seen.set()
    assert made.wait(30)
    assert shop.shown() == [0, 1, 2]


def test_a_drain_that_is_cancelled_lets_the_pipeline_go_on(shop: Running) -> None:
    held, let_go = Event(), Event()

    def wait() -> None:
        if shop.numbers.grows:
            held.set()
            let_go.wait(30)

    made = shop.start(every_ms=3_600_000, rest_within_ms=300)
    await_that("the first rows", lambda: _has_rows(shop), 30)
    shop.copied.before_batch = wait
    shop.numbers.grows = True
    assert held.wait(30)
    made.come_to_rest()
    await_that("the source takes what is available now", lambda: len(shop.source.queries) > 1, 30)
    shop.numbers.grows = False
    made.shell.call(lambda: made._want_rest(False))
    assert shop.ask(RequestKind.CANCEL).ok
    let_go.set()
    await_that(
        "the source goes on as before", lambda: "availableNow" not in newest(shop.source).said["trigger"], 30
    )
    shop.numbers.available += 5
    total = shop.numbers.available
    await_that("its new rows", lambda: _has_read(shop, total), 30)
    assert shop.ask(RequestKind.CHECKPOINT).ok
    shop.await_shown(total)
    assert not any(stage.quiet for stage in made.member.stages.values())


def _has_read(shop: Running, rows: int) -> bool:
    """Whether the second stage has logged so many rows."""
    assert shop.up is not None
    return sum(b.rows for b in shop.up.member.log("copied").state.batches.values()) == rows


# --- idle stages ----------------------------------------------------------------------------------------------


def test_a_stage_is_idle_when_spark_waits_and_it_has_been_silent_for_long(shop: Running) -> None:
    made = shop.start(every_ms=3_600_000, idle_after_s=1.0)
    await_that("both are idle", lambda: len(_idle(made)) == 2, 30)
    newest(shop.source).status = {"message": WAITING, "isTriggerActive": True}
    shop.numbers.available = 4
    await_that("it is not idle with a new batch", lambda: "source" not in _idle(made), 30)
    await_that("and again when it is silent", lambda: len(_idle(made)) == 2, 30)


def test_a_stage_whose_batch_takes_long_is_not_idle(shop: Running) -> None:
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


def test_a_query_that_is_long_in_starting_is_neither_idle_nor_the_end_of_the_run(shop: Running) -> None:
    """It was: its log has no position on the channel before its first batch."""
    go_on = Event()
    shop.copied.before_trigger = lambda: void(go_on.wait(30))
    made = shop.start(every_ms=3_600_000, idle_after_s=0.2)
    await_that("the source has a batch, and is idle", lambda: _idle(made) == {"source"}, 30)
    assert made.failure is None
    go_on.set()
    await_that("both are idle", lambda: len(_idle(made)) == 2, 30)
    assert _has_read(shop, 3)


def void(_: object) -> None: ...


def _idle(made: Runtime) -> set[str]:
    return {name for name, stage in made.member.stages.items() if stage.idle}


# --- what else may happen ---------------------------------------------------------------------------------------


def test_a_query_that_is_stopped_in_a_later_batch_has_not_taken_everything(shop: Running) -> None:
    """It ends without an error, as one does that has."""
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


def test_a_run_without_spark_from_the_start_says_so(shop: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> None:
        raise Py4JNetworkError("Error while sending or receiving")

    monkeypatch.setattr(SPARK.sparkContext, "setLocalProperty", refuse)
    made = shop.start()
    assert made.wait(30)
    assert isinstance(made.failure, UserError)
    assert "Spark has gone away under this run" in str(made.failure)


def test_a_plan_that_reads_something_else_than_its_positions_is_given_up(shop: Running) -> None:
    shop.start()
    shop.await_shown(3)
    shop.stop()
    shop.leaves = (Leaf(format="others", log=0),)
    shop.start()
    told = await_that(
        "it is given up", lambda: [t for t in shop.told if "stage 'source' is given up" in t], 30
    )
    assert "it now reads the source others where its position is one of the source numbers" in told[0]
    assert "--restore REF --drop source" in told[0]


def test_staged_leftovers_are_removed_and_what_is_shown_stays(
    shop: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime, "DISCARD_FIRST_S", 0.2)
    monkeypatch.setattr(runtime, "DISCARD_EVERY_S", 0.2)
    shop.start()
    shop.await_shown(3)
    (attempt,) = {Path(file).parent for file in parquet_files(str(shop.table))}
    over = attempt.with_name(f"1-1-0-{'0' * 8}")
    over.mkdir()
    (over / "part-0.parquet").write_bytes(b"x")
    to_come = attempt.with_name(f"1-1-999-{'0' * 8}")
    to_come.mkdir()
    (to_come / "part-0.parquet").write_bytes(b"x")
    shop.numbers.available = 5
    await_that("what is over is removed", lambda: not over.exists(), 30)
    shop.await_shown(5)
    assert to_come.exists()
    later = attempt.with_name(f"1-1-0-{'1' * 8}")
    later.mkdir()
    (later / "part-0.parquet").write_bytes(b"x")
    await_that("and again the next time", lambda: not later.exists(), 30)


def test_a_second_process_of_a_member_is_told_of_once(shop: Running) -> None:
    made = shop.start()
    shop.await_shown(3)
    made._on_message("other", Heartbeat("other", "boot1", 0, 0))
    made.links.alive = lambda: {"main": ("boot1", "boot9")}  # type: ignore[method-assign]
    for _ in range(2):
        made._on_message("other", Heartbeat("other", "boot1", 0, 0))
    told = await_that("it is told", lambda: [t for t in shop.told if "member 'main' runs 2 times" in t], 30)
    made.shell.call(lambda: shop.told.append("over"))
    await_that("both looks", lambda: "over" in shop.told, 30)
    assert len([t for t in shop.told if "runs 2 times" in t]) == len(told) == 1


def test_trouble_with_the_store_is_told_and_not_too_often(shop: Running) -> None:
    made = shop.start()
    shop.await_shown(3)

    def trouble() -> None:
        made.shell.last_trouble = f"no disk {len(shop.told)}"

    for _ in range(2):
        made.shell.call(trouble)
        await_that("a step", lambda: "no disk" in made.shell.last_trouble, 30)
    told = await_that("it is told", lambda: [t for t in shop.told if "is tried again: no disk" in t], 30)
    assert len(told) == 1


def test_a_member_polls_a_folder_often_and_a_bucket_seldom(tmp_path: Path) -> None:
    bucket, folder = open_store("memory://", create=True), open_store(str(tmp_path), create=True)
    assert runtime.member_config(folder, True, 3, 5) == MemberConfig(
        poll_ms=200, restarts=3, tolerated_failures=5
    )
    assert runtime.member_config(folder, False, 3, 5).poll_ms == 1_000
    assert runtime.member_config(bucket, True, 3, 5).poll_ms == 2_000
    assert runtime.member_config(bucket, False, 3, 5).poll_ms == 2_000


def test_a_stage_becomes_idle_while_checkpoints_go_on(shop: Running) -> None:
    made = shop.start(every_ms=100, idle_after_s=1.0)
    shop.await_shown(3)
    await_that("both are idle", lambda: len(_idle(made)) == 2, 30)


def test_a_host_that_was_closed_starts_nothing_more(shop: Running) -> None:
    made = shop.start()
    shop.await_shown(3)
    hosting, stage = made.hosts["source"], made.member.stages["source"]
    shop.stop()
    hosting.start(fx.StartQuery("source", 1, stage.incarnation, {}))
    assert len(shop.source.queries) == 1


@pytest.mark.parametrize(
    ("phase", "error", "after_ms", "told"),
    [
        (
            StagePhase.RUNNING,
            None,
            1_000,
            f"has lost its query and is started again in 1 s (1 of 3): {errors.STOPPED}",
        ),
        (StagePhase.RUNNING, ValueError("no"), 1_500, "failed and is started again in 1.5 s (1 of 3): no"),
        (StagePhase.RUNNING, ValueError("no"), None, "is given up after 1 tries: no"),
        (StagePhase.RUNNING, RuntimeError("StopAsked"), None, None),
        (StagePhase.RESTING, None, None, None),
        (StagePhase.STOPPED, ValueError("no"), None, None),
    ],
)
def test_the_end_of_a_query_is_told_if_its_stage_misses_it(
    phase: StagePhase, error: BaseException | None, after_ms: int | None, told: str | None
) -> None:
    ended: list[QueryEnd] = []

    def end(kind: QueryEnd, why: str) -> int | None:
        ended.append(kind)
        return after_ms

    lines: list[str] = []
    stage: Any = SimpleNamespace(phase=phase, query_ended=end, member=SimpleNamespace(tries={"s": 1}))
    around: Any = SimpleNamespace(store=None, find={"s": stage}.get, tell=lines.append, restarts=3)
    built: Any = SimpleNamespace(name="s", channels={}, max_rows=None, has_native_source=False)
    hosting = StageHost(around, built)
    hosting._on_end(stage, error)
    assert lines == ([f"stage 's' {told}"] if told is not None else [])
    assert hosting.error == (told.partition(": ")[2] if told is not None else "")
    hosting._on_end(SimpleNamespace(phase=phase), error)  # type: ignore[arg-type]
    hosting.close()
    hosting._on_end(stage, error)
    assert len(ended) == 1, "an end that nobody waits for any more says nothing"


@pytest.mark.parametrize("phase", list(StagePhase))
def test_the_query_of_a_stage_that_is_over_is_stopped(phase: StagePhase) -> None:
    stopped: list[str] = []
    around: Any = SimpleNamespace(store=None, work=lambda task: task())
    built: Any = SimpleNamespace(name="s", channels={}, max_rows=None)
    hosting = StageHost(around, built)
    query: Any = SimpleNamespace(stop=lambda: stopped.append("stopped"))
    hosting._current, hosting._incarnation = query, 1
    stage: Any = SimpleNamespace(phase=phase, incarnation=2)
    hosting.attend(stage)
    hosting.attend(stage)
    is_over = phase in (StagePhase.STOPPED, StagePhase.FENCED)
    assert stopped == (["stopped"] if is_over else [])


def test_a_run_is_ended_once(shop: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    made = shop.start()
    closed: list[str] = []
    monkeypatch.setattr(made.links, "close", lambda: closed.append("links"))
    made.stop()
    made.stop()
    assert closed == ["links"]
    assert made.wait(0)


def test_every_version_of_a_table_names_its_epoch(shop: Running) -> None:
    made = shop.start(every_ms=3_600_000)
    await_that("rows to cut behind", lambda: _has_rows(shop), 30)
    epochs = [shop.ask(RequestKind.CHECKPOINT).epoch]
    shop.await_shown(3)
    shop.numbers.available = 6
    await_that("further rows", lambda: _has_read(shop, 6), 30)
    epochs.append(shop.ask(RequestKind.CHECKPOINT).epoch)
    shop.await_shown(6)
    found = [
        made.sinks["out"]._files.read(name) for name in made.sinks["out"]._files.list("_cutwater/versions/")
    ]
    assert [json.loads(data or b"")["epoch"] for data in found] == epochs


def test_only_stages_with_a_watermark_report_one(shop: Running) -> None:
    shop.with_watermark = {"copied"}
    made = shop.start(every_ms=3_600_000)
    await_that("rows to cut behind", lambda: _has_rows(shop), 30)
    epoch = shop.ask(RequestKind.CHECKPOINT).epoch
    assert epoch is not None
    found = manifest_of(shop.store, made.member.journal.state.committed[epoch])
    kinds = {name: report.watermark.kind for name, report in found.stages.items()}
    assert kinds == {"source": WatermarkKind.NONE, "copied": WatermarkKind.UNKNOWN}


def test_a_query_that_was_stopped_begins_no_batch_any_more(shop: Running) -> None:
    made = shop.start()
    shop.await_shown(3)
    query = newest(shop.source)
    made.hosts["source"].join()
    with pytest.raises(StopAsked):
        query.said["function"](Rows(pa.table({"id": [3]})), 1)


def test_a_part_of_a_checkpoint_is_timed_once_and_handed_on_each_time(
    shop: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = shop.start(every_ms=3_600_000)
    await_that("the first rows", lambda: _has_rows(shop), 30)
    timed: list[int] = []
    own: list[Any] = []
    sent: list[Any] = []
    monkeypatch.setattr(made.times, "acked", timed.append)
    monkeypatch.setattr(made.leader, "on_message", own.append)
    monkeypatch.setattr(made.links, "send", lambda to, message: sent.append((to, message)))
    part = Ack("main", "boot1", 90, 1_000, 1, True, None, NONE, {})
    refusal = Ack("main", "boot1", 91, 1_001, 1, False, "no", NONE, {})
    later = Ack("main", "boot1", 91, 1_001, 1, True, None, NONE, {})
    for to, ack in (("main", part), ("other", part), ("other", refusal), ("other", later)):
        made._acknowledge(to, ack)
    assert timed == [90, 91]
    assert own == [part]
    assert sent == [("other", part), ("other", refusal), ("other", later)]
