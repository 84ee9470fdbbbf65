"""What Spark's process prints while it starts: held back, and shown or given back."""

from __future__ import annotations

import os
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError

from cutwater.spark.internals import gateway
from cutwater.spark.internals.gateway import HeldOutput, LaunchFailed
from tests.support.spark_helpers import await_that


def test_output_is_held_back_until_it_is_released(capfd: pytest.CaptureFixture[str]) -> None:
    held = HeldOutput()
    os.write(held.writer, b"one\n")
    await_that("it is read", lambda: held._lines, 10)
    assert capfd.readouterr().err == ""
    held.release()
    assert capfd.readouterr().err == "one\n"
    os.write(held.writer, b"two\n")
    os.close(held.writer)
    assert held.lines() == []
    assert capfd.readouterr().err == "two\n"


def test_the_last_lines_of_a_process_are_given_back(capfd: pytest.CaptureFixture[str]) -> None:
    held = HeldOutput()
    os.write(held.writer, b"one  \nt\xffwo\nunfinished")
    os.close(held.writer)
    assert held.lines() == ["one", "t\ufffdwo", "unfinished"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("fails", [True, False])
def test_the_error_for_a_jvm_that_does_not_start_has_its_output(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], fails: bool
) -> None:
    given: list[Any] = []

    def start(conf: Any, how: dict[str, Any]) -> str:
        given.append(how)
        os.write(how["stderr"], b"Ivy was here\n")
        if fails:
            raise PySparkRuntimeError("JAVA_GATEWAY_EXITED")
        return "gateway"

    monkeypatch.setattr(gateway, "launch_gateway", start)
    conf: Any = "conf"
    if fails:
        with pytest.raises(LaunchFailed) as raised:
            gateway._start(conf, True)
        assert raised.value.lines == ["Ivy was here"]
        assert capfd.readouterr().err == ""
    else:
        assert gateway._start(conf, True) == "gateway"
        shown = ""

        def is_shown() -> bool:
            nonlocal shown
            shown += capfd.readouterr().err
            return bool(shown)

        await_that("it is shown", is_shown, 60)
        assert shown == "Ivy was here\n"
    (how,) = given
    assert how["process_group"] == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(how["stderr"])
