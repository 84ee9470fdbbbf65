"""A pipeline whose graph another member has changed is restarted in the new one, however it is waited for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import cutwater as cw
from cutwater.api.config import RunConfig


class Run:
    """A run that has ended, with an error or drained."""

    store = "the store"
    drained = True

    def __init__(self, failure: BaseException | None = None) -> None:
        self.failure = failure
        self.is_stopped = False

    def wait(self, timeout_s: float | None) -> bool:
        return True

    def stop(self) -> None:
        self.is_stopped = True


WAITS: dict[str, Callable[[cw.Pipeline], bool]] = {
    "stay": lambda pipeline: pipeline.stay(),
    "awaitTermination": lambda pipeline: pipeline.awaitTermination(),
    "awaitTermination with a timeout": lambda pipeline: pipeline.awaitTermination("1h"),
}


@pytest.fixture
def pipeline() -> Any:
    """A pipeline that was started with `restore`, and whose run has ended because the graph changed."""
    pipeline: Any = cw.Pipeline("orders")
    pipeline._runtime = Run(cw.GraphChanged("the graph has changed"))
    pipeline._config = RunConfig(restore="latest")
    return pipeline


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
@pytest.mark.parametrize("changes", [1, 2])
def test_it_goes_on_in_the_new_graph(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch, wait: Callable[[cw.Pipeline], bool], changes: int
) -> None:
    runs, begun = [pipeline._runtime], list[Any]()

    def begin(store: Any, config: RunConfig, spark: Any) -> None:
        assert all(run.is_stopped for run in runs)
        begun.append((store, config.restore))
        runs.append(Run(cw.GraphChanged("again") if len(begun) < changes else None))
        pipeline._runtime = runs[-1]

    monkeypatch.setattr(pipeline, "_begin", begin)
    assert wait(pipeline)
    assert begun == [("the store", None)] * changes, "the restore is not repeated"


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_restart_that_fails_ends_it(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch, wait: Callable[[cw.Pipeline], bool]
) -> None:
    def begin(*_: Any) -> None:
        raise cw.UserError("this code is not in the new graph")

    monkeypatch.setattr(pipeline, "_begin", begin)
    with pytest.raises(cw.UserError, match="not in the new graph"):
        wait(pipeline)
    assert not pipeline.is_running


def test_a_pipeline_that_is_stopped_meanwhile_is_not_restarted(
    pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "_begin", lambda *_: pytest.fail("it was restarted"))
    run = pipeline._runtime
    monkeypatch.setattr(run, "wait", lambda _: pipeline.stop() or True)
    with pytest.raises(cw.GraphChanged):
        pipeline.awaitTermination()
