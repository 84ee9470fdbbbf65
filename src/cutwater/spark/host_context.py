"""What a host uses of its process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pyspark.sql import SparkSession

from cutwater.protocol.member.stage import Stage
from cutwater.spark.checkpoint.folder import Cache
from cutwater.store.contract import Store

Task = Callable[[], None]


@dataclass(frozen=True)
class HostContext:
    """`find` returns a stage's newest incarnation, and is called in a turn only. `call` runs a task in a turn, `work` in
    a thread of the pool. `look` calls a function that only reads, between two turns, and returns its result.
    `caches`: known files per stage. `starting` is held while a query starts."""

    pipeline: str
    spark: SparkSession
    store: Store
    caches: Mapping[str, Cache]
    find: Callable[[str], Stage | None]
    look: Callable[[Callable[[], Stage | None]], Stage | None]
    call: Callable[[Task], None]
    work: Callable[[Task], None]
    starting: AbstractContextManager[Any]
