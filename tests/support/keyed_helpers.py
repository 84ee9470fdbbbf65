"""A Delta table with keys, the processes that publish to it, and the fold that it must be equal to."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from pyspark.sql import SparkSession

from cutwater.protocol.member import upsert
from cutwater.sinks.delta import keyed, reading
from cutwater.sinks.delta.keyed import KeyedDeltaSink
from cutwater.sinks.delta.making import delta
from cutwater.sinks.delta.merge import DELETES, Merge, Merged
from cutwater.sinks.delta.sink import DeltaSink
from cutwater.sinks.footers import read_footers
from cutwater.store.contract import Store
from tests.support.sink_helpers import schema

CHANGES = schema(id="long", region="string", value="string", ts="long", op="string")
OPTIONS: dict[str, Any] = {
    "keys": ["id"],
    "sequence_by": "ts",
    "delete_when": "op = 'd'",
    "except_columns": "op",
}

STAGED = pa.schema([("id", pa.int64()), ("region", pa.string()), ("value", pa.string()), ("ts", pa.int64())])
"""What a change has besides its operation."""

Shown = tuple[int, str | None, str | None, int]


class Change(NamedTuple):
    """A change of the row `id`. The row is deleted if `op` is `d`."""

    id: int
    ts: int
    value: str | None = None
    op: str = "u"
    region: str | None = None

    @property
    def row(self) -> Shown:
        return self.id, self.region, self.value, self.ts


class Fold:
    """What the table has to be: one change after the other, and a key never forgets its highest sequence."""

    def __init__(self) -> None:
        self.rows: dict[int, Shown] = {}
        self.highest: dict[int, int] = {}

    def add(self, changes: Iterable[Change]) -> None:
        for change in changes:
            if change.ts < self.highest.get(change.id, change.ts):
                continue
            self.highest[change.id] = change.ts
            self.rows.pop(change.id, None)
            if change.op != "d":
                self.rows[change.id] = change.row

    def copy(self) -> Fold:
        other = Fold()
        other.rows, other.highest = dict(self.rows), dict(self.highest)
        return other

    @property
    def shown(self) -> list[Shown]:
        return sorted(self.rows.values())


class KeyedTable:
    """One table, to which several processes publish."""

    def __init__(self, path: str, store: Store, spark: SparkSession | None = None, **options: Any) -> None:
        self.path, self.store, self.spark = path, store, spark
        self.options = {**OPTIONS, **options}
        self._attempts = 0

    def sink(self, rows: str = CHANGES, **options: Any) -> DeltaSink:
        """The sink as each process that hosts it makes it."""
        made = delta(self.path, **{**self.options, **options})
        made.bind(self.store, "table", rows)
        if self.spark is not None:
            made.attach(self.spark)
        return made

    def stage(self, sink: DeltaSink, *files: Sequence[Change]) -> tuple[str, ...]:
        """Stages changes as Spark does, in one attempt: a file for each list."""
        self._attempts += 1
        attempt = f"attempt-{self._attempts}"
        folder = Path(sink.staging(attempt).removeprefix("file://"))
        folder.mkdir(parents=True)
        for number, changes in enumerate(files):
            pq.write_table(self._staged(changes), folder / f"part-{number}.parquet")
        return tuple(file.name for file in sink.staged(attempt))

    def _staged(self, changes: Sequence[Change]) -> pa.Table:
        columns = {name: [getattr(change, name) for change in changes] for name in STAGED.names}
        found = pa.table(columns, STAGED)
        if self.options["delete_when"] is None:
            return found
        return found.append_column(DELETES, pa.array([change.op == "d" for change in changes]))

    def publish(self, sink: DeltaSink, transaction: int, *files: Sequence[Change]) -> int | None:
        """Publishes changes as the member in charge would."""
        names = self.stage(sink, *files)
        return sink.publish(sink.head().version, transaction, names, epoch=transaction)

    def rows(self, version: int | None = None) -> list[Shown]:
        found = reading.load(self.path, version).to_pyarrow_table()
        return sorted(zip(*(found[c].to_pylist() for c in ("id", "region", "value", "ts")), strict=True))

    def outputs(self) -> set[str]:
        """The folders of attempts to publish, and of staged changes."""
        return {folder.name for folder in Path(self.path, "_cutwater").glob("*/*")}


def random_changes(draw: random.Random, count: int, ids: int = 12, latest: int = 60) -> list[Change]:
    """Inserts, updates, deletes, late and repeated ones, ties, keys that are used again, rows that move to another
    region."""
    found: list[Change] = []
    for _ in range(count):
        if found and draw.random() < 0.1:
            found.append(draw.choice(found))
            continue
        op = "d" if draw.random() < 0.3 else "u"
        value, region = (
            draw.choice([None, "", "x%y z", str(draw.random())]),
            draw.choice(["eu", "us /%", "é+"]),
        )
        found.append(Change(draw.randrange(ids), draw.randrange(latest), value, op, region))
    return found


def in_files(draw: random.Random, changes: Sequence[Change]) -> list[list[Change]]:
    """The changes in files, in the same order."""
    files: list[list[Change]] = []
    rest = list(changes)
    while rest:
        size = draw.randint(1, len(rest))
        files.append(rest[:size])
        rest = rest[size:]
    return files


class PythonMerge:
    """Stands in for Spark's join, in a few milliseconds: most tests are about the commits around it. `before` is called
    at its begin, and `during` between writing the files and the commit."""

    def __init__(self) -> None:
        self.before: Callable[[], object] = lambda: None
        self.during: Callable[[], object] = lambda: None
        self.looked_at: list[int] = []
        """How many of the table's files each join has looked at."""

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(KeyedDeltaSink, "_changes", lambda *_, **__: None)
        monkeypatch.setattr(KeyedDeltaSink, "_reader", lambda _: None)
        monkeypatch.setattr(keyed, "merge", self)

    def __call__(self, what: Merge) -> Merged:
        self.before()
        store, has_sequence = what.target.files, what.sequence_by is not None
        old = {path: self._read(store, unquote(path)) for path in (what.old.paths if what.old else [])}
        self.looked_at.append(len(old))
        rows = {row["id"]: (row["ts"] if has_sequence else None, row) for f in old.values() for row in f}
        buried = {
            row["id"]: row["ts"] for run in what.runs for name in run for row in self._read(store, name)
        }
        changes = [
            upsert.Change(
                row["id"], row["ts"] if has_sequence else None, place, number,
                None if row.pop(DELETES, False) else row,
            )
            for place, name in enumerate(what.files)
            for number, row in enumerate(self._read(store, name))
        ]  # fmt: skip
        after = upsert.applied(upsert.Rows(rows, buried), changes)
        changed = {key for key in rows.keys() | after.rows.keys() if rows.get(key) != after.rows.get(key)}
        touched = [path for path, found in old.items() if any(row["id"] in changed for row in found)]
        stay = {row["id"] for path in touched for row in old[path]} | (after.rows.keys() - rows.keys())
        shown = [row for key, (_, row) in after.rows.items() if key in stay]
        names = self._write(what, "rows", shown) if shown else []
        tombs = [{"id": key, "ts": ts} for key, ts in after.deleted.items() if buried.get(key) != ts]
        runs = (*what.runs, tuple(self._write(what, "tombstones", tombs))) if tombs else what.runs
        self.during()
        return Merged(names, read_footers(store, names), touched, runs)

    def _read(self, store: Store, name: str) -> list[dict[str, Any]]:
        path = store.path(name)
        assert path is not None
        found: list[dict[str, Any]] = pq.ParquetFile(path).read().to_pylist()
        return found

    def _write(self, what: Merge, folder: str, rows: list[dict[str, Any]]) -> list[str]:
        name = f"{what.target.prefix}{folder}/part-0.parquet"
        path = what.target.files.path(name)
        assert path is not None
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows, STAGED), path)
        return [name]
