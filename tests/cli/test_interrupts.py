"""Signals to a command that waits for an answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from threading import Thread

import pytest

from cutwater.cli.client import _interruptible

SIGNALS = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[list[str]]:
    """What came to the handlers that were there before."""
    came: list[str] = []
    before = {
        number: signal.signal(number, lambda n, _: came.append(signal.Signals(n).name)) for number in SIGNALS
    }
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


def get_signal_and_wait(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    time.sleep(10)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_the_wait_and_what_handled_it_before_does_so_again(
    handlers: list[str], number: signal.Signals
) -> None:
    with pytest.raises(KeyboardInterrupt), _interruptible():
        get_signal_and_wait(number)
    assert handlers == []
    os.kill(os.getpid(), number)
    assert handlers == [number.name]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with _interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_in_another_thread_signals_are_left_alone(handlers: list[str]) -> None:
    seen: list[object] = []

    def wait() -> None:
        with _interruptible():
            seen.append(signal.getsignal(signal.SIGTERM))

    before = signal.getsignal(signal.SIGTERM)
    thread = Thread(target=wait)
    thread.start()
    thread.join()
    assert seen == [before]
