"""A pipeline whose queries run on a model of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cutwater.protocol.base.errors import CutwaterError
from tests.support.hosted_pipeline import HostedPipeline


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[HostedPipeline]:
    made = HostedPipeline(tmp_path)
    yield made
    made.stop()
    failure = made.up.failure if made.up is not None else None
    assert failure is None or isinstance(failure, CutwaterError), "an unexpected error"
