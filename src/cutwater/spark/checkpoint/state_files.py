"""The files of one state store in a Spark checkpoint, and which batches need which of them.

Batch `b` writes version `b` + 1. A version is rebuilt from the newest snapshot at or before it and the changes of every
version after that one. RocksDB writes `<version>_<id>.changelog` and, later and in the background,
`<version>_<id>.zip`, which lists the files (`SSTs/`, `logs/`) that it shares with other snapshots; the ids that count are
in `commits/<version - 1>`. The other provider writes `<version>.delta` and `<version>.snapshot`.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Callable, Collection, Container, Iterator
from typing import Any, NamedTuple

import msgspec

from cutwater.protocol.base.errors import StoreError
from cutwater.spark.checkpoint.offsets import BatchCommit

FOREVER = 1 << 62

_PLACE = re.compile(r"(state/(\d+)/(\d+)(?:/(?!_|SSTs/|logs/)[^/]+)?)/(.+)")
_VERSION = re.compile(r"(\d+)(?:_([^/.]+))?\.(delta|changelog|snapshot|zip)(\.crc)?")
_SHARED = re.compile(r"(?:SSTs|logs)/([^/]+)")
_MAY_HAVE_ONE = frozenset({"globalLimit", "stateStoreSave"})
"""The operators that run in one partition if they have no keys."""
_SCHEMA_PATH = re.compile(r".*/(state/\d+/_stateSchema/.+)")

Spans = dict[str, tuple[int, int]]
"""By file, the first and the last batch that need it."""


class Key(NamedTuple):
    """A version of the state, and the id of the attempt that wrote it, if files have ids."""

    version: int
    id: str | None


class Place(NamedTuple):
    """The folder of a state store, and its operator and partition."""

    folder: str
    operator: int
    partition: int


class StateOperator(NamedTuple):
    """An operator's state stores, as its metadata has them. `may_have_one`: whether Spark runs this kind of operator in
    one partition if it has no keys, of which the metadata says nothing (a limit, `groupBy()` without columns)."""

    places: tuple[Place, ...]
    may_have_one: bool

    def stores(self, commit: BatchCommit | None, found: Collection[Place]) -> Iterator[Place]:
        """The stores that a batch with this commit has written; `found` are those that have files. The ids in the
        commit say how many partitions there are. Without ids, the operator has one if it may, and no other has a file:
        Spark writes one for every partition with every batch."""
        ids = commit.ids if commit is not None else None
        for place in self.places:
            if ids is not None and place.operator in ids:
                exists = place.partition < len(ids[place.operator])
            else:
                exists = not (self.may_have_one and place.partition) or any(
                    other.operator == place.operator and other.partition for other in found
                )
            if exists:
                yield place


def split_name(name: str) -> tuple[Place, str] | None:
    """The state store that a file in a checkpoint belongs to, and the file's name there; `None` for other files."""
    match = _PLACE.fullmatch(name)
    if match is None or not (_VERSION.fullmatch(match[4]) or _SHARED.fullmatch(match[4])):
        return None
    return Place(match[1], int(match[2]), int(match[3])), match[4]


def version_of(name: str) -> int | None:
    """The version that a file of a state store belongs to; `None` if versions share it."""
    found = split_name(name)
    match = _VERSION.fullmatch(found[1]) if found is not None else None
    return int(match[1]) if match is not None else None


class Chain(NamedTuple):
    """What a version is rebuilt from: a snapshot (`None`: empty state) and the changes after it."""

    snapshot: Key | None
    changes: list[Key]

    def used(self) -> list[Key]:
        return self.changes if self.snapshot is None else [*self.changes, self.snapshot]


