"""What the demos share: printing steps, waiting for the journal, requests, comparing tables."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.rule import Rule
from rich.table import Table

from cutwater.api.tables import tables
from cutwater.demo.data import batch_result, read_tables
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.records import JournalState
from cutwater.protocol.base.wire import Request
from cutwater.runtime.store_requests import Unanswered, answered, ask_through
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store

if TYPE_CHECKING:
    from cutwater.web.server import WebServer

DEADLINE_S = 180.0
ADDRESS = "127.0.0.1:8080"
"""Where the page is served; if that port is taken, at any free one."""


class Demo(ABC):
    """A demo in a folder of its own. `children` are the processes that run the pipeline, by name."""

    def __init__(self, folder: Path, screen: Console) -> None:
        self.folder = folder
        self.screen = screen
        self.store = str(folder / "state")
        self.children: dict[str, subprocess.Popen[bytes]] = {}
        self.started = time.monotonic()
        self.server: WebServer | None = None

    # --- printing ---------------------------------------------------------------------------------------

    def step(self, title: str) -> None:
        self.screen.print()
        self.screen.print(Rule(f"[bold]{title}[/bold]", align="left", style="dim"))

    def say(self, text: str) -> None:
        clock = f"{time.monotonic() - self.started:5.1f} s"
        self.screen.print(f"[dim]{clock}[/dim]  {text}", highlight=False)

    def serve(self) -> None:
        """Serve the page of the demo's store while it plays, if the extra `web` is installed."""
        try:
            from cutwater.web.server import WebServer
        except ImportError:
            self.say("to watch it in a browser: pip install 'cutwater[web]'")
            return
        store = open_store(self.store, create=True)
        for address in (ADDRESS, "127.0.0.1:0"):
            server = WebServer(store, address)
            try:
                server.start()
            except UserError:
                continue  # the port is taken
            self.server = server
            self.say(f"watch it in a browser: [bold]{server.url}[/bold]")
            return

    # --- actions ----------------------------------------------------------------------------------------

    def wait_until(self, what: str, holds: Callable[[JournalState], bool]) -> JournalState:
        """Wait until `holds` is true of the journal. Raises `UserError` if the pipeline ends first."""
        store = open_store(self.store, create=True)
        deadline = time.monotonic() + DEADLINE_S
        with self.screen.status(f"[dim]{what} …[/dim]"):
            while time.monotonic() < deadline:
                state = read_journal(store, must_exist=False).state
                if holds(state):
                    return state
                if any(child.poll() is not None for child in self.children.values()):
                    break
                time.sleep(0.02)
        logs = [path.read_text(errors="replace").splitlines()[-15:] for path in self.folder.glob("*.log")]
        tails = "\n\n".join("\n".join(lines) for lines in logs)
        ended = any(child.poll() is not None for child in self.children.values())
        why = "the pipeline ended" if ended else f"it took longer than {DEADLINE_S:.0f} s"
        raise UserError(f"the demo stopped at '{what}': {why}. The end of the pipeline's logs:\n{tails}")

    def ask(self, request: Request) -> int | None:
        reply = ask_through(open_store(self.store), request, DEADLINE_S)
        if isinstance(reply, Unanswered):
            raise UserError(f"the pipeline did not answer '{request.kind.value}': {reply.value}")
        return answered(reply, request.kind)

    def show_tables(self, title: str) -> None:
        matched, revenue = read_tables(self.folder)
        view = Table(title=title, title_justify="left", title_style="bold", box=None, padding=(0, 2))
        view.add_column("table")
        view.add_column("rows", justify="right")
        view.add_column("total", justify="right")
        view.add_column("version", justify="right")
        try:
            versions: dict[str, Any] = dict(tables(self.store))
        except UserError:
            versions = {}
        for name, rows, column in (("matched", matched, "amount"), ("revenue", revenue, "revenue")):
            total = f"{rows[column].sum():,.2f}"
            view.add_row(name, f"{len(rows):,}", total, str(versions.get(name, "")))
        self.screen.print(view)

    def compare_tables(self, state: JournalState, limit: float) -> None:
        """Compare both tables with a batch job over the same input. Raises `UserError` if they differ."""
        assert state.watermark is not None
        expected = batch_result(self.folder, limit, state.watermark)
        for name, rows, wanted in zip(
            ("matched", "revenue"), read_tables(self.folder), expected, strict=True
        ):
            wrong = differences(rows, wanted)
            if wrong:
                raise UserError(f"table {name} differs from the result of the batch job: {wrong}")
            self.say(f"[green]✓[/green] {name}: all {len(rows):,} rows are equal")
        self.screen.print()

    # --- the steps ------------------------------------------------------------------------------------

    @abstractmethod
    def play(self) -> None: ...


def differences(rows: Any, wanted: Any) -> str:
    if len(rows) != len(wanted):
        return f"{len(rows):,} rows instead of {len(wanted):,}"
    for column in wanted.columns:
        left, right = rows[column], wanted[column]
        same = (left - right).abs() < 1e-6 if left.dtype.kind == "f" else left == right
        if not same.all():
            return f"column {column} differs in {int((~same).sum()):,} rows"
    return ""


def read_matched(folder: Path) -> Any:
    """The rows of the table `matched`; none if it does not exist yet."""
    from deltalake.exceptions import TableNotFoundError

    try:
        return read_tables(folder)[0]
    except TableNotFoundError:
        return ()


def run(kind: type[Demo], folder: Path | None, screen: Console) -> None:
    """Run a demo. Raises `UserError` if it fails, or if the tables are wrong at the end."""
    where = (folder or Path("cutwater-demo")).absolute()
    if where.exists():
        if any(where.iterdir()) and not (where / "shop.py").exists():
            raise UserError(
                f"{where} exists and is not the folder of an earlier demo; choose another with --folder"
            )
        shutil.rmtree(where)
    where.mkdir(parents=True)
    demo = kind(where, screen)
    signal.signal(
        signal.SIGTERM, lambda number, frame: sys.exit(143)
    )  # so that `finally` ends the pipeline too
    try:
        demo.play()
    finally:
        if demo.server is not None:
            demo.server.stop()
        for child in demo.children.values():
            if child.poll() is None:
                child.kill()
                child.wait()
