"""Joins the changes of an epoch with a table, in Spark: copy-on-write.

The changes are reduced to the winner of each key. They are joined with the keys of those files of the table that may
have them, and with the tombstones: that says which changes apply, which row each of them replaces, and in which files.
These files are written again, each row in its place; new rows are added. The driver gets names of files and counts, and
no rows. `protocol/member/upsert.py` says what the joins mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

import msgspec
import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.member.upsert import runs_to_merge
from cutwater.sinks.delta.log import Tombstones
from cutwater.sinks.footers import Footer, read_footers
from cutwater.sinks.staged_files import is_data, sync
from cutwater.spark.files import FILE, ROW, Files, files_of, quoted
from cutwater.store import failpoints
from cutwater.store.contract import Store

DELETES = "__cutwater_deletes"
"""The column of changes that says which of them delete their row."""

_CHANGE = "__cutwater_change"
_ORDER = "__cutwater_order"
_PLACE = "__cutwater_place"
_READ = "__cutwater_read"
_SEQUENCE = "__cutwater_sequence"
_KNOWN = "__cutwater_known"
_BURIED = "__cutwater_buried"
_TARGET = "__cutwater_target"
_FILES = "__cutwater_files"
_MATCHED = "__cutwater_matched"
_APPLIES = "__cutwater_applies"

_PER_FILE = 64 << 20
"""New rows are written by a task for about as many bytes of changes, so that an epoch adds few files."""
_SMALL = 32 << 20
"""Changes of up to this many bytes are sent to all executors, so that the table's rows stay where they are."""


class Old(msgspec.Struct, frozen=True):
    """Files of a table: their paths as the log has them, their URLs for Spark, the values of the table's partition
    columns, and the number of rows of each if it is known."""

    paths: list[str]
    urls: list[str]
    partitions: Any
    rows: list[int | None]


class Target(msgspec.Struct, frozen=True):
    """Where the output goes: a prefix in the store of the table."""

    files: Store
    prefix: str


class Merge(msgspec.Struct, frozen=True):
    """What to join. `changes` has the rows of `files`, in the schema of the table, with their places; in all there are
    `rows` of them, in `size` bytes."""

    sink: str
    reader: Files
    keys: tuple[str, ...]
    sequence_by: str | None
    schema: dict[str, Any]
    changes: DataFrame
    files: tuple[str, ...]
    rows: int
    size: int
    old: Old | None
    runs: Tombstones
    partition_by: tuple[str, ...]
    target: Target

    @property
    def columns(self) -> list[str]:
        return [field["name"] for field in self.schema["fields"]]


class Merged(msgspec.Struct, frozen=True):
    """The files that were written, with their footers; the paths of those that they replace; and the tombstones that are
    valid then."""

    names: list[str]
    footers: list[Footer]
    removed: list[str]
    runs: Tombstones


def merge(what: Merge) -> Merged:
    """Writes the files with which the changes are in the table. Raises `StoreError` if rows would be lost."""
    failpoints.reach("before merge", what.sink)
    winners = _winners(what).persist()
    try:
        judged = _judged(what, winners).persist()
        try:
            return _write(what, judged)
        finally:
            judged.unpersist()
    finally:
        winners.unpersist()


def _write(what: Merge, judged: DataFrame) -> Merged:
    counts = _counts(judged)
    if counts["read"] != what.rows:
        raise StoreError(
            f"sink {what.sink}: Spark has read {counts['read']} changes from files with {what.rows}; nothing is published"
        )
    touched = _touched(what, judged) if counts["matched"] else []
    rows = _rows(what, judged, touched)
    names, footers = _written(what, rows, "rows") if touched or counts["inserted"] else ([], [])
    _check_balance(what, counts, touched, sum(footer.rows for footer in footers))
    failpoints.reach("after merge", what.sink)
    runs = _bury(what, judged, counts["deleted"])
    failpoints.reach("after tombstones", what.sink)
    return Merged(names, footers, [what.old.paths[n] for n in touched] if what.old is not None else [], runs)


# --- which changes apply ------------------------------------------------------------------------------------


def _key(number: int) -> str:
    return f"__cutwater_key_{number}"


def _keys(what: Merge) -> list[str]:
    return [_key(number) for number in range(len(what.keys))]


def _as_keys(what: Merge) -> list[Column]:
    return [F.col(quoted(name)).alias(_key(number)) for number, name in enumerate(what.keys)]


def _winners(what: Merge) -> DataFrame:
    """The change with the highest order of each key, and how many there were."""
    rows = what.changes.join(F.broadcast(_places(what)), FILE)
    sequence = [] if what.sequence_by is None else [F.col(quoted(what.sequence_by)).alias(_SEQUENCE)]
    change = F.struct(*(F.col(quoted(name)) for name in [*what.columns, DELETES]))
    order = F.struct(*sequence, _PLACE, ROW)
    packed = rows.select(*_as_keys(what), change.alias(_CHANGE), order.alias(_ORDER))
    return packed.groupBy(*_keys(what)).agg(
        F.max_by(_CHANGE, _ORDER).alias(_CHANGE),
        F.max(_ORDER).alias(_ORDER),
        F.count(F.lit(1)).alias(_READ),
    )


