"""OpenTelemetry traces (extra `cutwater[otel]`): a span per epoch with one per stage and sink, and a span per recovery.

Only the API of OpenTelemetry is used. What is recorded, and where it goes, is up to the SDK that the application has
set up; without one there is no observer, so traces cost nothing. With several members the spans of an epoch are in one
trace, whose id follows from the checkpoint: every member adds its own stages and sinks, the leader the epoch.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from cutwater.protocol.base import events as ev
from cutwater.protocol.base.records import Topology

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span, Tracer

REMEMBERED = 100
"""How many epochs back spans can still get children."""

Attributes = Mapping[str, str | int | bool | float]


def new_traces(pipeline: str, member: str, topology: Topology) -> Traces | None:
    """The observer that makes spans; `None` if nobody would record them."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    if isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return Traces(trace.get_tracer("cutwater"), pipeline, member, topology)


@dataclass
class _Epoch:
    """An epoch whose spans are being made. `span` is `None` on members that do not lead."""

    begun_s: float
    context: Context | None
    span: Span | None
    barriers_s: dict[str, float] = field(default_factory=dict)
    decided_s: float | None = None


@dataclass
class _Recovery:
    """A start or a restore in progress: the stages that have yet to start, and since when."""

    begun_s: float
    span: Span
    waiting: set[str]


