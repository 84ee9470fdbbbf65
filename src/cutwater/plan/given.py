"""Checks values that users give for options: Python takes anything for a truth value, and nan for a number."""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

from cutwater.protocol.base.durations import seconds
from cutwater.protocol.base.errors import UserError


def check_truth(value: Any, what: str) -> None:
    """Raises `UserError` unless this is `True` or `False`."""
    if not isinstance(value, bool):
        raise UserError(f"{what} is {value!r}; give True or False")


def check_duration(value: Any, what: str) -> None:
    """Raises `UserError` unless this is a duration."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not is_number and not isinstance(value, str):
        raise UserError(
            f"{what} is {value!r}, which is not a duration; write for example 500ms, 5s, 2m or 1h"
        )
    seconds(value, what)


def check_count(value: Any, what: str, least: int, more: str = "") -> None:
    """Raises `UserError` unless this is a whole number that is at least `least`. `more`: what may be given instead."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or value < least:
        kind = "" if is_whole else ", as a whole number"
        raise UserError(f"{what} is {value!r}; give {least} or more{kind}{more}")
