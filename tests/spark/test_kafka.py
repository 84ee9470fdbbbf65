"""What Kafka has lost, described and moved past; without Kafka."""

from __future__ import annotations

from cutwater.spark.internals.kafka import Span, Topic
from cutwater.spark.kafka import find_lost, moved

OLD, NEW = "id-of-old", "id-of-new"


def topic(id: str = OLD, **partitions: tuple[int, int]) -> Topic:
    return Topic(id, {int(name[1:]): Span(*span) for name, span in partitions.items()})


def test_positions_that_kafka_still_has_are_no_loss() -> None:
    found = {"t": topic(p0=(0, 100), p1=(50, 50), p2=(0, 7))}
    assert find_lost({"t": {0: 100, 1: 50}}, {"t": OLD}, found) == []
    assert find_lost({"t": {0: 3, 1: 50}}, {}, found) == []


def test_retention_that_has_passed_names_the_lost_offsets() -> None:
    found = {"t": topic(p0=(150, 200), p1=(0, 9))}
    lost = find_lost({"t": {0: 100, 1: 4}}, {"t": OLD}, found)
    assert [str(one) for one in lost] == [
        "the topic 't' has lost records that were not read yet: partition 0: offsets 100 to 149 (50 records)"
    ]
    assert moved({"t": {0: 100, 1: 4}}, lost) == {"t": {0: 150, 1: 4}}


def test_a_topic_with_another_id_is_new_even_if_it_has_grown_beyond_the_position() -> None:
    found = {"t": topic(NEW, p0=(0, 500))}
    lost = find_lost({"t": {0: 100, 1: 60}}, {"t": OLD}, found)
    assert [str(one) for one in lost] == [
        "the topic 't' was deleted and created again: the old one was read up to offset 100 in partition 0, offset 60 in "
        "partition 1, and its later records are lost; the new one has offsets 0 to 500 in partition 0, "
        "no partition 1"
    ]
    assert moved({"t": {0: 100, 1: 60}, "u": {0: 3}}, lost) == {"t": {0: 0}, "u": {0: 3}}


def test_without_a_recorded_id_a_topic_that_ends_before_the_position_is_new() -> None:
    found = {"t": topic(NEW, p0=(0, 20))}
    (lost,) = find_lost({"t": {0: 100}}, {}, found)
    assert lost.is_new
    assert moved({"t": {0: 100}}, [lost]) == {"t": {0: 0}}


def test_a_partition_of_the_same_topic_that_was_cut_short_is_continued_at_its_end() -> None:
    found = {"t": topic(p0=(0, 90), p1=(0, 9))}
    (lost,) = find_lost({"t": {0: 100, 1: 4}}, {"t": OLD}, found)
    assert "partition 0 was read up to offset 100, but ends at 90" in str(lost)
    assert moved({"t": {0: 100, 1: 4}}, [lost]) == {"t": {0: 90, 1: 4}}


def test_a_topic_that_is_gone_has_no_position() -> None:
    (lost,) = find_lost({"t": {0: 100}}, {"t": OLD}, {})
    assert str(lost) == "the topic 't' is gone; it was read up to offset 100 in partition 0"
    assert moved({"t": {0: 100}}, [lost]) == {}


def test_a_message_names_the_first_partitions_only() -> None:
    found = {"t": Topic(OLD, dict.fromkeys(range(100), Span(10, 20)))}
    (lost,) = find_lost({"t": dict.fromkeys(range(100), 0)}, {"t": OLD}, found)
    assert str(lost).endswith("partition 4: offsets 0 to 9 (10 records), and 95 more partitions")
