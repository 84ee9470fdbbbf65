"""One member of the shop: `python -m tests.faults.cluster.child MEMBER FOLDER OPTIONS`, until it is drained or ended.

OPTIONS is JSON: the arguments of `Pipeline.start`, and `cluster` for `ClusterConfig`. With `alone` the file has only
this member's stages, like a file that a team keeps for itself; with `clock_s` this member's clock is wrong by that
much. While FOLDER/down-MEMBER exists the store fails for this member; while FOLDER/slow-MEMBER exists it is slow.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

import cutwater as cw
from cutwater.api.log_lines import lines_to
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.faults.child import say
from tests.faults.pipelines import PIPELINES

HOSTS = {"orders": "a", "payments": "b", "matched": "c", "revenue": "c"}
SLOW_S = 0.4


class FlakyStore(LocalStore):
    """The store as one member reaches it. Spark's own writes are not affected."""

    def __init__(self, root: Path, down: Path, slow: Path) -> None:
        super().__init__(root)
        self._down, self._slow = down, slow

    def _reach(self) -> None:
        if self._slow.exists():
            time.sleep(SLOW_S)
        if self._down.exists():
            raise OSError("the store does not answer")

    def create(self, name: str, data: bytes) -> bool:
        self._reach()
        created = super().create(name, data)
        self._reach()  # the worst time to fail: the write has happened, but nobody knows
        return created

    def put(self, name: str, data: bytes) -> None:
        self._reach()
        super().put(name, data)

    def read(self, name: str) -> bytes | None:
        self._reach()
        return super().read(name)

    def read_many(self, names: Sequence[str]) -> list[bytes | None]:
        self._reach()
        return [LocalStore.read(self, name) for name in names]

    def list(self, prefix: str, after: str = "") -> list[str]:
        self._reach()
        return super().list(prefix, after)

    def delete(self, names: Iterable[str]) -> None:
        self._reach()
        super().delete(names)

    def exists(self, name: str) -> bool:
        self._reach()
        return super().exists(name)


def main(member: str, folder: str, given: str) -> None:
    base, options = Path(folder), json.loads(given)
    pipeline = PIPELINES["shop"](base)
    if options.pop("alone", False):
        pipeline.stages = {n: s for n, s in pipeline.stages.items() if HOSTS[n] == member}
    else:
        for name, stage in list(pipeline.stages.items()):
            pipeline.stages[name] = msgspec.structs.replace(stage, member=HOSTS[name])
    wrong_s, right = options.pop("clock_s", 0.0), time.time
    time.time = lambda: right() + wrong_s
    cluster = cw.ClusterConfig(**{k: _tuple(v) for k, v in options.pop("cluster").items()})
    settings: dict[str, Any] = {
        "every": "1s", "master": "local[2]", "leader_timeout": "2s", "takeover": True, "tolerated_failures": None,
        "timeout": "30s", **options,
    }  # fmt: skip
    settings["conf"] = {"spark.sql.shuffle.partitions": "1"}
    open_store(str(base / "store"), create=True)
    store = FlakyStore(base / "store", base / f"down-{member}", base / f"slow-{member}")
    with lines_to(say):
        pipeline.run(store, member=member, cluster=cluster, **settings)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


if __name__ == "__main__":
    main(*sys.argv[1:])
