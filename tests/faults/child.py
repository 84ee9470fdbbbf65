"""The process to be killed: `python -m tests.faults.child PIPELINE FOLDER OPTIONS STEP...`.

OPTIONS is JSON: the arguments of `Pipeline.start`, including the store. The only step is `once` (run to the end of the
input), or the steps are, in order, `checkpoint`, `unaligned`, `savepoint=NAME`, `restore=REF`, `drain`, `end`, which
waits until the run has ended by itself, `await=FILE`, which waits until the parent has created that file, and
`logged=STAGE:BATCH`, which waits until a stage has logged that batch. After the last step the pipeline is stopped. The
result of a step is printed as a line `STEP -> RESULT`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import cutwater as cw
from cutwater.api.log_lines import lines_to
from tests.faults.pipelines import PIPELINES

DEADLINE_S = 110.0


def perform(pipeline: cw.Pipeline, base: Path, step: str) -> object:
    what, _, given = step.partition("=")
    match what:
        case "checkpoint":
            return pipeline.checkpoint(timeout=DEADLINE_S)
        case "unaligned":
            return pipeline.checkpoint(unaligned=True, timeout=DEADLINE_S)
        case "savepoint":
            return pipeline.savepoint(given, timeout=DEADLINE_S)
        case "restore":
            return pipeline.restore(given, timeout=DEADLINE_S)
        case "drain":
            return pipeline.drain(timeout=DEADLINE_S)
        case "end":
            return pipeline.awaitTermination(DEADLINE_S)
        case "await":
            return until(lambda: (base / given).exists(), step)
        case "logged":
            name, _, batch = given.partition(":")
            return until(lambda: last_batch(pipeline, name) >= int(batch), step)
        case _:
            raise ValueError(f"unknown step '{step}'")


def last_batch(pipeline: cw.Pipeline, stage: str) -> int:
    return next(s.batch for s in pipeline.status().stages if s.name == stage)


def until(condition: Callable[[], bool], what: str) -> float:
    """Waits, and returns the seconds that it took."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > DEADLINE_S:
            raise TimeoutError(f"{what} did not happen within {DEADLINE_S:g} s")
        time.sleep(0.05)
    return time.monotonic() - began


def say(line: str) -> None:
    """Prints in one piece, because several threads print."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(kind: str, folder: str, options: str, *steps: str) -> None:
    base = Path(folder)
    pipeline = PIPELINES[kind](base)
    settings = {"every": "1s", "master": "local[2]", **json.loads(options)}
    store = settings.pop("store")
    settings["conf"] = {"spark.sql.shuffle.partitions": "1", **settings.get("conf", {})}
    if steps == ("once",):
        pipeline.run(store, once=True, **settings)
        return
    with lines_to(say):
        pipeline.start(store, **settings)
        for step in steps:
            say(f"{step} -> {perform(pipeline, base, step)}")
        pipeline.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
