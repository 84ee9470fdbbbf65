"""A pipeline that another thread stops: whoever waits for it goes on, without an error."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event, Thread
from typing import Any

import pytest

import cutwater as cw


class Run:
    """A run that ends when it is stopped."""

    store = "the store"
    drained = False
    failure = None

    def __init__(self) -> None:
        self.waits, self.done = Event(), Event()

    def wait(self, timeout_s: float | None) -> bool:
        self.waits.set()
        return self.done.wait(10)

    def stop(self) -> None:
        self.done.set()


def start(pipeline: Any, run: Run) -> Callable[..., Any]:
    def started(*_: Any, **__: Any) -> Any:
        pipeline._runtime = run
        return pipeline

    return started


WAITS: dict[str, Callable[[Any], object]] = {
    "run": lambda pipeline: pipeline.run("state"),
    "awaitTermination": lambda pipeline: pipeline.start("state").awaitTermination(),
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_waiting_caller_returns(monkeypatch: pytest.MonkeyPatch, wait: Callable[[Any], object]) -> None:
    pipeline: Any = cw.Pipeline("orders")
    run = Run()
    monkeypatch.setattr(pipeline, "start", start(pipeline, run))

    def stop() -> None:
        assert run.waits.wait(10)
        pipeline.stop()

    other = Thread(target=stop)
    other.start()
    wait(pipeline)
    other.join()
    assert not pipeline.is_running


def test_a_pipeline_that_is_stopped_between_two_looks_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other thread has taken the runtime away, and has not ended it yet."""
    pipeline: Any = cw.Pipeline("orders")
    run = Run()
    looks: list[bool] = []

    def wait(timeout_s: float | None) -> bool:
        looks.append(True)
        pipeline._runtime = None
        return len(looks) > 2

    monkeypatch.setattr(run, "wait", wait)
    monkeypatch.setattr(pipeline, "start", start(pipeline, run))
    pipeline.run("state")
    assert len(looks) == 3
