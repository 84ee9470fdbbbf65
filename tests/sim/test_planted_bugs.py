"""Tests of the simulator itself: it must find each planted bug, or it is blind to it."""

from __future__ import annotations

import pytest

from cutwater.sim.world import World
from tests.support.planted import BUGS

SCHEDULES = 3_000
"""A planted bug must be found within this many schedules; most are found within the first hundred."""

FIRST = {
    "a_candidate_uses_a_stale_term": 53,
    "a_catalog_that_fails_counts_as_a_wrong_configuration": 275,
    "a_catch_up_moves_its_target_to_what_is_announced": 75,
    "a_command_restarts_a_drained_pipeline": 590,
    "a_command_validates_only_before_it_leads": 15,
    "a_given_up_stage_does_not_look_whether_it_was_taken_over": 50_000_782,
    "a_hole_in_what_a_catch_up_has_received_is_passed_over": 4,
    "a_late_replay_answer_is_accepted": 7,
    "a_live_entry_is_believed_because_it_was_announced": 13,
    "a_member_gives_up_because_of_refusals_by_others": 8,
    "a_member_with_the_old_graph_undoes_a_dropped_sink": 100_074_206,
    "a_process_that_was_starting_restarts_a_drained_pipeline": 100_013_250,
    "a_query_that_can_never_run_is_started_again": 3,
    "a_query_with_timers_keeps_its_pace_while_the_pipeline_drains": 16,
    "a_request_is_carried_out_as_often_as_it_is_received": 111,
    "a_request_is_delivered_in_one_term_only": 236,
    "a_request_is_removed_because_it_was_there_at_the_start": 11,
    "a_request_that_nobody_waits_for_is_carried_out": 9,
    "a_request_that_nobody_waits_for_stays_for_ever": 25,
    "a_restore_does_not_answer_the_requests_that_it_ends": 57,
    "a_restore_does_not_revive_a_given_up_stage": 115,
    "a_sent_entry_is_assumed_to_be_in_the_journal": 206,
    "a_sink_that_is_no_longer_final_keeps_what_it_held": 100,
    "a_source_that_came_to_rest_is_not_restarted": 10,
    "a_source_that_never_had_a_row_holds_back_the_watermark": 3,
    "a_stage_counts_as_quiet_while_a_batch_is_running": 4,
    "a_stage_is_dropped_without_being_named": 180,
    "a_stage_is_quiet_before_its_last_batch_is_logged": 1,
    "a_stage_opens_without_reading_the_journal_again": 200_002_056,
    "a_stage_that_was_idle_at_a_checkpoint_is_idle_after_its_restore": 2_012,
    "a_stage_with_another_input_keeps_its_state": 5,
    "a_stage_with_readers_is_dropped": 28,
    "a_woken_member_mistakes_its_pause_for_silence_of_the_leader": 4,
    "an_aborted_drain_is_not_retried": 7,
    "an_epoch_that_is_in_no_table_is_restored": 9,
    "changes_by_others_to_a_table_are_silently_undone": 11,
    "epochs_are_published_out_of_order": 0,
    "in_flight_rows_are_committed_without_being_made_durable": 131,
    "no_watermark_yet_counts_as_infinity": 5,
    "once_ends_before_the_sources_of_other_members_are_done": 1,
    "retention_ignores_unpublished_sinks": 6,
    "rows_in_flight_to_a_dropped_stage_are_lost": 13,
    "rule_1_an_errored_append_is_taken_as_failed": 9,
    "rule_1_an_existing_entry_is_taken_as_that_of_another": 9,
    "rule_2_a_reader_does_not_look_for_a_snapshot_after_reading": 206,
    "rule_2_a_writer_does_not_look_for_a_snapshot": 53,
    "rule_6_an_aborted_epoch_still_holds": 9,
    "rule_6_an_unknown_epoch_does_not_hold": 49,
    "rule_7_a_fenced_incarnation_keeps_writing": 24,
    "rule_7_a_new_incarnation_works_in_the_folder_of_its_predecessor": 0,
    "rule_8_a_table_is_not_read_before_publishing": 7,
    "rule_8_a_table_that_forgot_its_transactions_is_trusted": 53,
    "rule_8_a_zombie_trusts_a_table_that_forgot_its_transactions": 294,
    "rule_8_a_zombies_older_transaction_is_not_refused": 255,
    "staged_output_is_removed_before_a_checkpoint_publishes_it": 54,
    "the_name_of_a_savepoint_is_taken_away": 641,
    "the_target_of_a_restore_is_not_retained": 57,
    "the_watermark_is_kept_across_a_restore": 57,
    "what_was_in_flight_at_a_restore_expires_before_it_is_read": 100_061_859,
}
"""Schedules that find bugs that the first three do not, tried first to save minutes."""

RARE = frozenset({
    "a_command_restarts_a_drained_pipeline",
    "a_given_up_stage_does_not_look_whether_it_was_taken_over",
    "a_member_with_the_old_graph_undoes_a_dropped_sink",
    "a_process_that_was_starting_restarts_a_drained_pipeline",
    "a_sink_that_was_dropped_comes_back",
    "a_stage_is_dropped_without_being_named",
    "a_stage_that_was_idle_at_a_checkpoint_is_idle_after_its_restore",
    "rule_8_a_zombie_trusts_a_table_that_forgot_its_transactions",
    "rule_8_a_zombies_older_transaction_is_not_refused",
    "the_name_of_a_savepoint_is_taken_away",
    "what_was_in_flight_at_a_restore_expires_before_it_is_read",
})  # fmt: skip
"""Bugs that take hundreds of schedules to find, and minutes: `make test-planted` looks for them."""


def test_at_least_twenty_bugs_are_planted_and_every_rule_is_broken_by_one() -> None:
    assert len(BUGS) >= 20
    for rule in range(1, 9):
        assert any(name.startswith(f"rule_{rule}_") for name in BUGS), f"rule {rule} is never left out"


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.rare) if name in RARE else name for name in BUGS]
)
def test_the_simulator_finds(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    seeds = (FIRST.get(name, 0), *range(SCHEDULES))
    assert any(World(seed).run().violation for seed in seeds), f"{name} was not found"
