"""`cutwater demo`: a small shop is killed, recovers, is rolled back after bad data, and ends with correct tables.

Everything is real: Spark runs in separate processes, the kill is a SIGKILL, and the tables are Delta tables that are
read without Spark. At the end they are compared with a batch job over the same input.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from importlib import resources

from cutwater.api.tables import tables
from cutwater.demo.base import DEADLINE_S, Demo, read_matched
from cutwater.demo.data import FILES, deliver
from cutwater.protocol.base.durations import readable
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.runtime.store_requests import new_id
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store

FIXED_LIMIT = 900_000
PAID_PER_FILE = 900


class ShopDemo(Demo):
    def run(self, *options: str) -> None:
        """Start the pipeline, as a user would, in a process of its own."""
        command = [sys.executable, "-m", "cutwater", "run", str(self.folder / "shop.py")]
        command += ["--store", self.store, "--every", "2s", *options]
        self.say(f"[cyan]$ cutwater run shop.py --store state --every 2s {' '.join(options)}[/cyan]")
        log = (self.folder / "run.log").open("ab")
        self.children["run"] = subprocess.Popen(command, stdout=log, stderr=log)
        log.close()

    def kill(self) -> None:
        """Kill the pipeline with SIGKILL, which leaves it no time to clean up."""
        child = self.children.pop("run")
        child.send_signal(signal.SIGKILL)
        child.wait()

    def wait_for_end(self) -> None:
        self.children["run"].wait(timeout=DEADLINE_S)
        del self.children["run"]

    # --- the steps ------------------------------------------------------------------------------------

    def play(self) -> None:
        self.prepare()
        self.crash()
        self.recover_and_save()
        self.corrupt()
        self.roll_back()
        self.compare()

    def prepare(self) -> None:
        self.step("A shop: orders and payments, two roots, a join, revenue per minute, two Delta tables")
        text = resources.files("cutwater.demo").joinpath("shop.py").read_text()
        (self.folder / "shop.py").write_text(text)
        deliver(self.folder, range(10))
        self.say(
            f"everything is in [bold]{self.folder}[/bold]: the pipeline (shop.py), its input, its tables"
        )
        self.serve()

    def crash(self) -> None:
        self.step("1  It runs, and is killed in the middle of an epoch")
        self.run()
        self.wait_until(
            "Spark starts, the first epochs are committed",
            lambda s: len(s.committed) >= 2 and s.head_cuts.get("matched", -1) >= 0,
        )
        state = self.wait_until("waiting for the next epoch to begin", lambda s: bool(s.open))
        self.kill()
        self.say(
            f"epoch {max(state.open)} had begun, epoch {state.head} was the last one committed: [red]kill -9[/red]"
        )

    def recover_and_save(self) -> None:
        self.step("2  It recovers: every query, channel and table continues from what was committed")
        before = read_journal(open_store(self.store)).state
        deliver(self.folder, range(10, 16))
        self.run()
        after = self.wait_until(
            "Spark starts again; the rest of the orders goes through",
            lambda s: s.term > before.term and len(read_matched(self.folder)) >= PAID_PER_FILE * 16,
        )
        self.say(
            f"epoch {after.head} is committed, in term {after.term}; nothing lost, nothing counted twice"
        )
        epoch = self.ask(Request(RequestKind.SAVEPOINT, new_id(), name="all-is-well"))
        self.say(f"savepoint [bold]all-is-well[/bold] is epoch {epoch}")
        self.wait_until_published(epoch or 0)
        self.show_tables("at the savepoint")

    def wait_until_published(self, epoch: int) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            try:
                tables(self.store, epoch)
                return
            except UserError:
                time.sleep(0.05)
        raise UserError(f"epoch {epoch} was not published in time")

    def corrupt(self) -> None:
        self.step("3  Bad data arrives: a till sends 900,001.00 for every order")
        before = read_journal(open_store(self.store)).state
        deliver(self.folder, range(16, 18), bad=True)
        deliver(self.folder, range(16, 20))
        wanted = (before.head or 0) + 2
        self.wait_until(
            "the bad rows go through",
            lambda s: (s.head or 0) >= wanted and read_matched(self.folder)["amount"].sum() > 1e8,
        )
        self.show_tables("now wrong")
        self.ask(Request(RequestKind.DRAIN, new_id()))
        self.wait_for_end()
        self.say("drained and stopped")

    def roll_back(self) -> None:
        self.step("4  Roll back to the savepoint, tables included, and continue with the fix")
        fixed = (
            (self.folder / "shop.py").read_text().replace("LIMIT = 1_000_000_000", f"LIMIT = {FIXED_LIMIT:_}")
        )
        (self.folder / "shop.py").write_text(fixed)
        self.say(f"[red]-LIMIT = 1_000_000_000[/red]   [green]+LIMIT = {FIXED_LIMIT:_}[/green]   in shop.py")
        deliver(self.folder, range(20, FILES))
        self.run("--restore", "all-is-well", "--once")
        state = self.wait_until(
            "rolled back; the rest of the input goes through", lambda s: s.drained and s.generation > 1
        )
        self.wait_for_end()
        self.say(f"generation {state.generation} has ended with epoch {state.head}")
        self.show_tables("after the rollback and the fix")

    def compare(self) -> None:
        self.step("5  Both tables, row by row, against a batch job over the same input")
        state = read_journal(open_store(self.store)).state
        self.compare_tables(state, FIXED_LIMIT)
        self.say(f"done in {readable(time.monotonic() - self.started)}. To explore what it left:")
        for command in ("ui", "checkpoints", "explain " + str(state.head), "tables", "verify"):
            self.screen.print(
                f"         [cyan]cutwater {command} --store {self.store}[/cyan]", highlight=False
            )
