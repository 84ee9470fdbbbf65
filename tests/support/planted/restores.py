"""Drains, restores and changes of the graph."""

from __future__ import annotations

from typing import Any

import msgspec

from cutwater.protocol.base import records as r
from cutwater.protocol.base.effects import Procedure
from cutwater.protocol.leader import (
    coordinator,
    steering,
)
from cutwater.protocol.member import (
    member,
    stage,
    stage_start,
)
from cutwater.protocol.member.publish import duties
from cutwater.protocol.member.stage import StagePhase
from cutwater.sim import world
from tests.support.planted.registry import Patch, bug, changed


@bug
def a_drain_stops_before_its_commit(patch: Patch) -> None:
    real = stage.Stage._settle_drain

    def settle_drain(self: Any) -> None:
        real(self)
        if self.phase is StagePhase.RESTING:
            self._step("drain_committed")

    patch.setattr(stage.Stage, "_settle_drain", settle_drain)


@bug
def an_aborted_drain_is_not_retried(patch: Patch) -> None:
    real = coordinator.Coordinator._failed

    def failed(self: Any, flight: Any, *why: Any) -> Any:
        actions = real(self, flight, *why)
        self._queue = [one for one in self._queue if not one.flags & 2]
        return actions

    patch.setattr(coordinator.Coordinator, "_failed", failed)
    patch.setattr(coordinator.Coordinator, "stays_asked", lambda self, epoch, reason: False)


@bug
def the_drain_that_a_process_wants_is_not_requested(patch: Patch) -> None:
    patch.setattr(coordinator.Coordinator, "want_drain", lambda self, now_ms: [])


@bug
def a_drained_stage_reads_new_input(patch: Patch) -> None:
    """It does not rest after its barrier, and cuts although it has more to do."""
    real = stage.Stage._try

    def try_(self: Any, begun: Any) -> Any:
        return real(self, msgspec.structs.replace(begun, flags=8 if begun.flags & 2 else begun.flags))

    patch.setattr(stage.Stage, "_try", try_)


@bug
def a_restore_does_not_end_the_old_generation(patch: Patch) -> None:
    real = member.Member._start_generation

    def start_generation(self: Any) -> Any:
        if self.generation == 0:
            yield from real(self)

    patch.setattr(member.Member, "_start_generation", start_generation)


@bug
def a_restore_does_not_revive_a_given_up_stage(patch: Patch) -> None:
    real = member.Member._start_generation

    def start_generation(self: Any) -> Any:
        failed = dict(self.failures)
        yield from real(self)
        self.failures = failed

    patch.setattr(member.Member, "_start_generation", start_generation)


@bug
def a_restore_starts_from_the_live_folder(patch: Patch) -> None:
    """The new generation takes over the state of the abandoned one."""
    real = world.World.state_of_report

    def state_of_report(self: Any, name: str, generation: int, incarnation: int, report: Any) -> Any:
        newest = [k for k in self.folders if k[0] == name and k[1] < self.oracle.ledger.generation]
        if report is None or not newest:
            return real(self, name, generation, incarnation, report)
        key = max(newest)
        return self.state_at(*key, self.folders[key].last)

    patch.setattr(world.World, "state_of_report", state_of_report)


@bug
def a_reset_stage_restarts_its_batch_numbers(patch: Patch) -> None:
    """Its readers have positions in its earlier output, and would wait forever, or continue in the middle."""
    real = stage_start.starting_report

    def starting_report(*args: Any) -> Any:
        report, reset = yield from real(*args)
        return changed(report, batch=-1) if reset else report, reset

    patch.setattr(stage_start, "starting_report", starting_report)


@bug
def a_reset_stage_reads_its_source_from_the_start(patch: Patch) -> None:
    """Its tables, and its readers, have those rows already."""
    real = stage_start.starting_report

    def starting_report(*args: Any) -> Any:
        report, reset = yield from real(*args)
        return changed(report, offsets={}) if reset else report, reset

    patch.setattr(stage_start, "starting_report", starting_report)


@bug
def a_sink_that_was_dropped_comes_back(patch: Patch) -> None:
    """Its table lacks the rows in between."""

    def check(*args: Any) -> Any:
        return
        yield

    patch.setattr(steering, "check_returning_sinks", check)


@bug
def a_member_with_the_old_graph_undoes_a_dropped_sink(patch: Patch) -> None:
    patch.setattr(member.Member, "_duties", lambda self, sink, done: duties(self.journal.state, done))


@bug
def a_process_that_was_starting_restarts_a_drained_pipeline(patch: Patch) -> None:
    patch.setattr(member.Member, "_was_drained", lambda self: self.journal.state.drained)


@bug
def a_stage_opens_without_reading_the_journal_again(patch: Patch) -> None:
    def nothing(member: stage_start.Opener) -> Procedure[None]:
        return
        yield

    patch.setattr(stage_start, "learn_fates", nothing)


@bug
def a_stage_with_readers_is_dropped(patch: Patch) -> None:
    patch.setattr(r.Topology, "dangling", lambda self: {})


@bug
def a_reset_stage_skips_the_rows_in_flight_to_it(patch: Patch) -> None:
    real = stage_start.starting_report

    def starting_report(member: Any, spec: Any, generation: int) -> Any:
        report, reset = yield from real(member, spec, generation)
        manifest = yield from member.head_manifest()
        if reset and report is not None and manifest is not None:
            cuts = {s: manifest.stages[s].batch for s in spec.inputs if s in manifest.stages}
            report = changed(report, consumed={**report.consumed, **cuts})
        return report, reset

    patch.setattr(stage_start, "starting_report", starting_report)


@bug
def rows_in_flight_to_a_dropped_stage_are_lost(patch: Patch) -> None:
    patch.setattr(steering, "check_in_flight", lambda state, request, graph, manifest: None)


@bug
def a_stage_with_another_input_keeps_its_state(patch: Patch) -> None:
    patch.setattr(steering, "check_inputs", lambda request, graph, manifest: None)
