"""A first start with a topic that Kafka does not have, or with servers that do not answer."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

import pytest

from tests.support.kafka_bench import KafkaBench
from tests.support.kafka_broker import MISSING, Broker

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]
Make = Callable[..., KafkaBench]
SOON_S = 120.0
"""Most of it is Spark's start on a busy machine; five retries take minutes."""


def refusal(bench: KafkaBench) -> str:
    """The last line of a start that must be refused soon, without a retry."""
    began = time.monotonic()
    said = bench.refused()
    assert time.monotonic() - began < SOON_S
    assert "is started again" not in said
    assert "org.apache" not in said, said
    return said.rstrip().splitlines()[-1]


def test_a_topic_that_does_not_exist_is_one_line_and_is_not_created(make: Make, broker: Broker) -> None:
    broker.create("shipments", 1)
    said = refusal(make(subscribe="shipment"))
    assert (
        f"stage 'records' reads the topic 'shipment', which Kafka at {broker.address} does not have; did you mean "
        "'shipments'? Otherwise create it" in said
    )
    assert "shipment" not in broker.admin.list_topics(timeout=30).topics


def test_servers_that_do_not_answer_are_one_line(make: Make) -> None:
    bench = make(subscribe="any")
    file = bench.bench.base / "kafka.json"
    file.write_text(json.dumps({"subscribe": "any", "kafka.bootstrap.servers": "127.0.0.1:9"}))
    said = refusal(bench)
    assert "stage 'records' cannot read Kafka at 127.0.0.1:9: " in said
    assert "Check its option kafka.bootstrap.servers" in said


def test_a_pattern_may_match_nothing_yet(make: Make, broker: Broker) -> None:
    bench = make(subscribePattern="later-.*", **{"kafka.metadata.max.age.ms": "1000"})
    child = bench.start("logged=records:0", "drain")
    child.await_line("stage 'records': no topic of ")
    broker.create("later-1", 1)
    bench.produce("later-1", 20, 1)
    assert child.end() == 0, child.said()
    bench.check()
