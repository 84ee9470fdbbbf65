"""The `cutwater` command. Each command imports what it needs when it is called, so all of them start fast."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cutwater import __version__
from cutwater.cli import (
    check,
    checkpoints,
    control,
    doctor,
    drain,
    explain,
    follow,
    gc,
    run,
    status,
    ui,
    verify,
)
from cutwater.cli.output import console

if TYPE_CHECKING:
    from cutwater.demo.base import Demo

app = typer.Typer(
    help="One consistent cut across all your Spark streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        console().print(f"cutwater {__version__}")
        raise typer.Exit


@app.callback()
def options(
    show_version: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit."),
    ] = False,
) -> None:
    """One consistent cut across all your Spark streams."""


app.command()(run.run)
app.command()(check.check)
app.command()(status.status)
app.command()(ui.ui)
app.command()(checkpoints.checkpoints)
app.command("show")(checkpoints.show_checkpoint)
app.command()(explain.explain)
app.command()(checkpoints.tables)
app.command()(control.checkpoint)
app.command()(control.savepoint)
app.command()(control.restore)
app.command()(control.cancel)
app.command()(drain.drain)
app.command()(follow.follow)
app.command()(verify.verify)
app.command()(gc.gc)
app.command()(doctor.doctor)


Folder = Annotated[
    Path | None,
    typer.Option(help="The folder to run in; ./cutwater-demo by default.", show_default=False),
]


@app.command()
def demo(folder: Folder = None) -> None:
    """Run a small shop pipeline that is killed, recovers, and is rolled back; then check its tables."""
    from cutwater.demo.single import ShopDemo

    _show(ShopDemo, folder)


@app.command("demo-cluster")
def demo_cluster(folder: Folder = None) -> None:
    """Run one pipeline in three processes; kill and pause members; then check its tables."""
    from cutwater.demo.cluster import ClusterDemo

    _show(ClusterDemo, folder)


def _show(kind: type[Demo], folder: Path | None) -> None:
    from cutwater.demo.base import run as run_demo
    from cutwater.protocol.base.errors import StoreError, UserError

    screen = console()
    try:
        run_demo(kind, folder, screen)
    except (UserError, StoreError) as error:
        screen.print(f"[red]error:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error


def main() -> None:
    """The entry point of the command. With --json, usage errors are printed as JSON too."""
    if "--json" not in sys.argv[1:]:
        app()
    try:
        sys.exit(app(standalone_mode=False))
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        document = {"error": error.format_message()}
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
        sys.exit(getattr(error, "exit_code", 2))
