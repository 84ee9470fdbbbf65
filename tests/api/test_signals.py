"""Signals that ask a run to end, as they reach Python, the JVM, or both."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest

from cutwater.api import signals
from cutwater.api.signals import Signals, caught_signals


def test_a_signal_to_a_process_group_is_one_request() -> None:
    caught = Signals()
    assert caught.count == 0
    caught.reach_python()
    caught.reach_jvm()
    assert caught.count == 1
    caught.reach_jvm()
    assert caught.count == 2
    caught.reach_python()
    assert caught.count == 2


def test_signals_to_this_process_and_to_the_jvm_are_counted_and_then_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    to_jvm: list[Callable[[], None]] = []

    @contextmanager
    def fake(spark: Any, names: tuple[str, ...], react: Callable[[], None]) -> Iterator[None]:
        assert (spark, names) == ("session", ("INT", "TERM"))
        to_jvm.append(react)
        yield

    monkeypatch.setattr(signals, "jvm_signals", fake)
    session: Any = "session"
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with caught_signals(session) as caught:
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGINT)
        assert (caught.to_python, caught.to_jvm) == (2, 0)
        to_jvm[0]()
        assert (caught.to_python, caught.to_jvm) == (2, 1)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_another_thread_leaves_signals_to_the_program() -> None:
    before, seen = signal.getsignal(signal.SIGTERM), list[Any]()

    def use() -> None:
        with caught_signals(None) as caught:
            seen.append((caught.count, signal.getsignal(signal.SIGTERM)))

    thread = Thread(target=use)
    thread.start()
    thread.join()
    assert seen == [(0, before)]
