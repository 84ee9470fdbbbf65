"""Misspelt options."""

from __future__ import annotations

import pytest

from cutwater.protocol.base.errors import Mistakes, UserError, mistakes_in, refuse
from cutwater.protocol.base.options import named_options, refuse_unknown


@named_options
def sink(path: str, *, partition_by: str = "", final_by: str = "") -> str:
    """Makes a sink."""
    local = path + partition_by
    return local + final_by


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("partitionBy", r"sink\(\) has no option 'partitionBy'; did you mean 'partition_by'\?"),
        ("final", "did you mean 'final_by'"),
        ("local", "it has path, partition_by, final_by$"),
    ],
)
def test_a_misspelled_option_is_named_with_the_nearest_one(given: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        sink("x", **{given: "y"})


def test_a_call_with_known_options_is_as_before() -> None:
    assert sink("a", partition_by="b", final_by="c") == "abc"
    assert sink.__doc__ == "Makes a sink."
    refuse_unknown("RunConfig", ["every"], ["every", "once"])


def test_all_mistakes_are_reported_at_once_and_a_single_one_unchanged() -> None:
    refuse([])
    with pytest.raises(UserError, match=r"^one$") as one:
        refuse(["one"])
    assert mistakes_in(one.value) == ("one",)
    with pytest.raises(Mistakes, match=r"^2 mistakes:\n- one\n- two$") as two:
        refuse(["one", "two"])
    assert mistakes_in(two.value) == ("one", "two")
