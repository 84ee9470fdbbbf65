"""Kafka has lost records that a pipeline has not read: one message says what, and its advice works."""

from __future__ import annotations

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
ADVICE = "Start with --restore latest --reset records"


def recreate(broker: Broker, topic: str, partitions: int = 1) -> None:
    broker.delete(topic)
    broker.create(topic, partitions)


def test_retention_that_has_passed_is_one_message_and_a_reset_continues_behind_the_gap(
    make: Make, broker: Broker
) -> None:
    broker.create("aged", 2)
    bench = make(subscribe="aged")
    bench.produce("aged", 100, 2)
    bench.run()
    bench.produce("aged", 40, 2, are_read=False)
    broker.delete_records("aged", {0: 70, 1: 70})
    bench.produce("aged", 60, 2)

    said = bench.refused()
    lost = "partition 0: offsets 50 to 69 (20 records), partition 1: offsets 50 to 69 (20 records)"
    assert f"the topic 'aged' has lost records that were not read yet: {lost}. {ADVICE}" in said
    assert "is started again" not in said
    assert "org.apache" not in said, said

    bench.run(restore="latest", reset=["records"])
    bench.check()


def test_records_that_are_lost_before_the_first_batch_are_one_message_whose_advice_works(
    make: Make, broker: Broker
) -> None:
    broker.create("early", 1)
    bench = make(subscribe="early", startingOffsets="earliest")
    bench.produce("early", 30, 1, are_read=False)
    bench.produce("early", 20, 1)
    bench.run_killed("before prepared@records")
    broker.delete_records("early", {0: 30})

    said = bench.refused()
    lost = (
        "the topic 'early' has lost records that were not read yet: partition 0: offsets 0 to 29 (30 records)"
    )
    assert (
        f"{lost}. Stage 'records' has not read anything yet. Set the source's option failOnDataLoss" in said
    )
    assert "is started again" not in said
    assert "org.apache" not in said, said

    bench.set(subscribe="early", startingOffsets="earliest", failOnDataLoss="false")
    bench.run()
    bench.check()


def test_a_chained_stage_continues_behind_the_gap_in_a_query_of_its_own_and_its_reader_keeps_its_state(
    make: Make, broker: Broker
) -> None:
    broker.create("chained", 1)
    bench = make(subscribe="chained", chain="yes")
    bench.produce("chained", 50, 1)
    bench.run()
    bench.produce("chained", 20, 1, are_read=False)
    broker.delete_records("chained", {0: 70})
    broker.produce("chained", [value for _, value in bench.records], 1)  # known to the state of the reader
    bench.produce("chained", 30, 1)

    said = bench.refused()
    assert "Give stage 'records' chain=False, and start with --restore latest:" in said
    bench.set(subscribe="chained", chain="no")
    bench.run(restore="latest")
    bench.check_values()


def test_failondataloss_false_skips_what_retention_has_deleted(make: Make, broker: Broker) -> None:
    broker.create("skipped", 1)
    bench = make(subscribe="skipped")
    bench.produce("skipped", 50, 1)
    bench.run()
    bench.produce("skipped", 20, 1, are_read=False)
    broker.delete_records("skipped", {0: 70})
    bench.produce("skipped", 30, 1)
    bench.set(subscribe="skipped", failOnDataLoss="false")
    bench.run()
    bench.check()


def test_failondataloss_false_skips_what_a_topic_that_was_created_again_already_has(
    make: Make, broker: Broker
) -> None:
    broker.create("renewed", 1)
    bench = make(subscribe="renewed")
    bench.produce("renewed", 50, 1)
    bench.run()
    recreate(broker, "renewed")
    bench.produce("renewed", 20, 1, are_read=False)
    bench.set(subscribe="renewed", failOnDataLoss="false")
    bench.run()
    bench.produce("renewed", 10, 1)
    bench.run()
    bench.check()


@pytest.mark.parametrize("count", [20, 200], ids=["shorter", "longer"])
def test_a_topic_that_was_created_again_is_one_message_and_a_reset_reads_it_from_its_start(
    make: Make, broker: Broker, count: int
) -> None:
    topic = f"again-{count}"
    broker.create(topic, 2)
    bench = make(subscribe=topic)
    bench.produce(topic, 100, 2)
    bench.run()
    recreate(broker, topic)
    bench.produce(topic, count, 1)

    said = bench.refused()
    assert (
        f"the topic '{topic}' was deleted and created again: the old one was read up to offset 50 in" in said
    )
    assert f"the new one has offsets 0 to {count} in partition 0, no partition 1. {ADVICE}" in said
    assert "org.apache" not in said, said

    bench.run(restore="latest", reset=["records"])
    bench.check()
    bench.produce(topic, 10, 1)
    bench.run()  # the new topic is the one that the positions belong to now
    bench.check()


def test_a_topic_that_is_created_again_during_a_run_ends_it_with_the_same_message(
    make: Make, broker: Broker
) -> None:
    broker.create("during", 1)
    bench = make(subscribe="during")
    bench.produce("during", 50, 1)
    child = bench.start("logged=records:0", "end")
    child.await_line("logged=records:0 ->")
    recreate(broker, "during")
    bench.produce("during", 10, 1)
    assert child.end() == 1, child.said()
    said = child.log.read_text(errors="replace")
    assert "the topic 'during' was deleted and created again" in said
    assert ADVICE in said
