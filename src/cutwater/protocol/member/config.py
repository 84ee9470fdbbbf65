"""The settings of a member that its procedures use."""

from __future__ import annotations

import msgspec

from cutwater.protocol.base.errors import UserError
from cutwater.protocol.replay.messages import ReplayConfig


class MemberConfig(msgspec.Struct, frozen=True):
    """`poll_ms`: how often to read the store without a notification. `resend_ms`: how often an unanswered ack is sent
    again. `compact_after`: entries after which a log is compacted. `small_gap`: up to so many missing entries are read
    from the store instead of from other members. `replay`: the bounds of a catch-up. `restarts`: how often in a row a
    query that has ended is restarted, first after `backoff_ms`, then after twice as long each time.
    `tolerated_failures`: how many checkpoints in a row may fail because of this member before it ends (`None`: any
    number; 0, if a stage can never start). `publish_tries`: how often in a row a sink that fails is tried again when the
    pipeline is drained, at the same intervals (`None`: any number; a running pipeline always tries again).
    `idle_after_ms`: silence after which a stage no longer holds back the
    pipeline-wide watermark. `rest_within_ms`: how long a drain waits for a source to become silent by itself. `once`:
    take the data that is available now, then drain. Raises `UserError` for values that cannot work."""

    poll_ms: int = 200
    resend_ms: int = 500
    compact_after: int = 50
    small_gap: int = 8
    replay: ReplayConfig = ReplayConfig()
    restarts: int = 5
    backoff_ms: int = 1_000
    tolerated_failures: int | None = None
    idle_after_ms: int = 10_000
    rest_within_ms: int = 3_000
    once: bool = False
    publish_tries: int | None = None

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
