"""Tests of the default Spark version that every other one has to pass as well."""

from __future__ import annotations

from tests.spark.internals.test_java import (
    test_a_class_is_found_where_it_was_before_it_moved,
    test_this_build_is_checked_once_per_jvm_with_few_calls,
    test_what_a_build_lacks_is_said_in_one_line,
)
from tests.spark.test_channel_source import (
    test_a_file_that_is_gone_is_an_error_and_not_passed_over,
    test_a_store_may_have_any_name,
    test_every_incarnation_begins_with_a_batch_so_that_closed_windows_are_emitted,
    test_every_type_that_can_pass_passes_unchanged,
    test_fan_out_self_join_and_a_native_source_beside_a_channel,
    test_types_that_python_has_no_rows_for_pass_as_well,
)
from tests.spark.test_resets import test_a_stage_with_state_is_reset_behind_what_it_has_read
from tests.spark.test_session import (
    test_a_run_leaves_the_users_session_as_it_was_and_uses_what_is_in_it,
    user,
)

__all__ = [
    "test_a_class_is_found_where_it_was_before_it_moved",
    "test_a_file_that_is_gone_is_an_error_and_not_passed_over",
    "test_a_run_leaves_the_users_session_as_it_was_and_uses_what_is_in_it",
    "test_a_stage_with_state_is_reset_behind_what_it_has_read",
    "test_a_store_may_have_any_name",
    "test_every_incarnation_begins_with_a_batch_so_that_closed_windows_are_emitted",
    "test_every_type_that_can_pass_passes_unchanged",
    "test_fan_out_self_join_and_a_native_source_beside_a_channel",
    "test_this_build_is_checked_once_per_jvm_with_few_calls",
    "test_types_that_python_has_no_rows_for_pass_as_well",
    "test_what_a_build_lacks_is_said_in_one_line",
    "user",
]
