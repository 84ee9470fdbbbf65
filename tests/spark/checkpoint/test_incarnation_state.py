"""Spark folders as files: the files that a checkpoint names, and those that may be deleted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import (
    BarrierAt,
    Checkpoint,
    JournalState,
    StageState,
    decode,
)
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.member.retention import deletable_states
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.incarnations import Complete
from cutwater.spark.checkpoint.new_folder import _to_take_over, make_folder
from cutwater.spark.checkpoint.stage_files import find_state, find_stored
from cutwater.spark.checkpoint.state_files import FOREVER, split_name
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.examples import examples
from tests.support.incarnation_helpers import new_query, report, spans, store
from tests.support.modelled_folder import STAGE, Query, snapshot_of

__all__ = ["store"]


def test_a_batch_needs_its_newest_snapshot_and_the_changes_after_it(store: Store) -> None:
    query = new_query(store).run(6)
    query.snapshot(3, 0, ["t1", "t2"])
    query.snapshot(5, 0, ["t2", "t3"])
    query.snapshot(4, 1, ["t4"])
    assert query.named(5) == {
        "cutwater/base.json",
        "metadata",
        "offsets/4",
        "offsets/5",
        "commits/3",
        "commits/4",
        "commits/5",
        "sources/0/2.compact",
        "sources/0/5.compact",
        "state/0/_metadata/metadata",
        "state/0/0/_metadata/schema",
        "state/0/0/5_1x4x0.zip",
        "state/0/0/SSTs/t2",
        "state/0/0/SSTs/t3",
        "state/0/0/6_1x5x0.changelog",
        "state/0/0/6_1x5x0.changelog.crc",
        "state/0/1/4_1x3x1.zip",
        "state/0/1/SSTs/t4",
        "state/0/1/5_1x4x1.changelog",
        "state/0/1/5_1x4x1.changelog.crc",
        "state/0/1/6_1x5x1.changelog",
        "state/0/1/6_1x5x1.changelog.crc",
    }


def test_a_batch_needs_the_log_entries_that_it_has_read(store: Store) -> None:
    """Spark reads the last batch's entries again when it starts, even if they are compacted."""
    query = new_query(store).run(3)
    query.put("offsets/1", b'v1\n{}\n{"logOffset":0}')
    assert {"sources/0/1", "sources/0/2.compact"} <= query.named(2)
    assert "sources/0/0" not in query.named(2)


def test_a_snapshot_of_an_uncommitted_attempt_is_not_used(store: Store) -> None:
    query = new_query(store).run(3)
    query.put("state/0/0/2_attempt.zip", b"not even a snapshot")
    query.put("state/0/0/2_attempt.changelog")
    assert not [name for name in query.named(2) if "attempt" in name]
    query.put("state/0/0/2_attempt.zip", snapshot_of([]))
    found = spans(store)
    assert {found[name] for name in found if "attempt" in name} == {(1, 1)}
    assert found[f"{query.prefix}state/0/0/1_1x0x0.changelog"] == (0, FOREVER)


@pytest.mark.parametrize(
    "lost",
    [
        "offsets/2",
        "offsets/3",
        "commits/3",
        "sources/0/3",
        "state/0/0/4_1x3x0.changelog",
        "state/0/1/3_1x2x1.zip",
        "state/0/1/SSTs/t1",
        "metadata/",
    ],
)
def test_a_state_with_a_missing_file_is_none(store: Store, lost: str) -> None:
    query = new_query(store).run(4)
    query.snapshot(3, 1, ["t1"])
    store.delete([f"{query.prefix}state/0/1/3_1x2x1.changelog"])
    assert query.state(3) is not None
    if lost == "metadata/":  # a whole partition
        store.delete(store.list(f"{query.prefix}state/0/1/"))
    else:
        store.delete([query.prefix + lost])
    assert query.state(3) is None


