"""The part of a member's metrics that its status holds."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from cutwater.store.stage_status import StageStatus
from cutwater.store.status import Status
from cutwater.telemetry import definitions as d
from cutwater.telemetry.definitions import Metric

UP = ("running", "idle", "resting")
"""The states of a stage whose query runs, or rests because the pipeline is being drained."""


def is_up(stage: StageStatus, stages: Collection[StageStatus]) -> bool:
    """Whether the query of a stage is up; of a chained stage, the query that it runs in."""
    state = next((other.state for other in stages if other.name == stage.runs_in), stage.state)
    return state in UP


Value = tuple[Metric, tuple[str, ...], float]
"""A metric, the values of its own labels, and its value."""


def status_values(status: Status, sinks: Collection[str], age_s: float, now: float) -> Iterator[Value]:
    """The values of a status that is `age_s` old. `sinks`: those of the member; `now`: the wall clock's time."""
    yield d.INTERVAL, (), status.every_s
    yield d.IN_PROGRESS, (), max(0.0, now - status.open_since) if status.open_since is not None else 0.0
    yield d.GENERATION, (), status.generation
    if status.watermark is not None:
        yield d.WATERMARK, (), status.watermark / 1000
    for stage in status.stages:
        yield d.STAGE_UP, (stage.name,), float(is_up(stage, status.stages))
        yield from _stage_values(stage)
    for sink in sinks:
        yield d.PUBLISH_LAG, (sink,), status.unpublished.get(sink, 0)
    yield d.RUNNING, (), float(status.state in ("running", "draining"))
    yield d.LEADER, (), float(status.leads)
    yield d.STARTED, (), status.started_at
    yield d.STATUS_AGE, (), age_s
    yield d.IGNORED, (), status.ignored


def _stage_values(stage: StageStatus) -> Iterator[Value]:
    own = (stage.name,)
    yield d.STAGE_GIVEN_UP, own, float(stage.state == "failed")
    yield d.STAGE_BATCH, own, stage.batch_s
    yield d.STAGE_RATE, own, stage.rows_per_s
    yield d.BACKLOG_ROWS, own, stage.lag_rows
    yield d.BACKLOG_BATCHES, own, stage.lag_batches
    if stage.watermark is not None:
        yield d.STAGE_WATERMARK, own, stage.watermark / 1000
    rows = [lag.rows for lag in stage.sources if lag.rows is not None]
    files = [lag.files for lag in stage.sources if lag.files is not None]
    sizes = [lag.bytes for lag in stage.sources if lag.bytes is not None]
    times = [lag.seconds for lag in stage.sources if lag.seconds is not None]
    if rows:
        yield d.LAG_ROWS, own, sum(rows)
    if files:
        yield d.LAG_FILES, own, sum(files)
    if sizes:
        yield d.LAG_BYTES, own, sum(sizes)
    if times:
        yield d.LAG_SECONDS, own, max(times)
