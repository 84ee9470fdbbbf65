"""A stage that is ready to be hosted, with everything that its queries are made of."""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from cutwater.protocol.base.durations import seconds
from cutwater.sinks.contract import Sink
from cutwater.spark.channel_source import ChannelSource
from cutwater.spark.plan import Plan


class PlannedStage(msgspec.Struct, frozen=True):
    """`channels`: the source of each input. `trigger`: the duration between two looks for new rows, as the user wrote it.
    `max_rows`: how many rows of a channel one batch reads at most, if possible; `None` means no limit. `commit_group`:
    the Kafka consumer group to which the positions of committed epochs go."""

    name: str
    inputs: tuple[str, ...]
    frame: DataFrame
    plan: Plan
    schema: StructType
    channels: dict[str, ChannelSource]
    sinks: tuple[Sink, ...]
    has_readers: bool
    output_mode: str
    trigger: str
    max_rows: int | None
    commit_group: str | None = None

    @property
    def has_native_source(self) -> bool:
        """Whether the stage reads anything besides channels."""
        return any(source.input is None for source in self.plan.sources)

    @property
    def trigger_s(self) -> float:
        return seconds(self.trigger)
