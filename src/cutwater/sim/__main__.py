"""`python -m cutwater.sim`: plays seeded schedules on all cores, shows or records one of them, or checks a recording."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

from rich.console import Console

from cutwater.sim.checker import check_recording
from cutwater.sim.checker.show import show
from cutwater.sim.world import Result, World


def play(job: tuple[int, int | None]) -> Result:
    """Plays one schedule. A world is one big reference cycle: collecting garbage occasionally, between schedules,
    is cheaper than letting the collector run all the time."""
    seed, members = job
    gc.disable()
    result = World(seed, members).run()
    if seed % 16 == 0:
        gc.collect()
    return result


def _results(jobs: list[tuple[int, int | None]], processes: int) -> Iterator[Result]:
    if processes == 1 or len(jobs) < 4:
        yield from map(play, jobs)
        return
    with Pool(processes) as pool:
        yield from pool.imap_unordered(play, jobs, chunksize=max(1, min(25, len(jobs) // (4 * processes))))


def run(seeds: int, start: int, members: int | None, processes: int) -> int:
    """Plays the schedules, shows progress, and prints a summary. Returns 1 if an invariant was violated."""
    began = time.monotonic()
    shown = began
    violations: list[Result] = []
    epochs = faults = 0
    jobs = [(seed, members) for seed in range(start, start + seeds)]
    for done, result in enumerate(_results(jobs, processes), 1):
        epochs += result.epochs
        faults += result.faults
        if result.violation is not None:
            violations.append(result)
            print(f"seed {result.seed}: {result.violation}", flush=True)
        now = time.monotonic()
        if now - shown >= 5:
            shown = now
            rate = done / (now - began)
            print(
                f"{done:,} of {seeds:,} schedules · {rate:.0f}/s · {(seeds - done) / rate:.0f} s left",
                flush=True,
            )
    if violations:
        worst = min(v.seed for v in violations)
        print(f"show one: python -m cutwater.sim --trace {worst}")
    counts = f"{epochs} epochs committed, {faults} faults injected"
    print(f"{seeds} schedules, {len(violations)} violations, {counts}")
    return 1 if violations else 0


def trace(seed: int, members: int | None) -> int:
    """Shows one schedule, a line per event."""
    result = World(seed, members, tracer=print).run()
    print(
        f"seed {seed}: {result.violation or 'no violation'}, {result.epochs} epochs, {result.faults} faults"
    )
    return 0 if result.violation is None else 1


def record(seed: int, members: int | None, path: Path) -> int:
    """Plays one schedule and records what every process did and saw in one file."""
    with path.open("wb") as file:
        result = World(seed, members, record=file.write).run()
    print(
        f"seed {seed}: {result.violation or 'no violation'}, {result.epochs} epochs, {result.faults} faults; "
        f"check it: python -m cutwater.sim --check {path}"
    )
    return 0 if result.violation is None else 1


def check_trace(path: Path) -> int:
    """Checks a recording of the simulator or of a running system, and prints the result."""
    try:
        report = check_recording(path)
    except OSError as error:
        print(f"cannot check {path}: {error}", file=sys.stderr)
        return 2
    show(report, path, Console())
    return 1 if report.problems else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m cutwater.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, metavar="N", help="how many schedules to play")
    parser.add_argument("--start", type=int, default=0, metavar="S", help="the first seed")
    parser.add_argument("--members", type=int, metavar="M", help="members per pipeline (default: 3 to 5)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="processes to use")
    parser.add_argument("--trace", type=int, metavar="SEED", help="show one schedule, a line per event")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="which schedule to record")
    parser.add_argument("--record", type=Path, metavar="FILE", help="record one schedule, for --check")
    parser.add_argument(
        "--check",
        type=Path,
        metavar="TRACE",
        help="check a recording: a file, or the folder that running members wrote to (CUTWATER_TRACE)",
    )
    options = parser.parse_args()
    for name in ("seeds", "members", "processes"):
        value = getattr(options, name)
        if value is not None and value < 1:
            parser.error(f"--{name} is {value}, but must be at least 1")
    if options.check is not None:
        return check_trace(options.check)
    if options.record is not None:
        return record(options.seed, options.members, options.record)
    if options.trace is not None:
        return trace(options.trace, options.members)
    return run(options.seeds, options.start, options.members, options.processes)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:  # the reader of the output, such as `head`, has ended
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
