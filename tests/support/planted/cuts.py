"""Cuts, the quorum, and watermarks."""

from __future__ import annotations

from typing import Any

import msgspec

from cutwater.protocol.base import records as r
from cutwater.protocol.base import watermark
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.watermark import WatermarkKind
from cutwater.protocol.leader import (
    coordinator,
    cut,
    decision,
    quorum,
)
from cutwater.protocol.member import (
    capture,
    journal,
    next_query,
    own_failures,
    stage,
)
from cutwater.sim import spark
from tests.support.planted.registry import Patch, bug

# --- cuts and quorum -------------------------------------------------------------------------------------


@bug
def an_ack_is_matched_on_its_epoch_only(patch: Patch) -> None:
    def on_ack(self: Any, ack: Any, now_ms: int) -> Any:
        for flight in self.in_flight():
            if flight.epoch == ack.epoch and flight.quorum is not None:
                ack = msgspec.structs.replace(ack, checkpoint_id=flight.checkpoint_id, term=self.term)
        return real(self, ack, now_ms)

    real = coordinator.Coordinator.on_ack
    patch.setattr(coordinator.Coordinator, "on_ack", on_ack)


@bug
def a_quorum_is_reached_with_one_missing(patch: Patch) -> None:
    patch.setattr(
        quorum.Quorum,
        "reached",
        property(lambda self: len(self._missing) <= 1 and self.refused is None and len(self._acks) > 0),
    )
    real = quorum.Quorum.outcome
    patch.setattr(
        quorum.Quorum,
        "outcome",
        lambda self: (
            quorum.Reached(dict(sorted(self._acks.items())), watermark.NONE)
            if len(self._missing) <= 1 and self.refused is None
            else real(self)
        ),
    )


@bug
def a_member_acks_before_all_its_stages_are_cut_and_nobody_checks(patch: Patch) -> None:
    """A stage that is not cut yet is reported at its current position."""
    patch.setattr(decision, "check_cut", lambda *args: [])
    real = capture.Capture._capture_one

    def capture_one(self: Any, begun: Any) -> Any:
        member = self._member
        for name in member.topology.hosted(member.name):
            state = member.log(name).state
            if begun.epoch not in state.barriers and state.incarnation:
                state.barriers[begun.epoch] = r.BarrierAt(
                    state.incarnation,
                    begun.epoch,
                    begun.checkpoint_id,
                    begun.term,
                    state.last,
                    False,
                    consumed=state.consumed,
                    offsets=state.offsets,
                    watermark=state.watermark,
                )
        yield from real(self, begun)

    patch.setattr(capture.Capture, "_capture_one", capture_one)


@bug
def a_stopped_query_is_not_restarted(patch: Patch) -> None:
    real = stage.Stage.query_ended

    def query_ended(self: Any, end: Any, error: str) -> Any:
        return None if end is next_query.QueryEnd.STOPPED else real(self, end, error)

    patch.setattr(stage.Stage, "query_ended", query_ended)


@bug
def a_query_that_ends_at_rest_is_not_restarted_after_the_drain(patch: Patch) -> None:
    real = next_query.NextQuery.settle

    def settle(self: Any, draining: bool) -> None:
        self._has_query = True
        real(self, draining)

    patch.setattr(next_query.NextQuery, "settle", settle)


@bug
def a_member_gives_up_because_of_refusals_by_others(patch: Patch) -> None:
    def is_to_blame(self: Any, aborted: Any, ack: Any) -> bool:
        return FailureReason[aborted.reason.upper()].counts

    patch.setattr(own_failures.OwnFailures, "_is_to_blame", is_to_blame)


@bug
def an_idle_cut_is_placed_after_an_uncommitted_batch(patch: Patch) -> None:
    real = stage.Stage._barrier_entry

    def barrier_entry(self: Any, begun: Any, unaligned: bool) -> Any:
        entry = real(self, begun, unaligned)
        return entry if self.quiet else msgspec.structs.replace(entry, batch=entry.batch + 1)

    patch.setattr(stage.Stage, "_barrier_entry", barrier_entry)


@bug
def a_stage_does_not_wait_for_alignment(patch: Patch) -> None:
    """A stage cuts at the first barrier that it sees, and calls that aligned."""
    patch.setattr(decision, "check_cut", lambda *args: [])
    real = stage.Stage._try

    def try_(self: Any, begun: Any) -> Any:
        seen = [self.member.log(i).state.barriers.get(begun.epoch) for i in self.spec.inputs]
        return False if any(seen) else real(self, begun)

    patch.setattr(stage.Stage, "_try", try_)


@bug
def in_flight_batches_are_not_in_the_manifest(patch: Patch) -> None:
    real = cut.make_manifest
    patch.setattr(decision, "make_manifest", lambda *args: msgspec.structs.replace(real(*args), in_flight=()))


# --- watermarks ------------------------------------------------------------------------------------------


@bug
def no_watermark_yet_counts_as_infinity(patch: Patch) -> None:
    real = watermark.lowest
    patch.setattr(
        watermark,
        "lowest",
        lambda reports: real(w for w in reports if w.kind is not WatermarkKind.UNKNOWN),
    )


@bug
def a_stage_without_event_time_holds_back_the_watermark(patch: Patch) -> None:
    """Until its first batch it says "unknown", as one that has event time."""
    real = stage.Stage._watermark

    def watermark_of(self: Any, drains: bool) -> Any:
        return watermark.UNKNOWN if self.log.state.last < 0 and not self.idle else real(self, drains)

    patch.setattr(stage.Stage, "_watermark", watermark_of)


@bug
def a_source_that_never_had_a_row_holds_back_the_watermark(patch: Patch) -> None:
    real = stage.Stage._watermark

    def watermark_of(self: Any, drains: bool) -> Any:
        mark = real(self, drains)
        return watermark.UNKNOWN if mark == watermark.idle() else mark

    patch.setattr(stage.Stage, "_watermark", watermark_of)


@bug
def a_stage_that_was_idle_at_a_checkpoint_is_idle_after_its_restore(patch: Patch) -> None:
    real = stage.Stage._watermark

    def watermark_of(self: Any, drains: bool) -> Any:
        logged = self.log.state.watermark
        return logged if logged.kind is WatermarkKind.IDLE else real(self, drains)

    patch.setattr(stage.Stage, "_watermark", watermark_of)


@bug
def the_watermark_is_kept_across_a_restore(patch: Patch) -> None:
    real = journal._restore

    def restore(state: Any, body: Any, index: int) -> None:
        before = state.watermark
        real(state, body, index)
        state.watermark = before

    patch.setattr(journal, "_restore", restore)


@bug
def a_watermark_is_taken_above_a_fan_in(patch: Patch) -> None:
    real = spark.input_progress
    patch.setattr(spark, "input_progress", lambda model, taken: [max(real(model, taken))])
