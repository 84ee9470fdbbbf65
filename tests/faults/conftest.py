"""The whole matrix is slow, so it is collected only by `pytest tests/faults -m faults`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults.runner import Bench


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = "faults" in str(config.option.markexpr).split()
    return None if wanted or not collection_path.name.startswith("test_") else True


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[str], Bench]]:
    """Makes a bench for a kind of pipeline, and kills its remaining processes when the test ends."""
    made: list[Bench] = []

    def bench(kind: str) -> Bench:
        made.append(Bench(tmp_path, kind))
        return made[-1]

    yield bench
    for one in made:
        one.end_all()
