"""The time for 10,000 simulated schedules on all cores: `python -m bench.schedules [--seeds N]`.

Each has 3 to 5 members, 4 to 8 stages and at least 10 committed epochs. The last line is JSON; `ratio` is the time for
10,000 schedules relative to the target of 10 minutes. `calibration_s` is the time of a plain loop in the same run,
because machines are noisy.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from multiprocessing import Pool

from cutwater.sim.__main__ import play
from cutwater.sim.world import EPOCHS

LIMIT_S = 600
SCHEDULES = 10_000


def calibrate() -> float:
    """Seconds for a plain loop of 3,000,000 additions."""
    began, total = time.process_time(), 0
    for i in range(3_000_000):
        total += i
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.schedules", description=__doc__)
    parser.add_argument("--seeds", type=int, default=SCHEDULES)
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args()
    jobs = [(seed, None) for seed in range(options.start, options.start + options.seeds)]
    before = calibrate()
    began = shown = time.monotonic()
    violations = epochs = faults = 0
    fewest = 1_000_000
    with Pool(os.cpu_count()) as pool:
        for done, result in enumerate(pool.imap_unordered(play, jobs, chunksize=25), 1):
            violations += result.violation is not None
            epochs += result.epochs
            faults += result.faults
            fewest = min(fewest, result.epochs)
            if time.monotonic() - shown > 10:
                shown = time.monotonic()
                print(f"{done:,} of {options.seeds:,} schedules after {shown - began:.0f} s", flush=True)
    took = time.monotonic() - began
    print(f"{options.seeds:,} schedules in {took:.0f} s on {os.cpu_count()} cores; fewest epochs {fewest}")
    figures = {
        "bench": "schedules",
        "ratio": round(took * SCHEDULES / options.seeds / LIMIT_S, 3),
        "schedules": options.seeds,
        "seconds": round(took, 1),
        "violations": violations,
        "epochs": epochs,
        "faults": faults,
        "fewest_epochs": fewest,
        "wanted_epochs": EPOCHS,
        "calibration_s": round((before + calibrate()) / 2, 3),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
