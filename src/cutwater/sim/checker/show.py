"""Shows the result of a check."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from cutwater.sim.checker import RULES, Report

MAX_SHOWN = 50
"""How many problems are shown in full; one defect can cause many."""


def show(report: Report, path: Path, console: Console) -> None:
    """Prints the counts, the gaps in the recording, and the problems with the lines that show them."""
    table = Table(title=f"{path}", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for what, count in report.counts.items():
        table.add_row(what, Text(f"{count:,}", justify="right"))
    for what, count in report.not_recorded.items():
        table.add_row(f"not recorded: {what}", Text(f"{count:,}", justify="right"), style="yellow")
    console.print(table)
    for problem in report.problems[:MAX_SHOWN]:
        console.print()
        console.print(Text(problem.rule, style="bold red"), Text(f"({RULES[problem.rule]})", style="dim"))
        console.print(Text(f"  {problem.what}"), soft_wrap=True)
        for at in problem.lines:
            console.print(Text(f"    {at}", style="cyan"), soft_wrap=True)
    if len(report.problems) > MAX_SHOWN:
        console.print(f"\n... and {len(report.problems) - MAX_SHOWN:,} more")
    console.print()
    if report.problems:
        broken = ", ".join(sorted({problem.rule for problem in report.problems}))
        console.print(Text(f"{len(report.problems):,} problems: {broken}", style="bold red"), soft_wrap=True)
    else:
        console.print(Text(f"no problems: {len(RULES)} rules hold", style="bold green"))
