"""What the status of a member says; with stubs for all that it is built from."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from cutwater.plan.chaining import make_topology
from cutwater.protocol.base.watermark import NONE, UNKNOWN, Watermark, known
from cutwater.protocol.leader.leader import LeaderPhase
from cutwater.runtime.member_status import Report, StageRules, status_of
from cutwater.spark.query_meter import QueryFacts
from cutwater.store.stage_status import RuleStatus, SourceLag, StageStatus
from cutwater.store.stage_texts import state_of
from cutwater.store.status import Status
from tests.support.builders import batch, pipeline, stage

REPORT = Report(
    state=None, beat=7, host="here", pid=12, process=None, started_at=1.0, updated_at=2.0, report_s=5.0, ignored=3
)  # fmt: skip


class Stage:
    """A stage of the core, as far as its status shows it."""

    def __init__(self, last: int = 4, mark: Watermark = NONE, phase: str = "running") -> None:
        self.log = SimpleNamespace(
            state=SimpleNamespace(last=last, consumed={"in": 1}, watermark=mark, barriers={})
        )
        self.phase = SimpleNamespace(value=phase)
        self.idle = False
        self.draining = False
        self.busy_ms: int | None = 2_500
        self.activity = SimpleNamespace(busy_ms=lambda last, now_ms: self.busy_ms)


class Running:
    """A member with one stage `s` that reads `in`."""

    def __init__(self) -> None:
        self.stage = Stage()
        self.query = QueryFacts()
        self.producer = SimpleNamespace(
            last=4, batches={n: batch(n, () if n == 3 else ("f",)) for n in range(5)}
        )
        self.journal = SimpleNamespace(
            open={}, committed={}, head=None, leader="main", generation=2, term=3, watermark=9
        )
        self.member: Any = SimpleNamespace(
            name="main",
            boot="boot1",
            topology=pipeline(stage("s", "in", member="main")),
            journal=SimpleNamespace(state=self.journal),
            stages={"s": self.stage},
            ending=SimpleNamespace(published={}),
            failures={},
            tries={},
            now_ms=0,
            catch_up=SimpleNamespace(session=None),
            log=lambda name: SimpleNamespace(state=self.producer),
        )
        config = SimpleNamespace(coordinator=SimpleNamespace(interval_ms=5_000))
        self.leader: Any = SimpleNamespace(phase=LeaderPhase.LEADING, config=config)
        self.facts: Any = SimpleNamespace(
            last_commit=None,
            trouble="",
            stage_errors={"s": "it broke"},
            open_since=lambda epoch: 100.0 + epoch,
        )
        self.sinks: tuple[str, ...] = ()
        self.failure: BaseException | None = None
        self.rules: dict[str, StageRules] = {}

    def status(self, state: str | None = None) -> Status:
        report = msgspec.structs.replace(REPORT, state=state)
        queries = {"s": self.query}
        return status_of(
            report,
            "shop",
            self.member,
            self.leader,
            self.facts,
            self.failure,
            self.sinks,
            queries,
            self.rules,
        )

    def of_stage(self) -> StageStatus:
        (found,) = self.status().stages
        return found


@pytest.fixture
def running() -> Running:
    return Running()


# --- the member -------------------------------------------------------------------------------------------


def test_what_a_status_says_of_the_member(running: Running) -> None:
    found = running.status()
    assert (found.pipeline, found.member, found.boot, found.pid) == ("shop", "main", "boot1", 12)
    assert (found.generation, found.term, found.watermark, found.every_s) == (2, 3, 9, 5.0)
    assert (found.epoch, found.epoch_at, found.epoch_s, found.open_epoch, found.open_since) == (None,) * 5
    assert (found.leads, found.ignored, found.trouble) == (True, 3, "")
    assert (found.host, found.started_at, found.updated_at, found.report_s) == ("here", 1.0, 2.0, 5.0)
    assert (found.beat, found.process) == (7, None)
    assert [s.name for s in found.stages] == ["s"]


def test_chained_stages_are_shown_with_the_rows_that_they_give(running: Running) -> None:
    written = pipeline(stage("raw", member="main"), stage("s", "raw", member="main"))
    running.member.topology = make_topology(written.stages, {"raw": "s"})
    running.query = QueryFacts(rows_per_s=9.0, batch_s=0.5, chained_rows_per_s={"raw": 4.5})
    raw, own = running.status().stages
    assert (raw.name, raw.state, raw.runs_in, raw.batch, raw.rows_per_s) == ("raw", "chained", "s", 4, 4.5)
    assert (state_of(raw), own.name, own.rows_per_s) == ("in s", "s", 9.0)
    running.stage.idle = True
    assert [found.rows_per_s for found in running.status().stages] == [0.0, 0.0]


def test_a_stage_shows_its_rules_and_what_happens_to_bad_rows(running: Running) -> None:
    running.rules = {"s": StageRules((RuleStatus("positive", 1, 7),), "bad")}
    found = running.of_stage()
    assert (found.rules, found.on_violation) == ((RuleStatus("positive", 1, 7),), "bad")
    running.rules = {}
    assert (running.of_stage().rules, running.of_stage().on_violation) == ((), "")


def test_a_status_says_how_far_its_member_has_caught_up(running: Running) -> None:
    assert running.status().catching_up is None
    progress = SimpleNamespace(done=3, total=10, peers=1)
    running.member.catch_up = SimpleNamespace(session=SimpleNamespace(progress=lambda: progress))
    assert running.status().catching_up == (3, 10)


def test_a_stage_shows_the_lag_of_each_channel_and_its_newest_cut(running: Running) -> None:
    found = running.of_stage()
    assert found.cut is None
    assert [(c.producer, c.batches, c.rows) for c in found.channels] == [
        ("in", found.lag_batches, found.lag_rows)
    ]
    running.stage.log.state.barriers = {5: 1, 6: 1}
    assert running.of_stage().cut == 6


def test_the_newest_open_epoch_and_the_last_commit_are_shown(running: Running) -> None:
    running.journal.open = {7: 1, 6: 1}
    running.facts.last_commit = SimpleNamespace(at=50.0, duration_s=1.5)
    running.journal.head = 5
    found = running.status()
    assert (found.open_epoch, found.open_since) == (7, 107.0)
    assert (found.epoch, found.epoch_at, found.epoch_s) == (5, 50.0, 1.5)


def leads_not(running: Running) -> None:
    running.leader.phase = LeaderPhase.FOLLOWING


def has_no_stages(running: Running) -> None:
    running.member.stages = {}


def is_draining(running: Running) -> None:
    running.stage.draining = True


def has_peers(running: Running) -> None:
    running.leader.phase = LeaderPhase.FOLLOWING
    running.member.topology = pipeline(stage("s", "in", member="main"), stage("t", member="other"))


def has_silent_peers(running: Running) -> None:
    has_peers(running)
    running.journal.leader = None


STATES: list[tuple[Callable[[Running], None], str]] = [
    (lambda running: None, "running"),
    (leads_not, "starting"),
    (has_no_stages, "starting"),
    (is_draining, "draining"),
    (has_peers, "running"),
    (has_silent_peers, "starting"),
]


@pytest.mark.parametrize(("change", "state"), STATES)
def test_the_state_of_a_member(running: Running, change: Callable[[Running], None], state: str) -> None:
    change(running)
    assert running.status().state == state
    assert running.status("failed").state == "failed"


def test_what_is_not_published_is_counted_by_sink(running: Running) -> None:
    running.sinks = ("done", "late", "new")
    running.member.ending.published = {"done": 30, "late": 10}
    assert running.status().unpublished == {}
    running.journal.committed = {n: SimpleNamespace(index=10 * n) for n in (1, 2, 3)}
    running.journal.head = 3
    assert running.status().unpublished == {"late": 2, "new": 3}


def test_a_sink_that_has_the_newest_epoch_waits_for_nothing(running: Running) -> None:
    """Epoch 4 lies on another branch, which a restore has left."""
    running.sinks = ("out",)
    running.member.ending.published = {"out": 30}
    running.journal.committed = {3: SimpleNamespace(index=30), 4: SimpleNamespace(index=40)}
    running.journal.head = 3
    assert running.status().unpublished == {}


def test_the_error_that_ended_a_run_is_shown_as_its_trouble(running: Running) -> None:
    running.facts.trouble = "the store is slow"
    assert running.status().trouble == "the store is slow"
    running.failure = OSError("the store is gone")
    assert running.status().trouble == "the store is gone"


# --- its stages -------------------------------------------------------------------------------------------


def test_a_stage_that_does_not_exist_yet_waits(running: Running) -> None:
    running.member.stages = {}
    found = running.of_stage()
    assert (found.state, found.batch, found.rows_per_s, found.batch_s) == ("waiting", -1, 0, 0)
    assert (found.lag_batches, found.lag_rows, found.watermark) == (0, 0, None)


def test_unread_batches_with_rows_are_counted(running: Running) -> None:
    """Read up to batch 1; of 2, 3 and 4 the third has no rows."""
    running.producer.batches = {
        n: msgspec.structs.replace(b, rows=10) for n, b in running.producer.batches.items()
    }
    found = running.of_stage()
    assert (found.lag_batches, found.lag_rows) == (2, 20)
    running.stage.log.state.consumed = {}
    assert running.of_stage().lag_batches == 4
    running.stage.log.state.consumed = {"in": 4}
    assert running.of_stage().lag_batches == 0


@pytest.mark.parametrize(("limit", "consumed", "waits"), [(3, 1, "in"), (4, 1, ""), (3, 4, "")])
def test_an_input_that_a_barrier_holds_back_is_named(
    running: Running, limit: int, consumed: int, waits: str
) -> None:
    running.query = QueryFacts(limits={"in": limit})
    running.stage.log.state.consumed = {"in": consumed}
    assert running.of_stage().waits_for == waits


def test_the_state_of_a_stage(running: Running) -> None:
    assert running.of_stage().state == "running"
    running.stage.idle = True
    assert running.of_stage().state == "idle"
    running.stage.phase.value = "cut"
    assert running.of_stage().state == "cut"
    running.member.tries = {"s": 2}
    found = running.of_stage()
    assert (found.state, found.restarts, found.error) == ("restarting", 2, "it broke")
    running.member.failures = {"s": "x"}
    assert running.of_stage().state == "failed"


def test_an_error_that_is_over_is_not_shown(running: Running) -> None:
    assert running.of_stage().error == ""


@pytest.mark.parametrize(
    ("mark", "ms", "kind"),
    [(NONE, None, "none"), (UNKNOWN, UNKNOWN.ms, UNKNOWN.kind.value), (known(7), 7, "known")],
)
def test_the_watermark_of_a_stage(running: Running, mark: Watermark, ms: int | None, kind: str) -> None:
    running.stage.log.state.watermark = mark
    found = running.of_stage()
    assert (found.watermark, found.watermark_kind) == (ms, kind)


def test_the_first_batch_shows_how_long_it_takes(running: Running) -> None:
    assert running.of_stage().first_batch_s is None, "it is not the first"
    running.stage.log.state.last = 0
    assert running.of_stage().first_batch_s is None
    running.stage.log.state.last = -1
    assert running.of_stage().first_batch_s == 2.5
    running.stage.phase.value = "starting"
    assert running.of_stage().first_batch_s is None
    running.stage.phase.value, running.stage.busy_ms = "running", None
    assert running.of_stage().first_batch_s is None


def test_what_spark_says_about_the_query_is_shown(running: Running) -> None:
    behind = (SourceLag("topic", rows=3),)
    running.query = QueryFacts(rows_per_s=12.34, batch_s=0.25, lags=behind)
    found = running.of_stage()
    assert (found.rows_per_s, found.batch_s, found.sources) == (12.3, 0.25, behind)
    running.stage.idle = True
    assert running.of_stage().rows_per_s == 0
