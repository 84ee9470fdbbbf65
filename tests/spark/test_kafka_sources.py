"""The Kafka sources of a stage: what is asked of Kafka, with a client that knows two topics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]

from cutwater.spark import kafka as module
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.new_folder import Claimed
from cutwater.spark.internals.kafka import Span, Topic
from cutwater.spark.kafka import KafkaLoss, KafkaSources, is_kafka, is_suspect
from cutwater.spark.plan import Plan, Source
from cutwater.store.contract import StoreUnavailable

CHANNEL, FILES = Leaf(channel="a"), Leaf(format="parquet", place="path=/in")
KAFKA = Leaf(format="kafka", topics={"t": "old"})


class Cluster:
    """Topics `t` and `u`."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.found = {"t": Topic("old", {0: Span(0, 100)}), "u": Topic("u1", {0: Span(0, 9)})}
        self.error: Exception | None = None
        self.options: list[Mapping[str, str]] = []
        self.committed: list[Any] = []
        patch.setattr(module, "kafka_client", self._client)

    @contextmanager
    def _client(self, spark: Any, options: Mapping[str, str]) -> Iterator[Cluster]:
        assert spark == "spark"
        self.options.append(options)
        if self.error is not None:
            raise self.error
        yield self

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        return {name: self.found[name] for name in names if name in self.found}

    def matching(self, pattern: str) -> list[str]:
        return [f"{pattern}u"]

    def commit(self, group: str, positions: Any) -> None:
        self.committed.append((group, positions))


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(monkeypatch)


def sources(**options: str) -> KafkaSources:
    """Those of a stage that reads a channel, files and Kafka."""
    read = (
        Source("", (), input="a"),
        Source("parquet", (("path", "/in"),)),
        Source("kafka", tuple(options.items())),
    )
    spark: Any = "spark"
    return KafkaSources(spark, "s", Plan(read, has_watermark=False, leaves=(CHANNEL, FILES, KAFKA)))


POSITIONS = ('{"channel":"a","batch":3}', '{"logOffset":4}', '{"t":{"0":100}}')
RECORDED = (CHANNEL, FILES, KAFKA)


def claimed(
    leaves: Sequence[Leaf] | None = RECORDED,
    positions: Sequence[str | None] = POSITIONS,
    has_read: bool = True,
) -> Claimed:
    return Claimed(leaves, positions, has_read)


def test_only_native_sources_of_that_format_are_kafkas() -> None:
    assert is_kafka(Source("kafka", ()))
    assert not is_kafka(Source("kafka", (), input="kafka"))
    assert not is_kafka(Source("parquet", ()))
    spark: Any = "spark"
    assert not KafkaSources(spark, "s", Plan((Source("parquet", ()),), has_watermark=False))
    assert sources()


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"subscribe": "t"}, {"t": "old"}),
        ({"subscribe": " t , u,, gone"}, {"t": "old", "u": "u1"}),
        ({"subscribepattern": ""}, {"u": "u1"}),
        ({"assign": '{"u":[0],"t":[0,1]}'}, {"t": "old", "u": "u1"}),
        ({}, {}),
    ],
)
def test_topics_are_identified(cluster: Cluster, options: dict[str, str], ids: dict[str, str]) -> None:
    channel, files, read = sources(**options).identified()
    assert (channel, files) == (CHANNEL, FILES)
    assert read.topics == ids
    assert cluster.options == [options]


def test_topics_stay_as_they_are_if_kafka_does_not_answer(cluster: Cluster) -> None:
    cluster.error = Py4JError("no broker")
    assert sources(subscribe="t").identified() == RECORDED
    cluster.error = Py4JNetworkError("no JVM")
    with pytest.raises(Py4JNetworkError):
        sources(subscribe="t").identified()


def test_positions_that_kafka_has_are_accepted(cluster: Cluster) -> None:
    kafka = sources(subscribe="t")
    kafka.refuse_lost(claimed())
    assert len(cluster.options) == 1
    kafka.refuse_lost(claimed(None))
    kafka.refuse_lost(claimed(positions=()))
    kafka.refuse_lost(claimed(positions=POSITIONS[:2]))
    kafka.refuse_lost(claimed(positions=(*POSITIONS[:2], None)))
    assert len(cluster.options) == 2, "without a position there is nothing to ask"


def test_a_loss_is_refused_with_what_to_do(cluster: Cluster) -> None:
    cluster.found["t"] = Topic("new", {0: Span(0, 500)})
    with pytest.raises(KafkaLoss, match=r"deleted and created again.*--reset s"):
        sources(subscribe="t").refuse_lost(claimed())
    sources(subscribe="t").refuse_lost(claimed(None))  # nobody knows its id, and it has the position


