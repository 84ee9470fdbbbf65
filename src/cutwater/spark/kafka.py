"""Positions in Kafka's topics that have become invalid: detects and describes them, and moves them at a reset.

Retention deletes records that were not read yet; a topic may be deleted, and created again under the same name. Spark
notices some of this when it plans a batch. It cannot notice that a new topic has already grown beyond the position in
the old one, and then continues in the middle of it. So the record of a stage's sources has the ids of its topics, and
positions are compared with what Kafka has before a query starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from pyspark.sql import SparkSession

from cutwater.spark.checkpoint.folder import MovedPositions
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.new_folder import Claimed
from cutwater.spark.checkpoint.offsets import Topics, topics_in
from cutwater.spark.internals.gateway import CALL_ERRORS, is_spark_gone
from cutwater.spark.internals.kafka import Client, Span, Topic, kafka_client
from cutwater.spark.plan import Plan, Source
from cutwater.store.contract import StoreUnavailable

T = TypeVar("T")
FORMAT = "kafka"
LOST_DATA = "not available in Kafka any more"
"""Part of Spark's message for every loss that it notices."""
SUSPECT = (LOST_DATA, "UnknownTopicOrPartition", "with Trigger.AvailableNow")
SHOWN = 5
"""How many partitions of a topic a message names."""


class KafkaLoss(Exception):
    """Kafka no longer has the records at a stage's positions, so a retry cannot help."""


class Lost(msgspec.Struct, frozen=True):
    """What a topic has lost: `gone` says that there is no such topic, `is_new` that it was created again. `partitions`:
    the position in each partition that is affected, and what it has now (`None` if it is gone)."""

    topic: str
    partitions: dict[int, tuple[int, Span | None]]
    is_new: bool = False
    gone: bool = False

    def __str__(self) -> str:
        if self.gone:
            return f"the topic '{self.topic}' is gone; it was read up to {_positions(self.partitions)}"
        if self.is_new:
            return (
                f"the topic '{self.topic}' was deleted and created again: the old one was read up to "
                f"{_positions(self.partitions)}, and its later records are lost; the new one has "
                f"{_spans(self.partitions)}"
            )
        return f"the topic '{self.topic}' has lost records that were not read yet: " + _listed(
            _range(p, position, span) for p, (position, span) in sorted(self.partitions.items())
        )


def _range(partition: int, position: int, span: Span | None) -> str:
    if span is None:
        return f"partition {partition} is gone, and was read up to offset {position}"
    if span.first > position:
        count = span.first - position
        return f"partition {partition}: offsets {position} to {span.first - 1} ({count:,} records)"
    return f"partition {partition} was read up to offset {position}, but ends at {span.end}"


def _positions(partitions: Mapping[int, tuple[int, Span | None]]) -> str:
    return _listed(f"offset {position} in partition {p}" for p, (position, _) in sorted(partitions.items()))


def _spans(partitions: Mapping[int, tuple[int, Span | None]]) -> str:
    return _listed(
        f"no partition {p}" if span is None else f"offsets {span.first} to {span.end} in partition {p}"
        for p, (_, span) in sorted(partitions.items())
    )


def _listed(texts: Iterable[str]) -> str:
    every = list(texts)
    more = len(every) - SHOWN
    return ", ".join(every[:SHOWN]) + (f", and {more} more partitions" if more > 0 else "")


def find_lost(positions: Topics, ids: Mapping[str, str], found: Mapping[str, Topic]) -> list[Lost]:
    """How positions differ from what Kafka has. `ids`: the topics to which they belong, where that is known."""
    lost: list[Lost] = []
    for topic, offsets in sorted(positions.items()):
        now = found.get(topic)
        if now is None:
            lost.append(Lost(topic, {p: (offset, None) for p, offset in offsets.items()}, gone=True))
            continue
        spans = {p: (offset, now.partitions.get(p)) for p, offset in offsets.items()}
        wrong = {p: (at, span) for p, (at, span) in spans.items() if span is None or not _holds(at, span)}
        known = ids.get(topic)
        # Without a known id, a topic that ends before its position is taken for a new one.
        is_new = (
            known != now.id if known is not None else any(s is None or s.end < at for at, s in wrong.values())
        )
        if is_new or wrong:
            lost.append(Lost(topic, spans if is_new else wrong, is_new))
    return lost


def _holds(position: int, span: Span) -> bool:
    return span.first <= position <= span.end


def moved(positions: Topics, lost: Iterable[Lost]) -> Topics:
    """The positions from which a stage can continue: the oldest record of a new topic, or the next one that was not
    lost. A partition without a position is read from its beginning."""
    result = {topic: dict(offsets) for topic, offsets in positions.items()}
    for one in lost:
        for partition, (position, span) in one.partitions.items():
            if span is None:
                del result[one.topic][partition]
            elif one.is_new or span.first > position:
                result[one.topic][partition] = span.first
            else:
                result[one.topic][partition] = span.end
        if not result[one.topic]:
            del result[one.topic]
    return result


def advice(stage: str, has_read: bool, chained: Sequence[str] = ()) -> str:
    """What to do about it. A stage that has not read anything has no state to keep, and its beginning is kept by a
    reset. `chained`: the stages inside the query of `stage` that read what is lost."""
    if not has_read:
        return (
            f"Stage '{stage}' has not read anything yet. Set the source's option failOnDataLoss to false: then it begins "
            "with the oldest records that Kafka has. Once it has read some, the option can be taken out again"
        )
    if chained:
        which = ", ".join(f"'{name}'" for name in chained)
        what = (
            f"Give stage {which} chain=False, and start with --restore latest: in a query of its own it continues with "
            f"the oldest records that Kafka has, and '{stage}' keeps its state. Or"
        )
    else:
        what = (
            f"Start with --restore latest --reset {stage}: the stage continues with the oldest records that Kafka has, "
            "without its state. To keep its state,"
        )
    return (
        f"{what} set the source's option failOnDataLoss to false: Spark then goes on by itself, skips what is lost, and "
        "in a topic that was created again also what it already has"
    )


