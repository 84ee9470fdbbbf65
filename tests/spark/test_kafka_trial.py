"""What Kafka is asked before the first start of a stage; without Kafka."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import IllegalArgumentException

from cutwater.protocol.base.errors import UserError
from cutwater.spark import kafka_trial
from cutwater.spark.internals.kafka import Span, Topic
from cutwater.spark.plan import Plan, Source

TOPICS = {"orders": Topic("id", {0: Span(0, 9), 1: Span(3, 9)})}
UNCLOSED = "Unclosed group near index 8\norders(-"


class Client:
    def names(self) -> list[str]:
        return list(TOPICS)

    def matching(self, pattern: str) -> list[str]:
        if pattern == "orders(-":
            raise IllegalArgumentException(UNCLOSED)
        return [name for name in TOPICS if name == pattern]

    def topics(self, names: list[str]) -> dict[str, Topic]:
        return {name: TOPICS[name] for name in names if name in TOPICS}


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """With an entry, Spark has delegation tokens."""
    found: list[str] = []

    @contextmanager
    def client(_: object, options: Mapping[str, str]) -> Iterator[Client]:
        if "silent" in options["kafka.bootstrap.servers"]:
            raise Py4JError("Timed out waiting for a node assignment\nand more")
        yield Client()

    monkeypatch.setattr(kafka_trial, "kafka_client", client)
    monkeypatch.setattr(kafka_trial, "has_tokens", lambda _: bool(found))
    return found


def ask(servers: str = "b:9092", **options: str) -> list[str]:
    """What is logged."""
    lines: list[str] = []
    given = tuple(sorted({**options, "kafka.bootstrap.servers": servers}.items()))
    files = Source("parquet", (("path", "/in"),))
    spark: Any = None
    kafka_trial.try_kafka(spark, {"a": Plan((files, Source("kafka", given)), False)}, lines.append)
    return lines


def start(offsets: str) -> dict[str, str]:
    return {"subscribe": "orders", "startingoffsets": offsets}


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize(
    "options",
    [
        start('{"orders":{"0":9,"1":-2}}'),
        start("earliest"),
        {**start('{"orders":{"0":5000,"1":3}}'), "failondataloss": "False"},
        {**start('{"orders":{"0":0}}'), "startingtimestamp": "1"},
        {"assign": '{"orders":[1]}', "startingoffsets": '{"orders":{"1":3}}'},
    ],
)
def test_a_start_that_spark_accepts_is_accepted(options: dict[str, str]) -> None:
    assert ask(**options) == []


@pytest.mark.usefixtures("tokens")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"subscribe": "orders, order"}, "topic 'order', which Kafka at b:9092 does not have; did you mean 'orders'"),
        ({"subscribe": "payments"}, "topic 'payments', which Kafka at b:9092 does not have; create it"),
        ({"assign": '{"orders":[1,4]}'}, "reads partition 4 of the topic 'orders', which Kafka at b:9092 does not"),
        ({"assign": '{"payments":[0]}'}, "reads the topic 'payments', which Kafka"),
        ({"subscribe": "orders;x y"}, "reads the topic 'orders;x y', and Kafka allows no such name"),
        (
            {"subscribepattern": "orders(-"},
            "stage 'a' has subscribePattern='orders(-', which is not one of Java's regular expressions: Unclosed group "
            "near index 8",
        ),
        (start('{"orders":{"0":0}}'), "has a startingOffsets that does not have orders:1: it needs an offset for each"),
        (start('{"orders":{"0":0,"1":3,"7":0}}'), "has a startingOffsets that has orders:7, which it does not read: it"),
        (start('{"orders":{"0":0,"1":3},"x":{"0":1}}'), "that has x:0, which it does not read: it needs"),
        (start('{"order":{"0":0,"1":3}}'), "does not have orders:0, orders:1, and has order:0, order:1, which"),
        (start('{"orders":{"0":5000,"1":3}}'), "offset 5000 of orders:0, and Kafka at b:9092 has offsets 0 to 9 (-2"),
        (start('{"orders":{"0":0,"1":2}}'), "offset 2 of orders:1, and Kafka at b:9092 has offsets 3 to 9 (-2"),
        (
            {"assign": '{"orders":[1]}', "startingoffsets": '{"orders":{"0":0,"1":3}}'},
            "a startingOffsets that has orders:0, which it does not read",
        ),
    ],
)  # fmt: skip
def test_what_kafka_does_not_have_is_refused(options: dict[str, str], said: str) -> None:
    with pytest.raises(UserError) as raised:
        ask(**options)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("tokens")
def test_a_pattern_may_match_nothing_yet() -> None:
    assert ask(subscribe="orders") == []
    assert ask(subscribepattern="orders") == []
    assert ask(subscribepattern="later") == [
        "stage 'a': no topic of b:9092 matches 'later' yet; it waits for one"
    ]


def test_servers_that_do_not_answer_are_refused_unless_only_spark_can_reach_them(tokens: list[str]) -> None:
    with pytest.raises(
        UserError, match=r"^stage 'a' cannot read Kafka at silent:1: Timed out waiting for a node ass"
    ):
        ask("silent:1", subscribe="orders")
    tokens.append("spark.kafka.clusters.x")
    assert ask("silent:1", subscribe="orders") == []
