"""The record of what a batch did: written before Spark commits the batch, and valid as soon as Spark has."""

from __future__ import annotations

import msgspec

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import batch_file_name, spark_prefix
from cutwater.protocol.base.records import Prepared, decode, seal
from cutwater.protocol.base.watermark import Watermark, WatermarkKind
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.incarnations import base_of, list_folders
from cutwater.spark.checkpoint.offsets import parse_commit
from cutwater.store.contract import Store


class Judged(Prepared, frozen=True):
    """What a batch did, and how many of its rows violate each rule, by stage. (The protocol does not need the latter.)"""

    violations: dict[str, dict[str, int]] = msgspec.field(default_factory=dict)


def write_prepared(
    store: Store, stage: str, generation: int, incarnation: int, record: Prepared, cache: Cache | None = None
) -> None:
    """Write the record of a batch. Must be called before Spark commits the batch."""
    base = base_of(store, stage, generation, incarnation, cache)
    folder = spark_prefix(stage, generation, incarnation)
    name = folder + batch_file_name("prepared", record.batch - base - 1)
    data = seal(record)
    if not store.create(name, data) and store.read(name) != data:
        raise StoreError(f"{name} already exists: two queries use the same Spark folder; stop one of them")
    if cache is not None:
        cache.prepared[name] = record


def committed(
    store: Store, stage: str, generation: int, incarnation: int, batch: int, cache: Cache | None = None
) -> Prepared | None:
    """The prepared record of a batch that the log does not have yet, if Spark has committed the batch. It is not read
    again if `cache` was used to write it."""
    prefix = spark_prefix(stage, generation, incarnation)
    number = batch - base_of(store, stage, generation, incarnation, cache) - 1
    commit_name = prefix + batch_file_name("commits", number)
    commit = store.read(commit_name) if number >= 0 else None
    if commit is None:
        return None
    name = prefix + batch_file_name("prepared", number)
    record = cache.prepared.get(name) if cache is not None else None
    if record is None:
        data = store.read(name)
        if data is None and max(list_folders(store, stage, generation), default=0) > incarnation:
            return None  # superseded and cleaned up
        record = decode(name, data, Prepared) if data is not None else None
    if record is None or record.batch != batch:
        raise StoreError(
            f"Spark has committed batch {batch} of stage {stage}, but the record of the batch, {name}, is "
            f"{'gone' if record is None else f'that of batch {record.batch}'}; restore the newest checkpoint"
        )
    watermark = record.watermark
    if watermark.kind is not WatermarkKind.NONE and not _has_state(store, prefix, cache):
        # Without state nothing waits for the watermark, so the one that this batch produces is already in effect.
        reached_ms = parse_commit(commit_name, commit).watermark_ms
        watermark = Watermark(WatermarkKind.KNOWN, reached_ms) if reached_ms > 0 else watermark
    return msgspec.structs.replace(record, commit=digest(commit), watermark=watermark)


def violations_of(
    store: Store, stage: str, generation: int, incarnation: int, batch: int, cache: Cache | None = None
) -> dict[str, dict[str, int]] | None:
    """How many rows of a batch violate each rule, by stage; `None` if the folder has no record of the batch."""
    try:
        number = batch - base_of(store, stage, generation, incarnation, cache) - 1
    except StoreError:
        return None  # the folder is gone
    name = spark_prefix(stage, generation, incarnation) + batch_file_name("prepared", number)
    record = cache.prepared.get(name) if cache is not None else None
    if record is None and (data := store.read(name)) is not None:
        record = decode(name, data, Judged)
    if record is None:
        return None
    return record.violations if isinstance(record, Judged) else {}


def _has_state(store: Store, prefix: str, cache: Cache | None) -> bool:
    """Whether the query of a folder keeps state. Call it after the first commit, when Spark has written state."""
    known_already = cache.stateful if cache is not None else {}
    if prefix not in known_already:
        known_already[prefix] = bool(store.list(f"{prefix}state/"))
    return known_already[prefix]
