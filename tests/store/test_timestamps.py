"""Every number is a moment, however far away."""

from __future__ import annotations

import pytest

from cutwater.documents.timestamps import iso, iso_ms
from cutwater.store.timestamps import moment


@pytest.mark.parametrize("at_s", [253_402_300_800.0, 1.7e12, 1e300, 9.2e18])
def test_moments_after_the_year_9999_are_its_end(at_s: float) -> None:
    assert iso(at_s) == "9999-12-31T23:59:59.000+00:00"
    assert f"{moment(at_s):%Y-%m-%d}" == "9999-12-31"


@pytest.mark.parametrize("at_s", [-62_135_596_801.0, -1e300])
def test_moments_before_the_year_1_are_its_beginning(at_s: float) -> None:
    assert iso(at_s) == "0001-01-01T00:00:00.000+00:00"


def test_other_moments_are_themselves() -> None:
    assert iso_ms(1_700_000_000_123) == "2023-11-14T22:13:20.123+00:00"
    assert iso(None) is None
    assert iso_ms(None) is None
