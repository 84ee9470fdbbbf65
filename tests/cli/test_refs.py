"""Every command that takes an epoch takes its number, the name of a savepoint, or latest."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer

from cutwater.cli.main import app
from tests.support.command_helpers import call, document

REFS = {"2": 2, "before-deploy": 2, "latest": 3}
COMMANDS = {
    "show": ("show", "REF"),
    "explain": ("explain", "REF"),
    "tables": ("tables", "--epoch", "REF"),
    "savepoint": ("savepoint", "again", "--epoch", "REF"),
    "restore": ("restore", "REF"),
}


def takes_ref(parameter: Any) -> bool:
    return bool(parameter.metavar == "REF")


def test_these_are_all_commands_that_take_one() -> None:
    group: Any = typer.main.get_command(app)
    found = {name for name, one in group.commands.items() if any(map(takes_ref, one.params))}
    assert found == {*COMMANDS, "run", "follow"}
    helps = [
        p.help for one in group.commands.values() for p in one.params if takes_ref(p) and one.name != "run"
    ]
    assert all("An epoch's number, a savepoint's name, or latest" in text for text in helps)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("ref", REFS)
def test_every_ref_works_in_every_command(folder: Path, command: str, ref: str) -> None:
    words = [ref if word == "REF" else word for word in COMMANDS[command]]
    assert document(*words, "--store", folder)["epoch"] == REFS[ref]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_ref_that_names_nothing_is_refused_with_what_there_is(folder: Path, command: str) -> None:
    words = ["nope" if word == "REF" else word for word in COMMANDS[command]]
    said = call(*words, "--store", folder).stderr
    assert "there is no checkpoint 'nope'; retained epochs: 1, 2, 3; savepoints: before-deploy" in said
