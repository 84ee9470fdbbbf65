"""The `cutwater` command."""

from __future__ import annotations

from importlib.metadata import version

from typer.testing import CliRunner

from cutwater.cli import app


def test_the_command_tells_its_version() -> None:
    shown = CliRunner().invoke(app, ["--version"])
    assert shown.exit_code == 0
    assert version("cutwater") in shown.output


def test_the_demo_says_what_there_is_to_see() -> None:
    shown = CliRunner().invoke(app, ["demo"])
    assert shown.exit_code == 0
    assert "Spark runtime" in shown.output
    assert "python -m cutwater.sim" in shown.output
