"""A streaming source of Spark's first kind (`Source`) that is implemented in Python."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from pyspark.sql import SparkSession

from cutwater.spark.internals import java as j


class SparkSource(ABC):
    """Spark calls the methods with Java's names, in its own threads. Each becomes a call of one of the abstract methods,
    with offsets as JSON. A call from Java costs one round trip between the processes, so each offset is fetched once."""

    def __init__(self, spark: SparkSession, schema: Any) -> None:
        """`schema` is one of the Java side."""
        java = j.Java.of(spark)
        self._schema = schema
        self._everything = java.type(j.READ_LIMIT).allAvailable()
        self._offset = java.type(j.OFFSET)

    class Java:
        """How Py4J knows which Java interfaces an object implements."""

        implements = (j.SOURCE.name, j.AVAILABLE_NOW.name)

    @abstractmethod
    def next_offset(self, start: str | None) -> str:
        """The end of the next batch, which begins after `start`; `start` itself if there is nothing new."""

    @abstractmethod
    def read(self, after: str | None, upto: str) -> Any:
        """The rows between two offsets, as a Dataset of the Java side."""

    @abstractmethod
    def freeze(self) -> None:
        """Only what is available now will be read."""

    @abstractmethod
    def stop(self) -> None:
        """The query has ended."""

    @abstractmethod
    def toString(self) -> str:
        """The name by which a plan shows the source."""

    # --- called by Spark ----------------------------------------------------------------------------------

    def schema(self) -> Any:
        return self._schema

    def getDefaultReadLimit(self) -> Any:
        return self._everything

    def latestOffset(self, start: Any, limit: Any) -> Any:
        before = None if start is None else str(start.json())
        reached = self.next_offset(before)
        return start if reached == before else self._offset(reached)

    def prepareForTriggerAvailableNow(self) -> None:
        self.freeze()

    def getBatch(self, start: Any, end: Any) -> Any:
        return self.read(str(start.get().json()) if start.isDefined() else None, str(end.json()))

    def reportLatestOffset(self) -> Any:
        return None

    def commit(self, end: Any) -> None:
        return None  # the stage's log says what has been read

    def equals(self, other: Any) -> bool:
        return bool(other is not None and other.hashCode() == self.hashCode())

    def hashCode(self) -> int:
        return id(self) // 16 % 2**31
