"""Output of commands: text for people, one JSON document for programs, errors on stderr."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cutwater.cli.store_suggestions import suggest_store
from cutwater.protocol.base.errors import CutwaterError
from cutwater.store.printable import printable

WIDE = 140
"""The width of output that does not go to a terminal."""

SHORT_S = 1.0
"""How long a command may work without showing progress."""

StoreUrl = Annotated[
    str,
    typer.Option("--store", "-s", envvar="CUTWATER_STORE", help="The pipeline's store: a folder or a URL."),
]
REF = "An epoch's number, a savepoint's name, or latest"
"""How a command names a checkpoint (`resolve`)."""
Ref = Annotated[str, typer.Argument(metavar="REF", help=f"{REF}.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Timeout = Annotated[str, typer.Option("--timeout", help="How long to wait for the answer.")]

F = TypeVar("F", bound=Callable[..., Any])


class CleanConsole(Console):
    """A console that shows pictures of the control characters in texts; its own styles are not texts."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for one in super().render(renderable, options):
            yield one if one.control else Segment(printable(one.text), one.style)


def console(*, stderr: bool = False) -> Console:
    """A new console. Made for each use, since stdout and its width may change."""
    made = CleanConsole(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made = CleanConsole(stderr=stderr, highlight=False, width=WIDE)
    return made


def show(as_json: bool, document: Any, *text: RenderableType) -> None:
    """Print the JSON document or the text."""
    if as_json:
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
        sys.stdout.flush()
        return
    screen = console()
    for part in text:
        screen.print(part, soft_wrap=not screen.is_terminal and isinstance(part, str | Text))


def command(function: F) -> F:
    """Make a function a command: errors become `error: ...` (with --json an object) and exit code 1."""

    @functools.wraps(function)
    def run(*args: Any, **options: Any) -> Any:
        as_json = bool(options.get("as_json"))
        try:
            return function(*args, **options)
        except BrokenPipeError:
            raise  # the reader has closed the pipe: end silently
        except (CutwaterError, OSError) as error:
            message = str(error) or type(error).__name__
            fail(message + suggest_store(str(options.get("store", "")), message), as_json)
        except KeyboardInterrupt as interrupt:
            fail(str(interrupt) or "interrupted", as_json, code=130)

    return run  # type: ignore[return-value]


def fail(message: str, as_json: bool, code: int = 1) -> None:
    """Print an error and exit."""
    if as_json:
        sys.stdout.write(msgspec.json.encode({"error": message}).decode() + "\n")
    else:
        screen = console(stderr=True)
        screen.print("error: ", style="bold red", end="")
        screen.print(message, markup=False, soft_wrap=True)
    raise typer.Exit(code)


@contextmanager
def waiting(what: str, as_json: bool, lines: bool = False) -> Iterator[Callable[[str], None]]:
    """Show that long work is in progress: a spinner on a terminal, a line elsewhere. Yields a function that changes the
    text; elsewhere it prints another line if `lines` is set."""
    screen = console(stderr=True)
    if as_json:
        yield lambda text: None
    elif screen.is_terminal:
        with screen.status(what, spinner="dots") as spinner:
            yield lambda text: spinner.update(text)
    else:

        def say(text: str) -> None:
            screen.print(f"{text} ...", markup=False, soft_wrap=True)

        say(what)
        yield say if lines else lambda text: None


@contextmanager
def waiting_if_slow(what: str, as_json: bool) -> Iterator[Callable[[], None]]:
    """Show progress only when work takes long. Yields a function to call now and then during the work."""
    began = time.monotonic()
    with ExitStack() as shown:
        is_shown = False

        def tick() -> None:
            nonlocal is_shown
            if not is_shown and time.monotonic() - began >= SHORT_S:
                is_shown = True
                shown.enter_context(waiting(what, as_json))

        yield tick


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A plain table; the columns in `right` are right-aligned."""
    gap = 2 if console().width >= 100 else 1
    made = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for name in columns:
        justify: Literal["left", "right"] = "right" if name in right else "left"
        made.add_column(name, justify=justify, no_wrap=name in right, overflow="fold")
    return made


# --- formatting ---------------------------------------------------------------------------------------


def local(at_s: float | None) -> str:
    """A timestamp for people, in local time; without the date if it is today."""
    if at_s is None:
        return "-"
    moment = time.localtime(at_s)
    today = moment[:3] == time.localtime()[:3]
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", moment)


def local_ms(at_ms: int | None) -> str:
    return local(None if at_ms is None else at_ms / 1000)
