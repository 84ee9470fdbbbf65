"""When a stage is idle and when it is quiet, derived from what its query does."""

from __future__ import annotations

import pytest

from cutwater.protocol.base.errors import IllegalStep
from cutwater.protocol.member.activity import REST, Activity, RestPhase


def settling(last: int = 3) -> Activity:
    """A query whose inputs are done; batch `last` is the last in the log."""
    query = Activity()
    query.started(0)
    query.batch_began(last, 5)
    query.settle(True, last, 10)
    assert query.rest is RestPhase.SETTLING
    return query


def phase(query: Activity) -> RestPhase:
    return query.rest


def test_a_query_settles_only_when_its_inputs_are_done() -> None:
    query = Activity()
    query.settle(False, 3, 10)
    assert (query.rest, query.asks_for_rest) == (RestPhase.GOING, False)
    query.settle(True, 3, 20)
    assert (query.rest, query.asks_for_rest, query.settling_ms) == (RestPhase.SETTLING, True, 20)


def test_a_query_is_quiet_when_spark_finds_nothing_and_all_its_batches_are_logged() -> None:
    query = settling(last=3)
    query.found_nothing(4)
    assert not query.asks_for_rest
    query.settle(True, 3, 20)
    assert phase(query) is RestPhase.SETTLING, "batch 4 is not logged"
    query.settle(True, 4, 30)
    assert phase(query) is RestPhase.QUIET


def test_what_spark_found_before_a_batch_began_does_not_count() -> None:
    query = settling(last=3)
    query.batch_began(4, 20)
    query.found_nothing(3)
    query.settle(True, 4, 30)
    assert (query.rest, query.asks_for_rest) == (RestPhase.SETTLING, True)


def test_a_new_batch_ends_the_quiet_phase() -> None:
    query = settling(last=3)
    query.found_nothing(3)
    query.settle(True, 3, 20)
    assert query.rest is RestPhase.QUIET
    query.batch_began(4, 30)
    assert (query.rest, query.asks_for_rest) == (RestPhase.SETTLING, True)
    assert (query.is_busy(3), query.is_busy(4)) == (True, False)


def test_new_input_or_the_end_of_the_drain_ends_the_quiet_phase() -> None:
    for end in (lambda q: q.settle(False, 3, 30), Activity.drain_over, Activity.lost_query):
        query = settling(last=3)
        query.found_nothing(3)
        query.settle(True, 3, 20)
        end(query)
        assert phase(query) is RestPhase.GOING
        query.settle(True, 3, 40)
        assert phase(query) is RestPhase.SETTLING, "Spark is asked again"


def test_a_query_that_read_everything_is_quiet_as_soon_as_its_last_batch_is_logged() -> None:
    query = Activity()
    query.has_taken_all(5)
    query.settle(True, 4, 10)
    assert (query.rest, query.asks_for_rest) == (RestPhase.SETTLING, False)
    query.settle(False, 4, 20)
    query.settle(True, 5, 30)
    assert query.rest is RestPhase.QUIET
    query.batch_logged(40)
    assert query.idle


@pytest.mark.parametrize(("now_ms", "last", "silent"), [(105, 3, False), (106, 3, True), (999, 2, False)])
def test_a_query_is_silent_some_time_after_its_last_batch_was_logged(
    now_ms: int, last: int, silent: bool
) -> None:
    query = Activity()
    query.batch_began(3, 2)
    query.batch_logged(5)
    assert query.is_silent(last, now_ms, 100) is silent


def test_a_batch_that_begins_or_is_logged_ends_the_silence() -> None:
    query = Activity()
    query.idle = True
    query.batch_began(1, 5)
    assert not query.idle
    query.idle = True
    query.batch_logged(9)
    assert not query.idle


def test_an_illegal_step_changes_nothing() -> None:
    with pytest.raises(IllegalStep, match="rest: no step 'nothing_to_do' from phase 'going'"):
        REST.next(RestPhase.GOING, "nothing_to_do")


def test_it_is_known_how_long_the_batch_in_progress_has_been_running() -> None:
    query = Activity()
    query.started(0)
    assert query.busy_ms(-1, 7) is None
    query.batch_began(0, 10)
    assert query.busy_ms(-1, 50) == 40
    query.batch_logged(60)
    assert query.busy_ms(0, 70) is None
