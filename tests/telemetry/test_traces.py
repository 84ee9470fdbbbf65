"""The spans that events make, with the real SDK of OpenTelemetry."""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from cutwater.protocol.base import events as ev
from cutwater.protocol.base.records import Topology
from cutwater.telemetry.traces import REMEMBERED, Traces, new_traces
from tests.support.builders import pipeline, stage

ALONE = pipeline(stage("a", member="main"), stage("b", "a", member="main"))
TWO = pipeline(stage("a", member="one"), stage("b", "a", member="two"))


class Recorded:
    """The spans of one member."""

    def __init__(self, member: str, topology: Topology) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.traces = Traces(provider.get_tracer("test"), "shop", member, topology)

    def see(self, *events: tuple[float, ev.Event]) -> Recorded:
        for at_s, event in events:
            self.traces(at_s, event)
        return self

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span


def context(span: ReadableSpan) -> trace.SpanContext:
    found = span.get_span_context()
    assert found is not None
    return found


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return (span.end_time - span.start_time) / 1e9


def attribute(span: ReadableSpan, name: str) -> Any:
    assert span.attributes is not None
    return span.attributes[f"cutwater.{name}"]


def test_an_epoch_is_a_span_with_a_child_per_stage_and_sink() -> None:
    now_s, now = time.monotonic(), time.time()
    seen = Recorded("main", ALONE).see(
        (now_s - 10, ev.EpochBegun(7, 21, 4, "good", "main")),
        (now_s - 9.5, ev.AlignmentBegun("b", 7)),
        (now_s - 8, ev.StageCut("b", 7, 12, True)),
        (now_s - 7, ev.EpochCommitted(7, None)),
        (now_s - 5, ev.TablePublished("out", 7, 3)),
    )
    epoch, cut, published = seen.one("epoch"), seen.one("stage b"), seen.one("publish out")
    assert seconds(epoch) == pytest.approx(3, abs=0.01)
    assert epoch.start_time is not None
    assert epoch.start_time / 1e9 == pytest.approx(now - 10, abs=0.5)
    assert seconds(cut) == pytest.approx(1.5, abs=0.01)
    assert seconds(published) == pytest.approx(2, abs=0.01)
    for child in (cut, published):
        assert child.parent is not None
        assert child.parent.span_id == context(epoch).span_id
        assert attribute(child, "epoch") == 7
    assert epoch.parent is None
    assert (attribute(epoch, "pipeline"), attribute(epoch, "member"), attribute(epoch, "savepoint")) == (
        "shop",
        "main",
        "good",
    )
    assert attribute(cut, "unaligned") is True
    assert attribute(cut, "start_delay_seconds") == pytest.approx(0.5)
    assert attribute(published, "version") == 3


def test_an_aborted_epoch_is_an_error_with_its_reason() -> None:
    seen = Recorded("main", ALONE).see(
        (1, ev.EpochBegun(1, 3, 0, None, "main")),
        (2, ev.EpochAborted(1, "deadline", "b is slow", False)),
        (3, ev.StageCut("b", 1, 0, False)),  # too late to belong to it
    )
    epoch = seen.one("epoch")
    assert (epoch.status.status_code, epoch.status.description) == (StatusCode.ERROR, "deadline: b is slow")
    assert seen.named("stage b") == []


def test_members_put_their_spans_of_an_epoch_into_one_trace() -> None:
    begun = ev.EpochBegun(7, 21, 0, None, "one")
    one = Recorded("one", TWO).see(
        (1, begun), (2, ev.StageCut("a", 7, 0, False)), (4, ev.EpochCommitted(7, None))
    )
    two = Recorded("two", TWO).see(
        (1, begun), (3, ev.StageCut("b", 7, 0, False)), (4, ev.EpochCommitted(7, None))
    )
    spans = [one.one("epoch"), one.one("stage a"), two.one("stage b")]
    assert len({context(span).trace_id for span in spans}) == 1
    assert two.named("epoch") == []  # it is the leader's
    other = Recorded("two", TWO).see(
        (1, ev.EpochBegun(8, 24, 0, None, "one")), (3, ev.StageCut("b", 8, 0, False))
    )
    assert context(other.one("stage b")).trace_id != context(spans[0]).trace_id