class Traces:
    """Observes the events of one member. The times of spans are those of the events."""

    def __init__(self, tracer: Tracer, pipeline: str, member: str, topology: Topology) -> None:
        self._tracer = tracer
        self._common = {"cutwater.pipeline": pipeline, "cutwater.member": member}
        self._pipeline = pipeline
        self._member = member
        self._stages = topology.hosted(member)
        self._is_alone = len(topology.members()) == 1
        self._epochs: dict[int, _Epoch] = {}
        self._failed_s: dict[str, float] = {}
        self._recovery: _Recovery | None = None
        self._recover("start", time.monotonic(), {})

    def __call__(self, at_s: float, event: ev.Event) -> None:
        match event:
            case ev.EpochBegun():
                self._begin(event, at_s)
            case ev.AlignmentBegun():
                if (epoch := self._epochs.get(event.epoch)) is not None:
                    epoch.barriers_s.setdefault(event.stage, at_s)
            case ev.StageCut():
                self._cut(event, at_s)
            case ev.EpochCommitted():
                self._decide(event.epoch, at_s)
            case ev.EpochAborted():
                self._decide(event.epoch, at_s, f"{event.reason}: {event.detail}".removesuffix(": "))
            case ev.TablePublished():
                self._published(event, at_s)
            case ev.CaughtUp():
                if self._recovery is not None:
                    self._child("catch up", self._recovery.begun_s, at_s, self._recovery.span)
            case ev.PipelineRestored():
                what = {"cutwater.epoch": event.epoch, "cutwater.generation": event.generation}
                self._recover("restore", at_s, what)
            case ev.StageFailed():
                self._failed_s.setdefault(event.stage, at_s)
            case ev.StageStarted():
                self._started(event, at_s)
            case ev.StageGivenUp():
                self._give_up(event, at_s)
            case ev.LeaderChanged() | ev.LeadershipLost() | ev.CatchingUp() | ev.BatchLogged():
                pass
            case ev.EpochCaptured() | ev.TableRewound() | ev.SinkNotRewound():
                pass
            case ev.ManifestWritten() | ev.ManifestUnreadable() | ev.RequestsRefused():
                pass
            case ev.OperationFailed() | ev.ObjectRejected() | ev.RequestForsaken() | ev.SecondProcess():
                pass
            case _:
                assert_never(event)

    # --- epochs ---------------------------------------------------------------------------------------

    def _begin(self, event: ev.EpochBegun, at_s: float) -> None:
        parent = None if self._is_alone else self._shared_context(event)
        span = None
        if self._is_alone or event.leader == self._member:
            what: dict[str, str | int] = {
                "cutwater.epoch": event.epoch,
                "cutwater.checkpoint_id": event.checkpoint_id,
                "cutwater.flags": event.flags,
            }
            if event.savepoint is not None:
                what["cutwater.savepoint"] = event.savepoint
            span = self._new_span("epoch", at_s, parent, what)
        self._epochs[event.epoch] = _Epoch(at_s, _within(span) if span is not None else parent, span)
        for old in [epoch for epoch in self._epochs if epoch <= event.epoch - REMEMBERED]:
            self._end(self._epochs.pop(old), at_s, "forgotten")

    def _shared_context(self, event: ev.EpochBegun) -> Context:
        """A context that all members derive in the same way, so that their spans are in one trace."""
        from opentelemetry import trace

        name = f"{self._pipeline}/{event.checkpoint_id}/{event.epoch}/{event.leader}"
        digest = hashlib.sha256(name.encode()).digest()
        span_context = trace.SpanContext(
            int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big"), is_remote=True,
            trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
        )  # fmt: skip
        return _within(trace.NonRecordingSpan(span_context))

    def _cut(self, event: ev.StageCut, at_s: float) -> None:
        epoch = self._epochs.get(event.epoch)
        if epoch is None:
            return
        barrier_s = epoch.barriers_s.get(event.stage, epoch.begun_s)
        what: Attributes = {
            "cutwater.epoch": event.epoch,
            "cutwater.stage": event.stage,
            "cutwater.batch": event.batch,
            "cutwater.unaligned": event.unaligned,
            "cutwater.start_delay_seconds": round(barrier_s - epoch.begun_s, 6),
        }
        self._new_span(f"stage {event.stage}", barrier_s, epoch.context, what).end(_wall_ns(at_s))

    def _decide(self, number: int, at_s: float, why: str | None = None) -> None:
        epoch = self._epochs.get(number)
        if epoch is not None:
            epoch.decided_s = at_s
            self._end(epoch, at_s, why)
            if why is not None:
                del self._epochs[number]

    def _end(self, epoch: _Epoch, at_s: float, why: str | None) -> None:
        if epoch.span is not None:
            if why is not None:
                _fail(epoch.span, why)
            epoch.span.end(_wall_ns(at_s))
            epoch.span = None

    def _published(self, event: ev.TablePublished, at_s: float) -> None:
        epoch = self._epochs.get(event.epoch)
        if epoch is None or epoch.decided_s is None:
            return
        what: Attributes = {
            "cutwater.epoch": event.epoch,
            "cutwater.sink": event.sink,
            "cutwater.version": event.version,
        }
        self._new_span(f"publish {event.sink}", epoch.decided_s, epoch.context, what).end(_wall_ns(at_s))

    # --- recoveries -----------------------------------------------------------------------------------

    def _recover(self, why: str, at_s: float, what: Attributes) -> None:
        if self._recovery is not None:
            _fail(self._recovery.span, f"{why} before all stages were started")
            self._recovery.span.end(_wall_ns(at_s))
        self._failed_s.clear()
        span = self._new_span("recovery", at_s, None, {"cutwater.cause": why, **what})
        self._recovery = _Recovery(at_s, span, set(self._stages))

    def _started(self, event: ev.StageStarted, at_s: float) -> None:
        name = f"start {event.stage}"
        what: Attributes = {
            "cutwater.stage": event.stage,
            "cutwater.generation": event.generation,
            "cutwater.incarnation": event.incarnation,
        }
        if self._recovery is not None and event.stage in self._recovery.waiting:
            self._child(name, self._recovery.begun_s, at_s, self._recovery.span, what)
            self._recovery.waiting.discard(event.stage)
            if not self._recovery.waiting:
                self._recovery.span.end(_wall_ns(at_s))
                self._recovery = None
        failed_s = self._failed_s.pop(event.stage, None)
        if failed_s is not None:
            self._new_span("recovery", failed_s, None, {"cutwater.cause": "query ended", **what}).end(
                _wall_ns(at_s)
            )

    def _give_up(self, event: ev.StageGivenUp, at_s: float) -> None:
        begun_s = self._failed_s.pop(event.stage, at_s)
        what = {"cutwater.cause": "query ended", "cutwater.stage": event.stage}
        span = self._new_span("recovery", begun_s, None, what)
        _fail(span, f"given up after {event.tries} attempts: {event.error}")
        span.end(_wall_ns(at_s))

    # --- spans ----------------------------------------------------------------------------------------

    def _child(
        self, name: str, begun_s: float, at_s: float, parent: Span, what: Attributes | None = None
    ) -> None:
        self._new_span(name, begun_s, _within(parent), what or {}).end(_wall_ns(at_s))

    def _new_span(self, name: str, begun_s: float, context: Context | None, what: Attributes) -> Span:
        from opentelemetry.context import Context

        return self._tracer.start_span(
            name, context if context is not None else Context(), attributes={**self._common, **what},
            start_time=_wall_ns(begun_s),
        )  # fmt: skip


def _within(span: Span) -> Context:
    from opentelemetry import trace
    from opentelemetry.context import Context

    return trace.set_span_in_context(span, Context())


def _fail(span: Span, why: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR, why)


def _wall_ns(at_s: float) -> int:
    """A moment of the monotonic clock in wall-clock time."""
    return time.time_ns() - int((time.monotonic() - at_s) * 1e9)
