"""The cost of polling in a stage's appender when no barrier is pending: `python -m bench.poll`.

Alternating rounds poll a word and call an empty method. The result is the ratio of the medians, so it depends little on
the machine. Target: at most 2.5.
"""

from __future__ import annotations

import json
from statistics import median
from timeit import Timer

from cutwater.protocol.member.injector import BarrierInjector
from cutwater.runtime.local_word import LocalWord

ROUNDS = 41
CALLS = 50_000
TARGET = 2.5


class Empty:
    """The baseline: a method with the parameters of `poll` that does nothing."""

    __slots__ = ()

    def method(self, epoch: int) -> None:
        pass


def measure() -> dict[str, float]:
    """Median nanoseconds per call, by function."""
    timers = {
        "empty": Timer("method(7)", globals={"method": Empty().method}),
        "poll": Timer("poll(7)", globals={"poll": BarrierInjector(LocalWord()).handle().poll}),
    }
    rounds = [{name: timer.timeit(CALLS) for name, timer in timers.items()} for _ in range(ROUNDS)]
    return {name: median(r[name] for r in rounds) / CALLS * 1e9 for name in timers}


def main() -> None:
    ns = measure()
    for name, value in ns.items():
        print(f"{name:8} {value:6.1f} ns per call")
    print(json.dumps({"bench": "poll", "target": TARGET, "ratio": round(ns["poll"] / ns["empty"], 2)}))


if __name__ == "__main__":
    main()
