"""`cutwater check` as a command; what it finds is tested with the API."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutwater.api import checking
from cutwater.api.checking import CheckedStage, Report
from tests.support.command_helpers import call, document

FILE = "import cutwater as cw\npipeline = cw.Pipeline('shop')\n"


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch, here: Path) -> Report:
    """What the check finds."""
    found = Report("shop", [CheckedStage("orders", "main", (), ("parquet in",))], notes=["a note"])

    def check(pipeline: Any, store: str | None, config: Any, log: Any) -> Report:
        assert (pipeline.name, store, config.member, config.conf) == ("shop", "st", "m", {"a": "b"})
        return found

    monkeypatch.setattr(checking, "check_pipeline", check)
    (here / "shop.py").write_text(FILE)
    return found


WORDS = ("check", "shop.py", "--store", "st", "--member", "m", "--conf", "a=b")


def test_a_pipeline_without_mistakes_is_drawn_with_what_a_start_needs(report: Report) -> None:
    report.start = ["--restore", "latest", "--drop", "old"]
    done = call(*WORDS)
    assert done.exit_code == 0
    assert "● orders  reads parquet in" in done.stdout
    assert "note: a note" in done.stdout
    assert "start it with: cutwater run shop.py --restore latest --drop old --store st" in done.stdout
    assert document(*WORDS)["ok"] is True


def test_all_mistakes_are_reported_and_the_command_fails(report: Report) -> None:
    report.mistakes = ["one", "two"]
    done = call(*WORDS)
    assert done.exit_code == 1
    assert "mistake: one\nmistake: two\n" in done.stdout
    assert "no mistakes" not in done.stdout
    done = call(*WORDS, "--json")
    assert done.exit_code == 1
    assert '"mistakes":["one","two"]' in done.stdout
