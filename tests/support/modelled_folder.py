"""A query's checkpoint folder as Spark writes it, without Spark. (`test_folder_kit` compares it with Spark.)"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass, field

import msgspec

from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import Prepared
from cutwater.protocol.base.watermark import NONE
from cutwater.spark.checkpoint.folder import Cache, Voucher
from cutwater.spark.checkpoint.incarnations import base_of
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.prepared import write_prepared
from cutwater.spark.checkpoint.stage_files import find_state
from cutwater.store.contract import Store

STAGE = "clean"
INTERVAL = 3
OPERATOR = b'v1\n{"operatorInfo":{"operatorId":0,"operatorName":"x"},"stateStoreInfo":[%s]}'
STORES = b'{"storeName":"default","numColsPrefixKey":0,"numPartitions":2}'


SOURCE = Leaf(None, "parquet", "path=/in", log=0)


def prepared(batch: int) -> Prepared:
    return Prepared(batch, (f"data/{batch}",), {}, consumed={}, offsets={}, watermark=NONE)


class CannotStart(Exception):
    """Spark would not start a query in this folder."""


class SourceLog:
    """A file source's log below `prefix`: one entry per file that it read."""

    def __init__(self, store: Store, prefix: str, setting: int) -> None:
        self.store = store
        self.prefix = prefix
        found = [name.removeprefix(prefix) for name in store.list(prefix)]
        compact = sorted(int(name.removesuffix(".compact")) for name in found if name.endswith(".compact"))
        self.last = max((int(name.removesuffix(".compact")) for name in found), default=-1)
        if len(compact) >= 2:
            self.interval = compact[-1] - compact[-2]
        elif compact:
            divisors = [n for n in range(1, compact[0] + 2) if (compact[0] + 1) % n == 0]
            halves = [n for n in divisors if setting <= n <= (compact[0] + 1) // 2]
            is_short = setting < (compact[0] + 1) // 2
            self.interval = min(halves) if is_short and halves else compact[0] + 1
        else:
            self.interval = setting
        begin = (self.last + 1) // self.interval * self.interval - 1
        self.seen = [line for entry in range(max(begin, 0), self.last + 1) for line in self._read(entry)]

    def add(self, file: str) -> int:
        """Writes the next entry, for one more file, and returns its number."""
        entry = self.last + 1
        line = msgspec.json.encode({"path": file, "timestamp": 0, "batchId": entry})
        lines = [line]
        if (entry + 1) % self.interval == 0:
            before = range(max(entry - self.interval, 0), entry)
            lines = [line for number in before for line in self._read(number)] + lines
        self.store.put(self._name(entry), b"\n".join([b"v1", *lines]))
        self.last = entry
        self.seen.append(line)
        return entry

    def files(self) -> list[int]:
        """The numbers of the files in the log."""
        return [int(msgspec.json.decode(line)["path"].rpartition("/")[2]) for line in self.seen]

    def _name(self, entry: int) -> str:
        return f"{self.prefix}{entry}{'.compact' if (entry + 1) % self.interval == 0 else ''}"

    def _read(self, entry: int) -> list[bytes]:
        data = self.store.read(self._name(entry))
        if data is None:
            raise CannotStart(
                f"{self._name(entry)} doesn't exist (interval {self.interval}, last {self.last})"
            )
        return data.split(b"\n")[1:]


@dataclass
class Query:
    """Writes what Spark writes: the log of a file source that is compacted every third time, an operator with two
    partitions, and later snapshots of its state. Unique names are numbers."""

    store: Store
    incarnation: int
    rocksdb: bool = True
    generation: int = 1
    batch: int = -1
    ids: dict[int, list[str]] = field(default_factory=dict)
    setting: int = INTERVAL
    stage: str = STAGE
    stateful: bool = True
    vouches: bool = False
    _log: SourceLog | None = None
    _voucher: Voucher | None = None

    @property
    def prefix(self) -> str:
        return spark_prefix(self.stage, self.generation, self.incarnation)

    @property
    def log(self) -> SourceLog:
        """The source's log; the first access stands for Spark's start."""
        if self._log is None:
            self._log = SourceLog(self.store, f"{self.prefix}sources/0/", self.setting)
        return self._log

    def files(self) -> list[int]:
        """The files that the source believes it has read, according to the folder."""
        return SourceLog(self.store, f"{self.prefix}sources/0/", self.setting).files()

    def put(self, name: str, data: bytes = b"") -> None:
        self.store.put(self.prefix + name, data or name.encode())

    def plan(self) -> None:
        """Begins the next batch, and writes everything up to its state."""
        self.batch += 1
        entry = self.log.add(f"file:///in/{self.log.last + 1}")
        self.put("metadata", b'{"id":"x"}')
        self.put(f"offsets/{self.batch}", f'v1\n{{"conf":{{}}}}\n{{"logOffset":{entry}}}'.encode())
        if not self.stateful:
            return
        self.put("state/0/_metadata/metadata", OPERATOR % STORES)
        self.put("state/0/0/_metadata/schema")
        self.ids[self.batch + 1] = []
        for partition in (0, 1):
            id = f"{self.incarnation}x{self.batch}x{partition}"
            self.ids[self.batch + 1].append(id)
            version = f"{self.batch + 1}_{id}.changelog" if self.rocksdb else f"{self.batch + 1}.delta"
            self.put(f"state/0/{partition}/{version}")
            if self.rocksdb:
                self.put(f"state/0/{partition}/{version}.crc")

    def commit(self) -> None:
        record = prepared(self.batch + base_of(self.store, self.stage, self.generation, self.incarnation) + 1)
        if self.vouches:
            self._voucher = self._voucher or Voucher(self.store, self.prefix, [SOURCE])
            plan = self.store.read(f"{self.prefix}offsets/{self.batch}") or b""
            record = msgspec.structs.replace(record, checksums=self._voucher.checksums(self.batch, plan))
        write_prepared(self.store, self.stage, self.generation, self.incarnation, record)
        has_ids = self.rocksdb and self.stateful
        ids = {"stateUniqueIds": {"0": [[id] for id in self.ids[self.batch + 1]]}} if has_ids else {}
        self.put(f"commits/{self.batch}", b"v2\n" + msgspec.json.encode(ids))

    def run(self, batches: int = 1) -> Query:
        for _ in range(batches):
            self.plan()
            self.commit()
        return self

    def snapshot(self, version: int, partition: int, tables: list[str]) -> None:
        """Writes a snapshot that lists `tables`."""
        self.upload(partition, tables)
        self.finish_snapshot(version, partition, tables)

    def upload(self, partition: int, tables: list[str]) -> None:
        for table in tables if self.rocksdb else []:
            self.put(f"state/0/{partition}/SSTs/{table}")

    def finish_snapshot(self, version: int, partition: int, tables: list[str]) -> None:
        if not self.rocksdb:
            self.put(f"state/0/{partition}/{version}.snapshot")
            return
        name = f"{version}_{self.ids[version][partition]}.zip"
        self.put(f"state/0/{partition}/{name}", snapshot_of(tables))

    def state(self, batch: int) -> dict[str, str] | None:
        return find_state(self.store, self.stage, self.generation, self.incarnation, batch, None, Cache())

    def named(self, batch: int) -> set[str]:
        state = self.state(batch)
        assert state is not None
        return {name.removeprefix(self.prefix) for name in state}


def snapshot_of(tables: list[str]) -> bytes:
    """A snapshot as RocksDB's provider packs it."""
    listed = [{"localFileName": "x", "dfsSstFileName": table, "sizeBytes": 1} for table in tables]
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as file:
        file.writestr("metadata", b"v1\n" + msgspec.json.encode({"sstFiles": listed, "numKeys": 1}))
    return data.getvalue()
