"""The whole matrix takes long: it is collected only by `pytest tests/faults -m faults`."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = "faults" in str(config.option.markexpr).split()
    return None if wanted or not collection_path.name.startswith("test_") else True
