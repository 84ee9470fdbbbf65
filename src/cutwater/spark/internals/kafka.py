"""Queries Kafka with the client that Spark's connector brings into Spark's JVM."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec
from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

ADMIN = "org.apache.kafka.clients.admin"
COMMON = "org.apache.kafka.common.TopicPartition"
POSITION = "org.apache.kafka.clients.consumer.OffsetAndMetadata"
CALL_MS = 15_000
UNKNOWN = "UnknownTopicOrPartitionException"


class Span(msgspec.Struct, frozen=True):
    """The offsets that a partition has: from `first` up to, but not including, `end`."""

    first: int
    end: int


class Topic(msgspec.Struct, frozen=True):
    """A topic as it is now. A topic that is deleted and created again has another `id`."""

    id: str
    partitions: dict[int, Span]


class Client:
    """A client of one Kafka cluster. Its methods raise one of `CALL_ERRORS` if Kafka does not answer."""

    def __init__(self, spark: SparkSession, admin: Any) -> None:
        context: Any = spark.sparkContext
        self._java = context._gateway._gateway_client
        self._jvm = context._jvm
        self._admin = admin

    def names(self) -> list[str]:
        """The names of all topics."""
        return sorted(map(str, self._jvm.java.util.ArrayList(self._get(self._admin.listTopics().names()))))

    def matching(self, pattern: str) -> list[str]:
        """The topics whose name matches one of Java's regular expressions."""
        expression = self._jvm.java.util.regex.Pattern.compile(pattern)
        return [name for name in self.names() if expression.matcher(name).matches()]

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Those of these topics that exist."""
        wanted = self._jvm.java.util.ArrayList()
        for name in names:
            wanted.add(name)
        ids: dict[str, str] = {}
        partitions: list[tuple[str, int]] = []
        futures = self._jvm.java.util.HashMap(self._admin.describeTopics(wanted).topicNameValues())
        for name in list(futures):
            try:
                found = self._get(futures[name])
            except Py4JJavaError as error:
                if UNKNOWN in str(error):
                    continue
                raise
            ids[name] = str(found.topicId().toString())
            partitions += [
                (name, int(p.partition())) for p in self._jvm.java.util.ArrayList(found.partitions())
            ]
        first, end = (self._offsets(partitions, which) for which in ("earliest", "latest"))
        return {
            name: Topic(
                id, {p: Span(first[t, p], end[t, p]) for t, p in partitions if t == name and (t, p) in end}
            )
            for name, id in ids.items()
        }

    def _offsets(self, partitions: list[tuple[str, int]], which: str) -> dict[tuple[str, int], int]:
        spec = getattr(JavaClass(f"{ADMIN}.OffsetSpec", self._java), which)()
        wanted = self._jvm.java.util.HashMap()
        for topic, partition in partitions:
            wanted.put(self._partition(topic, partition), spec)
        answers = self._jvm.java.util.HashMap(self._get(self._admin.listOffsets(wanted).all()))
        return {(str(p.topic()), int(p.partition())): int(answers[p].offset()) for p in list(answers)}

    def commit(self, group: str, positions: Mapping[str, Mapping[int, int]]) -> None:
        """Sets the positions of a consumer group that has no running members."""
        make = JavaClass(POSITION, self._java)
        wanted = self._jvm.java.util.HashMap()
        for topic, offsets in positions.items():
            for partition, offset in offsets.items():
                wanted.put(self._partition(topic, partition), make(offset))
        self._get(self._admin.alterConsumerGroupOffsets(group, wanted).all())

    def _partition(self, topic: str, partition: int) -> Any:
        return JavaClass(COMMON, self._java)(topic, partition)

    def _get(self, future: Any) -> Any:
        return future.get(CALL_MS, self._jvm.java.util.concurrent.TimeUnit.MILLISECONDS)


def what_kafka_says(error: Exception) -> str:
    """The message of the error that caused the others, in one line."""
    cause = getattr(error, "java_exception", None)
    if cause is None:
        return str(error).strip().partition("\n")[0]
    while cause.getCause() is not None:
        cause = cause.getCause()
    text = str(cause.getMessage() or "").strip().partition("\n")[0]
    return text or str(cause.getClass().getSimpleName())


def has_tokens(spark: SparkSession) -> bool:
    """Whether Spark fetches delegation tokens for Kafka: then it can do what a client without them cannot."""
    return any(key.startswith("spark.kafka.clusters.") for key, _ in spark.sparkContext.getConf().getAll())


@contextmanager
def kafka_client(spark: SparkSession, options: Mapping[str, str]) -> Iterator[Client]:
    """A client with the settings of a source, which are its options that begin with `kafka.`. Raises one of
    `CALL_ERRORS` if there is no client on the class path, or it cannot be made."""
    context: Any = spark.sparkContext
    settings = context._jvm.java.util.HashMap()
    for name, value in options.items():
        if name.startswith("kafka."):
            settings.put(name.removeprefix("kafka."), value)
    settings.put("default.api.timeout.ms", str(CALL_MS))
    settings.put("request.timeout.ms", str(CALL_MS))
    admin = JavaClass(f"{ADMIN}.Admin", context._gateway._gateway_client).create(settings)
    try:
        yield Client(spark, admin)
    finally:
        admin.close(context._jvm.java.time.Duration.ofMillis(0))
