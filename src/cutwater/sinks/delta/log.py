"""A Delta table's log, as far as publishing needs it: reading commits, and writing our own.

A commit to a Delta table *is* the creation of the next file in its log, so a sink creates that file itself with the
store's `create`: durable, never moved to another version, and at the same cost however many files the table has.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar
from urllib.parse import quote, unquote
from uuid import uuid4

import msgspec

from cutwater.protocol.base.errors import StoreError
from cutwater.sinks.schemas import leaves
from cutwater.store.contract import Store

LOG = "_delta_log/"
KEEPS_LOG = "delta.enableExpiredLogCleanup"
FORGETS_AFTER = "delta.setTransactionRetentionDuration"
MADE_BY = "madeBy"
CUTWATER = "cutwater"
CHANGES = "cutwaterChanges"
TOMBSTONES = "cutwaterTombstones"
_PLAIN = "/=+&!$'(),;:@"
"""What the Delta library leaves as it is in a path, besides letters, digits, `-`, `_` and `.`. A file is removed by
the path that it was added with, so a path that is spelled in another way is not removed."""
_CHUNK = 64

Actions = list[dict[str, Any]]
Tombstones = tuple[tuple[str, ...], ...]
"""The runs of tombstones, oldest first; each is the names of its files."""

T = TypeVar("T")


class _Txn(msgspec.Struct):
    appId: str
    version: int


class _File(msgspec.Struct):
    path: str
    dataChange: bool = True


class _Line(msgspec.Struct):
    """One action of a commit, without the kinds that do not matter here."""

    txn: _Txn | None = None
    add: _File | None = None
    remove: _File | None = None
    metaData: Any = None
    protocol: Any = None
    commitInfo: dict[str, Any] | None = None


class TableCommit(msgspec.Struct, frozen=True):
    """One commit of a table. `defines`: it creates or changes the table's definition; `matters`: undoing it would change
    rows or the definition, unlike undoing OPTIMIZE or VACUUM. A commit to a table with keys has `changes`, the number of
    files that it has applied, and the files with the `tombstones` that are valid from then on, oldest run first."""

    version: int
    transactions: dict[str, int]
    added: list[str]
    defines: bool
    matters: bool
    operation: str
    timestamp: int | None = None
    changes: int | None = None
    tombstones: Tombstones | None = None

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation})"


def commit_name(version: int) -> str:
    return f"{LOG}{version:020d}.json"


def read_commits(store: Store, versions: Iterable[int]) -> Iterator[TableCommit | None]:
    """The commits of these versions, in the same order; `None` where the log has none."""
    waiting = list(versions)
    for start in range(0, len(waiting), _CHUNK):
        chunk = waiting[start : start + _CHUNK]
        for version, data in zip(chunk, store.read_many([commit_name(v) for v in chunk]), strict=True):
            yield None if data is None else _parse(version, data)


def _parse(version: int, data: bytes) -> TableCommit:
    try:
        lines = [_DECODE(line) for line in data.splitlines() if line.strip()]
    except ValueError as error:
        raise StoreError(
            f"{commit_name(version)} in the table is damaged ({error}); the table's own tools may repair it"
        ) from error
    info = next((line.commitInfo for line in lines if line.commitInfo is not None), {})
    files = [file for line in lines for file in (line.add, line.remove) if file is not None]
    defines = any(line.metaData is not None or line.protocol is not None for line in lines)
    return TableCommit(
        version=version,
        transactions={line.txn.appId: line.txn.version for line in lines if line.txn is not None},
        added=[unquote(line.add.path) for line in lines if line.add is not None],
        defines=defines,
        matters=defines or any(file.dataChange for file in files),
        operation=str(info.get("operation", "unknown operation")),
        timestamp=_time(info.get("timestamp")),
        changes=_said(version, info, CHANGES, int),
        tombstones=_said(version, info, TOMBSTONES, Tombstones),
    )


def _said(version: int, info: dict[str, Any], key: str, kind: type[T]) -> T | None:
    """What we have noted in a commit, as JSON, since the Delta library notes only texts."""
    try:
        return None if key not in info else msgspec.json.decode(info[key], type=kind)
    except (msgspec.DecodeError, TypeError) as error:
        raise StoreError(f"{commit_name(version)} in the table is damaged ({key}: {error})") from error


def notes(tombstones: Tombstones, changes: int | None = None) -> dict[str, str]:
    """What to note in a commit to a table with keys."""
    found = {TOMBSTONES: msgspec.json.encode(tombstones).decode()}
    return found if changes is None else found | {CHANGES: str(changes)}


def _time(said: object) -> int | None:
    return said if isinstance(said, int) else None


_DECODE = msgspec.json.Decoder(_Line).decode


def checkpoints(store: Store, lowest: int) -> list[int]:
    """The versions from `lowest` on for which the log has a checkpoint."""
    names = (name.removeprefix(LOG) for name in store.list(LOG))
    found = {int(n[:20]) for n in names if n[:20].isdigit() and ".checkpoint" in n and n.endswith(".parquet")}
    return sorted(version for version in found if version >= lowest)


def goes_back_to(store: Store, version: int) -> bool:
    """Whether the table can be read at a version: the log has every commit since a checkpoint, or since its start."""
    start = max((c for c in checkpoints(store, 0) if c <= version), default=-1) + 1
    names = set(store.list(LOG))
    return all(commit_name(number) in names for number in range(start, version + 1))


def newest(store: Store) -> int:
    """The newest version that the log names, whether or not the log is whole; -1 if there is none."""
    numbers = (name.removeprefix(LOG)[:20] for name in store.list(LOG))
    return max((int(number) for number in numbers if number.isdigit()), default=-1)


def names_before(store: Store, version: int) -> list[str]:
    """All objects in the log for versions before this one."""
    names = ((name, name.removeprefix(LOG)[:20]) for name in store.list(LOG))
    return [name for name, number in names if number.isdigit() and int(number) < version]


def encode_commit(actions: Actions) -> bytes:
    return b"\n".join(msgspec.json.encode(action) for action in actions) + b"\n"


def commit_info(operation: str, epoch: int | None, **parameters: str) -> Actions:
    info: dict[str, Any] = {
        "timestamp": now_ms(),
        "operation": operation,
        "operationParameters": parameters,
        "engineInfo": "Cutwater",
    }
    if epoch is not None:
        info["cutwaterEpoch"] = epoch
    return [{"commitInfo": info}]


def transaction_action(app: str, version: int) -> Actions:
    return [{"txn": {"appId": app, "version": version, "lastUpdated": now_ms()}}]


def definition(schema: dict[str, Any], partition_by: Iterable[str]) -> Actions:
    """The actions that create a table. Delta's own cleanup is turned off: restores need the history."""
    protocol: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 2}
    if any(kind == "timestamp_ntz" for _, kind in leaves(schema)):
        feature = ["timestampNtz"]
        protocol = {"minReaderVersion": 3, "minWriterVersion": 7}
        protocol |= {"readerFeatures": feature, "writerFeatures": feature}
    metadata = {
        "id": str(uuid4()),
        "format": {"provider": "parquet", "options": {}},
        "schemaString": msgspec.json.encode(schema).decode(),
        "partitionColumns": list(partition_by),
        "configuration": {KEEPS_LOG: "false", MADE_BY: CUTWATER},
        "createdTime": now_ms(),
    }
    return [{"protocol": protocol}, {"metaData": metadata}]


def add_action(name: str, size: int, partition: dict[str, str | None], statistics: str) -> dict[str, Any]:
    return {
        "add": {
            "path": quote(name, safe=_PLAIN),
            "partitionValues": partition,
            "size": size,
            "modificationTime": now_ms(),
            "dataChange": True,
            "stats": statistics,
        }
    }


def remove_action(path: str) -> dict[str, Any]:
    """`path` as the log has it."""
    return {"remove": {"path": path, "deletionTimestamp": now_ms(), "dataChange": True}}


def now_ms() -> int:
    return time.time_ns() // 1_000_000
