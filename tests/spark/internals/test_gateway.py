"""Starting the JVM and ending it, with a model of Spark's Java side."""

from __future__ import annotations

import logging
import os
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkContext
from pyspark.sql import SparkSession

from cutwater.spark import session
from cutwater.spark.internals import gateway
from tests.support.fake_session import FakeSession


class Gateway:
    """The way to a JVM that was started with these settings."""

    def __init__(self, conf: Any, how: dict[str, Any]) -> None:
        self.conf, self.how = dict(conf.getAll()), how
        self.options = os.environ["SPARK_SUBMIT_OPTS"]


class TheirGateway:
    """The way to a JVM that spark-submit has started."""


@pytest.fixture
def no_jvm(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """No JVM is running yet. Yields the settings of the one that is started, to which a test may add."""
    known: dict[str, str] = {}

    class Conf:
        def __init__(self, loadDefaults: bool = True, _jvm: Any = None) -> None:
            self.settings = dict(known) if loadDefaults else {}

        def setAll(self, pairs: list[tuple[str, str]]) -> Conf:
            self.settings.update(pairs)
            return self

        def getAll(self) -> list[tuple[str, str]]:
            return list(self.settings.items())

    def initialise(gateway: Gateway | None) -> None:
        if gateway is None:
            monkeypatch.setattr(SparkContext, "_gateway", TheirGateway())
        else:
            monkeypatch.setattr(SparkContext, "_gateway", gateway)
            known.update({**gateway.conf, **known})

    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_jvm", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", initialise)
    monkeypatch.setattr(gateway, "SparkConf", Conf)
    monkeypatch.setattr(gateway, "launch_gateway", Gateway)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)
    monkeypatch.setattr(logging.getLogger(), "filters", [])
    monkeypatch.setattr(logging.getLogger("py4j"), "level", logging.INFO)
    return known


def test_spark_starts_in_its_own_process_group_and_py4j_logs_nothing(no_jvm: dict[str, str]) -> None:
    assert gateway.launch({"spark.x": "y"}, "/a b/log4j2") == {}
    started: Any = SparkContext._gateway
    assert (started.conf, started.how) == ({"spark.x": "y"}, {"process_group": 0})
    assert started.options == "'-Dlog4j2.configurationFile=/a b/log4j2'"
    assert "SPARK_SUBMIT_OPTS" not in os.environ
    assert logging.getLogger("py4j").level == logging.CRITICAL
    assert len(logging.getLogger().filters) == 1
    gateway.launch({"spark.z": "z"}, "log4j2")
    assert SparkContext._gateway is started, "one is already running"


