"""The metrics have names, units and labels as Prometheus wants them, and the page shows them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutwater.telemetry.definitions import METRICS, Kind, Metric
from tests.support import metrics_page

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
UNITS = ("seconds", "bytes", "rows", "epochs", "batches", "files", "second", "total")
WITHOUT_UNIT = {"cutwater_generation", "cutwater_leader", "cutwater_member_running"}
ALL = pytest.mark.parametrize("metric", METRICS.values(), ids=list(METRICS))


@ALL
def test_a_name_ends_in_its_unit_and_a_counter_in_total(metric: Metric) -> None:
    assert metric.name.startswith("cutwater_")
    assert metric.name.endswith("_total") == (metric.kind is Kind.COUNTER)
    is_state = metric.name.endswith(("_up", "_given_up")) or metric.name in WITHOUT_UNIT
    assert is_state or metric.name.rpartition("_")[2] in UNITS


@ALL
def test_labels_are_bounded(metric: Metric) -> None:
    assert set(metric.labels) <= {"stage", "sink", "result", "reason", "operation"}


def test_the_page_in_the_repository_is_current(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert metrics_page.main(["--check", str(PAGE)]) == 0, capsys.readouterr().err
    stale = tmp_path / "metrics.md"
    stale.write_text(PAGE.read_text("utf-8").replace("counter", "gauge", 1), "utf-8")
    assert metrics_page.main(["--check", str(stale)]) == 1
    assert "make docs" in capsys.readouterr().err
    assert metrics_page.main(["--write", str(stale)]) == 0
    assert stale.read_text("utf-8") == PAGE.read_text("utf-8")
