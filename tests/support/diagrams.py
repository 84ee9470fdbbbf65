"""`python -m tests.support.diagrams`: draws the state machines of the protocol into ARCHITECTURE.md.

Every transition table below `cutwater.protocol` becomes a Mermaid diagram, in order of names, between the lines
`<!-- diagrams -->` and `<!-- /diagrams -->`. The rest of the page is not changed.
"""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import sys
from pathlib import Path

import cutwater.protocol
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.transitions import TABLES

BEGIN = "<!-- diagrams -->"
END = "<!-- /diagrams -->"


def section() -> str:
    """A heading and a diagram for each table. Imports every module of the protocol to find them."""
    for module in pkgutil.walk_packages(cutwater.protocol.__path__, "cutwater.protocol."):
        importlib.import_module(module.name)
    tables = [TABLES[name] for name in sorted(TABLES)]
    return "\n".join(f"\n### {table.title}\n\n```mermaid\n{table.mermaid()}\n```" for table in tables)


def redrawn(text: str, name: str) -> str:
    """The page with the section between its markers replaced. Raises `UserError`, with the page's `name`, if it does
    not have each marker once, on its own line and in order."""
    lines = text.split("\n")
    if lines.count(BEGIN) != 1 or lines.count(END) != 1 or lines.index(BEGIN) > lines.index(END):
        raise UserError(f"{name} has no place for the diagrams: add a line '{BEGIN}' and then a line '{END}'")
    before, after = lines[: lines.index(BEGIN) + 1], lines[lines.index(END) :]
    return "\n".join([*before, section(), "", *after])


def write(page: Path) -> None:
    """Updates the page's diagrams. Raises `UserError` as `redrawn` does."""
    page.write_text(redrawn(page.read_text("utf-8"), page.name), "utf-8")


def check(page: Path) -> None:
    """Raises `UserError` if the page's diagrams are not up to date with the code."""
    text = page.read_text("utf-8")
    if text != redrawn(text, page.name):
        raise UserError(f"the diagrams in {page.name} are not up to date with the code; run `make docs`")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.diagrams", description=__doc__)
    duty = parser.add_mutually_exclusive_group(required=True)
    duty.add_argument("--write", type=Path, metavar="PAGE", help="bring the page's diagrams up to date")
    duty.add_argument("--check", type=Path, metavar="PAGE", help="fail if they are not up to date")
    options = parser.parse_args(arguments)
    try:
        if options.write is not None:
            write(options.write)
        else:
            check(options.check)
    except (UserError, OSError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
