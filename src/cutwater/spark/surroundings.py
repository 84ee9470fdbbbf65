"""What a host uses of the process that it runs in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import SparkSession

from cutwater.protocol.member.stage import Stage
from cutwater.store.stores import Store

Task = Callable[[], None]


@dataclass(frozen=True)
class Surroundings:
    """`find` gives a stage's newest incarnation. `call` runs a task in a turn, `work` in a thread of the pool,
    `later` in a turn after so many seconds; `poke` resumes an actor; `tell` is for the user. `restart` starts a
    stage's next incarnation; callers must hold the turn. `once`: take what is there, then end. `idle_after_s`: silence
    after which a stage no longer holds back the watermark. `restarts`: how often a query is started again."""

    pipeline: str
    spark: SparkSession
    store: Store
    once: bool
    idle_after_s: float
    restarts: int
    find: Callable[[str], Stage | None]
    call: Callable[[Task], None]
    work: Callable[[Task], None]
    later: Callable[[float, Task], None]
    poke: Callable[[str], None]
    tell: Callable[[str], None]
    restart: Callable[[str], None]
