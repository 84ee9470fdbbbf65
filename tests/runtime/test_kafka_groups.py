"""Positions of committed epochs go to Kafka's consumer groups."""

from __future__ import annotations

import msgspec

from cutwater.protocol.base import events as ev
from cutwater.protocol.base.records import StageReport
from cutwater.protocol.base.watermark import NONE
from cutwater.runtime.kafka_groups import KafkaGroups

REPORT = StageReport("a", 1, 5, False, consumed={}, offsets={"0": '{"t":{"0":7}}'}, watermark=NONE, state={})


def test_the_positions_of_the_newest_epoch_are_committed() -> None:
    done: list[tuple[str, str, object]] = []
    newer = msgspec.structs.replace(REPORT, offsets={"0": "newer"})
    groups = KafkaGroups(
        {"a": "my-group"},
        lambda epoch: {3: {"a": REPORT, "b": REPORT}, 5: {"a": newer}, 6: {"b": REPORT}}.get(epoch),
        lambda stage, group, report: done.append((stage, group, report.offsets)),
        print,
    )
    for epoch in (3, 4, 5, 6):
        groups(0.0, ev.EpochCommitted(epoch, None))
    assert done == [("a", "my-group", REPORT.offsets), ("a", "my-group", newer.offsets)]


def test_a_failure_is_one_line_until_it_is_over() -> None:
    said: list[str] = []
    failing = [True, True, False, True]

    def commit(stage: str, group: str, report: StageReport) -> None:
        if failing.pop(0):
            raise RuntimeError("not authorized\n  at org.apache")

    groups = KafkaGroups({"a": "g"}, lambda _: {"a": REPORT}, commit, said.append)
    for epoch in range(4):
        groups(0.0, ev.EpochCommitted(epoch, None))
    assert len(said) == 2
    assert "stage 'a' cannot be committed to Kafka's consumer group 'g'" in said[0]
    assert "not authorized" in said[0]


class Thrown:
    """An exception of Java's, as Py4J shows it."""

    def __init__(self, message: str, cause: Thrown | None = None) -> None:
        self.getMessage = lambda: message
        self.getCause = lambda: cause


class JavaError(Exception):
    def __init__(self, thrown: Thrown) -> None:
        super().__init__(
            "An error occurred while calling o12.get.\n: java.util.concurrent.ExecutionException: org..."
        )
        self.java_exception = thrown


def test_an_error_of_kafka_is_said_in_its_words() -> None:
    said: list[str] = []
    error = JavaError(
        Thrown("org.apache.X: outer", Thrown("Not authorized to access group: g\n  at org.apache"))
    )

    def commit(stage: str, group: str, report: StageReport) -> None:
        raise error

    KafkaGroups({"a": "g"}, lambda _: {"a": REPORT}, commit, said.append)(0.0, ev.EpochCommitted(1, None))
    (line,) = said
    assert line.endswith("the pipeline is not affected: Not authorized to access group: g")
