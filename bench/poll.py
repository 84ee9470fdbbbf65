"""What polling costs a stage's appender when no barrier is pending: `python -m bench.poll`.

Both words are polled and an empty method is called, in alternating rounds of one run; the figure is the
ratio of the medians, so it depends little on the machine. Target: at most 2.5 for either word.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from statistics import median
from timeit import Timer

from cutwater.protocol.member.injector import BarrierInjector, Word
from cutwater.runtime.words import LocalWord, MappedWord

ROUNDS = 41
CALLS = 50_000
TARGET = 2.5


class Empty:
    """The measure: a method that takes what `poll` takes and does nothing."""

    __slots__ = ()

    def method(self, epoch: int) -> None:
        pass


def measure(folder: Path) -> dict[str, float]:
    """Median nanoseconds per call, by what was called."""

    def polling(word: Word) -> Timer:
        return Timer("poll(7)", globals={"poll": BarrierInjector(word).handle().poll})

    timers = {
        "empty": Timer("method(7)", globals={"method": Empty().method}),
        "local": polling(LocalWord()),
        "mapped": polling(MappedWord(folder / "word")),
    }
    rounds = [{name: timer.timeit(CALLS) for name, timer in timers.items()} for _ in range(ROUNDS)]
    return {name: median(r[name] for r in rounds) / CALLS * 1e9 for name in timers}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        ns = measure(Path(folder))
    ratios = {name: round(ns[name] / ns["empty"], 2) for name in ("local", "mapped")}
    for name, value in ns.items():
        print(f"{name:8} {value:6.1f} ns per call")
    print(json.dumps({"bench": "poll", "target": TARGET, "ratio": max(ratios.values()), **ratios}))


if __name__ == "__main__":
    main()
