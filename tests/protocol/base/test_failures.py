"""The closed list of failure reasons."""

import msgspec
import pytest

from cutwater.protocol.base.failures import FailureReason


@pytest.mark.parametrize("reason", FailureReason)
def test_every_reason_has_advice(reason: FailureReason) -> None:
    assert len(reason.advice) > 20
    assert reason.advice.endswith(".")


def test_reasons_differ_in_name_and_value() -> None:
    assert len({reason.value for reason in FailureReason}) == len(FailureReason)
    assert all(reason.value == reason.name.lower() for reason in FailureReason)


def test_a_reason_survives_a_round_trip() -> None:
    for reason in FailureReason:
        assert msgspec.json.decode(msgspec.json.encode(reason), type=FailureReason) is reason


def test_a_requested_abort_is_not_a_failure_of_the_pipeline() -> None:
    asked_for = {"CANCELLED", "RESTORED", "TOPOLOGY_CHANGED", "LEADER_CHANGED"}
    assert not any(FailureReason[name].counts for name in asked_for)
    assert FailureReason.DEADLINE.counts
    assert FailureReason.MEMBER_REFUSED.counts


def test_a_refused_request_has_started_nothing() -> None:
    refusals = {"ALREADY_IN_PROGRESS", "QUEUE_FULL", "NOTHING_TO_CANCEL", "DRAINING", "DRAINED", "NOT_LEADER"}
    for name in refusals:
        assert not FailureReason[name].started
        assert not FailureReason[name].counts
