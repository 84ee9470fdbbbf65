"""A stage that is ready to be hosted, with everything that its queries are made of."""

from __future__ import annotations

import msgspec
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from cutwater.protocol.base.durations import seconds
from cutwater.sinks.contract import Sink
from cutwater.sinks.quarantine import Quarantine
from cutwater.spark.blame import CodePlace
from cutwater.spark.channel_source import ChannelSource
from cutwater.spark.plan import Plan
from cutwater.spark.rules import Rules

LOOKS_S = 0.1
"""How often a query that cannot wait looks for new rows, if the user does not say."""


class PlannedStage(msgspec.Struct, frozen=True):
    """`channels`: the source of each input. `trigger`: the duration between two looks for new rows, as the user wrote it,
    `None` for as soon as there is something.
    `max_rows`: how many rows of a channel one batch reads at most, if possible; `None` means no limit. `commit_group`:
    the Kafka consumer group to which the positions of committed epochs go. `chained`: the stages that run inside its
    query, in order; `code`: where the code of each stage of the query is, if there are several."""

    name: str
    inputs: tuple[str, ...]
    frame: DataFrame
    plan: Plan
    schema: StructType
    channels: dict[str, ChannelSource]
    sinks: tuple[Sink, ...]
    has_readers: bool
    output_mode: str
    trigger: str | None
    max_rows: int | None
    commit_group: str | None = None
    chained: tuple[str, ...] = ()
    code: dict[str, CodePlace] = {}
    rules: Rules | None = None
    """What its rows must be like."""

    def columns_for(self, sink: Sink) -> StructType:
        """The columns of the rows that one of its sinks gets."""
        return sink.columns_for(self.schema) if isinstance(sink, Quarantine) else self.schema

    @property
    def has_native_source(self) -> bool:
        """Whether the stage reads anything besides channels."""
        return any(source.input is None for source in self.plan.sources)

    @property
    def awaits_news(self) -> bool:
        """Whether its query waits for new rows instead of looking for them. Nobody can wake it for those of a native
        source, and what time alone gives it to do is found by looking."""
        return self.trigger is None and not self.has_native_source and not self.plan.has_timers

    @property
    def trigger_s(self) -> float:
        """How often its query looks for new rows; 0 means that each look follows the one before."""
        if self.trigger is not None:
            return seconds(self.trigger)
        return 0.0 if self.awaits_news else LOOKS_S
