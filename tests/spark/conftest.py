"""A pipeline whose queries run on a model of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.hosted_pipeline import HostedPipeline


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[HostedPipeline]:
    made = HostedPipeline(tmp_path)
    yield made
    made.stop()
