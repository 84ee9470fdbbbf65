"""Spark's JVM and the connection to it: starting it, detecting that it is gone, callbacks from it."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from threading import Lock, Thread
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException, PySparkRuntimeError
from pyspark.java_gateway import ensure_callback_server_started, launch_gateway
from pyspark.sql import SparkSession

CALL_ERRORS: tuple[type[Exception], ...] = (Py4JError, ConnectionError, PySparkException)
"""Raised by a call that failed in the JVM (pyspark converts some of Java's exceptions), or that found no JVM."""

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


def has_jvm() -> bool:
    """Whether this process has a JVM, or was started by one, as under spark-submit."""
    return SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ


_launched: WeakKeyDictionary[Any, dict[str, str]] = WeakKeyDictionary()
"""The gateways to JVMs that `launch` has started, with the settings that it gave them."""

_MADE_UP = {"spark.app.name": "pyspark-shell", "spark.ui.showConsoleProgress": "true"}
"""What Spark itself passes to a JVM that Python starts, by default."""


def launch(
    settings: Mapping[str, str], quiet: str, hold_output: bool = False, java_options: Sequence[str] = ()
) -> dict[str, str]:
    """Starts Spark's JVM with these settings, unless there is one already, as under spark-submit, where it has started
    this process. Returns the settings that others have given it: spark-submit's options, `PYSPARK_SUBMIT_ARGS`, and
    spark-defaults.conf.

    A JVM of ours is in a process group of its own: a signal to the group of this process, as supervisors and terminals
    send it, would end the JVM before anything could be drained. (It still ends with this process: it reads a pipe that
    breaks then.) It logs as the file `quiet` says, unless `spark.driver.extraJavaOptions` names another. `hold_output`:
    hold back what it prints until it has started. Raises `LaunchFailed`, with that, if it does not start."""
    hush_py4j()
    gateway: Any = SparkContext._gateway
    if not has_jvm():
        conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        with _java_options([f"-Dlog4j2.configurationFile={quiet}", *java_options]):
            gateway = _start(conf, hold_output)
        _launched[gateway] = {**_MADE_UP, **settings}
    SparkContext._ensure_initialized(gateway=gateway)
    ours = _launched.get(SparkContext._gateway, {})
    known = SparkConf(_jvm=SparkContext._jvm)
    return {key: value for key, value in known.getAll() if ours.get(key) != value}


def _start(conf: SparkConf, hold_output: bool) -> Any:
    start: Any = launch_gateway
    how: dict[str, Any] = {"process_group": 0} if os.name == "posix" else {}
    if not hold_output:
        try:
            return start(conf, how)
        except PySparkRuntimeError as error:
            raise LaunchFailed([]) from error
    held = HeldOutput()
    try:
        output = {"stdout": held.writer, "stderr": held.writer}  # a few lines of Ivy go to stdout
        gateway = start(conf, {**how, **output})
    except PySparkRuntimeError as error:
        os.close(held.writer)
        raise LaunchFailed(held.lines()) from error
    os.close(held.writer)
    held.release()
    return gateway


@contextmanager
def _java_options(options: Sequence[str]) -> Iterator[None]:
    """Adds options to those of a JVM that is started here. The options of Spark's settings come later and win."""
    before = os.environ.get("SPARK_SUBMIT_OPTS")
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(filter(None, (*map(shlex.quote, options), before)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["SPARK_SUBMIT_OPTS"]
        else:
            os.environ["SPARK_SUBMIT_OPTS"] = before


def hush_py4j() -> None:
    """Silences Py4J, which logs pages for every call in progress when the JVM dies, through its own logger or the root's.
    The cause is reported in one line elsewhere. Other log records are not affected."""
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


def end_jvm(timeout_s: float) -> None:
    """Ends a JVM that `launch` has started, after its session, and waits until it has done what it does when it ends."""
    gateway: Any = SparkContext._gateway
    process = gateway.proc
    gateway.shutdown()
    process.stdin.close()
    process.wait(timeout_s)
    SparkContext._gateway = SparkContext._jvm = None


def accept_calls(spark: SparkSession) -> None:
    """Lets the JVM call objects of this process."""
    context: Any = spark.sparkContext
    ensure_callback_server_started(context._gateway)  # type: ignore[no-untyped-call]


@contextmanager
def jvm_signals(spark: SparkSession, names: tuple[str, ...], react: Callable[[], None]) -> Iterator[None]:
    """Calls `react` for each signal of these names that the JVM gets; otherwise they end it, and what it runs, at once.
    The JVM of spark-submit is what supervisors signal, and that of a user's session is in the process group of this
    process. One that `launch` has started is not, but some supervisors signal whatever this process has started."""
    accept_calls(spark)
    context: Any = spark.sparkContext
    kind, handler, before = context._jvm.sun.misc.Signal, _JavaSignal(react), {}
    with suppress(*CALL_ERRORS):  # it was started with -Xrs, and does not handle signals
        for name in names:
            before[name] = kind.handle(kind(name), handler)
    try:
        yield
    finally:
        with suppress(*CALL_ERRORS):  # it is gone
            for name, old in before.items():
                kind.handle(kind(name), old)


class _JavaSignal:
    """A handler for a signal to the JVM."""

    def __init__(self, react: Callable[[], None]) -> None:
        self._react = react

    def handle(self, signal: Any) -> None:
        self._react()

    class Java:
        implements: ClassVar = ["sun.misc.SignalHandler"]
