"""The settings of a member that its procedures use."""

from __future__ import annotations

import msgspec

from cutwater.protocol.base.errors import UserError
from cutwater.protocol.replay.messages import ReplayConfig


class MemberConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a run have no default here: `RunConfig` has it. The others are no options, because nobody needs to
    choose them; they are fields, because the simulator's time is shorter. Raises `UserError` for values that cannot
    work.

    Options. `restarts`: how often in a row a query that has ended is restarted, first after `backoff_ms`, then after
    twice as long each time. `publish_tries`: how often in a row a sink that fails is tried again when the pipeline is
    drained, at the same intervals (`None`: any number; a running pipeline always tries again). `tolerated_failures`: how
    many checkpoints in a row may fail because of this member before it ends (`None`: any number; 0, if a stage can never
    start). `idle_after_ms`: silence after which a stage no longer holds back the pipeline-wide watermark. `once`: take
    the data that is available now, then drain. `poll_ms`, which depends on the store: how often to read it without a
    notification.

    `resend_ms`: how often an unanswered ack is sent again. `compact_after`: entries after which a log is compacted.
    `small_gap`: up to so many missing entries are read from the store instead of from other members. `replay`: the
    bounds of a catch-up. `rest_within_ms`: how long a drain waits for a source to become silent by itself."""

    poll_ms: int
    restarts: int
    publish_tries: int | None
    tolerated_failures: int | None
    idle_after_ms: int
    once: bool
    resend_ms: int = 500
    compact_after: int = 50
    small_gap: int = 8
    replay: ReplayConfig = ReplayConfig()
    backoff_ms: int = 1_000
    rest_within_ms: int = 3_000

    def __post_init__(self) -> None:
        for name in ("restarts", "tolerated_failures"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise UserError(f"{name} is {value}; give 0 or more")


class StagePlan(msgspec.Struct, frozen=True):
    """What a member knows of the query of a stage that it hosts. `has_native_source`: it reads sources of its own, beside
    its inputs if it has any. `ticks`: it runs batches as time passes, also without new data."""

    has_event_time: bool = True
    has_native_source: bool = False
    trigger_ms: int = 0
    ticks: bool = False
