"""The time to restore a gibibyte of state, compared with a plain copy of the same files.

A restore compares every object that the checkpoint names with its checksum, then creates the new incarnation's Spark
folder from them. The files are random bytes in the layout of a savepoint; Spark is not needed.

    python -m bench.restore [--mib 1024] [--rounds 3]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

from cutwater.protocol.base.records import Manifest, StageReport
from cutwater.protocol.base.watermark import UNKNOWN
from cutwater.spark.checkpoint import new_folder
from cutwater.store.checkpoint_objects import damaged_objects
from cutwater.store.opening import open_store

FILES = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-restore-") as name:
        store = open_store(str(Path(name) / "store"), create=True)
        prefix = "checkpoints/7-20/state/counts/"
        names = [f"{prefix}state/0/{i % 8}/SSTs/{i:06d}.sst" for i in range(FILES)]
        for each in names:
            store.create(each, os.urandom(arguments.mib * 1024 * 1024 // FILES))
        store.create(f"{prefix}cutwater/base.json", b'{"base":-1}')
        store.create(f"{prefix}commits/9", b"v1\n{}")
        store.create(f"{prefix}offsets/9", b"v1\n{}")
        small = [f"{prefix}cutwater/base.json", f"{prefix}commits/9", f"{prefix}offsets/9"]
        state = {each: store.checksum(each) or "" for each in [*names, *small]}
        report = StageReport("counts", 1, 9, False, consumed={}, offsets={}, watermark=UNKNOWN, state=state)
        manifest = Manifest(7, 20, 1, 1, 1, "s", "", {"counts": report}, (), {}, {}, None)
        took: list[float] = []
        copied: list[float] = []
        for number in range(arguments.rounds):
            started = time.perf_counter()
            assert damaged_objects(store, [manifest]) == {}
            new_folder.make_folder(store, "counts", 2, number + 1, None, report)
            took.append(time.perf_counter() - started)
            started = time.perf_counter()
            target = Path(name) / f"copy-{number}"
            target.mkdir()
            for place, each in enumerate(state):
                path = store.path(each)
                assert path is not None
                shutil.copyfile(path, target / str(place))
            copied.append(time.perf_counter() - started)
            shutil.rmtree(target)
            print(f"round {number + 1}: restore {took[-1]:.2f} s, copy {copied[-1]:.2f} s", flush=True)
    ratio = statistics.median(t / c for t, c in zip(took, copied, strict=True))
    print(json.dumps({"bench": "restore", "mib": arguments.mib, "ratio": round(ratio, 3), "target": 2.0}))


if __name__ == "__main__":
    main()
