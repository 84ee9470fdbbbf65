"""What the metrics say about events."""

from __future__ import annotations

import time
from typing import Any, get_args, get_type_hints

import pytest

from cutwater.protocol.base import events as ev
from cutwater.telemetry import definitions as d
from cutwater.telemetry.definitions import Metric
from cutwater.telemetry.measures import REMEMBERED, Measures


def observed(*events: tuple[float, ev.Event]) -> Measures:
    measures = Measures()
    for at_s, event in events:
        measures(at_s, event)
    return measures


def value(measures: Measures, metric: Metric, *labels: str) -> float | None:
    return measures.values()[0].get(metric.name, {}).get(labels)


def test_a_committed_checkpoint_is_counted_and_timed() -> None:
    now_s, now = time.monotonic(), time.time()
    measures = observed(
        (now_s - 9, ev.EpochBegun(1, 3, 0, None, "a")),
        (now_s - 6.5, ev.EpochCommitted(1, None)),
        (now_s - 6, ev.EpochBegun(2, 5, 0, None, "a")),
        (now_s - 5.8, ev.EpochCommitted(2, None)),
    )
    assert value(measures, d.CHECKPOINTS, "committed") == 2
    assert value(measures, d.LAST_DURATION) == pytest.approx(0.2)
    assert value(measures, d.LAST_COMPLETED) == pytest.approx(now - 5.8, abs=0.5)
    histogram = measures.values()[1]
    assert histogram.total == pytest.approx(2.7)
    counted = dict(zip((*d.DURATION_BUCKETS_S, None), histogram.counts, strict=True))
    assert {bound: count for bound, count in counted.items() if count} == {0.25: 1, 2.5: 1}


def test_each_result_is_counted_by_itself_and_begins_at_zero() -> None:
    measures = observed()
    assert [value(measures, d.CHECKPOINTS, r) for r in ("committed", "aborted", "void")] == [0, 0, 0]
    measures(1, ev.EpochAborted(1, "deadline", "a is slow", False))
    measures(2, ev.EpochAborted(2, "leader_changed", "", True))
    measures(3, ev.EpochCommitted(3, None))
    measures(4, ev.PipelineRestored(1, 2))
    assert [value(measures, d.CHECKPOINTS, r) for r in ("committed", "aborted", "void")] == [1, 1, 1]
    assert value(measures, d.FAILURES, "deadline") == 1
    assert value(measures, d.FAILURES, "leader_changed") is None
    assert value(measures, d.RESTORES) == 1
    assert value(measures, d.LAST_DURATION) is None  # nobody saw epoch 3 begin


def test_start_delay_and_alignment_add_up_to_the_time_of_the_cut() -> None:
    measures = observed(
        (10.0, ev.EpochBegun(4, 9, 0, None, "a")),
        (11.5, ev.AlignmentBegun("s", 4)),
        (11.9, ev.AlignmentBegun("s", 4)),  # a new incarnation sees it again
        (14.0, ev.StageCut("s", 4, 7, True)),
        (15.0, ev.StageCut("t", 4, 7, False)),
    )
    assert value(measures, d.START_DELAY, "s") == 1.5
    assert value(measures, d.ALIGNMENT, "s") == 2.5
    assert value(measures, d.UNALIGNED, "s") == 1
    assert value(measures, d.ALIGNMENT, "t") is None


def test_stages_and_sinks_are_counted_by_name() -> None:
    measures = observed(
        (1, ev.StageStarted("s", 1, 1)),
        (2, ev.BatchLogged("s", 0, 10)),
        (3, ev.BatchLogged("s", 1, 5)),
        (4, ev.StageFailed("s", "boom", False, 1, 5, 100)),
        (5, ev.StageStarted("s", 1, 2)),
        (6, ev.EpochCommitted(1, None)),
        (8, ev.TablePublished("out", 1, 3)),
        (9, ev.TableRewound("out", 1, 4)),
    )
    assert value(measures, d.STAGE_ROWS, "s") == 15
    assert value(measures, d.STAGE_BATCHES, "s") == 2
    assert value(measures, d.STAGE_RESTARTS, "s") == 1
    assert value(measures, d.PUBLISHED, "out") == 1
    assert value(measures, d.PUBLISH_DELAY, "out") == 2
    assert value(measures, d.REWINDS, "out") == 1


def test_errors_of_the_store_are_counted_by_operation() -> None:
    measures = observed(
        (1, ev.OperationFailed("Create", "no route")),
        (2, ev.OperationFailed("Create", "no route")),
        (3, ev.OperationFailed("PublishTable", "no route")),
        (4, ev.ObjectRejected("requests/x", "is not a request", b"")),
        (5, ev.ManifestUnreadable(3, "gone")),
    )
    assert value(measures, d.ERRORS, "Create") == 2
    assert value(measures, d.ERRORS, "PublishTable") == 1
    assert value(measures, d.REJECTED) == 1
    assert value(measures, d.UNREADABLE) == 1


def test_what_is_remembered_of_epochs_is_bounded() -> None:
    measures = Measures()
    for epoch in range(1, 10 * REMEMBERED):
        measures(epoch, ev.EpochBegun(epoch, epoch, 0, None, "a"))
        measures(epoch, ev.AlignmentBegun("s", epoch))
        if epoch % 2:
            measures(epoch, ev.EpochCommitted(epoch, None))
    assert len(measures._begun_s) <= REMEMBERED
    assert len(measures._committed_s) <= REMEMBERED
    assert len(measures._barriers_s) <= REMEMBERED


def test_every_kind_of_event_is_taken() -> None:
    """A new one is either measured or ignored on purpose."""
    samples: dict[Any, Any] = {int: 1, str: "x", bool: False, float: 1.0, bytes: b"", tuple[str, ...]: ()}
    for kind in get_args(ev.Event):
        Measures()(1.0, kind(**{name: samples.get(hint) for name, hint in get_type_hints(kind).items()}))
