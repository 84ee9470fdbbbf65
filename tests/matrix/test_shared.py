"""Tests of the default Spark version that every other one has to pass as well."""

from __future__ import annotations

from tests.spark.internals.test_borders import (
    test_a_border_declares_what_a_channel_declares,
    test_a_readers_code_sees_only_rows_that_the_stage_before_it_gives,
    test_a_watermark_would_also_act_on_the_reader,
    test_operators_that_keep_state_are_known,
)
from tests.spark.internals.test_java import (
    test_a_class_is_found_where_it_was_before_it_moved,
    test_this_build_is_checked_once_per_jvm_with_few_calls,
    test_what_a_build_lacks_is_reported_in_one_line,
)
from tests.spark.test_chained import (
    test_a_chain_is_split_and_merged_without_losing_or_repeating_a_row,
    test_two_chained_sources_keep_their_own_positions_when_they_are_split_and_merged,
)
from tests.spark.test_channel_source import (
    test_a_missing_file_is_an_error_and_is_not_skipped,
    test_a_store_may_have_special_characters_in_its_path,
    test_every_incarnation_begins_with_a_batch_so_that_closed_windows_are_emitted,
)
from tests.spark.test_channels import (
    test_a_fan_out_a_self_join_and_a_native_source_beside_a_channel,
    test_channels_carry_every_supported_type_unchanged,
    test_channels_carry_types_that_python_cannot_represent,
)
from tests.spark.test_lag import (
    test_a_file_source_with_a_limit_reports_how_many_files_and_bytes_wait,
    test_sparks_own_rate_source_falls_behind_during_a_slow_batch,
)
from tests.spark.test_news import (
    test_a_window_that_the_last_rows_close_is_emitted_without_a_wait,
    test_sparks_query_sleeps_is_woken_rests_and_stops,
)
from tests.spark.test_resets import test_a_reset_stage_loses_its_state_and_keeps_its_positions
from tests.spark.test_session import (
    test_a_run_uses_the_users_session_and_does_not_change_it,
    user,
)

__all__ = [
    "test_a_border_declares_what_a_channel_declares",
    "test_a_chain_is_split_and_merged_without_losing_or_repeating_a_row",
    "test_a_class_is_found_where_it_was_before_it_moved",
    "test_a_fan_out_a_self_join_and_a_native_source_beside_a_channel",
    "test_a_file_source_with_a_limit_reports_how_many_files_and_bytes_wait",
    "test_a_missing_file_is_an_error_and_is_not_skipped",
    "test_a_readers_code_sees_only_rows_that_the_stage_before_it_gives",
    "test_a_reset_stage_loses_its_state_and_keeps_its_positions",
    "test_a_run_uses_the_users_session_and_does_not_change_it",
    "test_a_store_may_have_special_characters_in_its_path",
    "test_a_watermark_would_also_act_on_the_reader",
    "test_a_window_that_the_last_rows_close_is_emitted_without_a_wait",
    "test_channels_carry_every_supported_type_unchanged",
    "test_channels_carry_types_that_python_cannot_represent",
    "test_every_incarnation_begins_with_a_batch_so_that_closed_windows_are_emitted",
    "test_operators_that_keep_state_are_known",
    "test_sparks_own_rate_source_falls_behind_during_a_slow_batch",
    "test_sparks_query_sleeps_is_woken_rests_and_stops",
    "test_this_build_is_checked_once_per_jvm_with_few_calls",
    "test_two_chained_sources_keep_their_own_positions_when_they_are_split_and_merged",
    "test_what_a_build_lacks_is_reported_in_one_line",
    "user",
]
