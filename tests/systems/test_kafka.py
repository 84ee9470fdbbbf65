"""Pipelines that read a real Kafka broker: exact through kills, new partitions, savepoints and restores."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cutwater.store.opening import open_store
from cutwater.store.status import read_status
from tests.support.kafka_bench import KafkaBench
from tests.support.kafka_broker import MISSING, Broker
from tests.support.spark_helpers import await_that

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.slow,
    pytest.mark.skipif(MISSING is not None, reason=str(MISSING)),
]
Make = Callable[..., KafkaBench]


def test_two_topics_are_read_exactly_once_through_kills_a_new_partition_and_a_restore(
    make: Make, broker: Broker
) -> None:
    broker.create("orders", 2)
    broker.create("payments", 1)
    bench = make(subscribe="orders,payments", maxOffsetsPerTrigger="60")
    partitions = 2
    for place in (
        "after prepared@records:2",
        "after commit@records",
        "after barrier entry@records:2",
        "before journal entry@COMMITTED:2",
        "after publish@records",
        "during folder@values",
    ):
        bench.produce("orders", 100, partitions)
        bench.produce("payments", 50, 1)
        bench.run_killed(place)
        if place.startswith("after barrier"):
            partitions = 3
            broker.add_partitions("orders", partitions)
    bench.run()
    bench.check()
    offsets = broker.committed("faults")
    assert sum(at for (topic, _), at in offsets.items() if topic == "orders") == 600
    assert offsets["payments", 0] == 300

    bench.run("savepoint=good")
    bench.produce("orders", 100, partitions)
    bench.run()
    bench.check()
    bench.run(restore="good")  # the records are still in Kafka, and are read again
    bench.check()


def test_topics_that_match_a_pattern_are_read_while_topics_and_partitions_are_added(
    make: Make, broker: Broker
) -> None:
    broker.create("clicks-a", 1)
    broker.create("other", 1)
    bench = make(subscribePattern="clicks-.*")
    bench.produce("clicks-a", 50, 1)
    bench.produce("other", 50, 1, are_read=False)
    child = bench.start("logged=records:0", "await=more", "checkpoint", "drain")
    child.await_line("logged=records:0 ->")
    broker.add_partitions("clicks-a", 2)
    broker.create("clicks-b", 2)
    bench.produce("clicks-a", 50, 2)
    bench.produce("clicks-b", 50, 2)
    await_that(
        "the lag of new partitions",
        lambda: {"clicks-a-1", "clicks-b-0", "clicks-b-1"} <= lag_of(bench).keys(),
    )
    (bench.bench.base / "more").touch()
    assert child.end() == 0, child.said()
    bench.check()


def test_the_newest_records_are_those_of_the_first_start(make: Make, broker: Broker) -> None:
    """`latest`, which is Spark's default, is not resolved again by a process that was killed before its first batch."""
    broker.create("news", 1)
    bench = make(subscribe="news", startingOffsets="latest")
    bench.produce("news", 10, 1, are_read=False)
    bench.run_killed("before prepared@records")
    bench.produce("news", 10, 1)
    bench.run_killed("before prepared@records")
    bench.produce("news", 10, 1)
    bench.run()
    bench.check()


def test_topics_can_be_added_to_a_list_but_not_removed(make: Make, broker: Broker) -> None:
    for topic in ("list-a", "list-b", "list-c"):
        broker.create(topic, 2)
    bench = make(subscribe="list-a,list-b", maxOffsetsPerTrigger="40")
    bench.produce("list-a", 60, 2)
    bench.produce("list-b", 40, 2)
    bench.run()
    bench.produce("list-a", 30, 2)
    bench.produce("list-c", 50, 2)
    bench.set(subscribe="list-c, list-b, list-a")
    bench.run_killed("after prepared@records")
    bench.run()
    bench.check()
    bench.produce("list-c", 20, 2)
    bench.run()
    bench.check()

    bench.set(subscribe="list-a,list-b")
    assert "it has read 'list-c' in Kafka" in bench.refused()
    bench.set(subscribe="list-b,list-c,list-a,list-d")
    assert "which Kafka at" in bench.refused()


def test_a_renamed_stage_does_not_read_its_topics_again_in_another_order(make: Make, broker: Broker) -> None:
    broker.create("kept-a", 1)
    broker.create("kept-b", 1)
    bench = make(subscribe="kept-a,kept-b")
    bench.produce("kept-a", 20, 1)
    bench.produce("kept-b", 20, 1)
    bench.run()
    bench.set(subscribe="kept-b,kept-a", stage="renamed")
    said = bench.refused(restore="latest", drop=["records"], reset=["values"])
    assert "sink 'values' already has rows of it, which would be duplicated" in said
    bench.check()


def lag_of(bench: KafkaBench) -> dict[str, int]:
    """The lag that the running member reports, by partition."""
    stages = {s.name: s for m in read_status(open_store(bench.bench.store)) for s in m.stages}
    return {p: n for source in stages["records"].sources for p, n in source.partitions.items()}
