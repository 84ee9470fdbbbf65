"""Spark's checkpoint folders in the store, one for each incarnation of a stage, and what we add to them.

Every start of a stage's query has its own folder, `stages/<stage>/<generation>/spark/<incarnation>/`. In addition to
Spark's files it contains `prepared/<batch>.json` (what a batch did, written before Spark commits it, see `prepared.py`),
`cutwater/base.json` (a folder that starts without state at the log's batch `base` numbers its batches from there; it
still has the positions of its sources, see `folder.py`) and `cutwater/complete` (created last). Batches have the numbers
of the stage's log here.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import BASE, COMPLETE, spark_file_of, spark_folders_prefix, spark_prefix
from cutwater.protocol.base.records import decode
from cutwater.spark.checkpoint.folder import Cache
from cutwater.store.contract import Store

T = TypeVar("T")


class Base(msgspec.Struct, frozen=True):
    """Spark's batch 0 is the log's batch `base` + 1."""

    base: int


class Complete(msgspec.Struct, frozen=True):
    """The mark of a complete folder: the last batch in it when it was made, and the first batch at which the stage can be
    cut with its files. `checksums`: by name, of each file that was copied or rewritten, except state files without a
    known checksum. `folder`: the folder that the mark belongs to."""

    batch: int
    lowest: int
    checksums: dict[str, str] = {}
    folder: str = ""


def list_folders(store: Store, stage: str, generation: int) -> list[int]:
    """The incarnations with a complete folder."""
    files = (spark_file_of(name) for name in store.list(spark_folders_prefix(stage, generation)))
    return sorted(file.incarnation for file in files if file is not None and file.file == COMPLETE)


def base_of(store: Store, stage: str, generation: int, incarnation: int, cache: Cache | None = None) -> int:
    """The offset of batch numbers: the log's number is Spark's plus this plus one."""
    return base_at(store, spark_prefix(stage, generation, incarnation), cache or Cache())


def base_at(store: Store, prefix: str, cache: Cache) -> int:
    """The same, of the folder at `prefix`."""
    if prefix not in cache.bases:
        cache.bases[prefix] = read_record(store, prefix + BASE, Base).base
    return cache.bases[prefix]


def lowest_at(store: Store, prefix: str, cache: Cache) -> int:
    """The first batch at which the stage can be cut with the files of a folder."""
    if prefix not in cache.lowest:
        cache.lowest[prefix] = mark_at(store, prefix).lowest
    return cache.lowest[prefix]


def read_record(store: Store, name: str, kind: type[T]) -> T:
    """A record of ours in a Spark folder. Raises `StoreError` if it is gone or damaged."""
    data = store.read(name)
    if data is None:
        raise StoreError(f"{name} is gone, and its folder cannot be used without it; restore a checkpoint")
    return decode(name, data, kind)


def mark_at(store: Store, prefix: str) -> Complete:
    """The mark of a complete folder. Raises `StoreError` if it is gone, damaged, or of another folder."""
    mark = read_record(store, prefix + COMPLETE, Complete)
    if mark.folder not in ("", prefix):  # old marks do not name their folder
        raise StoreError(
            f"{prefix}{COMPLETE} is the mark of {mark.folder}: objects of the store were mixed up; restore the newest "
            "checkpoint that `cutwater verify` reports as restorable"
        )
    return mark
