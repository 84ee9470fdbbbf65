"""Tries Kafka before the first start of a stage that reads it, so that a misspelled topic or server is one line, at once.

Without a position, nobody knows whether Kafka has ever had what a stage asks for. Later, a broker that does not answer is
an outage that may pass, and a topic that is gone is a loss (`kafka.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches

import msgspec
from pyspark.errors import IllegalArgumentException
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import refuse
from cutwater.spark.checkpoint.offsets import Topics
from cutwater.spark.internals.gateway import CALL_ERRORS, is_spark_gone
from cutwater.spark.internals.kafka import Client, Topic, has_tokens, kafka_client, what_kafka_says
from cutwater.spark.kafka import SHOWN, is_kafka, starting_offsets, topics_of
from cutwater.spark.plan import Plan

SERVERS = "kafka.bootstrap.servers"
PATTERN = "subscribepattern"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,249}")
"""The names that Kafka allows for a topic."""


def try_kafka(spark: SparkSession, plans: Mapping[str, Plan], log: Callable[[str], None]) -> None:
    """Asks Kafka for the topics of stages that have no position in them, by stage. Raises `UserError` if it does not
    have them, or does not answer. A pattern may match nothing yet: then `log` is given a line that says so. Creates no
    topic, whatever the broker does for others."""
    refuse([mistake for stage, plan in plans.items() for mistake in _mistakes(spark, stage, plan, log)])


def _mistakes(spark: SparkSession, stage: str, plan: Plan, log: Callable[[str], None]) -> Iterator[str]:
    for source in plan.sources:
        if not is_kafka(source):
            continue
        options = dict(source.options)
        servers = options.get(SERVERS, "")
        try:
            with kafka_client(spark, options) as client:
                yield from _asked(client, stage, options, servers, log)
        except CALL_ERRORS as error:
            if is_spark_gone(error):
                raise
            if not has_tokens(spark):
                yield (
                    f"stage '{stage}' cannot read Kafka at {servers}: {what_kafka_says(error)}. Check its option "
                    f"{SERVERS}, that this machine can reach them, and the kafka.* options for security"
                )


def _asked(
    client: Client, stage: str, options: Mapping[str, str], servers: str, log: Callable[[str], None]
) -> Iterator[str]:
    """What Kafka does not have. Raises one of `CALL_ERRORS` if it does not answer."""
    pattern = options.get(PATTERN)
    try:
        names = topics_of(client, options)
    except IllegalArgumentException as error:
        if pattern is None:
            raise
        yield (
            f"stage '{stage}' has subscribePattern={pattern!r}, which is not one of Java's regular expressions: "
            f"{what_kafka_says(error)}"
        )
        return
    if pattern is not None and not names:
        log(f"stage '{stage}': no topic of {servers} matches '{pattern}' yet; it waits for one")
    illegal = [name for name in names if not _NAME.fullmatch(name) or name in (".", "..")]
    yield from (_illegal(stage, name) for name in illegal)
    names = [name for name in names if name not in illegal]
    found = client.topics(names)
    missing = _missing(options, names, found)
    yield from (_no_topic(stage, what, servers, client) for what in missing)
    start = starting_offsets(options)
    if start is not None and not illegal and not missing:
        yield from _wrong_start(stage, options, start, found, servers)


def _illegal(stage: str, name: str) -> str:
    return (
        f"stage '{stage}' reads the topic {name!r}, and Kafka allows no such name: it has up to 249 letters, digits, "
        "'.', '_' and '-'. Correct its option subscribe or assign; topics in subscribe are separated by commas"
    )


def _wrong_start(
    stage: str, options: Mapping[str, str], start: Topics, found: Mapping[str, Topic], servers: str
) -> Iterator[str]:
    """What is wrong with the option startingOffsets. Spark wants an offset for each partition and for no other; and with
    `failOnDataLoss`, one that Kafka has."""
    assigned = _assigned(options)
    reads = {
        (t, p)
        for t, topic in found.items()
        for p in topic.partitions
        if t not in assigned or p in assigned[t]
    }
    given = {(topic, p): at for topic, offsets in start.items() for p, at in offsets.items()}
    lacks, more = sorted(reads - given.keys()), sorted(given.keys() - reads)
    if lacks or more:
        parts = [f"does not have {_partitions(lacks)}"] if lacks else []
        parts += [f"has {_partitions(more)}, which it does not read"] if more else []
        yield (
            f"stage '{stage}' has a startingOffsets that {', and '.join(parts)}: it needs an offset for each partition "
            "of its topics, and for no other (-2 is the oldest record, -1 the next one to come)"
        )
        return
    if options.get("failondataloss", "true").lower() == "false":
        return
    for (topic, partition), at in sorted(given.items()):
        span = found[topic].partitions[partition]
        if at >= 0 and not span.first <= at <= span.end:
            yield (
                f"stage '{stage}' has startingOffsets with offset {at} of {topic}:{partition}, and Kafka at {servers} "
                f"has offsets {span.first} to {span.end} (-2 is the oldest record, -1 the next one to come)"
            )


def _partitions(every: list[tuple[str, int]]) -> str:
    more = f" and {len(every) - SHOWN} more" if len(every) > SHOWN else ""
    return ", ".join(f"{topic}:{partition}" for topic, partition in every[:SHOWN]) + more


def _assigned(options: Mapping[str, str]) -> dict[str, list[int]]:
    """The partitions that are chosen one by one, by topic."""
    return msgspec.json.decode(options["assign"], type=dict[str, list[int]]) if "assign" in options else {}


def _missing(options: Mapping[str, str], names: list[str], found: Mapping[str, Topic]) -> list[str]:
    """The topics that there are not; of a topic with assigned partitions, those as well."""
    missing = [name for name in names if name not in found]
    for name, partitions in _assigned(options).items():
        lacks = sorted(set(partitions) - set(found[name].partitions)) if name in found else []
        missing += [f"{name}:{partition}" for partition in lacks]
    return missing


def _no_topic(stage: str, what: str, servers: str, client: Client) -> str:
    topic, _, partition = what.partition(":")
    if partition:
        return (
            f"stage '{stage}' reads partition {partition} of the topic '{topic}', which Kafka at {servers} does not "
            "have; correct its option assign"
        )
    near = get_close_matches(topic, client.names(), n=1)
    meant = f"did you mean '{near[0]}'? Otherwise create" if near else "create"
    return (
        f"stage '{stage}' reads the topic '{topic}', which Kafka at {servers} does not have; {meant} it, for example by "
        "starting its producer first, and start again"
    )
