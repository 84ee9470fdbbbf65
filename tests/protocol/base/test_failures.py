"""The closed list of failure reasons."""

import re
import shlex
from typing import Any

import msgspec
import pytest
import typer

from cutwater.api.config import RunConfig
from cutwater.cli.main import app
from cutwater.protocol.base.failures import FailureReason

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]


@pytest.mark.parametrize("reason", FailureReason)
def test_every_reason_has_advice(reason: FailureReason) -> None:
    assert len(reason.advice) > 20
    assert reason.advice.endswith(".")


def flags(command: Any) -> set[str]:
    return {flag for parameter in command.params for flag in parameter.opts}


@pytest.mark.parametrize("reason", FailureReason)
def test_every_command_and_option_in_the_advice_exists(reason: FailureReason) -> None:
    for shown in re.findall(r"`cutwater ([^`]+)`", reason.advice):
        name, *words = shlex.split(shown)
        assert name in COMMANDS
        assert {word for word in words if word.startswith("--")} <= flags(COMMANDS[name])
    every_flag = set().union(*map(flags, COMMANDS.values()))
    assert set(re.findall(r"--[a-z][a-z-]*", reason.advice)) <= every_flag
    assert not re.search(r"\b[a-z]+_[a-z_]+\b", reason.advice), "options are named as flags"
    keywords = set(re.findall(r"\((\w+)=", reason.advice))
    assert keywords - {"name"} <= set(RunConfig.__struct_fields__)  # `name=` is a sink's


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
