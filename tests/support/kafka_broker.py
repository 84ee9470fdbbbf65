"""Starts a real Kafka broker (KRaft, one node) for tests, and does to it what its operators do."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

TOOLS = Path(__file__).resolve().parents[2] / ".tools"
BROKER_JARS = TOOLS / "kafka"
CONNECTOR_JARS = sorted((TOOLS / "jars-kafka").glob("*.jar"))
"""Spark's connector and what it needs."""

MISSING = None if any(BROKER_JARS.glob("kafka_*.jar")) and len(CONNECTOR_JARS) >= 4 else (
    "no Kafka broker, or no Kafka connector for Spark; `make tools` fetches them"
)  # fmt: skip
"""Why tests with Kafka cannot run, if they cannot."""

CLUSTER = "Y3V0d2F0ZXItdGVzdHMtMQ"
START_S = 120.0
CALL_S = 30.0
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx384m")

SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class Broker:
    """A running broker. Methods return when the broker has done what they say."""

    def __init__(self, address: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.address = address
        self.process = process
        self.log = log
        self.admin = AdminClient({"bootstrap.servers": address, "log_level": 0})

    def end(self) -> None:
        self.process.kill()
        self.process.wait()

    def create(self, topic: str, partitions: int = 1) -> None:
        """Creates a topic. One of that name that was just deleted may still be there for a moment."""
        deadline = time.monotonic() + CALL_S
        while True:
            try:
                made = self.admin.create_topics(
                    [NewTopic(topic, num_partitions=partitions, replication_factor=1)]
                )
                made[topic].result(CALL_S)
                break
            except KafkaException:
                assert time.monotonic() < deadline
                time.sleep(0.1)
        self._await_partitions(topic, partitions)

    def add_partitions(self, topic: str, total: int) -> None:
        self.admin.create_partitions([NewPartitions(topic, total)])[topic].result(CALL_S)
        self._await_partitions(topic, total)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(CALL_S)
        self._await_partitions(topic, 0)

    def delete_records(self, topic: str, before: dict[int, int]) -> None:
        """Deletes the records before an offset in each partition, as retention does."""
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for deleted in self.admin.delete_records(wanted).values():
            deleted.result(CALL_S)

    def produce(self, topic: str, values: Iterable[str], partitions: int) -> None:
        """Writes values to the partitions in turn."""
        producer = Producer({"bootstrap.servers": self.address, "linger.ms": 5})
        failed: list[object] = []
        for number, value in enumerate(values):
            producer.produce(
                topic, value.encode(), partition=number % partitions,
                on_delivery=lambda error, _: failed.append(error) if error is not None else None,
            )  # fmt: skip
        assert producer.flush(CALL_S) == 0
        assert not failed, failed

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """The positions of a consumer group, by topic and partition."""
        asked = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])
        found = asked[group].result(CALL_S).topic_partitions
        return {(p.topic, p.partition): p.offset for p in found}

    def _await_partitions(self, topic: str, count: int) -> None:
        deadline = time.monotonic() + CALL_S
        while True:
            found = self.admin.list_topics(timeout=CALL_S).topics.get(topic)
            has = [p for p in found.partitions.values() if p.leader >= 0] if found is not None else []
            if len(has) == count:
                return
            assert time.monotonic() < deadline, f"'{topic}' has {len(has)} partitions, not {count}"
            time.sleep(0.05)


@contextmanager
def kafka_broker(folder: Path) -> Iterator[Broker]:
    """A broker on this machine that keeps its data in `folder`; it is killed at the end."""
    folder.mkdir(parents=True)
    port, controller = _free_ports()
    settings = folder / "server.properties"
    settings.write_text(SETTINGS.format(port=port, controller=controller, folder=folder))
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java") or "java"
    command = [java, *QUICK_START, "-cp", f"{BROKER_JARS}/*"]
    log = folder / "broker.log"
    with log.open("wb") as output:
        made = [*command, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)]
        subprocess.run(made, stdout=output, stderr=output, check=True, cwd=folder)
        process = subprocess.Popen(
            [*command, "kafka.Kafka", str(settings)], stdout=output, stderr=output, cwd=folder
        )
    broker = Broker(f"127.0.0.1:{port}", process, log)
    try:
        _await_ready(broker)
        yield broker
    finally:
        broker.end()


def _free_ports() -> list[int]:
    probes = [socket.socket() for _ in range(2)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def _await_ready(broker: Broker) -> None:
    port = int(broker.address.rpartition(":")[2])
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            assert broker.admin.list_topics(timeout=5).brokers
            return
        except (OSError, KafkaException, AssertionError) as error:
            if broker.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the broker did not start:\n{broker.log.read_text()}") from error
            time.sleep(0.1)
