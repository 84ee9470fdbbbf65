"""Fixtures for tests with Spark. Those that share the session run in one process, one after the other; those that start
processes with a Spark of their own in a second one. A machine with two cores can run no more at a time."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from pyspark.sql import SparkSession

from cutwater.api.log_lines import lines_to
from cutwater.spark.session import set_up_session

os.environ.setdefault("CUTWATER_CLASS_ARCHIVE", "off")
settings.register_profile("fast", max_examples=20, deadline=None)  # that of `make test-fast`

WAITING = (
    "tests/cli/test_control.py",
    "tests/cli/test_drain.py",
    "tests/cli/test_errors.py",
    "tests/cluster/test_strangers.py",
    "tests/inspection/test_integrity.py",
    "tests/runtime/test_mailbox.py",
    "tests/runtime/test_mailbox_following.py",
    "tests/runtime/test_store_requests.py",
    "tests/sinks/test_delta_history.py",
    "tests/spark/checkpoint/test_source_logs.py",
    "tests/spark/test_host.py",
    "tests/spark/test_host_draining.py",
    "tests/spark/test_host_idleness.py",
    "tests/spark/test_host_runtime.py",
    "tests/store/test_stores_azure.py",
    "tests/store/test_stores_s3.py",
    "tests/web/test_openapi.py",
    "tests/web/test_requests.py",
    "tests/web/test_server.py",
)
"""Modules without Spark whose tests wait for processes, servers or time: all of them are slow."""

WITHOUT_SPARK = (
    "tests/sim/",
    "tests/protocol/",
    "tests/cluster/",
    "tests/inspection/test_verify_tables.py",
    "tests/runtime/",
    "tests/spark/checkpoint/test_incarnation_damage.py",
    "tests/spark/internals/test_private.py",
    "tests/store/test_local.py",
    "tests/store/test_presence.py",
    "tests/systems/test_page.py",
    "tests/telemetry/",
    *WAITING,
)
"""Folders and modules whose slow tests do not start a Spark of their own."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(WAITING):
            item.add_marker(pytest.mark.slow)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.get_closest_marker("slow") is not None and not item.nodeid.startswith(WITHOUT_SPARK):
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With `CUTWATER_SKIP_NOTHING` a test fails that is skipped because a tool is missing: CI has all tools."""
    report = yield
    if report.skipped and os.environ.get("CUTWATER_SKIP_NOTHING") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
    return report


@pytest.fixture
def spark() -> SparkSession:
    """The shared session, which takes many seconds to start; its settings are reset for each test."""
    return set_up_session("tests", "local[2]")


@pytest.fixture
def log_lines() -> Iterator[list[str]]:
    """The lines that pipelines log during the test."""
    lines: list[str] = []
    with lines_to(lines.append):
        yield lines


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which is also the working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def spark_here(here: Path, spark: SparkSession) -> SparkSession:
    """The shared session, which takes relative paths from `here`, and not from the folder where it was made."""
    context: Any = spark.sparkContext
    hadoop = context._jvm.org.apache.hadoop.fs
    place = hadoop.Path(here.as_uri())
    hadoop.FileSystem.get(place.toUri(), context._jsc.hadoopConfiguration()).setWorkingDirectory(place)
    return spark
