"""An error names the stage whose code raised it."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from cutwater.spark.blame import CodePlace, blamed, place_of, raised_by


def clean() -> Callable[[int], float]:
    def divide(by: int) -> float:
        return 1 / by

    return divide


def total() -> Callable[[int], float]:
    return lambda by: 2 / by


CODE = {name: place for name, f in (("clean", clean), ("total", total)) if (place := place_of(f)) is not None}


def as_spark_says(raises: Callable[[int], float]) -> RuntimeError:
    try:
        raises(0)
    except ZeroDivisionError:
        return RuntimeError(f"Job aborted.\n{traceback.format_exc()}")
    raise AssertionError


def test_pythons_traceback_says_whose_function_it_was() -> None:
    assert raised_by(as_spark_says(clean()), CODE) == ("clean",)
    assert raised_by(as_spark_says(total()), CODE) == ("total",)
    assert raised_by(as_spark_says(lambda by: 3 / by), CODE) == ()


def test_sparks_own_message_names_a_line_too() -> None:
    place = CODE["clean"]
    error = RuntimeError(f'== DataFrame ==\n"cast" was called from\n{place.file}:{place.last}')
    assert raised_by(error, CODE) == ("clean",)
    assert raised_by(RuntimeError(f"{place.file}:{place.first - 1}"), CODE) == ()
    assert raised_by(RuntimeError(f"/another{place.file}:{place.last}"), CODE) == ()


@pytest.mark.parametrize(
    ("raises", "says"),
    [
        (clean(), "in stage 'clean', which is chained into it: why"),
        (total(), "why"),
        (lambda by: 3 / by, "why"),
    ],
)
def test_the_reason_names_a_stage_that_the_query_is_not_named_after(
    raises: Callable[[int], float], says: str
) -> None:
    assert blamed("total", "why", as_spark_says(raises), CODE) == says
    assert blamed("total", "why", None, CODE) == "why"


def test_a_function_that_is_not_written_in_python_has_no_place() -> None:
    assert place_of(len) is None
    assert place_of(clean) == CodePlace(__file__, CODE["clean"].first, CODE["clean"].last)


def test_stages_with_the_same_code_are_all_named() -> None:
    code = {"a": CODE["clean"], "b": CODE["clean"], "total": CODE["total"]}
    error = as_spark_says(clean())
    assert blamed("total", "why", error, code) == (
        "in stage 'a' or 'b', which have the same code and run in this query: why"
    )
    assert blamed("b", "why", error, code).startswith("in stage 'a' or 'b'")