def test_options_of_the_environment_for_the_jvm_are_kept(
    no_jvm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine")
    gateway.launch({}, "log4j2")
    started: Any = SparkContext._gateway
    assert started.options == "-Dlog4j2.configurationFile=log4j2 -Dmine"
    assert os.environ["SPARK_SUBMIT_OPTS"] == "-Dmine"


def test_options_for_the_jvm_come_before_those_of_the_environment_which_win(
    no_jvm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dmine")
    gateway.launch({}, "log4j2", java_options=["-XX:SharedArchiveFile=/a b"])
    started: Any = SparkContext._gateway
    assert started.options == "-Dlog4j2.configurationFile=log4j2 '-XX:SharedArchiveFile=/a b' -Dmine"


def test_a_jvm_is_ended_after_it_has_done_its_last_work(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[object] = []
    process = SimpleNamespace(stdin=SimpleNamespace(close=lambda: done.append("stdin")), wait=done.append)
    ours = SimpleNamespace(proc=process, shutdown=lambda: done.append("shutdown"))
    monkeypatch.setattr(SparkContext, "_gateway", ours)
    monkeypatch.setattr(SparkContext, "_jvm", ours)
    gateway.end_jvm(7)
    assert done == ["shutdown", "stdin", 7]
    assert not gateway.has_jvm()


def test_settings_of_a_defaults_file_are_distinguished_from_those_of_spark_itself_and_of_an_earlier_run(
    no_jvm: dict[str, str],
) -> None:
    no_jvm |= {
        "spark.of.the.file": "1",
        "spark.ui.showConsoleProgress": "true",
        "spark.app.name": "pyspark-shell",
    }
    assert gateway.launch({"spark.x": "y"}, "log4j2") == {"spark.of.the.file": "1"}
    assert gateway.launch({}, "log4j2") == {"spark.of.the.file": "1"}, "x is of the run before"


def test_under_spark_submit_no_second_jvm_is_started(
    no_jvm: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    no_jvm["spark.master"] = "yarn"
    assert gateway.launch({"spark.x": "y"}, "log4j2") == {"spark.master": "yarn"}
    assert isinstance(SparkContext._gateway, TheirGateway)
    assert logging.getLogger("py4j").level == logging.CRITICAL


class JavaSignals:
    """Java's `Signal`, with the handlers that are set."""

    def __init__(self) -> None:
        self.handlers: dict[str, Any] = {"TERM": "end TERM", "INT": "end INT"}

    def __call__(self, name: str) -> str:
        return name

    def handle(self, name: str, handler: Any) -> Any:
        before, self.handlers[name] = self.handlers[name], handler
        return before


def test_signals_to_the_jvm_are_caught_and_released(monkeypatch: pytest.MonkeyPatch) -> None:
    java, came = JavaSignals(), list[str]()
    jvm = SimpleNamespace(sun=SimpleNamespace(misc=SimpleNamespace(Signal=java)))
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(_jvm=jvm))
    monkeypatch.setattr(gateway, "accept_calls", lambda spark: came.append("accepts"))
    with gateway.jvm_signals(spark, ("TERM",), lambda: came.append("came")):
        java.handlers["TERM"].handle("SIGTERM")
        assert java.handlers["INT"] == "end INT"
    assert came == ["accepts", "came"]
    assert java.handlers["TERM"] == "end TERM"

    def refuse(*_: Any) -> None:
        raise Py4JNetworkError("it was started with -Xrs, or is gone")

    monkeypatch.setattr(java, "handle", refuse)
    with gateway.jvm_signals(spark, ("TERM",), lambda: came.append("came")):
        assert java.handlers["TERM"] == "end TERM"


def test_a_session_whose_jvm_is_gone_does_not_block_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    given = FakeSession()
    for is_gone in (False, True):
        process = SimpleNamespace(poll=lambda is_gone=is_gone: 137 if is_gone else None)
        known = SimpleNamespace(proc=process)
        monkeypatch.setattr(SparkContext, "_gateway", known)
        monkeypatch.setattr(SparkContext, "_jvm", "jvm")
        monkeypatch.setattr(SparkContext, "_active_spark_context", "context")
        monkeypatch.setattr(SparkSession, "_instantiatedSession", given)
        monkeypatch.setattr(SparkSession, "_activeSession", given)
        given.stopped = Py4JNetworkError("gone") if is_gone else None
        session.hush(given)
        gateway.end_session(given)
        assert given.level == "OFF"
        assert (SparkContext._gateway, SparkContext._jvm) == ((None, None) if is_gone else (known, "jvm"))
        left = (
            SparkContext._active_spark_context,
            SparkSession._instantiatedSession,
            SparkSession._activeSession,
        )
        assert left == ((None, None, None) if is_gone else ("context", given, given))


def test_what_others_log_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = logging.getLogger()
    monkeypatch.setattr(root, "filters", [])
    monkeypatch.setattr(logging.getLogger("py4j"), "level", logging.INFO)
    gateway.hush_py4j()

    def said(path: str) -> bool:
        return bool(root.filter(logging.LogRecord("root", logging.ERROR, path, 1, "", (), None)))

    assert not said("/lib/py4j/java_gateway.py")
    assert said("/lib/py4j/more/x.py")
    assert said("/home/py4j.py")
