"""Reads tables at one published epoch.

One decision publishes all tables of a pipeline, one after the other. A reader that goes through an epoch reads each
table at the version that the epoch became, so it sees all of them at one cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from cutwater.api.tables import versions_at
from cutwater.protocol.base.errors import UserError
from cutwater.sinks.records import descriptions
from cutwater.sinks.registry import open_sink
from cutwater.spark.session import check_reach, refuse_unusable
from cutwater.store.at_rest import read_journal
from cutwater.store.contract import Store
from cutwater.store.opening import open_store


def snapshot(store: str | Store, epoch: int | str | None = None) -> Snapshot:
    """All tables of a pipeline at one epoch, by default the newest that is published in all of them. `epoch` may also be
    the name of a savepoint. Raises `UserError` if there is no such epoch, if it has expired, or if it is not published
    everywhere yet.

    snapshot = cutwater.snapshot("./state")
    revenue = snapshot["revenue"].to_table()                 # Arrow; without Spark
    matched = snapshot.read(spark, "matched")                # Spark; at the same cut
    """
    where = open_store(store) if isinstance(store, str) else store
    found, versions = versions_at(where, read_journal(where).state, epoch)
    known = descriptions(where)
    return Snapshot(where, found, {n: v for n, v in versions.items() if n not in known or known[n].url})


def read(spark: SparkSession, store: str | Store, table: str, epoch: int | str | None = None) -> DataFrame:
    """Read a table, named by its sink, at one epoch, as a batch DataFrame in this session. To read several tables at the
    same cut, use `snapshot`. Raises `UserError` as `snapshot` does, and if the pipeline has no such table or its history
    does not go back that far."""
    return snapshot(store, epoch).read(spark, table)


class Snapshot(Mapping[str, Any]):
    """The tables of one epoch: a mapping from their names to Arrow datasets, which are opened on access. Later epochs do
    not change what they show."""

    def __init__(self, store: Store, epoch: int, versions: dict[str, int]) -> None:
        self.epoch = epoch
        self.versions = versions
        """The version of each table, for time travel with other engines; -1 before its first rows."""
        self._store = store

    def __getitem__(self, table: str) -> Any:
        """The rows of a table as a `pyarrow.dataset.Dataset`. Raises `UserError` if there is no such table, or if its
        history does not go back that far."""
        return open_sink(self._store, table).dataset(self._version(table))

    def read(self, spark: SparkSession, table: str) -> DataFrame:
        """The rows of a table as a batch DataFrame in this session, which is not changed. Raises like `[table]`."""
        version = self._version(table)
        refuse_unusable(spark)
        url = descriptions(self._store)[table].url
        check_reach(spark, open_store(url).spark_url("any") if url is not None else "file:")
        return open_sink(self._store, table).frame(spark, version)

    def __contains__(self, table: object) -> bool:
        return table in self.versions

    def __iter__(self) -> Iterator[str]:
        return iter(self.versions)

    def __len__(self) -> int:
        return len(self.versions)

    def __repr__(self) -> str:
        return f"Snapshot(epoch={self.epoch}, versions={self.versions})"

    def _version(self, table: str) -> int:
        if table not in self.versions:
            known = ", ".join(self.versions) or "none"
            raise UserError(
                f"the pipeline on {self._store.url} has no table '{table}' at epoch {self.epoch}; its tables are: {known}"
            )
        return self.versions[table]
