"""`cutwater demo-cluster`: three members, one pipeline. One member is killed, one is paused, the leader is killed;
checkpoints continue, and the tables are correct.

Everything is real: three processes with a Spark each, connected over the loopback; SIGKILL and SIGSTOP; Delta tables
that are read without Spark. At the end they are compared with a batch job over the same input.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from importlib import resources
from pathlib import Path

from rich.console import Console

from cutwater.demo.base import Demo, read_matched
from cutwater.demo.data import FILES, deliver
from cutwater.protocol.base.durations import readable
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.records import JournalState
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.runtime.store_requests import new_id
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store

MEMBERS = {"till": "orders", "bank": "payments", "books": "matched, revenue"}
LIMIT = 1_000_000_000


class ClusterDemo(Demo):
    def __init__(self, folder: Path, screen: Console) -> None:
        super().__init__(folder, screen)
        self.ports = {member: _free_port() for member in MEMBERS}

    # --- actions ----------------------------------------------------------------------------------------

    def start(self, member: str) -> None:
        """Start a member, as a user would, in a process of its own."""
        others = [f"tcp/127.0.0.1:{port}" for name, port in self.ports.items() if name != member]
        command = [sys.executable, "-m", "cutwater", "run", str(self.folder / "shop.py"), "--member", member]
        command += ["--store", self.store, "--every", "2s", "--listen", f"tcp/127.0.0.1:{self.ports[member]}"]
        command += [word for other in others for word in ("--peer", other)]
        command += ["--leader-timeout", "2s", "--tolerated-failures", "100"]
        self.say(f"[cyan]$ cutwater run shop.py --member {member} --store state --listen … --peer …[/cyan]")
        with (self.folder / f"{member}.log").open("ab") as log:
            self.children[member] = subprocess.Popen(command, stdout=log, stderr=log)

    def kill(self, member: str) -> None:
        child = self.children.pop(member)
        child.send_signal(signal.SIGKILL)
        child.wait()

    def wait_for_commits(self, what: str, count: int) -> JournalState:
        wanted = (self.journal().head or 0) + count
        return self.wait_until(what, lambda s: (s.head or 0) >= wanted)

    def journal(self) -> JournalState:
        return read_journal(open_store(self.store, create=True), must_exist=False).state

    # --- the steps ------------------------------------------------------------------------------------

    def play(self) -> None:
        self.prepare()
        self.begin()
        self.lose_a_member()
        self.pause_a_member()
        self.lose_the_leader()
        self.end()
        self.compare()

    def prepare(self) -> None:
        self.step("One shop in three processes: the till, the bank, and the books, which join both")
        text = resources.files("cutwater.demo").joinpath("shop.py").read_text()
        for member, stages in MEMBERS.items():
            for stage in stages.split(", "):
                text = text.replace(
                    f"@pipeline.stage\ndef {stage}(", f'@pipeline.stage(member="{member}")\ndef {stage}('
                )
                text = _with_member(text, stage, member)
        (self.folder / "shop.py").write_text(text)
        deliver(self.folder, range(6))
        self.say(
            f"everything is in [bold]{self.folder}[/bold]: the pipeline (shop.py), its input, its tables"
        )
        self.serve()

    def begin(self) -> None:
        self.step("1  Three members start, and agree on who leads")
        for member in MEMBERS:
            self.start(member)
        state = self.wait_until(
            "three Spark drivers start, the first epochs are committed",
            lambda s: len(s.committed) >= 2 and s.head_cuts.get("matched", -1) >= 0,
        )
        self.say(f"[bold]{state.leader}[/bold] leads; epoch {state.head} is one cut through all three")

    def lose_a_member(self) -> None:
        self.step("2  A member is killed in the middle of an epoch")
        state = self.wait_until("waiting for the next epoch to begin", lambda s: bool(s.open))
        victim = next(m for m in ("bank", "till") if m != state.leader)
        self.kill(victim)
        self.say(
            f"epoch {max(state.open)} had begun: [red]kill -9[/red] {victim}. The others continue; its channel waits"
        )
        deliver(self.folder, range(6, 12))
        self.start(victim)
        state = self.wait_for_commits(f"{victim} comes back and catches up", 2)
        self.say(f"epoch {state.head} is committed, with {victim}")

    def pause_a_member(self) -> None:
        self.step("3  The leader is paused for longer than the leader timeout, then resumed")
        before = self.journal()
        self.children[before.leader].send_signal(signal.SIGSTOP)
        self.say(f"[yellow]SIGSTOP[/yellow] {before.leader}, which leads in term {before.term}")
        after = self.wait_until("another member takes over", lambda s: s.term > before.term)
        self.say(f"[bold]{after.leader}[/bold] leads in term {after.term}")
        deliver(self.folder, range(12, 16))
        self.children[before.leader].send_signal(signal.SIGCONT)
        state = self.wait_for_commits(f"{before.leader} resumes, sees that its term is over, and follows", 2)
        self.say(f"[yellow]SIGCONT[/yellow]: it follows {state.leader}; epoch {state.head} is committed")

    def lose_the_leader(self) -> None:
        self.step("4  The leader is killed")
        before = self.journal()
        self.kill(before.leader)
        began = time.monotonic()
        self.say(f"[red]kill -9[/red] {before.leader}, which leads in term {before.term}")
        after = self.wait_until("another member takes over", lambda s: s.term > before.term)
        self.say(
            f"after {readable(time.monotonic() - began)} [bold]{after.leader}[/bold] leads in term {after.term}"
        )
        deliver(self.folder, range(16, FILES))
        self.start(before.leader)
        state = self.wait_for_commits(f"{before.leader} comes back", 2)
        self.say(f"epoch {state.head} is committed")

    def end(self) -> None:
        self.step("5  One command from anywhere drains all three")
        self.wait_until(
            "the rest of the input goes through", lambda s: len(read_matched(self.folder)) >= 900 * FILES
        )
        self.say("[cyan]$ cutwater drain --store state[/cyan]")
        epoch = self.ask(Request(RequestKind.DRAIN, new_id()))
        for member, child in list(self.children.items()):
            code = child.wait(timeout=180)
            if code:
                raise UserError(f"{member} exited with {code}; see {self.folder / f'{member}.log'}")
            del self.children[member]
        self.say(f"epoch {epoch} is the last one; all three have ended")

    def compare(self) -> None:
        self.step("6  Both tables, row by row, against a batch job over the same input")
        state = self.journal()
        self.compare_tables(state, LIMIT)
        self.say(f"done in {readable(time.monotonic() - self.started)}, in {state.term} terms")


def _with_member(text: str, stage: str, member: str) -> str:
    """Add a member to a stage that already has sinks."""
    head, found, tail = text.partition(f"\ndef {stage}(")
    before, decorator, options = head.rpartition("@pipeline.stage(")
    if not found or not options.startswith("sinks="):
        return text
    return f'{before}{decorator}member="{member}", {options}{found}{tail}'


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
