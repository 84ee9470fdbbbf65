"""The metrics of a member: name, kind, labels and meaning. `docs/metrics.md` is written from here.

Every metric has the labels `pipeline` and `member`, besides its own. No label ever holds an epoch or anything else that
grows without bound.
"""

from __future__ import annotations

from enum import Enum

import msgspec


class Kind(Enum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Group(Enum):
    CHECKPOINTS = "Checkpoints"
    STAGES = "Stages"
    SINKS = "Sinks"
    MEMBER = "Members"


class Metric(msgspec.Struct, frozen=True):
    """One metric. The first sentence of `meaning` is its help text."""

    group: Group
    kind: Kind
    name: str
    labels: tuple[str, ...]
    meaning: str

    @property
    def help(self) -> str:
        return self.meaning.partition(". ")[0].rstrip(".") + "."


COMMON_LABELS = ("pipeline", "member")
DURATION_BUCKETS_S = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 120.0, 300.0, 600.0)

METRICS: dict[str, Metric] = {}
"""All metrics by name, in the order of the page."""


def _add(group: Group, kind: Kind, name: str, meaning: str, *labels: str) -> Metric:
    found = Metric(group, kind, f"cutwater_{name}", labels, meaning)
    METRICS[found.name] = found
    return found


def _checkpoint(kind: Kind, name: str, meaning: str, *labels: str) -> Metric:
    return _add(Group.CHECKPOINTS, kind, name, meaning, *labels)


CHECKPOINTS = _checkpoint(
    Kind.COUNTER, "checkpoints_total",
    "Checkpoints that have ended, by result. `committed`; `aborted`: the leader gave it up; `void`: a new leader, graph "
    "or restore ended it.",
    "result",
)  # fmt: skip
FAILURES = _checkpoint(
    Kind.COUNTER, "checkpoint_failures_total",
    "Aborted checkpoints, by reason. The reasons are those of `cutwater explain`.", "reason",
)  # fmt: skip
RESTORES = _checkpoint(
    Kind.COUNTER, "restores_total", "Restores: how often the pipeline went back to a checkpoint."
)
LAST_DURATION = _checkpoint(
    Kind.GAUGE, "last_checkpoint_duration_seconds",
    "Duration of the newest committed checkpoint. From its beginning to its commit, as this member saw it.",
)  # fmt: skip
DURATIONS = _checkpoint(
    Kind.HISTOGRAM, "checkpoint_duration_seconds", "Durations of committed checkpoints, as a histogram."
)
LAST_COMPLETED = _checkpoint(
    Kind.GAUGE, "last_checkpoint_completed_timestamp_seconds",
    "When the newest checkpoint was committed, as Unix time. Absent until this process has seen one.",
)  # fmt: skip
IN_PROGRESS = _checkpoint(
    Kind.GAUGE, "checkpoint_in_progress_seconds",
    "How long the checkpoint in progress has taken so far. 0 if there is none.",
)  # fmt: skip
INTERVAL = _checkpoint(
    Kind.GAUGE,
    "checkpoint_interval_seconds",
    "The option `every`: time between the starts of two checkpoints.",
)
BYTES = _checkpoint(
    Kind.GAUGE, "last_checkpoint_bytes",
    "Bytes that the newest checkpoint has added to the one before. State files and rows in flight. Only the leader has "
    "it, and only while metrics are being read.",
)  # fmt: skip
FULL_BYTES = _checkpoint(
    Kind.GAUGE, "last_checkpoint_full_bytes",
    "Bytes of everything that a restore of the newest checkpoint needs. Only the leader has it, and only while metrics "
    "are being read.",
)  # fmt: skip
WATERMARK = _checkpoint(
    Kind.GAUGE, "watermark_timestamp_seconds",
    "The pipeline-wide watermark, as Unix time in event time. Absent if there is none.",
)  # fmt: skip
GENERATION = _checkpoint(Kind.GAUGE, "generation", "The generation: 1, and one more for each restore.")


def _stage(kind: Kind, name: str, meaning: str, *labels: str) -> Metric:
    return _add(Group.STAGES, kind, name, meaning, "stage", *labels)