def test_a_loss_before_anything_was_read_is_refused_with_advice_that_needs_no_checkpoint(
    cluster: Cluster,
) -> None:
    """`--reset` would keep the position at which the stage began."""
    cluster.found["t"] = Topic("old", {0: Span(120, 500)})
    first = claimed(positions=(None, None, '{"t":{"0":100}}'), has_read=False)
    with pytest.raises(KafkaLoss, match=r"offsets 100 to 119 \(20 records\)\. .*failOnDataLoss") as raised:
        sources(subscribe="t").refuse_lost(first)
    assert "--reset" not in str(raised.value)
    sources(subscribe="t", failondataloss="false").refuse_lost(first)


def test_a_loss_of_a_chained_stage_is_refused_with_advice_that_keeps_the_state_of_its_reader(
    cluster: Cluster,
) -> None:
    read = Source("kafka", (("subscribe", "t"),))
    leaf = Leaf(format="kafka", stage="raw")
    spark: Any = "spark"
    chained = KafkaSources(spark, "total", Plan((read,), False, leaves=(leaf,)))
    advice = "Give stage 'raw' chain=False, and start with --restore latest: .* 'total' keeps its state"
    with pytest.raises(KafkaLoss, match=advice) as raised:
        chained.refuse_lost(claimed((leaf,), ('{"t":{"0":101}}',)))
    assert "--reset" not in str(raised.value)


@pytest.mark.parametrize(("value", "raises"), [("false", False), ("FALSE", False), ("true", True)])
def test_a_source_may_accept_losses(cluster: Cluster, value: str, raises: bool) -> None:
    cluster.found = {}
    kafka = sources(subscribe="t", failondataloss=value)
    if raises:
        with pytest.raises(KafkaLoss):
            kafka.refuse_lost(claimed())
    else:
        kafka.refuse_lost(claimed())
        assert cluster.options == []


def test_a_kafka_that_does_not_answer_refuses_nothing(cluster: Cluster) -> None:
    cluster.error = Py4JError("no broker")
    sources(subscribe="t").refuse_lost(claimed())
    cluster.error = Py4JNetworkError("no JVM")
    with pytest.raises(Py4JNetworkError):
        sources(subscribe="t").refuse_lost(claimed())


def test_a_reset_without_a_loss_moves_nothing(cluster: Cluster) -> None:
    kafka = sources(subscribe="t")
    assert kafka.moved(RECORDED, POSITIONS) == (RECORDED, POSITIONS)
    assert len(cluster.options) == 1, "nothing is identified again"
    assert kafka.moved(None, POSITIONS) == (None, POSITIONS)


def test_a_reset_moves_past_what_is_lost(cluster: Cluster) -> None:
    cluster.found["t"] = Topic("new", {0: Span(7, 500), 1: Span(0, 3)})
    leaves, texts = sources(subscribe="t").moved(RECORDED, POSITIONS)
    assert texts == (*POSITIONS[:2], '{"t":{"0":7}}')
    assert leaves is not None
    assert leaves[:2] == (CHANNEL, FILES)
    assert leaves[2].topics == {"t": "new"}
    cluster.found["t"] = Topic("old", {0: Span(150, 500)})
    assert sources(subscribe="t").moved(None, POSITIONS) == (None, (*POSITIONS[:2], '{"t":{"0":150}}'))


def test_a_reset_waits_for_kafka(cluster: Cluster) -> None:
    cluster.error = Py4JError("no broker\nand more")
    with pytest.raises(StoreUnavailable, match=r"^Kafka does not answer: no broker$"):
        sources(subscribe="t").moved(RECORDED, POSITIONS)


def test_positions_are_committed_to_a_group(cluster: Cluster) -> None:
    sources(subscribe="t").commit("group", {"0": 3, "1": "x", "2": '{"t":{"0":5}}'})
    assert cluster.committed == [("group", {"t": {0: 5}})]
    sources(subscribe="t").commit("group", {"0": 3})
    sources(subscribe="t").commit("group", {"2": "{}"})
    assert len(cluster.committed) == 1


def test_errors_that_may_be_about_lost_records() -> None:
    assert is_suspect(RuntimeError("some data may be not available in Kafka any more"))
    assert is_suspect(RuntimeError("x UnknownTopicOrPartitionException"))
    assert not is_suspect(RuntimeError("division by zero"))
