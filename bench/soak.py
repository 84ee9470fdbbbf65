"""A soak test: three members of one pipeline with random faults.

Real processes, each with its own Spark, are killed, paused for longer than the leader timeout, and cut off from each
other and from the store, one or several at a time. Meanwhile input keeps arriving and `cutwater` commands run:
checkpoints, savepoints, restores, forgotten savepoints, cancellations, garbage collection, verification. Then the
pipeline is drained, every table is compared with the result of a batch job over the same input, and the recordings of
members and commands are checked against the rules.

    python -m bench.soak --minutes 30 [--seed 1] [--folder DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.faults.cluster.team import MEMBERS, SHOP, Team
from tests.faults.runner import ROOT

from cutwater.sim.checker import check_recording

RECOVERS_S = 240.0
"""A checkpoint must be committed this soon after a fault: three Sparks may have to start on this machine."""
FILES_AT_MOST = 600
ANSWERS_S = 180.0
"""How long a command waits for its answer."""
NAMES = ("first", "second", "third")
"""The savepoint names: few, so that commands collide."""


class Command:
    """A `cutwater` command in its own process."""

    def __init__(self, team: Team, *words: str) -> None:
        self.words = words
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cutwater", *words, "--store", str(team.base / "store")],
            cwd=ROOT,
            env={**os.environ, "CUTWATER_TRACE": str(team.base / "trace")},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def end(self) -> tuple[int, str]:
        """Its exit code and output. Whatever happens to the pipeline, it succeeds or says why not."""
        said, _ = self.process.communicate(timeout=ANSWERS_S + 60)
        shown = f"`cutwater {' '.join(self.words)}` ended with {self.process.returncode}:\n{said}"
        assert "Traceback" not in said, shown
        assert self.process.returncode == 0 or "error" in said or self.words[0] == "verify", shown
        return self.process.returncode, said


class Soak:
    """The faults and commands, and their counts."""

    def __init__(self, team: Team, seed: int) -> None:
        self.team = team
        self.random = random.Random(seed)
        self.counts: Counter[str] = Counter()
        self.recoveries: list[float] = []

    def run(self, minutes: float) -> None:
        team, end = self.team, time.monotonic() + minutes * 60
        team.input.add(4)
        team.all_up()
        team.await_commit(2, RECOVERS_S)
        faults: list[Callable[[], None]] = [
            self.kill_one, self.kill_one, self.kill_leader, self.kill_two, self.kill_all, self.pause, self.pause,
            self.partition, self.partition, self.store_down, self.store_slow,
        ]  # fmt: skip
        while time.monotonic() < end:
            if team.input.files < FILES_AT_MOST:
                team.input.add(self.random.randrange(1, 4))
            commands = self.commands()
            fault = self.random.choice(faults)
            self.say(f"{fault.__name__.replace('_', ' ')}; {team.leader} leads, epoch {team.state.head}")
            fault()
            self.counts["faults"] += 1
            self.recoveries.append(team.await_commit(1, RECOVERS_S))
            self.await_ends(commands)
        self.say("draining")
        team.drain()

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    # --- commands ---------------------------------------------------------------------------------------

    def commands(self) -> list[Command]:
        """Starts none, one or two commands, and does not wait for them."""
        wait = ("--timeout", f"{ANSWERS_S:g}s")
        name = self.random.choice(NAMES)
        kept = [*NAMES, "latest", "latest", *map(str, self.team.state.committed)]
        choices: list[tuple[str, ...]] = [
            ("checkpoint", *wait), ("checkpoint", "--full", *wait), ("checkpoint", "--unaligned", *wait),
            ("savepoint", name, *wait), ("savepoint", name, *wait), ("savepoint", name, "--epoch", "latest", *wait),
            ("savepoint", name, "--forget", *wait), ("cancel", *wait), ("gc",), ("verify",), ("status",),
            ("restore", self.random.choice(kept), *wait), ("restore", self.random.choice(kept), *wait),
            ("restore", self.random.choice(kept), "--takeover", *wait),
        ]  # fmt: skip
        chosen = self.random.sample(choices, self.random.choice((0, 1, 1, 2)))
        for words in chosen:
            self.say(f"cutwater {' '.join(words)}")
        return [Command(self.team, *words) for words in chosen]

    def await_ends(self, commands: list[Command]) -> None:
        """Waits until every command has ended, and checks that each reported savepoint exists."""
        for command in commands:
            code, said = command.end()
            kind = command.words[0]
            self.counts[f"{kind} done" if code == 0 else f"{kind} refused"] += 1
            self.say(f"  {kind}: {said.strip().splitlines()[-1][:160] if said.strip() else 'done'}")
        takes = [c for c in commands if c.words[0] == "savepoint" and "--forget" not in c.words]
        others = [c for c in commands if "--forget" in c.words]
        if takes and not others and takes[0].process.returncode == 0:
            assert takes[0].words[1] in self.team.state.savepoints, (
                f"{takes[0].words} was reported but does not exist"
            )

    # --- faults -----------------------------------------------------------------------------------------

    @property
    def leader(self) -> str:
        """The member that leads; another one while a command does."""
        leads = self.team.leader
        return leads if leads in MEMBERS else self.random.choice(MEMBERS)

    def some_time(self, least: float, most: float) -> None:
        """Lets the fault last. This is the duration of the fault, not a wait for a condition."""
        time.sleep(self.random.uniform(least, most))

    def _kill(self, *names: str) -> None:
        self.some_time(0.0, 2.0)
        self.team.kill(*names)
        self.counts["kills"] += len(names)
        self.some_time(0.0, 4.0)
        for name in names:
            self.team.member(name)

    def kill_one(self) -> None:
        self._kill(self.random.choice(MEMBERS))

    def kill_leader(self) -> None:
        self._kill(self.leader)

    def kill_two(self) -> None:
        self._kill(*self.random.sample(MEMBERS, 2))

    def kill_all(self) -> None:
        self._kill(*MEMBERS)

    def pause(self) -> None:
        name = self.random.choice([self.leader, *MEMBERS])
        self.team.pause(name)
        self.counts["pauses"] += 1
        self.some_time(1.0, 12.0)
        self.team.resume(name)

    def partition(self) -> None:
        name = self.random.choice([self.leader, *MEMBERS])
        self.team.cut_off(name)
        self.counts["partitions"] += 1
        self.some_time(1.0, 12.0)
        self.team.reconnect(name)

    def store_down(self, how: str = "down") -> None:
        names = self.random.sample(MEMBERS, self.random.randrange(1, 4))
        for name in names:
            self.team.store_fails(name, how)
        self.counts["store faults"] += 1
        self.some_time(1.0, 20.0)
        for name in names:
            self.team.store_is_back(name, how)

    def store_slow(self) -> None:
        self.store_down("slow")


def compare(team: Team) -> dict[str, int]:
    """The number of rows in the tables, of missing rows, and of duplicate or unexpected rows."""
    found = {"rows": 0, "lost": 0, "duplicated": 0, "wrong": 0}
    for table, sql in SHOP.items():
        rows, wanted = Counter(team.rows(table)), Counter(team.wanted(sql))
        found["rows"] += rows.total()
        found["lost"] += (wanted - rows).total()
        more = rows - wanted
        found["duplicated"] += sum(n for row, n in more.items() if row in wanted)
        found["wrong"] += sum(n for row, n in more.items() if row not in wanted)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="cutwater-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    team = Team(folder)
    soak = Soak(team, arguments.seed)
    began = time.monotonic()
    try:
        soak.run(arguments.minutes)
    finally:
        team.end_all()
    report = check_recording(folder / "trace")
    state = team.state
    result = {
        "bench": "soak",
        "minutes": round((time.monotonic() - began) / 60, 1),
        "seed": arguments.seed,
        **soak.counts,
        "epochs_committed": report.counts["epochs committed"],
        "epochs_aborted": report.counts["epochs aborted"],
        "terms": state.term,
        **compare(team),
        "rules_broken": len(report.problems),
        "recovery_s": {
            "median": round(sorted(soak.recoveries)[len(soak.recoveries) // 2], 1),
            "worst": round(max(soak.recoveries), 1),
        },
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
