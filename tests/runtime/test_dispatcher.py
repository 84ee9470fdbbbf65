"""Observers get every event in order, and one that is slow or fails harms nobody."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from cutwater.protocol.base.events import BatchLogged, CaughtUp
from cutwater.protocol.base.events import Event as AnyEvent
from cutwater.runtime.dispatcher import Dispatcher, Observer
from tests.support.spark_helpers import await_that


class Seen:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.events: list[AnyEvent] = []
        self.at_s: list[float] = []

    def __call__(self, at_s: float, event: AnyEvent) -> None:
        self.at_s.append(at_s)
        self.events.append(event)


class Blocked(Seen):
    """Takes no event further until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go_on = Event(), Event()

    def __call__(self, at_s: float, event: AnyEvent) -> None:
        self.asked.set()
        assert self.go_on.wait(10)
        super().__call__(at_s, event)


class Failing(Seen):
    """Raises on every second event."""

    def __call__(self, at_s: float, event: AnyEvent) -> None:
        super().__call__(at_s, event)
        if len(self.events) % 2:
            raise ZeroDivisionError("no luck")


def batches(count: int) -> list[AnyEvent]:
    return [BatchLogged("s", number, 1) for number in range(count)]


@contextmanager
def dispatching(log: list[str], max_queue: int = 10_000, **observers: Observer) -> Iterator[Dispatcher]:
    dispatcher = Dispatcher(observers, log.append, max_queue)
    dispatcher.start()
    yield dispatcher
    dispatcher.close()


def test_every_observer_gets_every_event_in_order_with_the_time_of_its_emission() -> None:
    one, two, log = Seen(), Seen(), list[str]()
    before = time.monotonic()
    with dispatching(log, one=one, two=two) as dispatcher:
        for event in batches(1_000):
            dispatcher.emit(event)
        after = time.monotonic()
    assert one.events == two.events == batches(1_000)
    assert one.at_s == two.at_s == sorted(one.at_s)
    assert before <= one.at_s[0] <= one.at_s[-1] <= after
    assert log == []


def test_nobody_waits_for_a_slow_observer() -> None:
    slow, quick, log = Blocked(), Seen(), list[str]()
    with dispatching(log, slow=slow, quick=quick) as dispatcher:
        for event in batches(10):
            dispatcher.emit(event)
        await_that("the other one has all", lambda: quick.events == batches(10), 10)
        assert slow.events == []
        slow.go_on.set()
    assert slow.events == batches(10)
    assert log == []


def test_an_observer_that_is_too_slow_misses_events_and_the_log_says_how_many_once() -> None:
    slow, quick, log = Blocked(), Seen(), list[str]()
    with dispatching(log, max_queue=5, slow=slow, quick=quick) as dispatcher:
        dispatcher.emit(CaughtUp(0))
        assert slow.asked.wait(10)
        for event in batches(8):
            dispatcher.emit(event)
            await_that("the other one keeps up", lambda: quick.events and quick.events[-1] is event, 10)  # noqa: B023
        slow.go_on.set()
        await_that("it has caught up", lambda: len(slow.events) == 6, 10)
        await_that("a line", lambda: log, 10)
        dispatcher.emit(CaughtUp(1))
    assert slow.events == [CaughtUp(0), *batches(5), CaughtUp(1)]
    assert quick.events == [CaughtUp(0), *batches(8), CaughtUp(1)]
    assert log == ["slow was too slow and has missed 3 events"]


def test_an_observer_that_raises_gets_the_next_event_and_the_log_says_so_once() -> None:
    failing, other, log = Failing(), Seen(), list[str]()
    with dispatching(log, failing=failing, other=other) as dispatcher:
        for event in batches(10):
            dispatcher.emit(event)
    assert failing.events == other.events == batches(10)
    assert log == ["failing failed and will miss an event: ZeroDivisionError: no luck"]


def test_a_log_that_fails_ends_no_observer() -> None:
    failing = Failing()

    def log(line: str) -> None:
        raise OSError("nobody reads this")

    dispatcher = Dispatcher({"failing": failing}, log)
    dispatcher.start()
    for event in batches(3):
        dispatcher.emit(event)
    dispatcher.close()
    assert failing.events == batches(3)


def test_an_observer_that_never_returns_does_not_keep_the_dispatcher_from_closing() -> None:
    stuck, log = Blocked(), list[str]()
    dispatcher = Dispatcher({"stuck": stuck}, log.append)
    dispatcher.start()
    dispatcher.emit(CaughtUp(0))
    closing = Thread(target=lambda: dispatcher.close(0.05), daemon=True)
    closing.start()
    closing.join(10)
    assert not closing.is_alive()
    stuck.go_on.set()
