"""What the metrics say about a status."""

from __future__ import annotations

from typing import Any

import msgspec

from cutwater.store.stage_status import SourceLag, StageStatus
from cutwater.store.status import Status
from cutwater.telemetry import definitions as d
from cutwater.telemetry.definitions import Metric
from cutwater.telemetry.status_values import status_values

STATUS = Status(
    pipeline="shop", member="main", boot="b", host="h", pid=1, state="running", started_at=100.0, updated_at=1_000.0,
    generation=2, term=3, epoch=7, epoch_at=990.0, epoch_s=0.5, open_epoch=None, open_since=None, watermark=500_000,
    every_s=5.0, stages=(), unpublished={"out": 2}, leads=True, ignored=4,
)  # fmt: skip


def stage(name: str = "s", state: str = "running", **what: Any) -> StageStatus:
    made = StageStatus(name, state, 3, 10.0, 0.25, 2, 40, None, "unknown")
    return msgspec.structs.replace(made, **what)


def values(status: Status) -> dict[tuple[str, ...], float]:
    found = status_values(status, ["out", "other"], 1.5, 1_003.0)
    return {(metric.name, *labels): value for metric, labels, value in found}


def replaced(**what: Any) -> dict[tuple[str, ...], float]:
    return values(msgspec.structs.replace(STATUS, **what))


def has(found: dict[tuple[str, ...], float], metric: Metric) -> bool:
    return any(name == metric.name for name, *_ in found)


def test_a_member_says_what_it_is() -> None:
    found = values(STATUS)
    assert found[d.RUNNING.name,] == found[d.LEADER.name,] == 1
    assert found[d.STARTED.name,] == 100
    assert found[d.STATUS_AGE.name,] == 1.5
    assert found[d.IGNORED.name,] == 4
    assert found[d.GENERATION.name,] == 2
    assert found[d.INTERVAL.name,] == 5
    assert found[d.WATERMARK.name,] == 500
    assert found[d.IN_PROGRESS.name,] == 0
    assert replaced(state="starting")[d.RUNNING.name,] == 0
    assert replaced(state="draining")[d.RUNNING.name,] == 1
    assert replaced(open_since=1_001.0)[d.IN_PROGRESS.name,] == 2
    assert not has(replaced(watermark=None), d.WATERMARK)


def test_every_sink_has_a_lag_even_if_it_is_not_behind() -> None:
    found = values(STATUS)
    assert (found[d.PUBLISH_LAG.name, "out"], found[d.PUBLISH_LAG.name, "other"]) == (2, 0)


def test_a_stage_says_whether_it_runs_and_how_far_it_is_behind() -> None:
    found = replaced(
        stages=(stage(watermark=7_000), stage("t", "failed"), stage("u", "restarting"), stage("v", "idle"))
    )
    assert [found[d.STAGE_UP.name, s] for s in "stuv"] == [1, 0, 0, 1]
    assert [found[d.STAGE_GIVEN_UP.name, s] for s in "stuv"] == [0, 1, 0, 0]
    assert found[d.STAGE_WATERMARK.name, "s"] == 7
    assert (d.STAGE_WATERMARK.name, "t") not in found
    assert found[d.BACKLOG_ROWS.name, "s"] == 40
    assert found[d.BACKLOG_BATCHES.name, "s"] == 2
    assert found[d.STAGE_BATCH.name, "s"] == 0.25


def test_a_chained_stage_is_up_while_its_query_is() -> None:
    chained = stage("raw", "chained", runs_in="s")
    assert replaced(stages=(chained, stage()))[d.STAGE_UP.name, "raw"] == 1
    assert replaced(stages=(chained, stage("s", "restarting")))[d.STAGE_UP.name, "raw"] == 0


def test_sources_that_do_not_know_their_lag_have_none() -> None:
    lags = (
        SourceLag("k", rows=5, partitions={"t-0": 5}),
        SourceLag("r", rows=7, seconds=2.0),
        SourceLag("f", files=3, bytes=9),
    )
    found = replaced(stages=(stage(sources=lags), stage("t")))
    assert found[d.LAG_ROWS.name, "s"] == 12
    assert found[d.LAG_FILES.name, "s"] == 3
    assert found[d.LAG_BYTES.name, "s"] == 9
    assert found[d.LAG_SECONDS.name, "s"] == 2
    assert not any("lag" in name and labels == ["t"] for name, *labels in found if "source" in name)
