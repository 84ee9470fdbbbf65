"""Which stage of a query raised an error, if several run in it.

Spark names the query. Python's traceback, and Spark's own messages about an expression, name the line of the user's code.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from types import CodeType
from typing import Any

import msgspec

_LINES = re.compile(r'File "([^"]+)", line (\d+)|([^\s"():]+\.py):(\d+)')


class CodePlace(msgspec.Struct, frozen=True):
    """Where the code of a stage's function is, with the functions inside of it."""

    file: str
    first: int
    last: int


def place_of(function: Callable[..., Any]) -> CodePlace | None:
    """The place of a function's code; `None` if it is not written in Python."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return None
    lines = list(_lines(code))
    return CodePlace(code.co_filename, min(lines), max(lines))


def _lines(code: CodeType) -> Iterator[int]:
    yield code.co_firstlineno
    yield from (line for _, _, line in code.co_lines() if line)
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _lines(inner)


def raised_by(error: BaseException, code: Mapping[str, CodePlace]) -> tuple[str, ...]:
    """The stage whose code the error names last; several if they have the same code, none if it names none."""
    found: tuple[str, ...] = ()
    for match in _LINES.finditer(str(error)):
        file, line = match[1] or match[3], int(match[2] or match[4])
        named = [s for s, place in code.items() if file == place.file and place.first <= line <= place.last]
        found = tuple(named) or found
    return found


def blamed(query: str, reason: str, error: BaseException | None, code: Mapping[str, CodePlace]) -> str:
    """Why a query ended, with the stage whose code raised the error if it is another one than the query is named
    after."""
    stages = raised_by(error, code) if error is not None else ()
    if stages in ((), (query,)):
        return reason
    if len(stages) == 1:
        return f"in stage '{stages[0]}', which is chained into it: {reason}"
    names = " or ".join(f"'{stage}'" for stage in stages)
    return f"in stage {names}, which have the same code and run in this query: {reason}"
