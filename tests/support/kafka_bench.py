"""A pipeline that reads Kafka in processes of its own, and every record that was produced for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.faults.runner import Bench, Child, difference
from tests.support.kafka_broker import CONNECTOR_JARS, Broker

CONF = {"spark.jars": ",".join(map(str, CONNECTOR_JARS))}


class KafkaBench:
    """The pipeline `kafka` of the fault tests. `records` are those that its tables must have, by topic and value."""

    def __init__(self, base: Path, broker: Broker, options: dict[str, str]) -> None:
        self.bench = Bench(base, "kafka")
        self.broker = broker
        self.records: list[tuple[str, str]] = []
        self.set(**options)

    def set(self, **options: str) -> None:
        """Sets the options of the source."""
        options["kafka.bootstrap.servers"] = self.broker.address
        (self.bench.base / "kafka.json").write_text(json.dumps(options))

    def produce(self, topic: str, count: int, partitions: int, are_read: bool = True) -> None:
        """Produces records with new values. `are_read`: whether the tables must have them."""
        first = len(self.records) if are_read else 1_000_000
        values = [f"{topic}-{number}" for number in range(first, first + count)]
        self.broker.produce(topic, values, partitions)
        if are_read:
            self.records += [(topic, value) for value in values]

    def start(self, *steps: str, **options: Any) -> Child:
        return self.bench.start(*steps, conf=CONF, **options)

    def run(self, *steps: str, **options: Any) -> Child:
        return self.bench.run(*steps, conf=CONF, **options)

    def run_killed(self, place: str) -> None:
        self.bench.run_killed(place, conf=CONF)

    def refused(self, **options: Any) -> str:
        """Runs a process that must end with an error, and returns what it printed."""
        child = self.start(**options)
        code = child.end()
        assert code == 1, f"{child.what} ended with {code}:\n{child.said()}"
        return child.log.read_text(errors="replace")

    def check(self) -> None:
        """Compares the tables with all records."""
        wanted = sorted(self.records)
        assert wanted, "no record was produced, so nothing is proved"
        found = self.bench.rows("records")
        assert found == wanted, difference("records", found, wanted)
        self.check_values()

    def check_values(self) -> None:
        """Compares the table of values, each of which is there once, with all records."""
        values, once = self.bench.rows("values"), sorted({(value,) for _, value in self.records})
        assert values == once, difference("values", values, once)
