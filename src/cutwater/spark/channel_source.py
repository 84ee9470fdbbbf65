"""The streaming source through which a stage reads a channel.

This process plans the batches and Spark's own Parquet reader reads them, so rows never pass through Python. The feed
(see `feed.py`) says what may be read.

Spark skips files that are missing, and returns nulls for columns that a file does not have. Here both are errors.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cutwater.protocol.base.paths import incarnation_url
from cutwater.spark.checkpoint.leaves import SourcesChanged
from cutwater.spark.checkpoint.offsets import position_in
from cutwater.spark.feed import Feed
from cutwater.spark.files import Files
from cutwater.spark.internals.source import SparkSource
from cutwater.spark.plan import row_schema


class ChannelSource(SparkSource):
    """A channel, as one stage reads it."""

    def __init__(self, spark: SparkSession, stage: str, input: str, schema: str) -> None:
        self.input = input
        self.feed = Feed(input, -1)
        self._stage = stage
        self._columns = schema
        self._files = Files(spark)
        self._writers: set[str] = set()
        super().__init__(spark, self._files.relations.schema(schema))

    def frame(self) -> DataFrame:
        """The rows of the channel, as the stage's function gets them."""
        return self._files.relations.channel_frame(self, self._schema)

    # --- called by Spark, in its threads ------------------------------------------------------------------

    def next_offset(self, start: str | None) -> str:
        """How far the next batch reads. The offset names the incarnation, so each incarnation begins with a batch, an
        empty one if need be: Spark emits closed windows with a batch, and after a start it runs none without
        something new."""
        feed = self.feed
        reached = feed.next_position(None if start is None else self._position(start))
        return json.dumps({"channel": self.input, "batch": reached, "incarnation": feed.incarnation})

    def read(self, after: str | None, upto: str) -> Any:
        begin = self._position(after) if after is not None else None
        urls = self.feed.files(begin, self._position(upto))
        rows = self._files.rows(urls, self._schema)
        for url in urls:
            self._refuse_other_columns(url)
        return rows

    def freeze(self) -> None:
        self.feed.freeze()

    def stop(self) -> None:
        self.feed.close()

    def toString(self) -> str:
        """The channel's name, by which plans show it (see `plan.py`)."""
        return self.input

    def _position(self, offset: str) -> int:
        position = position_in(offset)
        if position is None or position[0] != self.input:
            raise SourcesChanged(
                f"stage '{self._stage}' reads channel '{self.input}', but its position is {offset}"
            )
        return position[1]

    def _refuse_other_columns(self, url: str) -> None:
        """The first file of each incarnation is checked: all others were written by the same process with the same
        schema. That each of them exists is known from listing them (`Files.rows`), and Spark raises if one is damaged."""
        writer = incarnation_url(url)
        if writer in self._writers:
            return
        wanted, has = _columns(self._columns), self._columns_of(url)
        if has != wanted:
            raise RuntimeError(
                f"stage '{self._stage}' reads channel '{self.input}' with the columns {_shown(wanted)}, but {url} has "
                f"{_shown(has)}. Restore a checkpoint that was taken with the current code, or "
                "reset the stage that wrote it"
            )
        self._writers.add(writer)

    def _columns_of(self, url: str) -> dict[str, str]:
        names, said = self._files.columns(url)
        try:
            types = _columns(said) if said is not None else {}
        except (ValueError, KeyError, TypeError):
            types = {}  # the recorded schema is damaged: reported as other columns
        return {name: types.get(name, "of an unknown type") for name in names}


def _columns(schema: str) -> dict[str, str]:
    """The types of columns by name, without regard to whether they may be null."""
    return {f.name: f.dataType.simpleString() for f in row_schema(StructType.fromJson(json.loads(schema)))}


def _shown(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
