"""Signals that ask a run to end, to this process or to Spark's JVM."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from threading import current_thread, main_thread
from typing import Any

from pyspark.sql import SparkSession

from cutwater.spark.internals.gateway import jvm_signals

ENDING = (signal.SIGINT, signal.SIGTERM)


class Signals:
    """How often the run was asked to end. A signal to a process group reaches Python and the JVM, and counts once."""

    def __init__(self) -> None:
        self.to_python = self.to_jvm = 0

    @property
    def count(self) -> int:
        return max(self.to_python, self.to_jvm)

    def reach_python(self, *_: object) -> None:
        self.to_python += 1

    def reach_jvm(self) -> None:
        self.to_jvm += 1


@contextmanager
def caught_signals(spark: SparkSession | None) -> Iterator[Signals]:
    """Counts signals instead of ending the process and Spark's JVM. Only the main thread can; elsewhere the program has
    its own way to handle them."""
    caught = Signals()
    if current_thread() is not main_thread():
        yield caught
        return
    before: dict[int, Any] = {which: signal.signal(which, caught.reach_python) for which in ENDING}
    names = tuple(which.name.removeprefix("SIG") for which in ENDING)
    try:
        with nullcontext() if spark is None else jvm_signals(spark, names, caught.reach_jvm):
            yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
