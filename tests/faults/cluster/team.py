"""Three members of one pipeline in separate processes, the faults injected into them, and the expected results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cutwater.protocol.base.records import JournalState
from cutwater.protocol.base.wire import Request, RequestKind
from cutwater.runtime.store_requests import Unanswered, answered, ask_through, new_id
from cutwater.sim.checker import check_recording
from cutwater.store.at_rest import read_journal
from cutwater.store.opening import open_store
from tests.faults.cluster.proxy import Proxy, free_port
from tests.faults.inputs import MATCHED, ORDERS, PAID_REVENUE, PAYMENTS
from tests.faults.runner import QUICK_START, ROOT, Bench, Child

MEMBERS = ("a", "b", "c")
SHOP = {"orders": ORDERS, "payments": PAYMENTS, "matched": MATCHED, "revenue": PAID_REVENUE}
DEADLINE_S = 240.0
NO_STORE = "does not answer: the store does not answer"
"""The message of a member that gives up because it could not reach the store at its start."""


class MemberChild(Child):
    """One process of a member."""

    def __init__(self, team: Team, member: str, number: int, options: Any, env: Any) -> None:
        self.log = team.base / f"{member}-{number}.log"
        self.what = f"member {member}, process {number} ({env or 'unharmed'})"
        command = [
            sys.executable,
            "-m",
            "tests.faults.cluster.child",
            member,
            str(team.base),
            json.dumps(options),
        ]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={
                    **os.environ,
                    "JAVA_TOOL_OPTIONS": f"{QUICK_START} -Djava.io.tmpdir={team.scratch}",
                    "TMPDIR": str(team.scratch),
                    "CUTWATER_TRACE": str(team.base / "trace"),
                    **env,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )


class Team(Bench):
    """The members, each with its port; the network between any two of them can be cut."""

    def __init__(self, base: Path) -> None:
        super().__init__(base, "shop")
        (base / "trace").mkdir()
        self.up: dict[str, MemberChild] = {}
        self._ports = {m: free_port() for m in MEMBERS}
        self._started = 0
        # Of each pair, the member whose name sorts later connects to the other, through a proxy of the pair.
        self._networks = {(m, o): Proxy(self._ports[o]) for m in MEMBERS for o in MEMBERS if o < m}

    # --- members --------------------------------------------------------------------------------------

    def member(self, name: str, kill_at: str = "", pause_at: str = "", **options: Any) -> MemberChild:
        """Starts a process of a member."""
        env = {"CUTWATER_KILL_AT": kill_at} if kill_at else {}
        if pause_at:
            env = {"CUTWATER_KILL_AT": pause_at, "CUTWATER_KILL_WITH": "SIGSTOP"}
        peers = [f"tcp/127.0.0.1:{p.port}" for (m, _), p in self._networks.items() if m == name]
        cluster = {
            "listen": [f"tcp/127.0.0.1:{self._ports[name]}"], "peers": peers, "secret": "a secret that all members know",
            "gossip": False, "lease_s": 2.0, "grace_s": 5.0,
        }  # fmt: skip
        self._started += 1
        child = MemberChild(self, name, self._started, {"cluster": cluster, **options}, env)
        self.children.append(child)
        self.up[name] = child
        return child

    def all_up(self, **options: Any) -> None:
        for name in MEMBERS:
            self.member(name, **options)

    def kill(self, *names: str) -> None:
        for name in names:
            self.up[name].kill()

    def pause(self, name: str) -> None:
        self.up[name].signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        self.up[name].signal(signal.SIGCONT)

    def cut_off(self, name: str) -> None:
        """Cuts all connections of this member."""
        for pair, network in self._networks.items():
            if name in pair:
                network.cut()

    def reconnect(self, name: str) -> None:
        for pair, network in self._networks.items():
            if name in pair:
                network.mend()

    def store_fails(self, name: str, how: str = "down") -> None:
        (self.base / f"{how}-{name}").touch()

    def store_is_back(self, name: str, how: str = "down") -> None:
        (self.base / f"{how}-{name}").unlink()

    def end_all(self) -> None:
        super().end_all()
        for network in self._networks.values():
            network.close()

    # --- what the journal says --------------------------------------------------------------------------

    @property
    def state(self) -> JournalState:
        return read_journal(open_store(str(self.base / "store"), create=True), must_exist=False).state

    @property
    def leader(self) -> str:
        return self.state.leader

    def until(self, what: str, holds: Any, seconds: float = DEADLINE_S) -> float:
        """Waits, and returns the seconds that it took."""
        began = time.monotonic()
        while not holds():
            for name, child in list(self.up.items()):
                code = child.process.poll()
                if code == 1 and NO_STORE in child.said():  # it started while the store was down: restart it
                    child.kill()
                    self.member(name)
                    continue
                assert code in (None, 0, -signal.SIGKILL), (
                    f"waiting until {what}: {name} ended with {code}:\n{child.said()}"
                )
            assert time.monotonic() - began < seconds, self._describe(what, seconds)
            time.sleep(0.05)
        return time.monotonic() - began

    def _describe(self, what: str, seconds: float) -> str:
        said = "\n\n".join(f"{name}:\n{child.said()}" for name, child in self.up.items())
        return f"not within {seconds:g} s: {what}; {self.state.open=} {self.state.head=}\n{said}"

    def await_commit(self, count: int = 1, seconds: float = DEADLINE_S) -> float:
        """Waits until `count` more epochs are committed."""
        wanted = (self.state.head or 0) + count
        return self.until(f"epoch {wanted} is committed", lambda: (self.state.head or 0) >= wanted, seconds)

    def await_killed(self, name: str) -> None:
        """Waits until a member has been killed at its failpoint."""
        child = self.up[name]
        self.until(f"{name} is killed", lambda: child.process.poll() is not None)
        assert child.process.returncode == -signal.SIGKILL, child.said()
        child.kill()

    # --- the end ----------------------------------------------------------------------------------------

    def ask(self, kind: RequestKind, **what: Any) -> int | None:
        reply = ask_through(open_store(str(self.base / "store")), Request(kind, new_id(), **what), DEADLINE_S)
        assert not isinstance(reply, Unanswered), self._describe(f"an answer to {kind.value}", DEADLINE_S)
        return answered(reply, kind)

    def drain(self) -> None:
        """Drains the pipeline: every member ends, and every table equals the result of a batch job."""
        self.ask(RequestKind.DRAIN)
        for name, child in self.up.items():
            assert child.end() == 0, f"{name}:\n{child.said()}"
        self.check(**SHOP)
        report = check_recording(self.base / "trace")
        assert report.problems == [], report.problems
        assert report.counts["epochs committed"] > 0
