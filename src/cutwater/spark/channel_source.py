"""The streaming source through which a stage reads a channel.

It is a source as Spark's own are, of its first kind (`Source`), planned by this process and read by Spark's Parquet
reader: rows never pass through Python. Spark has no way to register one that is not a Java class, so the relation is
put into the plan here, as Spark would put it there. What may be read is in the feed (see `feed.py`).

Spark gives nulls for columns that a file does not have. Here that is an error.
"""

from __future__ import annotations

import json
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from cutwater.protocol.base.paths import incarnation_url
from cutwater.spark.checkpoint.leaves import SourcesChanged
from cutwater.spark.checkpoint.offsets import position_in
from cutwater.spark.feed import Feed
from cutwater.spark.files import Files
from cutwater.spark.plan import row_schema


class ChannelSource:
    """A channel, as one stage reads it. The methods with Java's names are called by Spark, in its threads."""

    def __init__(self, spark: SparkSession, stage: str, input: str, schema: str) -> None:
        self.input = input
        self.feed = Feed(input, -1)
        self._stage = stage
        self._columns = schema
        self._files = Files(spark)
        self._schema = self._files.schema(schema)
        jvm: Any = spark._jvm
        self._everything = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit.allAvailable()
        self._offset = jvm.org.apache.spark.sql.execution.streaming.runtime.SerializedOffset
        self._writers: set[str] = set()

    def frame(self) -> DataFrame:
        """The rows of the channel, as the stage's function gets them."""
        inner: Any = self._files.spark
        ensure_callback_server_started(inner.sparkContext._gateway)  # type: ignore[no-untyped-call]
        relation = inner._jvm.org.apache.spark.sql.execution.streaming.runtime.StreamingExecutionRelation
        unnamed = getattr(relation, "apply$default$4")()
        files = self._files
        plan = relation(self, files.attributes(self._schema), files.none, unnamed, files.session)
        return DataFrame(files.dataset.ofRows(files.session, plan), inner)

    # --- what Spark asks --------------------------------------------------------------------------------

    def schema(self) -> Any:
        return self._schema

    def getDefaultReadLimit(self) -> Any:
        return self._everything

    def latestOffset(self, start: Any, limit: Any) -> Any:
        """How far the next batch reads. The offset names the incarnation, so that each begins with a batch, if need
        be with an empty one: windows that are closed already are emitted by a batch, and after a start Spark makes
        none without something new."""
        feed = self.feed
        reached = feed.next_position(None if start is None else self._position(start))
        offset = json.dumps({"channel": self.input, "batch": reached, "incarnation": feed.incarnation})
        return start if start is not None and start.json() == offset else self._offset(offset)

    def prepareForTriggerAvailableNow(self) -> None:
        self.feed.freeze()

    def getBatch(self, start: Any, end: Any) -> Any:
        after = self._position(start.get()) if start.isDefined() else None
        urls = self.feed.files(after, self._position(end))
        rows = self._files.rows(urls, self._schema, True)
        for url in urls:
            self._refuse_other_columns(url)
        return rows

    def reportLatestOffset(self) -> Any:
        return None

    def commit(self, end: Any) -> None:
        """The stage's log says what is read: nothing to do."""

    def stop(self) -> None:
        self.feed.close()

    def equals(self, other: Any) -> bool:
        return bool(other is not None and other.hashCode() == self.hashCode())

    def hashCode(self) -> int:
        return id(self) // 16 % 2**31

    def toString(self) -> str:
        """The channel's name, by which plans tell it (see `plan.py`)."""
        return self.input

    class Java:
        implements = (
            "org.apache.spark.sql.execution.streaming.Source",
            "org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow",
        )

    def _position(self, offset: Any) -> int:
        position = position_in(str(offset.json()))
        if position is None or position[0] != self.input:
            raise SourcesChanged(
                f"stage '{self._stage}' reads channel '{self.input}' where its position is {offset.json()}"
            )
        return position[1]

    def _refuse_other_columns(self, url: str) -> None:
        """Columns can only change with the code, so with an incarnation: where a look costs a request, one file of
        each is looked at."""
        writer = incarnation_url(url)
        if writer in self._writers and not url.startswith("file:"):
            return
        wanted, has = _columns(self._columns), self._columns_of(url)
        if has != wanted:
            raise RuntimeError(
                f"{url} does not have the columns with which stage '{self._stage}' reads channel '{self.input}' "
                f"({_told(wanted)}), but {_told(has)}. Restore a checkpoint that was taken with the current code, or "
                "reset the stage that wrote it"
            )
        self._writers.add(writer)

    def _columns_of(self, url: str) -> dict[str, str]:
        names, said = self._files.columns(url)
        try:
            types = _columns(said) if said is not None else {}
        except (ValueError, KeyError, TypeError):
            types = {}  # what is written there is damaged, and is told as other columns
        return {name: types.get(name, "of an unknown type") for name in names}


def _columns(schema: str) -> dict[str, str]:
    """The types of columns, the same whether they may be null or not."""
    return {f.name: f.dataType.simpleString() for f in row_schema(StructType.fromJson(json.loads(schema)))}


def _told(columns: dict[str, str]) -> str:
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())
