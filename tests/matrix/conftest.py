"""Runs in the environment of one Spark version: collected only by `make test-matrix`."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    wanted = "matrix" in str(config.option.markexpr).split()
    return None if wanted or not collection_path.name.startswith("test_") else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.matrix)
            item.add_marker(pytest.mark.slow)


def pytest_report_header() -> str:
    import pyspark

    return f"pyspark {pyspark.__version__}, Python {platform.python_version()}"