class KafkaSources:
    """The Kafka sources of a stage's plan."""

    def __init__(self, spark: SparkSession, stage: str, plan: Plan) -> None:
        self._spark = spark
        self._stage = stage
        self._sources = {n: dict(s.options) for n, s in enumerate(plan.sources) if is_kafka(s)}
        self._leaves = plan.leaves

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._sources)

    def identified(self) -> tuple[Leaf, ...]:
        """The leaves of the plan, with the ids that their topics have now; without, if Kafka does not answer."""
        try:
            return tuple(
                msgspec.structs.replace(leaf, topics=self._ids(self._sources[n]))
                if n in self._sources
                else leaf
                for n, leaf in enumerate(self._leaves)
            )
        except CALL_ERRORS as error:
            return _unless_spark_is_gone(error, self._leaves)

    def _ids(self, options: Mapping[str, str]) -> dict[str, str]:
        with kafka_client(self._spark, options) as client:
            return {name: topic.id for name, topic in client.topics(topics_of(client, options)).items()}

    def refuse_lost(self, claimed: Claimed) -> None:
        """Raises `KafkaLoss` if Kafka no longer has what follows these positions, unless the source has
        `failOnDataLoss` set to false. Does nothing if Kafka does not answer: Spark will say so."""
        strict = {
            n: options
            for n, options in self._sources.items()
            if options.get("failondataloss", "true").lower() != "false"
        }
        try:
            lost = self._lost(strict, claimed.leaves, claimed.positions)
        except CALL_ERRORS as error:
            return _unless_spark_is_gone(error, None)
        every = [str(one) for n in lost for one in lost[n]]
        if every:
            readers = {self._leaves[n].stage for n in lost if lost[n]}
            chained = sorted(readers) if "" not in readers else ()
            raise KafkaLoss(f"{'; '.join(every)}. {advice(self._stage, claimed.has_read, chained)}")
        return None

    def moved(self, recorded: Sequence[Leaf] | None, positions: Sequence[str | None]) -> MovedPositions:
        """The record of the sources and the positions with which a stage that is reset starts. Raises
        `StoreUnavailable` if Kafka does not answer."""
        try:
            lost = self._lost(self._sources, recorded, positions)
            now = self.identified() if any(lost.values()) else ()
        except CALL_ERRORS as error:
            raise StoreUnavailable(f"Kafka does not answer: {_first_line(error)}") from error
        texts, leaves = list(positions), list(recorded) if recorded is not None else None
        for number, found in lost.items():
            before = topics_in(positions[number])
            if not found or before is None:
                continue
            after = {
                t: {str(p): at for p, at in offsets.items()} for t, offsets in moved(before, found).items()
            }
            texts[number] = msgspec.json.encode(after).decode()
            if leaves is not None:
                leaves[number] = msgspec.structs.replace(leaves[number], topics=now[number].topics)
        return tuple(leaves) if leaves is not None else None, tuple(texts)

    def commit(self, group: str, offsets: Mapping[str, int | str]) -> None:
        """Commits positions (Spark's offsets, by the number of the leaf) to a consumer group. Raises one of
        `CALL_ERRORS` if Kafka does not answer, or does not let us."""
        for number, options in self._sources.items():
            positions = topics_in(str(offsets.get(str(number))))
            if positions:
                with kafka_client(self._spark, options) as client:
                    client.commit(group, positions)

    def _lost(
        self,
        sources: Mapping[int, Mapping[str, str]],
        recorded: Sequence[Leaf] | None,
        positions: Sequence[str | None],
    ) -> dict[int, list[Lost]]:
        found: dict[int, list[Lost]] = {}
        for number, options in sources.items():
            known = topics_in(positions[number]) if number < len(positions) else None
            if known is None:
                continue
            ids = recorded[number].topics if recorded is not None else None
            with kafka_client(self._spark, options) as client:
                found[number] = find_lost(known, ids or {}, client.topics(known))
        return found


def is_kafka(source: Source) -> bool:
    """Whether a leaf of a plan reads Kafka."""
    return source.input is None and source.format == FORMAT


def topics_of(client: Client, options: Mapping[str, str]) -> list[str]:
    """The topics that a source with these options reads now."""
    if "subscribepattern" in options:
        return client.matching(options["subscribepattern"].strip())
    if "assign" in options:
        return sorted(msgspec.json.decode(options["assign"], type=dict[str, list[int]]))
    return [name.strip() for name in options.get("subscribe", "").split(",") if name.strip()]


def starting_offsets(options: Mapping[str, str]) -> Topics | None:
    """The offsets at which a source with these options starts; `None` if they are not given one by one."""
    if options.keys() & {"startingtimestamp", "startingoffsetsbytimestamp"}:
        return None  # Spark then ignores the others
    return topics_in(options.get("startingoffsets", "").strip())


def is_suspect(error: BaseException) -> bool:
    """Whether Spark's error may be about records that Kafka no longer has."""
    return any(text in str(error) for text in SUSPECT)


def _unless_spark_is_gone(error: Exception, value: T) -> T:
    if is_spark_gone(error):
        raise error
    return value


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0][:200]
