"""Spark's JVM and the way to it: starting it, recognising that it is gone, calling back from it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from threading import Lock, Thread
from typing import Any

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.sql import SparkSession

CALL_ERRORS: tuple[type[Exception], ...] = (Py4JError, ConnectionError)
"""Raised by a call to the JVM that has failed there, or that found no JVM."""

HELD_S = 5.0
"""How long to wait for the last lines of a process that has ended."""


class LaunchFailed(Exception):
    """Spark's JVM ended while it started. `lines`: what it printed."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__("Spark's process ended while it started")
        self.lines = lines


class HeldOutput:
    """Holds back what a process prints to `writer`, and passes it on to stderr from `release` on."""

    def __init__(self) -> None:
        reader, self.writer = os.pipe()
        self._lines: list[bytes] = []
        self._is_held = True
        self._lock = Lock()
        self._thread = Thread(target=self._read, args=(reader,), name="cutwater-spark-output", daemon=True)
        self._thread.start()

    def _read(self, reader: int) -> None:
        with os.fdopen(reader, "rb") as output:
            for line in output:
                with self._lock:
                    if self._is_held:
                        self._lines.append(line)
                    else:
                        os.write(2, line)

    def release(self) -> None:
        with self._lock:
            self._is_held = False
            for line in self._lines:
                os.write(2, line)
            self._lines.clear()

    def lines(self) -> list[str]:
        """What the process printed before it ended."""
        self._thread.join(HELD_S)
        with self._lock:
            return [line.decode(errors="replace").rstrip() for line in self._lines]


def has_active_context() -> bool:
    """Whether this process has a SparkContext."""
    return SparkContext._active_spark_context is not None


def launch_apart(app: str, master: str, settings: Mapping[str, str], hold_output: bool = False) -> None:
    """Starts Spark's JVM in a process group of its own, unless there is a JVM already: a signal to the group of this
    process, as supervisors and terminals send it, would end the JVM before anything could be drained. (It still ends
    with this process: it reads a pipe that breaks then.) `hold_output`: hold back what it prints until it has started,
    and raise `LaunchFailed` with it if it does not."""
    if os.name != "posix" or SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    hush_py4j()
    conf = SparkConf(loadDefaults=False).setMaster(master).setAppName(app)
    conf.setAll(list(settings.items()))
    launch: Any = launch_gateway
    if not hold_output:
        SparkContext._ensure_initialized(gateway=launch(conf, {"process_group": 0}))
        return
    held = HeldOutput()
    try:
        output = {"stdout": held.writer, "stderr": held.writer}  # a few lines of Ivy go to stdout
        gateway = launch(conf, {"process_group": 0, **output})
    except PySparkRuntimeError as error:
        os.close(held.writer)
        raise LaunchFailed(held.lines()) from error
    os.close(held.writer)
    held.release()
    SparkContext._ensure_initialized(gateway=gateway)


def hush_py4j() -> None:
    """Silences Py4J, which logs pages for every call under way when the JVM dies, through its own logger or the root's.
    What has happened is reported in one line elsewhere. Other log records are not affected."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_is_not_of_py4j)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return os.path.basename(os.path.dirname(record.pathname)) != "py4j"


def is_spark_gone(error: BaseException) -> bool:
    """Whether an error says that the JVM no longer answers."""
    return isinstance(error, Py4JNetworkError | ConnectionError) or "Error while sending or receiving" in str(
        error
    )


def end_session(session: SparkSession) -> None:
    """Stops a session and its SparkContext. If the JVM is gone, clears what pyspark remembers of it, so that the next
    session starts a new JVM."""
    gateway = SparkContext._gateway
    try:
        session.stop()
    except CALL_ERRORS:
        SparkSession._instantiatedSession = SparkSession._activeSession = None
        SparkContext._active_spark_context = None
    process = getattr(gateway, "proc", None)
    if process is not None and process.poll() is not None:
        SparkContext._gateway = SparkContext._jvm = None


def accept_calls(spark: SparkSession) -> None:
    """Lets the JVM call objects of this process."""
    context: Any = spark.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]
