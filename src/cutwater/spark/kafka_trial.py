"""Tries Kafka before the first start of a stage that reads it, so that a misspelt topic or server is one line, at once.

Without a position, nobody knows whether Kafka has ever had what a stage asks for. Later, a broker that does not answer is
an outage that may pass, and a topic that is gone is a loss (`kafka.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches

import msgspec
from pyspark.sql import SparkSession

from cutwater.protocol.base.errors import refuse
from cutwater.spark.internals.gateway import CALL_ERRORS, is_spark_gone
from cutwater.spark.internals.kafka import Client, Topic, has_tokens, kafka_client, what_kafka_says
from cutwater.spark.kafka import is_kafka, topics_of
from cutwater.spark.plan import Plan

SERVERS = "kafka.bootstrap.servers"
PATTERN = "subscribepattern"


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
                names = topics_of(client, options)
                pattern = options.get(PATTERN)
                if pattern is not None and not names:
                    log(f"stage '{stage}': no topic of {servers} matches '{pattern}' yet; it waits for one")
                missing = _missing(options, names, client.topics(names))
                yield from (_no_topic(stage, what, servers, client) for what in missing)
        except CALL_ERRORS as error:
            if is_spark_gone(error):
                raise
            if not has_tokens(spark):
                yield (
                    f"stage '{stage}' cannot read Kafka at {servers}: {what_kafka_says(error)}. Check its option "
                    f"{SERVERS}, that this machine can reach them, and the kafka.* options for security"
                )


def _missing(options: Mapping[str, str], names: list[str], found: Mapping[str, Topic]) -> list[str]:
    """The topics that there are not; of a topic with assigned partitions, those as well."""
    missing = [name for name in names if name not in found]
    if "assign" in options:
        assigned = msgspec.json.decode(options["assign"], type=dict[str, list[int]])
        for name in names:
            lacks = sorted(set(assigned[name]) - set(found[name].partitions)) if name in found else []
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
