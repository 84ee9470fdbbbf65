"""The `cutwater` command. What it needs is imported by the command that is asked for, so each starts fast."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from cutwater.cli import checkpoints, drain, explain, gc, run, status, steer, verify
from cutwater.cli.output import console

if TYPE_CHECKING:
    from cutwater.demo.telling import Demo

app = typer.Typer(
    help="One consistent cut across all your Spark streams.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        console().print(f"cutwater {version('cutwater')}")
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
app.command()(status.status)
app.command()(checkpoints.checkpoints)
app.command("show")(checkpoints.show_checkpoint)
app.command()(explain.explain)
app.command()(checkpoints.tables)
app.command()(steer.checkpoint)
app.command()(steer.savepoint)
app.command()(steer.restore)
app.command()(steer.cancel)
app.command()(drain.drain)
app.command()(verify.verify)
app.command()(gc.gc)


Folder = Annotated[
    Path | None, typer.Option(help="Where it happens; ./cutwater-demo unless given.", show_default=False)
]


@app.command()
def demo(folder: Folder = None) -> None:
    """Shows what Cutwater does: a small shop is killed, recovers, is rolled back, and comes out right."""
    from cutwater.demo.one import ShopDemo

    _show(ShopDemo, folder)


@app.command("demo-cluster")
def demo_cluster(folder: Folder = None) -> None:
    """Shows one pipeline in three processes: members are killed and paused, and it comes out right."""
    from cutwater.demo.cluster import ClusterDemo

    _show(ClusterDemo, folder)


def _show(kind: type[Demo], folder: Path | None) -> None:
    from cutwater.demo.telling import run as run_demo
    from cutwater.protocol.base.errors import StoreError, UserError

    screen = console()
    try:
        run_demo(kind, folder, screen)
    except (UserError, StoreError) as error:
        screen.print(f"[red]error:[/red] {error}", highlight=False)
        raise typer.Exit(1) from error


def main() -> None:
    """The entry point of the command. With --json wrong usage is told in JSON, too."""
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
