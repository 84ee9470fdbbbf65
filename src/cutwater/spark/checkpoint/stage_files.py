"""The files of a stage that are in the store: those that a checkpoint needs, and those that may be deleted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from cutwater.protocol.base.effects import Stored
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import (
    BASE,
    COMPLETE,
    channel_file_of,
    channel_prefix,
    spark_file_of,
    spark_folders_prefix,
    spark_prefix,
)
from cutwater.spark.checkpoint.folder import Cache, SparkFolder
from cutwater.spark.checkpoint.incarnations import base_at, lowest_at
from cutwater.spark.checkpoint.parallel import in_parallel
from cutwater.spark.checkpoint.state_files import FOREVER
from cutwater.store.contract import Store

# --- files of a checkpoint ------------------------------------------------------------------------------


def find_state(
    store: Store,
    stage: str,
    generation: int,
    incarnation: int,
    batch: int,
    copy_to: str | None,
    cache: Cache,
) -> dict[str, str] | None:
    """Names and checksums of the files from which a folder can be rebuilt to continue after `batch`; `None` if some are
    gone. With `copy_to`, copy them below that prefix and return the copies."""
    prefix = spark_prefix(stage, generation, incarnation)
    number = batch - base_at(store, prefix, cache) - 1
    folder = SparkFolder(store, prefix, cache)
    if number < folder.first:
        return {}
    needed = folder.needed(number)
    if needed is None:
        return None
    names = sorted(needed)
    if copy_to is None:
        return _checksums(store, [prefix + name for name in names], cache.checksums)
    try:
        in_parallel(lambda name: store.copy(prefix + name, copy_to + name), names)
    except OSError:
        if all(store.exists(prefix + name) for name in names):
            raise
        return None
    return _checksums(store, [copy_to + name for name in names], {})


def _checksums(store: Store, names: list[str], known: dict[str, str]) -> dict[str, str] | None:
    new = [name for name in names if name not in known]
    for name, checksum in zip(new, store.checksum_many(new), strict=True):
        if checksum is None:
            return None
        known[name] = checksum
    return {name: known[name] for name in names}


# --- files that may be deleted --------------------------------------------------------------------------


def find_stored(
    store: Store, stage: str, generation: int, last_incarnation: int, cache: Cache
) -> tuple[list[Stored], list[Stored]]:
    """The channel files of a stage, and its state files with the batches that need them. `cache` must be the same in
    every call of a process: it remembers when a snapshot was first seen."""
    data = []
    for name in store.list(channel_prefix(stage, generation)):
        if of := channel_file_of(name):
            data.append(Stored(name, of.attempt.incarnation, of.attempt.batch))
    names = store.list(spark_folders_prefix(stage, generation))
    folders: dict[int, list[str]] = defaultdict(list)
    for name in names:
        if (file := spark_file_of(name)) is not None:
            folders[file.incarnation].append(name)
    states: list[Stored] = []
    for incarnation, files in folders.items():
        if incarnation <= last_incarnation:
            prefix = spark_prefix(stage, generation, incarnation)
            states += _stored(store, prefix, incarnation, files, last_incarnation, cache)
    _forget(cache, spark_folders_prefix(stage, generation), set(names))
    return data, states


def _stored(
    store: Store, prefix: str, incarnation: int, files: list[str], last: int, cache: Cache
) -> list[Stored]:
    if not {prefix + BASE, prefix + COMPLETE} <= set(files):
        return (
            [Stored(name, incarnation, -1, -1, unknown=True) for name in files] if incarnation < last else []
        )
    try:
        base, lowest = base_at(store, prefix, cache), lowest_at(store, prefix, cache)
        spans = SparkFolder(store, prefix, cache, files).spans(live=incarnation == last)
    except StoreError:
        if incarnation < last:
            return []  # nothing will start from it, so failing to clean it up must not end a run
        raise
    states = []
    for name, (first, until) in spans.items():
        end = until + base + 1 if until < FOREVER else FOREVER
        states.append(Stored(prefix + name, incarnation, min(max(first + base + 1, lowest), end), end))
    return states


def _forget(cache: Cache, prefix: str, names: set[str]) -> None:
    """Drop files that are gone from the cache."""
    kinds: Iterable[dict[str, object]] = vars(cache).values()
    for known in kinds:
        for name in list(known):
            if name.startswith(prefix) and name not in names and not name.endswith("/"):
                known.pop(name, None)