def test_a_start_is_a_recovery_that_ends_when_all_stages_are_started() -> None:
    now_s = time.monotonic()
    seen = Recorded("main", ALONE).see((now_s + 1, ev.CaughtUp(9)), (now_s + 2, ev.StageStarted("a", 1, 3)))
    assert seen.named("recovery") == []
    seen.see((now_s + 5, ev.StageStarted("b", 1, 3)))
    recovery = seen.one("recovery")
    assert attribute(recovery, "cause") == "start"
    assert seconds(recovery) == pytest.approx(5, abs=0.1)
    for name in ("catch up", "start a", "start b"):
        child = seen.one(name)
        assert child.parent is not None
        assert child.parent.span_id == context(recovery).span_id


def test_a_restore_is_a_recovery_of_its_own() -> None:
    now_s = time.monotonic()
    started = [(now_s + 1, ev.StageStarted(name, 1, 1)) for name in "ab"]
    again = [(now_s + 9, ev.StageStarted(name, 2, 1)) for name in "ab"]
    seen = Recorded("main", ALONE).see(*started, (now_s + 6, ev.PipelineRestored(4, 2)), *again)
    first, second = seen.named("recovery")
    assert attribute(first, "cause") == "start"
    assert (attribute(second, "cause"), attribute(second, "epoch"), attribute(second, "generation")) == (
        "restore",
        4,
        2,
    )
    assert seconds(second) == pytest.approx(3, abs=0.1)


def test_a_query_that_fails_and_starts_again_is_a_recovery() -> None:
    now_s = time.monotonic()
    started = [(now_s, ev.StageStarted(name, 1, 1)) for name in "ab"]
    seen = Recorded("main", ALONE).see(
        *started,
        (now_s + 2, ev.StageFailed("a", "boom", False, 1, 5, 100)),
        (now_s + 3, ev.StageFailed("a", "boom", False, 2, 5, 100)),
        (now_s + 6, ev.StageStarted("a", 1, 3)),
        (now_s + 7, ev.StageFailed("b", "boom", False, 1, 1, 100)),
        (now_s + 8, ev.StageGivenUp("b", "boom", 1)),
    )
    _, again, over = seen.named("recovery")
    assert seconds(again) == pytest.approx(4, abs=0.01)
    assert attribute(again, "stage") == "a"
    assert over.status.description == "given up after 1 attempts: boom"


def test_epochs_that_nobody_decides_are_not_kept_forever() -> None:
    seen = Recorded("main", ALONE)
    for number in range(3 * REMEMBERED):
        seen.see((float(number), ev.EpochBegun(number, number, 0, None, "main")))
    assert len(seen.traces._epochs) <= REMEMBERED


def test_without_an_sdk_there_is_no_observer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    assert new_traces("shop", "main", ALONE) is None
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", TracerProvider())
    assert new_traces("shop", "main", ALONE) is not None


def test_what_a_member_always_imports_needs_no_extra() -> None:
    """The packages of the extras cannot be imported here, and nothing misses them."""
    code = """
import sys
for name in ("opentelemetry", "prometheus_client", "starlette", "uvicorn"):
    sys.modules[name] = None
import cutwater
from cutwater.telemetry import checkpoint_sizes, health, measures, status_values, traces
from cutwater.protocol.base.records import Topology
assert traces.new_traces("shop", "main", Topology({})) is None
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_running_member_never_imports_what_needs_an_extra() -> None:
    """`runtime/` uses only those modules of `telemetry/`."""
    from tests.test_layers import GRAPH

    used = {
        name for module, names in GRAPH.items() if module.startswith("cutwater.runtime.") for name in names
    }
    found = {name for name in used if name.startswith("cutwater.telemetry.")}
    assert found == {f"cutwater.telemetry.{name}" for name in ("checkpoint_sizes", "measures", "traces")}