class StateStore:
    """The files of one state store. `commit_of` returns Spark's commit of a batch, `files_listed_by` the shared files
    that a snapshot lists (by name in the checkpoint)."""

    def __init__(
        self,
        place: Place,
        commit_of: Callable[[int], BatchCommit | None],
        files_listed_by: Callable[[str], list[str]],
    ) -> None:
        self.place = place
        self._changes: dict[Key, str] = {}
        self._snapshots: dict[Key, str] = {}
        self._checksums: set[str] = set()
        self._shared: set[str] = set()
        self._commit_of = commit_of
        self._files_listed_by = files_listed_by

    def add(self, name: str, file: str) -> None:
        """Add the file `file` of this store's folder, which is `name` in the checkpoint."""
        match = _VERSION.fullmatch(file)
        if match is None:
            self._shared.add(name)
        elif match[4]:
            self._checksums.add(name)
        else:
            files = self._changes if match[3] in ("delta", "changelog") else self._snapshots
            files[Key(int(match[1]), match[2])] = name

    def chain(self, version: int) -> Chain | None:
        """What `version` is rebuilt from; `None` if part of it is gone."""
        changes: list[Key] = []
        while version > 0:
            key = self._committed(version, self._snapshots)
            if key is not None:
                return Chain(key, changes)
            key = self._committed(version, self._changes)
            if key is None:
                return None
            changes.append(key)
            version -= 1
        return Chain(None, changes)

    def files(self, chain: Chain) -> Iterator[str]:
        """The files of a chain."""
        names = [self._changes[key] for key in chain.changes]
        if chain.snapshot is not None:
            names.append(self._snapshots[chain.snapshot])
            yield from self._files_listed_by(self._snapshots[chain.snapshot])
        for name in names:
            yield name
            if (checksum := f"{name}.crc") in self._checksums:
                yield checksum

    def spans(self, newest: int, seen: Callable[[str], int]) -> Spans:
        """The batches that need each file. `newest` is the last batch that Spark has committed.

        A snapshot appears some time after its version, so an earlier checkpoint may name changes that the snapshot makes
        superfluous now. `seen` returns, for a snapshot, a batch at whose commit it already existed: checkpoints of later
        batches use it, or a newer one.
        """
        ends = {
            key.version: max(key.version - 2, seen(name))
            for key, name in self._snapshots.items()
            if self._is_committed(key)
        }
        spans: Spans = {}
        for key, name in self._changes.items():
            spans[name] = self._span(
                key, newest, [e for version, e in ends.items() if version >= key.version]
            )
        shared: Spans = {}
        for key, name in self._snapshots.items():
            span = self._span(key, newest, [e for version, e in ends.items() if version > key.version])
            spans[name] = span
            for file in self._files_listed_by(name):
                first, until = shared.get(file, span)
                shared[file] = min(first, span[0]), max(until, span[1])
        for name in self._shared:
            spans[name] = shared.get(name, (-1, FOREVER))  # not listed yet: its snapshot is being uploaded
        for name in self._checksums:
            spans[name] = spans.get(name.removesuffix(".crc"), (-1, FOREVER))
        return spans

    def _span(self, key: Key, newest: int, ends: list[int]) -> tuple[int, int]:
        """The span of a file; that of an attempt that was not committed covers only its own batch."""
        batch = key.version - 1
        if batch <= newest and not self._is_committed(key):
            return batch, batch
        return batch, max(batch, min(ends, default=FOREVER))

    def _committed(self, version: int, files: Container[Key]) -> Key | None:
        commit = self._commit_of(version - 1)
        if commit is None:
            return None
        ids = commit.ids_of(self.place.operator, self.place.partition)
        keys = (Key(version, id) for id in (ids if ids is not None else (None,)))
        return next((key for key in keys if key in files), None)

    def _is_committed(self, key: Key) -> bool:
        return self._committed(key.version, {key}) is not None


def listed_files(name: str, data: bytes) -> list[str]:
    """The shared files that the RocksDB snapshot `name` lists, by name in its state store's folder."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as snapshot:
            _, text = snapshot.read("metadata").decode().split("\n", 1)
        metadata: dict[str, Any] = msgspec.json.decode(text)
        sst = [f"SSTs/{file['dfsSstFileName']}" for file in metadata["sstFiles"]]
        logs = [f"logs/{file['dfsLogFileName']}" for file in metadata.get("logFiles") or ()]
    except (zipfile.BadZipFile, ValueError, KeyError) as error:
        raise StoreError(
            f"the RocksDB snapshot {name} cannot be read ({error!r}); restore the newest checkpoint"
        ) from error
    return sst + logs


def parse_operator(name: str, data: bytes) -> StateOperator:
    """The state stores of an operator, from its metadata in `state/<operator>/_metadata/`."""
    _, metadata = _metadata(name, data)
    operator = metadata["operatorInfo"]["operatorId"]
    places = []
    for info in metadata["stateStoreInfo"]:
        tail = "" if info["storeName"] == "default" else f"/{info['storeName']}"
        for partition in range(info["numPartitions"]):
            places.append(Place(f"state/{operator}/{partition}{tail}", operator, partition))
    return StateOperator(tuple(places), metadata["operatorInfo"].get("operatorName") in _MAY_HAVE_ONE)


def moved_metadata(name: str, data: bytes, url: str) -> bytes:
    """An operator's metadata for a copy of its folder at `url`: Spark records the full paths of schema files, but the
    original folder may be removed."""
    version, metadata = _metadata(name, data)
    for info in metadata["stateStoreInfo"]:
        if paths := info.get("stateSchemaFilePaths"):
            info["stateSchemaFilePaths"] = [_SCHEMA_PATH.sub(lambda m: f"{url}/{m[1]}", p) for p in paths]
    return version + b"\n" + msgspec.json.encode(metadata)


class _Operator(msgspec.Struct):
    operator: int = msgspec.field(name="operatorId")


class _StoreInfo(msgspec.Struct):
    name: str = msgspec.field(name="storeName")
    partitions: int = msgspec.field(name="numPartitions")
    schemas: list[str] | None = msgspec.field(name="stateSchemaFilePaths", default=None)


class _Metadata(msgspec.Struct):
    """The required part of an operator's metadata."""

    operator: _Operator = msgspec.field(name="operatorInfo")
    stores: list[_StoreInfo] = msgspec.field(name="stateStoreInfo")


def _metadata(name: str, data: bytes) -> tuple[bytes, dict[str, Any]]:
    try:
        version, text = data.split(b"\n", 1)
        values = msgspec.json.decode(text, type=dict[str, Any])
        msgspec.convert(values, _Metadata)
        return version, values
    except ValueError as error:  # msgspec's errors are ValueErrors
        raise StoreError(
            f"the operator metadata {name} cannot be read ({error}); restore the newest checkpoint"
        ) from error
