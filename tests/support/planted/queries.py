"""Facts about queries, and what follows from them."""

from __future__ import annotations

from typing import Any

from cutwater.protocol.leader import sources as leader_sources
from cutwater.protocol.member import (
    activity,
    ending,
    member,
    next_query,
    staged,
)
from tests.support.planted.registry import Patch, bug


@bug
def a_stage_counts_as_quiet_while_a_batch_is_running(patch: Patch) -> None:
    """What Spark found before the batch began is taken as if it had been found afterwards."""

    def batch_began(self: Any, batch: int, now_ms: int) -> None:
        self._begun, self._active_ms, self.idle = batch, now_ms, False

    patch.setattr(activity.Activity, "batch_began", batch_began)
    patch.setattr(activity.Activity, "is_busy", lambda self, last: False)


@bug
def a_stage_counts_as_idle_while_a_batch_is_running(patch: Patch) -> None:
    real = activity.Activity.batch_began

    def batch_began(self: Any, batch: int, now_ms: int) -> None:
        idle = self.idle
        real(self, batch, now_ms)
        self.idle = idle

    patch.setattr(activity.Activity, "batch_began", batch_began)


@bug
def a_stage_is_quiet_before_its_last_batch_is_logged(patch: Patch) -> None:
    real = activity.Activity.settle

    def settle(self: Any, inputs_done: bool, last: int, now_ms: int) -> None:
        real(self, inputs_done, 10**9, now_ms)

    patch.setattr(activity.Activity, "settle", settle)


@bug
def a_source_that_came_to_rest_is_not_restarted(patch: Patch) -> None:
    """A drain was aborted, and the query that took everything for it has ended."""
    real = next_query.NextQuery.settle

    def settle(self: Any, draining: bool) -> None:
        if draining or not self._activity.took_all:
            real(self, draining)

    patch.setattr(next_query.NextQuery, "settle", settle)


@bug
def a_drain_waits_for_a_source_that_never_becomes_idle(patch: Patch) -> None:
    patch.setattr(next_query.NextQuery, "_may_take_all", lambda self: False)


@bug
def staged_output_is_removed_before_a_checkpoint_publishes_it(patch: Patch) -> None:
    """It belongs to a batch before the newest cut, but its sink is late, or holds it back."""

    def contains(self: Any, attempt: str) -> bool:
        generation, _, batch, _ = attempt.split("-")
        return (int(generation), int(batch)) > (self._generation, self._cut)

    patch.setattr(staged.Needed, "__contains__", contains)


@bug
def a_given_up_stage_does_not_look_whether_it_was_taken_over(patch: Patch) -> None:
    """Its query failed because of that, and its process, which could start again, refuses checkpoints forever."""
    patch.setattr(next_query.NextQuery, "is_given_up", property(lambda self: False))


@bug
def once_ends_before_the_sources_of_other_members_are_done(patch: Patch) -> None:
    patch.setattr(leader_sources.Sources, "all_done", lambda self, members, generation, now_ms: True)


@bug
def a_run_ends_before_the_sinks_of_other_members_have_published(patch: Patch) -> None:
    real = ending.Ending.unpublished
    patch.setattr(ending.Ending, "unpublished", lambda self: real(self) & self._own)


@bug
def a_run_does_not_end_although_the_sinks_of_others_have_published(patch: Patch) -> None:
    def run(self: Any) -> Any:
        return
        yield

    patch.setattr(ending.Ending, "run", run)


@bug
def a_query_with_timers_keeps_its_pace_while_the_pipeline_drains(patch: Patch) -> None:
    patch.setattr(next_query.NextQuery, "_must_stop_ticking", lambda self: False)


# --- the configuration ------------------------------------------------------------------------------------


@bug
def a_query_that_can_never_run_is_started_again(patch: Patch) -> None:
    real = member.Member.query_ended

    def query_ended(self: Any, name: str, end: Any, error: str) -> Any:
        wrong = end in (next_query.QueryEnd.REFUSED, next_query.QueryEnd.UNFIT)
        return real(self, name, next_query.QueryEnd.FAILED if wrong else end, error)

    patch.setattr(member.Member, "query_ended", query_ended)


@bug
def a_catalog_that_fails_counts_as_a_wrong_configuration(patch: Patch) -> None:
    """The query has worked in this run, so it will work again."""
    real = member.Member.query_ended

    def query_ended(self: Any, name: str, end: Any, error: str) -> Any:
        refused = end is next_query.QueryEnd.REFUSED
        return real(self, name, next_query.QueryEnd.UNFIT if refused else end, error)

    patch.setattr(member.Member, "query_ended", query_ended)
