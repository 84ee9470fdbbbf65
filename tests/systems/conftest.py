"""A Kafka broker that the tests of a module share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.kafka_bench import KafkaBench
from tests.support.kafka_broker import Broker, kafka_broker


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with kafka_broker(tmp_path_factory.mktemp("kafka") / "broker") as running:
        yield running


@pytest.fixture
def make(tmp_path: Path, broker: Broker) -> Iterator[Callable[..., KafkaBench]]:
    """Makes a bench whose source has these options, and kills its remaining processes when the test ends."""
    made: list[KafkaBench] = []

    def bench(**options: str) -> KafkaBench:
        made.append(KafkaBench(tmp_path, broker, options))
        return made[-1]

    yield bench
    for one in made:
        one.bench.end_all()
