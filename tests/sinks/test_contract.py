"""The contract that every sink keeps: publishing and rewinding, repeated, by many processes at once, and by zombies."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from cutwater.protocol.base.effects import TableHead
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.sinks import Sink, delta, foreach_epoch, parquet, parquet_files
from cutwater.sinks.foreach_epoch import ForeachEpochSink
from cutwater.sinks.registry import open_sink
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.sink_helpers import ROWS, at_once, publish, stage, store

__all__ = ["store"]


class Target:
    """One target, and the sinks of several processes that write to it."""

    def __init__(self, base: Path, store: Store) -> None:
        self.path = str(base / "target")
        self.store = store

    def create(self, **options: Any) -> Sink:
        raise NotImplementedError

    def rows(self, version: int | None = None) -> list[int]:
        """The ids that readers see, sorted."""
        raise NotImplementedError

    def sink(self, rows: str = ROWS, store: Store | None = None, **options: Any) -> Sink:
        """A sink as each process makes it."""
        made = self.create(**options)
        made.bind(store or self.store, "target", rows)
        return made

    def file(self, name: str) -> Path:
        return Path(self.path, name)

    def attempts(self) -> set[str]:
        folders = Path(self.path, "_cutwater").glob("*/*")
        return {folder.name for folder in folders if folder.parent.name != "versions"}


class DeltaTarget(Target):
    def create(self, **options: Any) -> Sink:
        return delta(self.path, **options)

    def rows(self, version: int | None = None) -> list[int]:
        try:
            return sorted(DeltaTable(self.path, version=version).to_pyarrow_table().column("id").to_pylist())
        except TableNotFoundError:
            return []


class ParquetTarget(Target):
    def create(self, **options: Any) -> Sink:
        return parquet(self.path, **options)

    def rows(self, version: int | None = None) -> list[int]:
        files = parquet_files(self.path, version)
        return sorted(i for file in files for i in pq.read_table(file).column("id").to_pylist())


class FunctionTarget(Target):
    """A function that keeps the ids that it was called with. `StubFiles` reads them without Spark."""

    def __init__(self, base: Path, store: Store) -> None:
        super().__init__(base, store)
        self.calls: list[int] = []

    def create(self, **options: Any) -> Sink:
        return foreach_epoch(lambda rows, epoch: self.calls.extend(rows), name="target", **options)  # type: ignore[arg-type]

    def sink(self, rows: str = ROWS, store: Store | None = None, **options: Any) -> Sink:
        made = super().sink(rows, store, **options)
        made.attach(object())  # type: ignore[arg-type]
        return made

    def rows(self, version: int | None = None) -> list[int]:
        return sorted(self.calls)

    def file(self, name: str) -> Path:
        path = self.store.path(name)
        assert path is not None
        return path


class StubFiles:
    def __init__(self, spark: object) -> None:
        pass

    def frame(self, urls: list[str], schema: str) -> list[int]:
        return [
            i for url in urls for i in pq.read_table(url.removeprefix("file://")).column("id").to_pylist()
        ]


TABLES = {"delta": DeltaTarget, "parquet": ParquetTarget}
ALL = {**TABLES, "foreach_epoch": FunctionTarget}


@pytest.fixture(params=ALL)
def target(
    request: pytest.FixtureRequest, tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> Target:
    monkeypatch.setattr(sys.modules[ForeachEpochSink.__module__], "Files", StubFiles)
    return ALL[request.param](tmp_path, store)


@pytest.fixture(params=TABLES)
def table(request: pytest.FixtureRequest, tmp_path: Path, store: Store) -> Target:
    return TABLES[request.param](tmp_path, store)


# --- publishing -----------------------------------------------------------------------------------------


def test_rows_are_visible_once_they_are_published_and_not_before(target: Target) -> None:
    sink = target.sink()
    assert sink.head() == TableHead(-1, 0)
    files = stage(sink, "a", [1, 2])
    assert target.rows() == []
    version = sink.publish(-1, 5, files, epoch=3)
    assert version is not None
    assert sink.head() == TableHead(version, 5)
    assert target.rows() == [1, 2]


def test_a_successor_does_not_publish_a_transaction_again(target: Target) -> None:
    sink = target.sink()
    first = publish(sink, 5, [1])
    assert first is not None
    files = stage(sink, "b", [2])
    second = sink.publish(first, 7, files, epoch=2)
    assert second is not None

    successor = target.sink()
    assert successor.head() == TableHead(second, 7)
    assert successor.publish(first, 7, files, epoch=2) is None
    assert successor.publish(second, 7, files, epoch=2) is None
    assert successor.find(7) == second
    assert target.rows() == [1, 2]


@pytest.mark.parametrize("first", [True, False], ids=["first version", "later version"])
def test_of_many_processes_that_publish_the_same_files_one_succeeds(table: Target, first: bool) -> None:
    sinks = [table.sink() for _ in range(4)]
    expected = -1 if first else publish(sinks[0], 4, [9])
    assert expected is not None
    files = stage(sinks[0], "a", [1])
    answers = at_once(*(lambda s=s: s.publish(expected, 5, files) for s in sinks))
    assert sorted(answers, key=str) == [expected + 1, None, None, None]
    assert {sink.head() for sink in sinks} == {TableHead(expected + 1, 5)}
    assert table.rows() == ([1] if first else [1, 9])


def test_a_missing_staged_file_is_an_error_and_publishes_nothing(target: Target) -> None:
    sink = target.sink()
    publish(sink, 5, [1])
    before = sink.head()
    (name,) = stage(sink, "a", [2])
    target.file(name).unlink()
    with pytest.raises(StoreError, match=r"part-0\.parquet is gone"):
        sink.publish(before.version, 7, (name,), epoch=7)
    assert sink.head() == before
    assert target.rows() == [1]


# --- rewinding ------------------------------------------------------------------------------------------


def test_a_zombie_cannot_publish_what_a_restore_abandoned(target: Target) -> None:
    sink, zombie = target.sink(), target.sink()
    first = publish(sink, 5, [1])
    assert first is not None
    late = stage(zombie, "late", [2])
    rewound = sink.rewind(first, 9, first)
    assert rewound is not None
    assert sink.head() == TableHead(rewound, 9), "a rewind carries its transaction, even if no row changes"
    assert zombie.publish(first, 7, late, epoch=7) is None
    assert zombie.publish(zombie.head().version, 7, late, epoch=7) is None
    assert target.rows() == [1]


def test_a_repeated_rewind_does_nothing(target: Target) -> None:
    sink = target.sink()
    first, second = (publish(sink, transaction, [transaction]) for transaction in (5, 6))
    assert first is not None
    assert second is not None
    rewound = sink.rewind(second, 9, first)
    assert rewound is not None
    before = target.rows()
    successor = target.sink()
    assert successor.rewind(second, 9, first) is None
    assert successor.rewind(rewound, 9, first) is None
    assert (successor.head(), successor.find(9), target.rows()) == (TableHead(rewound, 9), rewound, before)


def test_of_many_processes_that_rewind_one_succeeds(table: Target) -> None:
    sinks = [table.sink() for _ in range(4)]
    for transaction in (5, 6):
        publish(sinks[0], transaction, [transaction])
    answers = at_once(*(lambda s=s: s.rewind(1, 9, 0) for s in sinks))
    assert sorted(answers, key=str) == [2, None, None, None]
    assert (table.rows(), table.sink().head()) == ([5], TableHead(2, 9))


def test_a_rewind_brings_rows_back_and_publishing_continues(table: Target) -> None:
    sink = table.sink()
    for transaction in (5, 6, 7):
        publish(sink, transaction, [transaction])
    assert sink.rewind(2, 9, 0) == 3
    assert (table.rows(), sink.head()) == ([5], TableHead(3, 9))
    assert publish(sink, 11, [11]) == 4
    assert (table.rows(), table.rows(2)) == ([5, 11], [5, 6, 7])
    found = [sink.find(t) for t in (4, 5, 6, 7, 8, 9, 10, 11, 12)]
    assert found == [-1, 0, 1, 2, 2, 3, 3, 4, 4]
    assert sink.rewind(4, 12, 1) == 5  # to a version of the abandoned timeline
    assert table.rows() == [5, 6]


def test_a_rewind_to_before_the_first_version_leaves_no_rows(table: Target) -> None:
    sink = table.sink()
    publish(sink, 5, [1])
    assert sink.find(4) == -1
    assert sink.rewind(0, 9, -1) == 1
    assert sink.rewind(1, 10, -1) == 2
    assert (table.rows(), sink.head()) == ([], TableHead(2, 10))
    publish(sink, 11, [2])
    assert table.rows() == [2]


def test_a_rewind_without_a_table_creates_an_empty_one_that_stops_zombies(table: Target) -> None:
    sink, zombie = table.sink(), table.sink()
    late = stage(zombie, "late", [1])
    assert sink.rewind(-1, 9, -1) == 0
    assert zombie.publish(-1, 5, late) is None
    assert zombie.publish(0, 5, late) is None
    assert table.rows() == []


def test_a_version_whose_files_are_gone_is_not_found_and_cannot_be_restored(table: Target) -> None:
    sink = table.sink()
    for transaction in (5, 6, 7):
        publish(sink, transaction, [transaction])
    assert sink.find(6) == 1
    sink.rewind(2, 8, 0)
    publish(sink, 9, [9])
    assert [sink.find(t) for t in (5, 6, 7, 8, 9)] == [0, 1, 2, 3, 4]
    next(Path(table.path, "_cutwater").glob("*/attempt-6/*")).unlink()
    assert [sink.find(t) for t in (5, 6, 7, 8, 9)] == [0, None, None, 3, 4]
    for transaction, version in ((6, 1), (7, 2)):
        with pytest.raises(StoreError, match=f"cannot go back to version {version}"):
            sink.rewind(4, 20 + transaction, version)
    assert sink.rewind(4, 30, 3) == 5


# --- names, stores, cleanup -----------------------------------------------------------------------------


def test_a_sink_keeps_its_name(table: Target, store: Store) -> None:
    """Under another name, a restore would not rewind it, and rows that it holds back would not be published."""
    table.sink()
    with pytest.raises(UserError, match=r"write name='target', or give it a path of its own"):
        table.create(name="renamed").bind(store, "renamed", ROWS)
    table.sink()


def test_a_sink_can_be_opened_from_the_store_alone(
    table: Target, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = table.sink(partition_by="city", final_by="at")
    for transaction in (5, 6):
        publish(sink, transaction, [transaction])
    monkeypatch.chdir(tmp_path)  # a command may run anywhere
    opened = open_sink(store, "target")
    assert (opened.name, opened.partition_by, opened.final_by) == ("target", ("city",), "at")
    assert opened.head() == TableHead(1, 6)
    assert [opened.find(t) for t in (4, 5, 6)] == [-1, 0, 1]


def test_two_stores_that_write_to_one_target_have_separate_transactions(
    table: Target, tmp_path: Path
) -> None:
    """A fresh store begins with low journal indexes: its rows must not be taken for old ones."""
    first = table.sink()
    publish(first, 500, [1])
    second = table.sink(store=open_store(str(tmp_path / "other"), create=True), existing="append")
    assert second.head() == TableHead(0, 0)
    assert publish(second, 5, [2]) == 1
    assert (first.head(), second.head()) == (TableHead(1, 500), TableHead(1, 5))
    assert (first.find(500), second.find(4), second.find(5)) == (0, 0, 1)
    with pytest.raises(UserError, match="--force"):
        first.rewind(1, 501, 0)
    first.discard(keep=set())
    second.discard(keep=set())
    assert table.rows() == [1, 2]
    assert table.sink().rewind(1, 501, 0, force=True) == 2
    assert table.rows() == [1]


def test_only_attempts_that_nothing_names_are_discarded(table: Target) -> None:
    sink = table.sink()
    publish(sink, 1, [1])
    publish(sink, 2, [2])
    sink.rewind(1, 3, 0)
    for attempt in ("kept", "failed"):
        stage(sink, attempt, [len(attempt)])
    table.sink().discard(keep={"kept"})
    assert table.attempts() == {"attempt-1", "attempt-2", "kept"}
    publish(sink, 4, [5])
    sink.discard(keep=set())
    assert table.attempts() == {"attempt-1", "attempt-2", "attempt-4"}
    assert table.rows() == [1, 5]
    assert sink.rewind(3, 5, 1) == 4
    assert table.rows() == [1, 2]


def test_one_object_that_is_bound_to_two_stores_writes_as_two_sinks(table: Target, tmp_path: Path) -> None:
    """A notebook starts one pipeline object with a second store: the stores must not share transactions."""
    sink = table.sink(existing="append")
    publish(sink, 9, [1])
    sink.bind(open_store(str(tmp_path / "second"), create=True), "target", ROWS)
    assert sink.head().transaction == 0, "the first store wrote what is there"
    publish(sink, 3, [2])
    assert (table.rows(), sink.head().transaction) == ([1, 2], 3)
    sink.bind(table.store, "target", ROWS)
    assert sink.head().transaction == 9


def test_an_object_that_is_bound_again_knows_nothing_of_a_target_that_was_removed(
    table: Target, tmp_path: Path
) -> None:
    sink = table.sink()
    publish(sink, 9, [1])
    shutil.rmtree(table.path)
    sink.bind(open_store(str(tmp_path / "second"), create=True), "target", ROWS)
    assert sink.head() == TableHead(-1, 0)
    publish(sink, 3, [2])
    assert table.rows() == [2]
