"""How long a pipeline is without a leader after a crash: `python -m bench.takeover [--kills 10]`.

Members in separate processes over Zenoh, a local store, no Spark (`members.py`), a checkpoint every 200 ms. The leader
is killed with SIGKILL and its member restarted at once, as a supervisor would do: an epoch needs every member. The time
from the kill to the next committed epoch is compared with two leader timeouts plus one checkpoint. The last line is
JSON; `ratio` is the worst such ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from bench.members import TIMEOUT_MS, Config
from bench.ports import free_endpoints

MEMBERS = 3
INTERVAL_MS = 200
SETTLED = 5
"""The number of committed epochs before the next kill."""


class Running:
    """The members, and the output of the current leader."""

    def __init__(self, store: Path) -> None:
        names = [f"m{i:02}" for i in range(MEMBERS)]
        endpoints = free_endpoints(MEMBERS)
        peers = {n: endpoints[0] if n != names[0] else endpoints[1] for n in names}
        self._configs = {
            n: Config(n, names, str(store), e, peers[n], INTERVAL_MS)
            for n, e in zip(names, endpoints, strict=True)
        }
        heard, self._said = os.pipe()
        self._lines = os.fdopen(heard)
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        for name in names:
            self.start(name)

    def start(self, name: str) -> None:
        command = [sys.executable, "-m", "bench.members", msgspec.json.encode(self._configs[name]).decode()]
        self._processes[name] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=self._said)

    def committed(self) -> tuple[str, float]:
        """Waits for a committed epoch, and returns its leader and its duration in seconds."""
        line = json.loads(self._lines.readline())
        return line["leader"], line["ms"] / 1000

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].communicate()

    def end(self) -> None:
        for name in self._processes:
            self.kill(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    kills = parser.parse_args().kills
    took: list[float] = []
    checkpoints: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        running = Running(Path(folder))
        try:
            for number in range(1, kills + 1):
                for _ in range(SETTLED):
                    leader, seconds = running.committed()
                    checkpoints.append(INTERVAL_MS / 1000 + seconds)
                killed_s = time.perf_counter()
                running.kill(leader)
                running.start(leader)
                successor = leader
                while successor == leader:  # output from before the kill
                    successor, _ = running.committed()
                took.append(time.perf_counter() - killed_s)
                print(f"kill {number}: {leader} led, {successor} leads after {took[-1]:.2f} s", flush=True)
        finally:
            running.end()
    allowed = 2 * TIMEOUT_MS / 1000 + statistics.median(checkpoints)
    print(
        json.dumps(
            {
                "bench": "takeover",
                "kills": kills,
                "seconds_median": round(statistics.median(took), 2),
                "seconds_worst": round(max(took), 2),
                "allowed_s": round(allowed, 2),
                "ratio": round(max(took) / allowed, 3),
                "target": 1.0,
            }
        )
    )


if __name__ == "__main__":
    main()
