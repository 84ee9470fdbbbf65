"""A running process does not read again what it knows: the marks of a folder, and records that it wrote itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import BASE, COMPLETE, batch_file_name, spark_prefix
from cutwater.protocol.base.records import StageReport
from cutwater.protocol.base.watermark import NONE
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.incarnations import base_of
from cutwater.spark.checkpoint.new_folder import make_folder
from cutwater.spark.checkpoint.prepared import committed, write_prepared
from cutwater.spark.checkpoint.stage_files import find_state, find_stored
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.modelled_folder import STAGE, Query, prepared


class CountingStore(LocalStore):
    """Counts how often each object is read."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.reads: Counter[str] = Counter()
        self.checked: set[str] = set()

    def read(self, name: str) -> bytes | None:
        self.reads[name] += 1
        return super().read(name)

    def checksum(self, name: str) -> str | None:
        self.checked.add(name)
        return super().checksum(name)

    def read_many(self, names: Sequence[str]) -> list[bytes | None]:
        return [self.read(name) for name in names]


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    open_store(str(tmp_path), create=True)
    return CountingStore(tmp_path)


def run(store: CountingStore, incarnation: int, batches: range, cache: Cache) -> None:
    """Use the store as a running member does: a checkpoint after every batch."""
    query = Query(store, incarnation, batch=batches.start - 1, stateful=False)
    base_of(store, STAGE, 1, incarnation, cache)
    for batch in batches:
        query.plan()
        write_prepared(store, STAGE, 1, incarnation, prepared(batch), cache)
        query.put(batch_file_name("commits", batch), b"v2\n{}")
        found = committed(store, STAGE, 1, incarnation, batch, cache)
        assert found is not None
        assert msgspec.structs.replace(found, commit="") == prepared(batch)
        find_state(store, STAGE, 1, incarnation, batch, None, cache)
        find_stored(store, STAGE, 1, incarnation, cache)


def test_the_base_of_an_incarnation_is_read_once_and_its_own_records_never(store: CountingStore) -> None:
    cache = Cache()
    make_folder(store, STAGE, 1, 1, None, None, cache=cache)
    store.reads.clear()
    run(store, 1, range(3), cache)
    prefix = spark_prefix(STAGE, 1, 1)
    assert store.reads[prefix + BASE] == 1
    assert store.reads[prefix + COMPLETE] == 1
    assert [store.reads[prefix + batch_file_name("prepared", batch)] for batch in range(3)] == [0, 0, 0]


def test_the_base_of_the_incarnation_before_is_not_read_again(store: CountingStore) -> None:
    cache = Cache()
    make_folder(store, STAGE, 1, 1, None, None, cache=cache)
    run(store, 1, range(2), cache)
    before = store.reads[spark_prefix(STAGE, 1, 1) + BASE]
    make_folder(store, STAGE, 1, 2, 1, None, 1, cache=cache)
    run(store, 2, range(2, 4), cache)
    assert store.reads[spark_prefix(STAGE, 1, 1) + BASE] == before
    assert store.reads[spark_prefix(STAGE, 1, 2) + BASE] == 1


def test_another_process_reads_the_record(store: CountingStore) -> None:
    """The writer may be dead; its successor knows the batch only from the store."""
    make_folder(store, STAGE, 1, 1, None, None)
    Query(store, 1).run(1)
    name = spark_prefix(STAGE, 1, 1) + batch_file_name("prepared", 0)
    store.reads.clear()
    assert committed(store, STAGE, 1, 1, 0, Cache()) is not None
    assert store.reads[name] == 1
    store.delete([name])
    with pytest.raises(StoreError, match="is gone"):
        committed(store, STAGE, 1, 1, 0, Cache())


def test_a_restore_reads_no_state_files_and_checks_the_rest(store: CountingStore) -> None:
    """State may have many gigabytes, and Spark has checksums of its own for it."""
    make_folder(store, STAGE, 1, 1, None, None)
    Query(store, 1).run(2)
    state = find_state(store, STAGE, 1, 1, 1, None, Cache())
    assert state is not None
    report = StageReport(STAGE, 1, 1, False, consumed={}, offsets={}, watermark=NONE, state=state)
    store.reads.clear()
    store.checked.clear()
    make_folder(store, STAGE, 2, 1, None, report)
    read = {*store.reads, *store.checked}
    large = {name for name in state if "/state/" in name and name.endswith(".changelog")}
    assert large
    assert not large & read
    assert {name for name in state if "/offsets/" in name or "/commits/" in name} <= read
