"""The pipeline-wide watermark."""

from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base.watermark import (
    NONE,
    UNKNOWN,
    Watermark,
    WatermarkKind,
    advance,
    idle,
    known,
    lowest,
)
from tests.support.examples import examples

TIMES = st.integers(-(10**12), 10**13)
REPORTS = st.one_of(TIMES.map(known), TIMES.map(idle), st.just(idle()), st.just(UNKNOWN), st.just(NONE))
LISTS = st.lists(REPORTS, max_size=6)


def test_the_pipeline_has_the_lowest_known_watermark() -> None:
    assert lowest([known(30), known(10), known(20)]) == known(10)


def test_idle_and_none_do_not_hold_back_the_watermark() -> None:
    assert lowest([idle(1), NONE, known(10)]) == known(10)


def test_only_idle_is_idle_and_nothing_at_all_is_none() -> None:
    assert lowest([NONE, idle(5), idle(3), idle()]) == idle(3)
    assert lowest([NONE, NONE]) == NONE
    assert lowest([]) == NONE


def test_seed_a15_no_watermark_yet_is_not_infinity() -> None:
    assert lowest([known(10), UNKNOWN]) == UNKNOWN
    assert advance(None, [known(10), UNKNOWN]) is None
    assert advance(7, [known(10), UNKNOWN]) == 7


def test_seed_a15_a_watermark_read_back_after_a_restart_is_kept() -> None:
    before = advance(None, [known(50)])
    assert advance(before, [UNKNOWN, UNKNOWN]) == 50
    assert advance(before, [known(20)]) == 50


def test_a_stage_that_wakes_up_late_stops_the_watermark_but_does_not_move_it_back() -> None:
    at = advance(None, [known(100), idle(5)])
    assert at == 100
    assert advance(at, [known(200), known(6)]) == 100


def test_when_all_are_idle_the_watermark_moves_to_the_lowest_of_them() -> None:
    """As in a drain: what the lowest has closed is closed everywhere."""
    assert advance(9, [idle(100), idle(20), NONE]) == 20
    assert advance(30, [idle(100), idle(20)]) == 30
    assert advance(9, [idle()]) == 9
    assert advance(None, [NONE]) is None


def test_a_known_watermark_takes_precedence_over_idle_ones() -> None:
    assert advance(9, [idle(10), known(50)]) == 50


def test_times_before_1970_are_ordinary_times() -> None:
    assert lowest([known(-5), known(0)]) == known(-5)
    assert advance(-9, [known(-5)]) == -5


@examples(100)
@given(LISTS, LISTS)
def test_members_may_fold_their_stages_first(left: list[Watermark], right: list[Watermark]) -> None:
    assert lowest([lowest(left), lowest(right)]) == lowest(left + right)


@examples(100)
@given(LISTS)
def test_order_does_not_matter(reports: list[Watermark]) -> None:
    assert lowest(reports) == lowest(reversed(reports))


@examples(100)
@given(st.none() | TIMES, LISTS)
def test_it_never_moves_back_or_past_a_known_report(current: int | None, reports: list[Watermark]) -> None:
    after = advance(current, reports)
    if current is not None:
        assert after is not None
        assert after >= current
    if after != current:
        assert after is not None
        assert all(r.ms is not None and after <= r.ms for r in reports if r.kind is WatermarkKind.KNOWN)
        assert UNKNOWN not in reports
