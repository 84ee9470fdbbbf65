"""The pool of worker threads."""

from __future__ import annotations

import time
from threading import Barrier, Event, Thread, current_thread

import pytest

from cutwater.runtime.workers import Workers


def test_waiting_tasks_do_not_delay_others_while_there_are_free_threads() -> None:
    workers, together = Workers(4, "w"), Barrier(5)

    def wait() -> None:
        together.wait(10)

    for _ in range(4):
        workers.submit(wait)
    together.wait(10)  # passes only if all four run at once


def test_more_tasks_than_threads_are_all_done() -> None:
    workers, done, names = Workers(2, "w"), Event(), []

    def task(number: int) -> None:
        names.append(current_thread().name)
        if number == 99:
            done.set()

    for number in range(100):
        workers.submit(lambda n=number: task(n))  # type: ignore[misc]
    assert done.wait(10)
    assert len(names) >= 99
    assert set(names) <= {"w-1", "w-2"}


def test_a_free_thread_is_reused() -> None:
    workers, names = Workers(8, "w"), []
    for _ in range(20):
        done = Event()
        workers.submit(lambda: names.append(current_thread().name))
        workers.submit(done.set)
        assert done.wait(10)
    assert len(set(names)) <= 4


def test_nothing_begins_after_the_end() -> None:
    workers, under_way, go_on, begun = Workers(1, "w"), Event(), Event(), Event()

    def wait() -> None:
        under_way.set()
        go_on.wait(10)

    workers.submit(wait)
    workers.submit(begun.set)
    assert under_way.wait(10)
    workers.close()
    go_on.set()
    workers.submit(begun.set)
    assert not begun.wait(0.1)


def test_the_pool_works_with_fewer_threads_if_the_machine_refuses_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers, gate, done = Workers(4, "w"), Event(), Event()

    def none_left(thread: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", none_left)
        assert not workers.offer(done.set)
        with pytest.raises(RuntimeError, match="cannot start a thread"):
            workers.submit(done.set)

    def wait() -> None:
        gate.wait(10)

    workers.submit(wait)
    with monkeypatch.context() as patch:
        patch.setattr(Thread, "start", none_left)
        assert not workers.offer(done.set)
        workers.submit(done.set)  # waits for the only thread
    assert not done.is_set()
    gate.set()
    assert done.wait(10)


def test_an_offer_is_refused_when_no_thread_is_free() -> None:
    workers, gate, begun = Workers(2, "w"), Event(), Barrier(3)

    def wait() -> None:
        begun.wait(10)
        gate.wait(10)

    assert workers.offer(wait)
    assert workers.offer(wait)
    begun.wait(10)
    assert not workers.offer(wait)
    gate.set()
    deadline = time.monotonic() + 10
    while not workers.offer(lambda: None):
        assert time.monotonic() < deadline
    workers.close()
    workers.join()