def test_a_checksum_is_computed_once(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"), create=True)
    query, cache = new_query(store).run(3), Cache()
    before = find_state(store, STAGE, 1, 1, 2, None, cache)
    assert before is not None
    assert cache.checksums == before
    cache.checksums = dict.fromkeys(before, "known")
    query.run()
    after = find_state(store, STAGE, 1, 1, 3, None, cache)
    assert after is not None
    assert {name.removeprefix(query.prefix) for name, sum in after.items() if sum != "known"} == {
        "offsets/3",
        "commits/3",
        "sources/0/3",
        *(f"state/0/{p}/4_1x3x{p}.changelog{tail}" for p in (0, 1) for tail in ("", ".crc")),
    }


def test_copies_are_self_contained(store: Store) -> None:
    query = new_query(store).run(3)
    copies = find_state(store, STAGE, 1, 1, 2, "checkpoints/4-9/state/clean/", Cache())
    here = query.state(2)
    assert copies is not None
    assert here is not None
    tail = len("checkpoints/4-9/state/clean/")
    assert {name[tail:]: sum for name, sum in copies.items()} == {
        name.removeprefix(query.prefix): sum for name, sum in here.items()
    }
    store.delete(store.list("stages/"))
    make_folder(store, STAGE, 2, 1, None, report(2, copies))
    assert Query(store, 1, generation=2).named(2) == {name[tail:] for name in copies}


def test_channel_files_name_their_attempt(store: Store) -> None:
    make_folder(store, STAGE, 1, 1, None, None)
    store.put(f"stages/{STAGE}/1/data/4-17-ab12/part-0.parquet", b"x")
    data, _ = find_stored(store, STAGE, 1, 1, Cache())
    assert [(file.name.rpartition("/")[2], file.incarnation, file.batch) for file in data] == [
        ("part-0.parquet", 4, 17)
    ]


def test_a_snapshot_makes_changes_superfluous_only_from_the_next_batch_on(store: Store) -> None:
    """A checkpoint of the last batch before it appeared may name the changes."""
    query, cache = new_query(store).run(5), Cache()
    query.snapshot(4, 0, ["t1"])

    def span(name: str) -> tuple[int, int | None]:
        return spans(store, cache)[query.prefix + name]

    assert span("state/0/0/3_1x2x0.changelog") == (2, 4)
    query.run(2)
    assert span("state/0/0/3_1x2x0.changelog") == (2, 4)
    assert span("state/0/0/4_1x3x0.changelog") == (3, 4)
    assert span("state/0/0/6_1x5x0.changelog") == (5, FOREVER)
    assert span("state/0/0/SSTs/t1") == (3, FOREVER)
    query.snapshot(7, 0, ["t2"])
    query.run()
    assert span("state/0/0/SSTs/t1") == (3, 7)
    query.put("sources/0/8.compact")  # of a batch that is being planned
    assert span("sources/0/8.compact") == (-1, FOREVER)
    assert span("commits/3") == (3, FOREVER)  # the other partition has no snapshot
    query.run(4)
    query.snapshot(10, 0, ["t2"])
    assert span("state/0/0/7_1x6x0.zip") == (6, 11)
    assert span("state/0/0/SSTs/t2") == (6, FOREVER)


def test_a_folder_that_was_never_finished_may_be_deleted(store: Store) -> None:
    new_query(store).run(2)
    store.put(f"{spark_prefix(STAGE, 1, 2)}offsets/0", b"x")
    make_folder(store, STAGE, 1, 3, 1, None, 1)
    Query(store, 3, batch=1).run(2)
    make_folder(store, STAGE, 1, 4, 3, None, 3)  # by a process that is about to take over
    store.put(f"{spark_prefix(STAGE, 1, 5)}offsets/0", b"and by yet another one")
    _, states = find_stored(store, STAGE, 1, 3, Cache())
    gone = deletable_states(JournalState(), STAGE, 1, StageState(3, 3), states, named=())
    here = {name for number in (1, 2) for name in store.list(spark_prefix(STAGE, 1, number))}
    assert {name for name in gone if name.split("/")[4] != "3"} == here
    assert not set(gone) & set(Query(store, 3).state(3) or {})
    assert not [stored for stored in states if "/spark/4/" in stored.name]
    assert not [s for s in find_stored(store, STAGE, 1, 5, Cache())[1] if "/spark/5/" in s.name]


Step = Callable[["History"], None]


@dataclass
class History:
    """The history of a stage: batches, late snapshots, checkpoints, restarts and cleanups, in any order."""

    store: Store
    rocksdb: bool
    query: Query = field(init=False)
    cache: Cache = field(default_factory=Cache)
    captured: dict[int, tuple[int, dict[str, str]]] = field(default_factory=dict)
    kept: set[int] = field(default_factory=set)
    under_way: tuple[int, dict[str, str]] | None = None
    newest: dict[int, tuple[int, list[str]]] = field(default_factory=dict)
    uploading: dict[int, tuple[Query, int, list[str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.query = new_query(self.store, self.rocksdb)
        self.query.vouches = True
        self.query.run()

    def capture(self, begin: bool) -> None:
        """Take a checkpoint, with anything that happens between its listing and its commit."""
        if begin and self.under_way is None and self.query.batch not in self.captured:
            state = self.query.state(self.query.batch)
            assert state is not None
            self.under_way = self.query.batch, state
        elif not begin and self.under_way is not None:
            batch, state = self.under_way
            self.captured[batch] = len(self.captured) + 1, state
            self.kept.add(batch)
            self.under_way = None

    def expire(self, which: int) -> None:
        if len(self.kept) > 1:
            self.kept.remove(sorted(self.kept)[which % (len(self.kept) - 1)])

    def snapshot(self, age: int, partition: int, table: int) -> None:
        """Start uploading a snapshot of some version or, if one of this partition is being uploaded, finish it. It shares
        a file with the one before."""
        if partition in self.uploading:
            query, version, tables = self.uploading.pop(partition)
            query.finish_snapshot(version, partition, tables)
            if query is self.query:  # otherwise that of a predecessor, into its own folder
                self.newest[partition] = version, tables
            return
        version = self.query.batch + 1 - age
        before, shared = self.newest.get(partition, (0, []))
        if version > before:
            tables = [f"v{version}a", f"v{version}b"]
            self.query.upload(partition, tables)
            tables += shared[table:][:2]
            self.uploading[partition] = self.query, version, tables

    def restart(self) -> None:
        before = self.query
        make_folder(self.store, STAGE, 1, before.incarnation + 1, before.incarnation, None, before.batch)
        self.query = Query(
            self.store,
            before.incarnation + 1,
            self.rocksdb,
            batch=before.batch,
            ids=dict(before.ids),
            vouches=True,
        )
        self.cache = Cache()

    def collect(self, ahead: int) -> None:
        """Delete what may be deleted, `ahead` batches after it was found; or as an appender that is behind Spark."""
        _, states = find_stored(self.store, STAGE, 1, self.query.incarnation, self.cache)
        self.query.run(max(ahead, 0))
        cut = max(self.captured, default=0), self.under_way[0] if self.under_way is not None else 0
        last = max(self.query.batch + min(ahead, 0), *cut)
        journal = JournalState(
            open={},
            committed={
                number: Checkpoint(number, number, 1, number, 0, "", None, {STAGE: batch}, None)
                for batch, (number, _) in self.captured.items()
                if batch in self.kept
            },
            next_epoch=1000,
        )
        barriers = {}
        if self.under_way is not None:
            barriers[1000] = BarrierAt(
                1, 1000, 1000, 1, self.under_way[0], False, consumed={}, offsets={}, watermark=NONE
            )
        log = StageState(self.query.incarnation, last, barriers=barriers)
        self.store.delete(deletable_states(journal, STAGE, 1, log, states))

    def check(self) -> None:
        wanted = [self.captured[batch][1] for batch in self.kept]
        for state in [*wanted, self.under_way[1] if self.under_way else {}]:
            assert {name: self.store.checksum(name) for name in state} == state
        assert self.query.state(self.query.batch) is not None
        names, known, _ = _to_take_over(self.store, self.query.prefix, self.query.batch, None)
        unvouched = {name for name in names if split_name(name) is None} - known.keys()
        assert {name.partition("/")[0] for name in unvouched} <= {
            "commits",
            "prepared",
        }  # read when taken over


STEPS: st.SearchStrategy[Step] = st.one_of(
    st.integers(1, 4).map(lambda n: lambda h: h.query.run(n) and None),
    st.tuples(st.integers(0, 5), st.integers(0, 1), st.integers(0, 2)).map(
        lambda a: lambda h: h.snapshot(*a)
    ),
    st.booleans().map(lambda begin: lambda h: h.capture(begin)),
    st.integers(0, 5).map(lambda which: lambda h: h.expire(which)),
    st.integers(-2, 3).map(lambda ahead: lambda h: h.collect(ahead)),
    st.just(lambda h: h.restart()),
)


@pytest.mark.slow
@examples(150)
@given(st.booleans(), st.lists(STEPS, min_size=5, max_size=40))
def test_retention_never_deletes_what_a_kept_checkpoint_names(rocksdb: bool, steps: list[Step]) -> None:
    history = History(open_store("memory://"), rocksdb)
    for step in steps:
        step(history)
        history.check()
    for batch in history.kept:
        number, state = history.captured[batch]
        make_folder(history.store, STAGE, 2, number, None, report(batch, state))
        again = Query(history.store, number, rocksdb, generation=2)
        assert again.named(batch) == {name.split("/", 5)[5] for name in state}


def test_the_first_batch_needs_the_metadata_of_its_state(store: Store) -> None:
    assert new_query(store).run().named(0) >= {"state/0/_metadata/metadata", "state/0/0/_metadata/schema"}


def test_a_restored_folder_remembers_what_its_checkpoint_knows_of_state(store: Store) -> None:
    state = new_query(store).run(3).state(2)
    assert state is not None
    make_folder(store, STAGE, 2, 1, None, report(2, state))
    old, new = spark_prefix(STAGE, 1, 1), spark_prefix(STAGE, 2, 1)
    mark = decode("complete", store.read(f"{new}cutwater/complete") or b"", Complete)
    files = {name.removeprefix(old): checksum for name, checksum in state.items() if "/state/" in name}
    assert files
    assert {name: mark.checksums.get(name) for name in files} == files
