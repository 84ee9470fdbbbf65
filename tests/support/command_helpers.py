"""Runs `cutwater` commands in this process."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner, Result

from cutwater.cli.main import app


def call(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def document(*words: object, code: int = 0) -> Any:
    """What a command prints with --json: one document and nothing else."""
    found = call(*words, "--json")
    assert found.exit_code == code, found.output
    assert found.stdout.count("\n") == 1
    return json.loads(found.stdout)
