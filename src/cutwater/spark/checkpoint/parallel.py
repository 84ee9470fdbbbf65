"""Operations on many objects at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_PARALLEL = 16

T = TypeVar("T")
R = TypeVar("R")


def in_parallel(act: Callable[[T], R], items: Sequence[T]) -> list[R]:
    with ThreadPoolExecutor(_PARALLEL) as pool:
        return list(pool.map(act, items))
