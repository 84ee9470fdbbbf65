"""Spark can continue from exactly the files that are named, and from what retention leaves of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import Checkpoint, JournalState, StageReport, StageState
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.member.retention import deletable_states
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.new_folder import make_folder
from cutwater.spark.checkpoint.prepared import committed
from cutwater.spark.checkpoint.stage_files import find_state, find_stored
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.folder_queries import Outputs, Row, check, make_session, run, use_provider, write_input

pytestmark = pytest.mark.slow

MORE = pytest.mark.faults  # these take minutes: `make test-faults` runs them
CASES = [
    ("rocksdb", "join"),
    ("hdfs", "one"),
    ("rocksdb", "total"),
    ("hdfs", "total"),
    *(
        pytest.param("rocksdb", q, marks=MORE)
        for q in ("plain", "count", "one", "dedup", "window", "running")
    ),
    *(pytest.param("hdfs", q, marks=MORE) for q in ("join", "window")),
]


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    session = make_session()
    yield session
    session.stop()  # other modules need other settings


def report(query: str, batch: int, state: dict[str, str]) -> StageReport:
    return StageReport(query, 1, batch, False, consumed={}, offsets={}, watermark=NONE, state=state)


def upto(outputs: Outputs, batch: int) -> Outputs:
    return {b: rows for b, rows in outputs.items() if b <= batch}


@pytest.mark.parametrize(("provider", "query"), CASES)
def test_a_query_continues_from_the_files_named_at_a_batch(
    spark: SparkSession, tmp_path: Path, provider: str, query: str
) -> None:
    use_provider(spark, provider)
    files, store = tmp_path / "in", open_store(str(tmp_path / "store"), create=True)
    write_input(files, range(8))
    make_folder(store, query, 1, 1, None, None)
    states: dict[int, dict[str, str]] = {}
    copies: dict[int, dict[str, str]] = {}
    cache = Cache()

    def before(batch: int) -> None:
        if batch > 0:
            found = find_state(store, query, 1, 1, batch - 1, None, cache)
            copied = find_state(store, query, 1, 1, batch - 1, f"checkpoints/{batch}-1/state/{query}/", cache)
            assert found is not None
            assert copied is not None
            states[batch - 1], copies[batch - 1] = found, copied

    outputs = run(spark, store, query, files, 1, before=before)
    check(spark, query, files, outputs)
    _, stored = find_stored(store, query, 1, 1, cache)
    spans = {file.name: file for file in stored}
    for batch, state in states.items():
        for name in state:
            assert spans[name].batch <= batch <= (spans[name].until or 0), (name, batch, spans[name])

    make_folder(store, query, 2, 1, None, report(query, 1, states[1]))
    again = run(spark, store, query, files, 1, generation=2)
    assert min(again) == 2
    check(spark, query, files, upto(outputs, 1) | again)
    assert find_state(store, query, 2, 1, 1, None, Cache()) is not None

    store.delete(store.list(f"stages/{query}/"))  # the copies are self-contained
    make_folder(store, query, 3, 1, None, report(query, 5, copies[5]))
    again = run(spark, store, query, files, 1, generation=3)
    assert min(again) == 6
    check(spark, query, files, upto(outputs, 5) | again)


class Keeper:
    """Takes a checkpoint every few batches, keeps the first and the last two, and deletes what may be deleted."""

    def __init__(self, store: Store, query: str) -> None:
        self.store = store
        self.query = query
        self.cache = Cache()
        self.kept: dict[int, dict[str, str]] = {}
        self.deleted: list[str] = []

    def step(self, incarnation: int, last: int) -> None:
        if last % 4 == 2:
            state = find_state(self.store, self.query, 1, incarnation, last, None, self.cache)
            assert state is not None
            self.kept[last] = state
            for batch in sorted(self.kept)[1:-2]:
                del self.kept[batch]
        _, stored = find_stored(self.store, self.query, 1, incarnation, self.cache)
        journal = JournalState(
            committed={
                b + 1: Checkpoint(b + 1, 1, 1, b + 1, 0, "", None, {self.query: b}, None) for b in self.kept
            }
        )
        gone = deletable_states(journal, self.query, 1, StageState(incarnation, last), stored)
        assert not set(gone) & {name for state in self.kept.values() for name in state}
        self.store.delete(gone)
        self.deleted += gone


@pytest.mark.parametrize(
    ("provider", "query", "count"),
    [
        pytest.param("rocksdb", "dedup", 14, marks=MORE),
        pytest.param("hdfs", "dedup", 14, marks=MORE),
        pytest.param("rocksdb", "running", 8, marks=MORE),
    ],
)
def test_retention_breaks_neither_spark_nor_a_kept_checkpoint(
    spark: SparkSession, tmp_path: Path, provider: str, query: str, count: int
) -> None:
    use_provider(spark, provider)
    files, store = tmp_path / "in", open_store(str(tmp_path / "store"), create=True)
    keeper = Keeper(store, query)
    outputs: Outputs = {}
    for incarnation in (1, 2, 3):  # each in a folder made from the one before
        write_input(files, range((incarnation - 1) * count, incarnation * count))
        last = max(outputs, default=None)
        make_folder(store, query, 1, incarnation, incarnation - 1 or None, None, last)

        def before(batch: int, incarnation: int = incarnation) -> None:
            if batch > 0:
                keeper.step(incarnation, batch - 1)

        outputs |= run(spark, store, query, files, incarnation, before=before)
    check(spark, query, files, outputs)
    assert len(outputs) == 3 * count

    left = store.list(f"stages/{query}/1/spark/")
    assert len(keeper.deleted) > len(left) // 2
    assert any("/SSTs/" in name for name in keeper.deleted) == (provider == "rocksdb")
    assert not [name for name in left if name.startswith(spark_prefix(query, 1, 2))]
    for generation, (batch, state) in enumerate(keeper.kept.items(), 2):
        assert {name: store.checksum(name) for name in state} == state
        make_folder(store, query, generation, 1, None, report(query, batch, state))
        again = run(spark, store, query, files, 1, generation=generation, per_batch=8)
        assert min(again) == batch + 1
        check(spark, query, files, upto(outputs, batch) | again)


@pytest.mark.parametrize("provider", ["rocksdb", pytest.param("hdfs", marks=MORE)])
def test_a_new_incarnation_continues_after_the_last_commit_of_a_killed_process(
    spark: SparkSession, tmp_path: Path, provider: str
) -> None:
    use_provider(spark, provider)
    query, files, store = "count", tmp_path / "in", open_store(str(tmp_path / "store"), create=True)
    write_input(files, range(8))
    make_folder(store, query, 1, 1, None, None)
    command = [sys.executable, "-m", "tests.support.folder_queries", str(tmp_path / "store"), provider, query]
    process = subprocess.Popen(
        [*command, str(files), "5"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"stopped\n"
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # its Java process too
        process.wait(60)

    origin, prefix = spark_prefix(query, 1, 1), spark_prefix(query, 1, 2)
    assert store.exists(f"{origin}offsets/5")
    assert committed(store, query, 1, 1, 5) is None
    make_folder(store, query, 1, 2, 1, None, 3)
    found = committed(store, query, 1, 2, 4)
    assert found is not None
    assert found.batch == 4
    names = [name.removeprefix(prefix) for name in store.list(prefix)]
    assert "offsets/4" in names
    assert "offsets/5" not in names
    assert not [name for name in names if name.startswith(("sources/0/5", "state/0/0/6", "state/0/1/6"))]
    assert store.list(f"{origin}state/0/0/6")
    assert find_state(store, query, 1, 2, 3, None, Cache()) is not None  # the log may end before batch 4

    outputs = run(spark, store, query, files, 2)
    assert min(outputs) == 5
    check(spark, query, files, {b: [] for b in range(5)} | outputs)


class StopHere(Exception):
    """Ends a query inside a batch."""


def run_one_batch(
    spark: SparkSession, store: Store, query: str, files: Path, incarnation: int, generation: int = 1
) -> Outputs:
    """Run a query and stop it before it commits a second batch."""
    seen: list[int] = []
    found: Outputs = {}

    def before(batch: int) -> None:
        seen.append(batch)
        if len(seen) > 1:
            raise StopHere

    try:
        run(spark, store, query, files, incarnation, generation=generation, before=before, outputs=found)
    except Exception as error:
        if StopHere.__name__ not in str(error):
            raise
    return {batch: rows for batch, rows in found.items() if batch in seen[:1]}


@pytest.mark.parametrize(
    ("provider", "query"),
    [
        ("rocksdb", "window"),
        *(pytest.param("rocksdb", query, marks=MORE) for query in ("join", "dedup", "running")),
        *(pytest.param("hdfs", query, marks=MORE) for query in ("window", "plain")),
    ],
)
def test_a_query_that_is_stopped_after_every_batch_gives_the_same_result_as_one_that_runs_through(
    spark: SparkSession, tmp_path: Path, provider: str, query: str
) -> None:
    """What a batch has closed is emitted by the next one, which runs even without new rows, also after a start."""
    use_provider(spark, provider)
    files, store = tmp_path / "in", open_store(str(tmp_path / "store"), create=True)
    write_input(files, range(4))
    make_folder(store, query, 1, 1, None, None)
    wanted = run(spark, store, query, files, 1)

    make_folder(store, query, 2, 1, None, None)
    outputs: Outputs = {}
    for incarnation in range(1, 2 * len(wanted) + 2):
        done = run_one_batch(spark, store, query, files, incarnation, 2)
        outputs |= done
        make_folder(store, query, 2, incarnation + 1, incarnation, None, max(outputs))
        if not done:
            break
    assert not done, "there is nothing left to do"
    assert sorted(outputs) == list(range(len(outputs)))
    assert every_row(outputs) == every_row(wanted)
    assert len(every_row(wanted)) >= 7  # at least one window of every key


def every_row(outputs: Outputs) -> list[Row]:
    return sorted(row for rows in outputs.values() for row in rows)


def test_what_was_closed_before_a_checkpoint_is_emitted_after_a_restore_without_new_rows(
    spark: SparkSession, tmp_path: Path
) -> None:
    use_provider(spark, "rocksdb")
    query, files, store = "window", tmp_path / "in", open_store(str(tmp_path / "store"), create=True)
    write_input(files, range(3))
    make_folder(store, query, 1, 1, None, None)
    states: dict[int, dict[str, str]] = {}

    def before(batch: int) -> None:
        found = find_state(store, query, 1, 1, batch - 1, None, Cache())
        assert found is not None
        states[batch - 1] = found

    wanted = run(spark, store, query, files, 1, before=before)
    last = max(wanted)
    assert wanted[last], "the last batch emits what the one before has closed"
    make_folder(store, query, 2, 1, None, report(query, last - 1, states[last - 1]))
    assert run(spark, store, query, files, 1, generation=2) == {last: wanted[last]}
