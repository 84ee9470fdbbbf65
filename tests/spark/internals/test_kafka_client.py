"""What Kafka is asked through Spark's JVM, with a model of Java's client."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from cutwater.spark.internals import kafka as module
from cutwater.spark.internals.kafka import CALL_MS, Span, Topic, kafka_client


class HashMap(dict[Any, Any]):
    def put(self, key: Any, value: Any) -> None:
        self[key] = value


class ArrayList(list[Any]):
    def add(self, value: Any) -> None:
        self.append(value)


class Partition:
    def __init__(self, topic: str, number: int) -> None:
        self._topic, self._number = topic, number

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._number


class Future:
    def __init__(self, value: Any) -> None:
        self._value = value

    def get(self, timeout: int, unit: str) -> Any:
        assert (timeout, unit) == (CALL_MS, "ms")
        if isinstance(self._value, Exception):
            raise self._value
        return self._value

    def all(self) -> Future:
        return self


def java_error(text: str) -> Exception:
    class JavaError(Py4JJavaError):  # type: ignore[misc]
        def __str__(self) -> str:
            return text

    return JavaError("no", SimpleNamespace(_target_id="x", _gateway_client=None))


class Kafka:
    """A cluster with two topics, as the client of Java's shows it."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.settings: dict[str, str] = {}
        self.offsets = {
            "earliest": {("a", 0): 1, ("a", 1): 2, ("b", 0): 3},
            "latest": {("a", 0): 10, ("a", 1): 20},
        }
        self.error: Exception | None = None
        self.committed: dict[tuple[str, str, int], int] = {}
        self.closed: list[int] = []
        compile = SimpleNamespace(
            compile=lambda text: SimpleNamespace(matcher=lambda name: self._match(text, name))
        )
        java = SimpleNamespace(
            util=SimpleNamespace(
                HashMap=HashMap,
                ArrayList=ArrayList,
                regex=SimpleNamespace(Pattern=compile),
                concurrent=SimpleNamespace(TimeUnit=SimpleNamespace(MILLISECONDS="ms")),
            ),
            time=SimpleNamespace(Duration=SimpleNamespace(ofMillis=lambda ms: ms)),
        )
        gateway = SimpleNamespace(_gateway_client="client")
        context = SimpleNamespace(_gateway=gateway, _jvm=SimpleNamespace(java=java))
        self.spark: Any = SimpleNamespace(sparkContext=context)
        patch.setattr(module, "JavaClass", self._class)

    def _match(self, text: str, name: str) -> Any:
        return SimpleNamespace(matches=lambda: re.fullmatch(text, name) is not None)

    def _class(self, name: str, client: str) -> Any:
        assert client == "client"
        kinds: dict[str, Any] = {
            "org.apache.kafka.clients.admin.Admin": SimpleNamespace(create=self._create),
            "org.apache.kafka.clients.admin.OffsetSpec": SimpleNamespace(
                earliest=lambda: "earliest", latest=lambda: "latest"
            ),
            "org.apache.kafka.common.TopicPartition": Partition,
            "org.apache.kafka.clients.consumer.OffsetAndMetadata": lambda offset: offset,
        }
        return kinds[name]

    def _create(self, settings: dict[str, str]) -> Kafka:
        self.settings = dict(settings)
        return self

    # --- as Java's Admin ----------------------------------------------------------------------------------

    def listTopics(self) -> Any:
        return SimpleNamespace(names=lambda: Future(["b", "a", "other"]))

    def describeTopics(self, names: ArrayList) -> Any:
        partitions = {"a": [0, 1], "b": [0]}
        found = {
            name: Future(
                SimpleNamespace(
                    topicId=lambda name=name: SimpleNamespace(toString=lambda: f"id of {name}"),
                    partitions=lambda name=name: [Partition(name, p) for p in partitions[name]],
                )
                if name in partitions
                else self.error or java_error("...UnknownTopicOrPartitionException: x")
            )
            for name in names
        }
        return SimpleNamespace(topicNameValues=lambda: found)

    def listOffsets(self, wanted: HashMap) -> Future:
        (which,) = set(wanted.values()) or {"latest"}
        asked = {(p.topic(), p.partition()): p for p in wanted}
        known = {asked[key]: offset for key, offset in self.offsets[which].items() if key in asked}
        return Future(
            {p: SimpleNamespace(offset=lambda offset=offset: offset) for p, offset in known.items()}
        )

    def alterConsumerGroupOffsets(self, group: str, wanted: HashMap) -> Future:
        self.committed = {(group, p.topic(), p.partition()): offset for p, offset in wanted.items()}
        return Future(None)

    def close(self, duration: int) -> None:
        self.closed.append(duration)


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> Kafka:
    return Kafka(monkeypatch)


def test_a_client_has_the_settings_of_the_source_and_never_waits_long(kafka: Kafka) -> None:
    with kafka_client(kafka.spark, {"kafka.bootstrap.servers": "h:1", "subscribe": "a"}):
        assert kafka.settings == {
            "bootstrap.servers": "h:1",
            "default.api.timeout.ms": str(CALL_MS),
            "request.timeout.ms": str(CALL_MS),
        }
        assert kafka.closed == []
    assert kafka.closed == [0]


def test_topics_that_match_a_pattern(kafka: Kafka) -> None:
    with kafka_client(kafka.spark, {}) as client:
        assert client.matching("[ab]") == ["a", "b"]


def test_topics_with_the_offsets_that_they_have(kafka: Kafka) -> None:
    """Of partition 0 of `b` Kafka says nothing: it has no leader."""
    with kafka_client(kafka.spark, {}) as client:
        assert client.topics(["a", "b", "gone"]) == {
            "a": Topic("id of a", {0: Span(1, 10), 1: Span(2, 20)}),
            "b": Topic("id of b", {}),
        }
        assert client.topics(["b"]) == {"b": Topic("id of b", {})}
        assert client.topics(["gone"]) == {}


def test_an_error_of_kafka_is_raised(kafka: Kafka) -> None:
    kafka.error = java_error("TimeoutException")
    with kafka_client(kafka.spark, {}) as client, pytest.raises(Py4JJavaError):
        client.topics(["gone"])


def test_positions_of_a_group_are_set(kafka: Kafka) -> None:
    with kafka_client(kafka.spark, {}) as client:
        client.commit("group", {"a": {0: 5, 1: 6}, "b": {0: 7}})
    assert kafka.committed == {("group", "a", 0): 5, ("group", "a", 1): 6, ("group", "b", 0): 7}
