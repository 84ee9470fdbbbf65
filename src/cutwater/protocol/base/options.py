"""Misspelled options: the error suggests the one that was probably meant."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from cutwater.protocol.base.errors import UserError

F = TypeVar("F", bound=Callable[..., Any])


def refuse_unknown(what: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises `UserError` if `what` was given an option that it does not know."""
    options = list(known)
    for name in given:
        if name not in options:
            raise UserError(f"{what} has no option '{name}'; {_advice(name, options)}")


def named_options(function: F) -> F:
    """Makes a call with an unknown keyword argument raise `UserError`, as `refuse_unknown` does."""
    code = function.__code__
    known = [n for n in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if n != "self"]

    @wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        refuse_unknown(f"{function.__name__}()", options, known)
        return function(*args, **options)

    return call  # type: ignore[return-value]


def _advice(name: str, known: list[str]) -> str:
    plain = {option.replace("_", ""): option for option in known}
    near = get_close_matches(name.lower().replace("_", ""), plain, n=1)
    return f"did you mean '{plain[near[0]]}'?" if near else f"it has {', '.join(known)}"
