"""Plain Parquet files as a sink, with versions of its own.

`_cutwater/versions/<number>.json` defines a version: it adds files to the version before, or lists all of them.
Creating the next one is the commit. Readers call `parquet_files` to learn which files to read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow.dataset as arrow_dataset  # type: ignore[import-untyped]
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import PyFileSystem  # type: ignore[import-untyped]
from pyspark.sql import DataFrame, DataFrameWriter, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from cutwater.protocol.base.effects import TableHead, TableHistory
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.options import named_options
from cutwater.protocol.base.records import decode, seal
from cutwater.sinks.contract import FOLDER, history_gone, nothing_yet, refuse_foreign
from cutwater.sinks.footers import read_footers
from cutwater.sinks.schemas import misfit, plain
from cutwater.sinks.table import TableSink
from cutwater.spark.files import Files, quoted
from cutwater.spark.internals.types import arrow_schema
from cutwater.store.contract import Store
from cutwater.store.opening import open_place
from cutwater.store.s3_access import access_to

VERSIONS = f"{FOLDER}versions/"
LIST_ALL_EVERY = 100
"""Every so many versions, one lists all files, so that readers need not read more versions than this."""


class Version(msgspec.Struct, frozen=True, omit_defaults=True):
    """One version. `transactions`: the latest of every sink that has written here; `writer`: the sink that wrote this
    version; `complete`: it lists all files, not only those that it adds; `number`: its own number, `None` if an older
    Cutwater wrote it."""

    writer: str
    transactions: dict[str, int]
    files: list[str]
    complete: bool = False
    epoch: int | None = None
    schema: Any = None
    number: int | None = None


@named_options
def parquet(
    path: str,
    partition_by: Sequence[str] | str | None = None,
    final_by: str | None = None,
    name: str | None = None,
    existing: str | None = None,
) -> ParquetSink:
    """Parquet files below `path` (a folder or the URL of a bucket), partitioned by `partition_by`. Readers get the
    published files from `parquet_files(path)`. `final_by` and `existing` are as for `delta`; Parquet files that something
    else has written stay where they are, and `parquet_files` does not list them."""
    return ParquetSink(path, partition_by, final_by, name, existing)


def parquet_files(path: str, version: int | None = None) -> list[str]:
    """The published files of a Parquet sink, now or at a version, in order of publishing. The files contain all columns,
    so turn off hive partitioning in readers that derive columns from folder names."""
    store = open_place(path)
    newest = _newest(store)
    wanted = newest if version is None else version
    if not -1 <= wanted <= newest:
        raise UserError(f"{path} has no version {wanted}; its versions are 0 to {newest}")
    return [str(store.path(name) or f"{store.url}/{name}") for name in _files_at(store, wanted)]


class ParquetSink(TableSink):
    kind = "parquet"

    def _forget(self) -> None:
        super()._forget()
        self._head = TableHead(-1, 0)
        self._fits = False

    def bind(
        self, store: Store, sink_name: str, schema_json: str, register: bool = True, create: bool = True
    ) -> None:
        super().bind(store, sink_name, schema_json, register, create)
        if self.head().version >= 0:
            self._check_fit()

    def _rows_of_others(self) -> str | None:
        newest = _newest(self._files)
        if newest >= 0:
            return f"a table of Parquet files (version {newest})"
        return "a Parquet file of something else" if any(map(_is_foreign, self._files.list(""))) else None

    def writer(self, rows: DataFrame) -> DataFrameWriter:
        # Spark leaves partition columns out of the files, but readers of single files need them.
        for column, folder in zip(self.partition_by, self._folders(), strict=True):
            rows = rows.withColumn(folder, F.col(quoted(column)))
        return super().writer(rows)

    def _folders(self) -> list[str]:
        return [f"__cutwater_by_{column}" for column in self.partition_by]

    def _check_fit(self) -> None:
        """All files must have one schema: a reader of many files takes the schema of any of them."""
        have, come = plain(_read(self._files, 0).schema), plain(self.schema)
        problem = misfit(have, come)
        if problem is None and misfit(come, have) is not None:
            problem = "the files have columns that are missing from the rows"
        if problem is not None:
            raise UserError(
                f"sink {self.name} cannot add to the Parquet files at {self.path}: {problem}. "
                f"All of them have the same columns: change the rows back, or {self._another_place()}"
            )
        self._fits = True

    def head(self) -> TableHead:
        number = self._head.version
        if number < 0:
            number = _newest(self._files)
        while self._files.exists(_name(number + 1)):
            number += 1
        if number > self._head.version:
            self._head = TableHead(number, self._transaction_at(number))
        return self._head

    def _transaction_at(self, number: int) -> int:
        return _read(self._files, number).transactions.get(self._app, 0)

    def find(self, transaction: int) -> int | None:
        version = self._find_version(transaction)
        return None if self._gone_at(version) else version

    def _find_version(self, transaction: int) -> int:
        versions = range(self.head().version + 1)
        found = bisect_right(versions, transaction, key=self._transaction_at) - 1
        own = self._transaction_at(found) if found >= 0 else 0
        return bisect_left(versions, own, key=self._transaction_at) if own > 0 else found

    def history(self, transaction: int) -> TableHistory | None:
        number = self._find_version(transaction)
        foreign = tuple(self._foreign(number, self.head().version))
        if number < 0:
            return TableHistory(0, 0, foreign)
        version = _read(self._files, number)
        return TableHistory(version.transactions.get(self._app, 0), len(version.files), foreign)

    def _foreign(self, after: int, upto: int) -> list[str]:
        """Changes by others in the versions after `after`."""
        names = [_name(number) for number in range(after + 1, upto + 1)]
        found = zip(names, _read_many(self._files, names), strict=True)
        return [f"{name} (by {v.writer})" for name, v in found if v.writer != self._app]

    def _gone_at(self, version: int) -> set[str]:
        """The files of an older version that no longer exist."""
        if version == self.head().version:
            return set()
        return set(_files_at(self._files, version)).difference(self._files.list(FOLDER))

    def dataset(self, version: int) -> Any:
        files = self._readable_files(version)
        if not files:
            return arrow_dataset.dataset(self._arrow_schema([]).empty_table())
        url = self._files.url
        handler = DeltaStorageHandler(url, access_to(url).storage_options() or None)
        system = PyFileSystem(handler)  # reads from every kind of store
        return arrow_dataset.dataset(files, self._arrow_schema(files), filesystem=system, format="parquet")

    def _arrow_schema(self, files: Sequence[str]) -> Any:
        """The schema of the target: that of a file with its columns, which Arrow knows best, or the recorded one. (Older
        versions have published files with other columns, which must not decide.)"""
        recorded = _read(self._files, 0).schema
        names = {field["name"] for field in recorded["fields"]}
        for name in files:
            found = read_footers(self._files, [name])[0].metadata.schema.to_arrow_schema()
            if set(found.names) == names:
                return found
        return arrow_schema(StructType.fromJson(recorded))

    def frame(self, spark: SparkSession, version: int) -> DataFrame:
        files = [self._files.spark_url(name) for name in self._readable_files(version)]
        return Files(spark).frame(files, msgspec.json.encode(_read(self._files, 0).schema).decode())

    def _readable_files(self, version: int) -> list[str]:
        newest = self.head().version
        if version < 0 and newest < 0:
            raise nothing_yet(self.name, self.path)
        if version > newest or self._gone_at(version):
            raise history_gone(self.name, self.path, version, newest)
        return _files_at(self._files, version)

    def publish(
        self, expected_version: int, transaction: int, files: tuple[str, ...], epoch: int | None = None
    ) -> int | None:
        if not self._is_next(expected_version, transaction):
            return None
        if expected_version >= 0 and not self._fits:
            self._check_fit()
        self._checked(files)
        complete = (expected_version + 1) % LIST_ALL_EVERY == 0
        before = _files_at(self._files, expected_version) if complete else []
        version = self._commit(expected_version, transaction, [*before, *files], complete, epoch)
        if version is not None:
            self._footers.forget(files)
        return version

    def rewind(
        self, expected_version: int, transaction: int, to_version: int, force: bool = False
    ) -> int | None:
        if not self._is_next(expected_version, transaction):
            return None
        refuse_foreign(self.name, self._foreign(to_version, expected_version), force)
        files = _files_at(self._files, to_version)
        gone = self._gone_at(to_version)
        if gone:
            raise StoreError(
                f"sink {self.name} cannot go back to version {to_version} of {self.path}: {len(gone)} of its "
                f"files are gone, for example {min(gone)}. Put them back, or restore a newer checkpoint if there is one"
            )
        return self._commit(expected_version, transaction, files, True, None)

    def _commit(
        self, expected_version: int, transaction: int, files: list[str], complete: bool, epoch: int | None
    ) -> int | None:
        first = expected_version < 0
        others = {} if first else _read(self._files, expected_version).transactions
        version = Version(
            writer=self._app,
            transactions={**others, self._app: transaction},
            files=files,
            complete=complete,
            epoch=epoch,
            schema=plain(self.schema) if first else None,
            number=expected_version + 1,
        )
        created = self._files.create(_name(expected_version + 1), seal(version))
        return expected_version + 1 if created else None

    def problems(self, staged: Sequence[str]) -> list[str]:
        try:
            _read_many(self._files, [_name(number) for number in range(_newest(self._files) + 1)])
        except StoreError as error:
            return [str(error)]
        return super().problems(staged)

    def _shown_now(self) -> dict[str, int | None]:
        return dict.fromkeys(_files_at(self._files, _newest(self._files)))

    def _shown(self, attempts: Iterable[str]) -> set[str]:
        head = self.head().version
        names = [_name(number) for number in range(self._looked_up_to + 1, head + 1)]
        for version in _read_many(self._files, names):
            own = (f.removeprefix(self._prefix) for f in version.files if f.startswith(self._prefix))
            self._published.update(file.partition("/")[0] for file in own)
        self._looked_up_to = head
        return self._published & set(attempts)


def _is_foreign(name: str) -> bool:
    return name.endswith(".parquet") and not name.startswith(FOLDER)


def _name(number: int) -> str:
    return f"{VERSIONS}{number:012d}.json"


def _newest(store: Store) -> int:
    numbers = (name.removeprefix(VERSIONS).removesuffix(".json") for name in store.list(VERSIONS))
    return max((int(number) for number in numbers if number.isdecimal()), default=-1)


def _read(store: Store, number: int) -> Version:
    return _read_many(store, [_name(number)])[0]


def _read_many(store: Store, names: list[str]) -> list[Version]:
    found = []
    for name, data in zip(names, store.read_many(names), strict=True):
        if data is None:
            raise StoreError(f"{name} is gone from {store.url}; restore it from a copy")
        version = decode(name, data, Version)
        if version.number is not None and _name(version.number) != name:
            raise StoreError(
                f"{name} in {store.url} is version {version.number} under another name; restore the right one "
                "from a copy. If there never was one, remove it"
            )
        found.append(version)
    return found


def _files_at(store: Store, number: int) -> list[str]:
    """The files that a version shows."""
    files: list[str] = []
    if number < 0:
        return files
    start = number - number % LIST_ALL_EVERY  # this one lists all files; others may too
    for version in _read_many(store, [_name(n) for n in range(start, number + 1)]):
        files = version.files if version.complete else files + version.files
    return files