def _places(what: Merge) -> DataFrame:
    """The place of each file of changes, by its name as Spark spells it."""
    root = _root(what)
    place = {name: number for number, name in enumerate(what.files)}
    pairs = [{FILE: url, _PLACE: place[unquote(url).removeprefix(root)]} for url in files_of(what.changes)]
    text = F.lit(msgspec.json.encode(pairs).decode())
    kind = f"array<struct<{FILE}: string, {_PLACE}: int>>"
    return what.reader.spark.range(1).select(F.inline(F.from_json(text, kind)))


def _root(what: Merge) -> str:
    """The URL of the table's folder as Spark spells it, with a slash at the end. All files of changes are below it."""
    some = unquote(files_of(what.changes)[0])
    names = (name for name in what.files if some.endswith(f"/{name}"))
    return some.removesuffix(next(names))


def _judged(what: Merge, winners: DataFrame) -> DataFrame:
    """Each winner with what it meets: the row that it replaces, and whether it applies."""
    keys = _keys(what)
    sequence = F.col(_ORDER).getField(_SEQUENCE) if what.sequence_by is not None else None
    judged = winners
    for found in (_matches(what, winners), _buried(what, winners)):
        if found is not None:
            judged = judged.join(found, keys, "left")
    absent = {
        _KNOWN: sequence, _BURIED: sequence, _TARGET: F.struct(F.lit("").alias(FILE), F.lit(0).alias(ROW)),
        _FILES: F.array(F.lit("")), _MATCHED: F.lit(0),
    }  # fmt: skip
    for column, like in absent.items():
        if column not in judged.columns:
            judged = judged.withColumn(column, F.when(F.lit(False), F.lit(0) if like is None else like))
    applies = F.lit(True)
    if sequence is not None:
        for known in (_KNOWN, _BURIED):
            applies = applies & (F.col(known).isNull() | (sequence >= F.col(known)))
    return judged.withColumn(_APPLIES, applies)


def _matches(what: Merge, winners: DataFrame) -> DataFrame | None:
    """For the keys that the table has: the highest sequence, the row to replace, all files with the key, and how many
    rows. (Others may have written a key twice. One of the rows is replaced, and the rest goes.)"""
    if what.old is None:
        return None
    rows = _table(what, range(len(what.old.urls)))
    sequence = [] if what.sequence_by is None else [F.col(quoted(what.sequence_by)).alias(_SEQUENCE)]
    found = rows.select(*_as_keys(what), *sequence, FILE, ROW).join(
        _to_all(what, winners.select(*_keys(what))), _keys(what), "left_semi"
    )
    highest = [F.max(_SEQUENCE).alias(_KNOWN)] if sequence else []
    return found.groupBy(*_keys(what)).agg(
        *highest,
        F.min(F.struct(FILE, ROW)).alias(_TARGET),
        F.collect_set(FILE).alias(_FILES),
        F.count(F.lit(1)).alias(_MATCHED),
    )


def _buried(what: Merge, winners: DataFrame) -> DataFrame | None:
    """The highest sequence with which each key was deleted."""
    tombs = _tombstones(what, what.runs)
    if tombs is None:
        return None
    found = tombs.join(_to_all(what, winners.select(*_keys(what))), _keys(what), "left_semi")
    return found.groupBy(*_keys(what)).agg(F.max(_SEQUENCE).alias(_BURIED))


def _to_all(what: Merge, changes: DataFrame) -> DataFrame:
    return F.broadcast(changes) if what.size <= _SMALL else changes


def _deletes() -> Column:
    return F.coalesce(F.col(_CHANGE).getField(DELETES), F.lit(False))


def _counts(judged: DataFrame) -> dict[str, int]:
    applies, deletes, is_new = F.col(_APPLIES), _deletes(), F.col(_TARGET).isNull()
    found: Row | None = judged.agg(
        F.sum(_READ).alias("read"),
        F.sum(F.when(applies, F.col(_MATCHED))).alias("matched"),
        F.count(F.when(applies & ~deletes & ~is_new, 1)).alias("updated"),
        F.count(F.when(applies & ~deletes & is_new, 1)).alias("inserted"),
        F.count(F.when(applies & deletes, 1)).alias("deleted"),
    ).first()
    assert found is not None
    return {name: int(value or 0) for name, value in found.asDict().items()}


def _touched(what: Merge, judged: DataFrame) -> list[int]:
    """The numbers of the files in which a row changes."""
    assert what.old is not None
    root = _root(what)
    number = {unquote(path): place for place, path in enumerate(what.old.paths)}
    found = judged.where(_APPLIES).select(F.explode(_FILES).alias(FILE)).distinct().collect()
    return sorted(number[unquote(row[FILE]).removeprefix(root)] for row in found)