STAGE_UP = _stage(Kind.GAUGE, "stage_up", "1 if the stage's query is running, 0 if it is not.")
STAGE_GIVEN_UP = _stage(
    Kind.GAUGE, "stage_given_up", "1 if the stage was given up after too many failed restarts, else 0."
)
STAGE_RESTARTS = _stage(
    Kind.COUNTER, "stage_restarts_total", "Restarts of the stage's query after it ended unexpectedly."
)
STAGE_ROWS = _stage(Kind.COUNTER, "stage_rows_total", "Rows that the stage has produced.")
STAGE_BATCHES = _stage(Kind.COUNTER, "stage_batches_total", "Batches that the stage has logged.")
STAGE_BATCH = _stage(
    Kind.GAUGE, "stage_batch_seconds", "Duration of the stage's last batch, as Spark reports it."
)
STAGE_RATE = _stage(
    Kind.GAUGE, "stage_input_rows_per_second", "Input rows per second in the last batch, as Spark reports it."
)
START_DELAY = _stage(
    Kind.GAUGE, "stage_start_delay_seconds",
    "Time from the beginning of the newest checkpoint until the first barrier reached the stage. For a stage without "
    "inputs, until it got the order to cut.",
)  # fmt: skip
ALIGNMENT = _stage(
    Kind.GAUGE, "stage_alignment_seconds",
    "Time from the first barrier of the newest checkpoint until the stage was cut. A stage that is slow, or starved by "
    "one of its inputs, takes long.",
)  # fmt: skip
UNALIGNED = _stage(
    Kind.COUNTER,
    "stage_unaligned_cuts_total",
    "Cuts for which the stage did not wait for the rows in its channels.",
)
STAGE_WATERMARK = _stage(
    Kind.GAUGE, "stage_watermark_timestamp_seconds",
    "The stage's watermark, as Unix time in event time. Absent if it has none.",
)  # fmt: skip
BACKLOG_ROWS = _stage(
    Kind.GAUGE,
    "channel_backlog_rows",
    "Rows in the stage's channels that it has not read yet. All inputs together.",
)
BACKLOG_BATCHES = _stage(
    Kind.GAUGE, "channel_backlog_batches", "Batches in the stage's channels that it has not read yet."
)
LAG_ROWS = _stage(
    Kind.GAUGE, "source_lag_rows",
    "Rows by which the stage is behind its own sources when a batch is planned. Absent if they cannot tell.",
)  # fmt: skip
LAG_FILES = _stage(
    Kind.GAUGE,
    "source_lag_files",
    "Files by which the stage is behind its own sources. Absent if they cannot tell.",
)
LAG_BYTES = _stage(
    Kind.GAUGE,
    "source_lag_bytes",
    "Bytes by which the stage is behind its own sources. Absent if they cannot tell.",
)
LAG_SECONDS = _stage(
    Kind.GAUGE, "source_lag_seconds",
    "Time by which the stage is behind its own sources, the slowest of them. Absent if they cannot tell.",
)  # fmt: skip


def _sink(kind: Kind, name: str, meaning: str, *labels: str) -> Metric:
    return _add(Group.SINKS, kind, name, meaning, "sink", *labels)


PUBLISH_LAG = _sink(
    Kind.GAUGE,
    "publish_lag_epochs",
    "Committed epochs that the sink does not show yet. 0 is normal, 1 for a moment.",
)
PUBLISHED = _sink(Kind.COUNTER, "published_epochs_total", "Epochs that the sink has published.")
PUBLISH_DELAY = _sink(
    Kind.GAUGE,
    "publish_delay_seconds",
    "Time from the commit of the newest published epoch until the sink showed it.",
)
REWINDS = _sink(
    Kind.COUNTER, "sink_rewinds_total", "How often the sink went back to an epoch after a restore."
)


def _member(kind: Kind, name: str, meaning: str, *labels: str) -> Metric:
    return _add(Group.MEMBER, kind, name, meaning, *labels)


RUNNING = _member(
    Kind.GAUGE,
    "member_running",
    "1 if the member has caught up and its stages are started, 0 while it starts or ends.",
)
LEADER = _member(
    Kind.GAUGE, "leader", "1 if this member leads, else 0. Exactly one member of a pipeline leads."
)
STARTED = _member(
    Kind.GAUGE, "member_start_timestamp_seconds", "When the process of this member started, as Unix time."
)
STATUS_AGE = _member(
    Kind.GAUGE, "status_age_seconds",
    "Age of the status from which the gauges are taken. A member reports every second, on a bucket every five.",
)  # fmt: skip
ERRORS = _member(
    Kind.COUNTER, "operation_errors_total",
    "Operations on the journal, the store, a table or a link that failed and are retried. `operation` is the kind: "
    "`Create` and `Read` concern the store, `PublishTable` a table.",
    "operation",
)  # fmt: skip
REJECTED = _member(
    Kind.COUNTER,
    "objects_rejected_total",
    "Objects in the store that are not what their names say, and were ignored.",
)
UNREADABLE = _member(
    Kind.COUNTER, "manifests_unreadable_total", "Manifests of kept checkpoints that could not be read."
)
IGNORED = _member(
    Kind.COUNTER, "ignored_messages_total",
    "Messages in the name of other members that were ignored. They had no valid seal, or could not be decoded.",
)  # fmt: skip
