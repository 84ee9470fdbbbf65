"""`cutwater check`: finds mistakes in a pipeline before it is started, and draws its graph."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from cutwater.api.config import RunConfig
from cutwater.cli.output import AsJson, command, show, waiting
from cutwater.cli.run import flag, settings_of
from cutwater.cli.stderr_capture import capture_stderr
from cutwater.store.figures import plural


@command
def check(
    target: Annotated[
        str, typer.Argument(metavar="FILE[:NAME]", help="The Python file, and the pipeline's variable in it.")
    ],
    store: Annotated[
        str | None,
        typer.Option(
            "--store",
            "-s",
            envvar="CUTWATER_STORE",
            help="Also compare with the pipeline in this store.",
            show_default=False,
        ),
    ] = None,
    member: Annotated[str | None, flag("member", "NAME")] = None,
    master: Annotated[str | None, flag("master")] = None,
    conf: Annotated[list[str] | None, flag("conf", "KEY=VALUE")] = None,
    as_json: AsJson = False,
) -> None:
    """Find mistakes without starting a query, and draw the graph. With --store, also say what a start on it would need.
    Writes nothing; exits with 1 if there are mistakes."""
    from cutwater.api.checking import check_pipeline
    from cutwater.cli.graph_view import draw
    from cutwater.cli.load import load

    pipeline = load(target)
    config = RunConfig(master=master, conf=settings_of(conf or []), member=member)
    said: list[str] = []
    with waiting(f"checking {pipeline.name}", as_json, lines=True) as update, capture_stderr(said.append):
        report = check_pipeline(pipeline, store, config, update)
    document: dict[str, Any] = {"ok": not report.mistakes, "store": store, **msgspec.to_builtins(report)}
    text: list[Any] = [
        Text.assemble((report.pipeline, "bold"), f"  {plural(len(report.stages), 'stage')}"), "", *draw(report.stages), ""
    ]  # fmt: skip
    text += [Text(f"mistake: {line}", "red") for line in report.mistakes]
    text += [Text(f"note: {line}") for line in report.notes]
    if report.start:
        options = [*report.start, "--store", store or ""]
        text.append(f"start it with: cutwater run {target} {shlex.join(options)}")
    if not report.mistakes:
        beside = "" if store is not None else "; --store URL also compares it with the pipeline in a store"
        text.append(Text(f"no mistakes found{beside}", "green"))
    show(as_json, document, *text)
    if report.mistakes:
        raise typer.Exit(1)
