"""The `cutwater` command."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(
    help="One consistent cut across all your Spark streams.", no_args_is_help=True, add_completion=False
)
console = Console()


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"cutwater {version('cutwater')}", highlight=False)
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """One consistent cut across all your Spark streams."""


@app.command()
def demo() -> None:
    """Shows what Cutwater does; until the Spark runtime is there, on a simulated cluster."""
    console.print("[bold]The demo on Spark arrives with the Spark runtime.[/bold]")
    console.print("Until then, watch the protocol on a simulated cluster while everything goes wrong:\n")
    console.print(
        "  .venv/bin/python -m cutwater.sim --trace 7      one schedule, a line per event", highlight=False
    )
    console.print(
        "  .venv/bin/python -m cutwater.sim --seeds 500    five hundred of them, checked", highlight=False
    )


def main() -> None:
    """The entry point of the command."""
    app()