# --- the rows of the table ----------------------------------------------------------------------------------


def _table(what: Merge, chosen: Sequence[int]) -> DataFrame:
    """The rows of some of the table's files, with their places."""
    assert what.old is not None
    urls = [what.old.urls[number] for number in chosen]
    values = what.old.partitions.take(pa.array(chosen, pa.int64()))
    return what.reader.partitioned_frame(urls, what.schema, values, with_places=True)


def _rows(what: Merge, judged: DataFrame, touched: Sequence[int]) -> DataFrame:
    """The rows of the files in which one changes, as they are afterwards, and the new ones."""
    changed = {name: F.col(_CHANGE).getField(name) for name in what.columns}
    applies = judged.where(F.col(_APPLIES))
    new = applies.where(F.col(_TARGET).isNull() & ~_deletes())
    inserted = new.select(*(value.alias(name) for name, value in changed.items())).coalesce(
        1 + what.size // _PER_FILE
    )
    if not touched:
        return inserted
    replacing = applies.where(F.col(_TARGET).isNotNull()).select(*_keys(what), _CHANGE, _TARGET)
    is_same = [F.col(quoted(name)) == F.col(_key(number)) for number, name in enumerate(what.keys)]
    joined = _table(what, touched).join(_to_all(what, replacing), is_same, "left")
    is_hit = F.col(_TARGET).isNotNull()
    is_place = (F.col(_TARGET).getField(FILE) == F.col(FILE)) & (F.col(_TARGET).getField(ROW) == F.col(ROW))
    stays = joined.where(~is_hit | (is_place & ~_deletes()))
    return stays.select(
        *(F.when(is_hit, value).otherwise(F.col(quoted(name))).alias(name) for name, value in changed.items())
    ).unionByName(inserted)


def _check_balance(what: Merge, counts: dict[str, int], touched: Sequence[int], written: int) -> None:
    """Raises `StoreError` unless every row of the replaced files is where it should be."""
    before = [what.old.rows[number] for number in touched] if what.old is not None else []
    if any(rows is None for rows in before):
        return
    wanted = sum(rows or 0 for rows in before) - counts["matched"] + counts["updated"] + counts["inserted"]
    if written != wanted:
        raise StoreError(
            f"sink {what.sink}: the files that replace others would have {written} rows instead of {wanted}; nothing is "
            "published"
        )


def _written(what: Merge, rows: DataFrame, folder: str) -> tuple[list[str], list[Footer]]:
    """Writes rows to a folder of this attempt. Returns the files that have rows, which are durable then."""
    store, prefix = what.target.files, f"{what.target.prefix}{folder}/"
    writer = (
        rows.write.partitionBy(*what.partition_by) if what.partition_by and folder == "rows" else rows.write
    )
    writer.mode("append").parquet(store.spark_url(prefix.removesuffix("/")))
    found = [name for name in store.list(prefix) if is_data(name.removeprefix(prefix))]
    footers = dict(zip(found, read_footers(store, found), strict=True))
    names = [name for name, footer in footers.items() if footer.rows]
    sync(store, names)
    return names, [footers[name] for name in names]


# --- tombstones ---------------------------------------------------------------------------------------------


def _tombstones(what: Merge, runs: Tombstones) -> DataFrame | None:
    """The keys and sequences of some runs of tombstones."""
    urls = [what.target.files.spark_url(name) for run in runs for name in run]
    if not urls or what.sequence_by is None:
        return None
    kinds = {field["name"]: field for field in what.schema["fields"]}
    fields = [{**kinds[name], "name": _key(number)} for number, name in enumerate(what.keys)]
    fields.append({**kinds[what.sequence_by], "name": _SEQUENCE})
    schema = {"type": "struct", "fields": fields}
    return what.reader.frame(urls, msgspec.json.encode(schema).decode())


def _bury(what: Merge, judged: DataFrame, count: int) -> Tombstones:
    """Adds the keys that were deleted to the tombstones."""
    if what.sequence_by is None or not count:
        return what.runs
    flat = [name for run in what.runs for name in run]
    footers = dict(zip(flat, read_footers(what.target.files, flat), strict=True))
    merged = runs_to_merge([sum(footers[name].rows for name in run) for run in what.runs], count)
    kept, again = what.runs[: len(what.runs) - merged], what.runs[len(what.runs) - merged :]
    sequence = F.col(_ORDER).getField(_SEQUENCE).alias(_SEQUENCE)
    deleted = judged.where(F.col(_APPLIES) & _deletes()).select(*_keys(what), sequence)
    before = _tombstones(what, again)
    if before is not None:
        both = deleted.unionByName(before)
        deleted = both.groupBy(*_keys(what)).agg(F.max(_SEQUENCE).alias(_SEQUENCE))
    names, _ = _written(what, deleted.coalesce(1), "tombstones")
    return (*kept, tuple(names))
