"""Spark folders as files: what is made, reported and given up for deletion. (With Spark: test_statefiles.)"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import (
    BarrierAt,
    Checkpoint,
    JournalState,
    Prepared,
    StageReport,
    StageState,
    encode,
)
from cutwater.protocol.base.watermark import NONE
from cutwater.protocol.member.retention import deletable_states
from cutwater.spark.checkpoint.folder import Voucher
from cutwater.spark.checkpoint.incarnations import (
    Cache,
    _to_take_over,
    base_of,
    check_newest,
    committed,
    find_state,
    find_stored,
    list_folders,
    make_folder,
    write_prepared,
)
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.offsets import Offsets, next_plan, parse_commit, parse_offsets, starting_plan
from cutwater.spark.checkpoint.state_files import FOREVER, split_name
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.modelled_folder import OPERATOR, STAGE, STORES, Query, prepared, snapshot_of


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return open_store(str(tmp_path / "store") if request.param == "local" else "memory://", create=True)


def report(batch: int, state: dict[str, str]) -> StageReport:
    return StageReport(STAGE, 1, batch, False, {}, {}, NONE, state)


def new_query(store: Store, rocksdb: bool = True) -> Query:
    make_folder(store, STAGE, 1, 1, None, None)
    return Query(store, 1, rocksdb)


def spans(store: Store, cache: Cache | None = None, last: int = 1) -> dict[str, tuple[int, int | None]]:
    """What may be deleted when, by name."""
    _, states = find_stored(store, STAGE, 1, last, cache or Cache())
    return {stored.name: (stored.batch, stored.until) for stored in states}


def prepared_again(
    store: Store, stage: str, generation: int, incarnation: int, batch: int
) -> Prepared | None:
    """The record of a committed batch, as it was written."""
    found = committed(store, stage, generation, incarnation, batch)
    return msgspec.structs.replace(found, commit="") if found is not None else None


def names(store: Store, generation: int, incarnation: int) -> set[str]:
    prefix = spark_prefix(STAGE, generation, incarnation)
    return {name.removeprefix(prefix) for name in store.list(prefix)}


# --- what Spark writes ----------------------------------------------------------------------------------


def test_offsets_and_commits_are_read() -> None:
    text = (
        b'v1\n{"batchWatermarkMs":5,"batchTimestampMs":7,"conf":{"spark.sql.shuffle.partitions":"2"}}\n'
        b'{"logOffset":3}\n-\n{"topic":{"0":4}}'
    )
    offsets = parse_offsets("offsets/3", text)
    assert (offsets.watermark_ms, offsets.timestamp_ms) == (5, 7)
    assert offsets.conf == {"spark.sql.shuffle.partitions": "2"}
    assert offsets.sources == ('{"logOffset":3}', None, '{"topic":{"0":4}}')
    assert [offsets.log_offset(source) for source in range(4)] == [3, None, None, None]
    assert parse_commit("commits/3", b'v1\n{"nextBatchWatermarkMs":9}').ids is None
    commit = parse_commit("c", b'v2\n{"nextBatchWatermarkMs":9,"stateUniqueIds":{"0":[["a"],["b","c"]]}}')
    assert commit.watermark_ms == 9
    assert [commit.ids_of(0, partition) for partition in range(3)] == [("a",), ("b", "c"), ()]


@pytest.mark.parametrize("data", [b"", b"v1", b"v1\n{", b"v9\n{}", b"\xff\xff", b"junk\n{}"])
def test_a_damaged_offsets_file_is_named(data: bytes) -> None:
    with pytest.raises(StoreError, match="offsets/3"):
        parse_offsets("offsets/3", data)


@pytest.mark.parametrize("data", [b"", b"v2\n{", b"v9\n{}", b"\xff\xff"])
def test_a_damaged_commit_is_named(data: bytes) -> None:
    with pytest.raises(StoreError, match="commits/3"):
        parse_commit("commits/3", data)


# --- batches --------------------------------------------------------------------------------------------


def test_a_batch_is_committed_when_spark_says_so(store: Store) -> None:
    query = new_query(store).run(2)
    query.plan()
    write_prepared(store, STAGE, 1, 1, prepared(2))
    assert prepared_again(store, STAGE, 1, 1, 1) == prepared(1)
    assert committed(store, STAGE, 1, 1, 2) is None


def test_a_folder_begun_at_a_later_batch_counts_from_there(store: Store) -> None:
    make_folder(store, STAGE, 1, 1, None, report(7, {}))
    assert base_of(store, STAGE, 1, 1) == 7
    query = Query(store, 1)
    assert query.state(7) == {}
    query.run(2)
    assert prepared_again(store, STAGE, 1, 1, 9) == prepared(9)
    assert committed(store, STAGE, 1, 1, 7) is None
    make_folder(store, STAGE, 1, 2, 1, None, 9)
    assert base_of(store, STAGE, 1, 2) == 7
    state = query.state(9)
    assert state is not None
    make_folder(store, STAGE, 2, 1, None, report(9, state))
    assert base_of(store, STAGE, 2, 1) == 7
    assert Query(store, 1, generation=2, batch=1).run().named(10) >= {"offsets/2", "offsets/1", "commits/2"}


SEED = {"offsets/-2", "offsets/-1", "commits/-1", "cutwater/base.json", "metadata"}


def reset_at(store: Store, batch: int, generation: int = 2) -> Query:
    """A folder without state behind this batch of a query in generation 1."""
    state = new_query(store).run(batch + 3).state(batch)
    assert state is not None
    cut = StageReport(STAGE, 0, batch, False, {"x": 4}, {"0": f'{{"logOffset":{batch}}}'}, NONE, state)
    make_folder(store, STAGE, generation, 1, None, cut, log_interval=3, reset=True)
    return Query(store, 1, generation=generation)


@pytest.mark.parametrize("batch", [0, 1, 2, 7])
def test_a_stage_that_is_reset_goes_on_where_its_sources_were_read(store: Store, batch: int) -> None:
    query = reset_at(store, batch)
    assert base_of(store, STAGE, 2, 1) == batch
    found = names(store, 2, 1)
    logs = {name for name in found if name.startswith("sources/")}
    assert found == {*SEED, *logs, "cutwater/complete"}
    assert query.files() == list(range(batch + 1)), "the source knows what it has read"
    offsets = store.read(f"{query.prefix}offsets/-1")
    assert offsets is not None
    assert parse_offsets("offsets/-1", offsets).sources == (f'{{"logOffset":{batch}}}',)
    query.run(2)
    found_batch = committed(store, STAGE, 2, 1, batch + 2)
    assert found_batch is not None
    assert msgspec.structs.replace(found_batch, commit="") == prepared(batch + 2)
    assert query.files() == list(range(batch + 3))


@pytest.mark.parametrize("under_way", [False, True])
def test_positions_that_a_reset_kept_outlive_starts_and_checkpoints_before_the_first_batch(
    store: Store, under_way: bool
) -> None:
    query = reset_at(store, 3)
    if under_way:
        query.plan()  # and does not come to its end
    state = query.state(3)
    assert state is not None
    assert query.named(3) >= SEED
    assert not [name for name in query.named(3) if name.startswith("state/")]
    check_newest(store, STAGE, 2, 1, 3, None)
    make_folder(store, STAGE, 2, 2, 1, None, 3)
    make_folder(store, STAGE, 3, 1, None, report(3, state))
    for generation, incarnation in ((2, 2), (3, 1)):
        assert names(store, generation, incarnation) >= SEED
        again = Query(store, incarnation, generation=generation)
        assert again.files() == list(range(4))
        assert base_of(store, STAGE, generation, incarnation) == 3
    with_rows = Query(store, 2, generation=2).run(3)
    assert not with_rows.named(6) & {"offsets/-2", "offsets/-1", "commits/-1"}
    make_folder(store, STAGE, 2, 3, 2, None, 6)
    assert Query(store, 3, generation=2).files() == list(range(7))


def test_a_stage_that_is_reset_twice_before_its_first_batch_keeps_its_positions(store: Store) -> None:
    state = reset_at(store, 3).state(3)
    assert state is not None
    cut = StageReport(STAGE, 0, 3, False, {}, {"0": "x"}, NONE, state)
    make_folder(store, STAGE, 3, 1, None, cut, reset=True)
    assert names(store, 3, 1) >= SEED
    assert Query(store, 1, generation=3).files() == list(range(4))


def test_a_reset_passes_over_what_is_in_flight_in_channels() -> None:
    plan = parse_offsets(
        "o", b'v1\n{"batchWatermarkMs":9,"conf":{"a":"b"}}\n{"channel":"x","batch":2}\n-\n{"logOffset":1}'
    )
    found = parse_offsets("o", starting_plan(plan, {"x": 4}))
    assert found.sources == ('{"channel":"x","batch":4}', None, '{"logOffset":1}')
    assert (found.watermark_ms, found.conf) == (0, {"a": "b"})


def test_what_a_reset_kept_may_go_when_a_batch_has_come_after_it(store: Store) -> None:
    query = reset_at(store, 3).run(3)
    _, states = find_stored(store, STAGE, 2, 1, Cache())
    until = {stored.name.removeprefix(query.prefix): (stored.batch, stored.until) for stored in states}
    assert until["offsets/-2"] == (3, 3)
    assert until["offsets/-1"] == (3, 4)
    assert until["commits/-1"] == (3, 4)


def test_a_committed_batch_without_its_record_is_an_error(store: Store) -> None:
    new_query(store).run(2)
    store.delete([f"{spark_prefix(STAGE, 1, 1)}prepared/1.json"])
    with pytest.raises(StoreError, match=r"batch 1 of stage clean, .* is gone"):
        committed(store, STAGE, 1, 1, 1)
    store.put(f"{spark_prefix(STAGE, 1, 1)}prepared/1.json", encode(prepared(5)))
    with pytest.raises(StoreError, match="is of batch 5"):
        committed(store, STAGE, 1, 1, 1)


def test_an_incarnation_that_was_superseded_finds_nothing_more(store: Store) -> None:
    new_query(store).run(2)
    make_folder(store, STAGE, 1, 2, 1, None, 1)
    store.delete([f"{spark_prefix(STAGE, 1, 1)}prepared/1.json"])
    assert committed(store, STAGE, 1, 1, 1) is None


def test_two_queries_in_one_folder_are_noticed(store: Store) -> None:
    make_folder(store, STAGE, 1, 1, None, None)
    write_prepared(store, STAGE, 1, 1, prepared(0))
    write_prepared(store, STAGE, 1, 1, prepared(0))
    with pytest.raises(StoreError, match="two queries"):
        write_prepared(store, STAGE, 1, 1, Prepared(0, ("other",), {}, {}, {}, NONE))


# --- making folders -------------------------------------------------------------------------------------


def test_only_complete_folders_are_listed(store: Store) -> None:
    make_folder(store, STAGE, 1, 3, None, None)
    make_folder(store, STAGE, 1, 12, None, None)
    store.put(f"{spark_prefix(STAGE, 1, 14)}offsets/0", b"x")
    assert list_folders(store, STAGE, 1) == [3, 12]
    assert list_folders(store, STAGE, 2) == []


@pytest.mark.parametrize("rocksdb", [True, False])
def test_a_folder_takes_over_what_was_committed_and_nothing_later(store: Store, rocksdb: bool) -> None:
    query = new_query(store, rocksdb).run(4)
    query.snapshot(2, 0, ["t1"])
    query.plan()  # and killed
    write_prepared(store, STAGE, 1, 1, prepared(4))
    make_folder(store, STAGE, 1, 2, 1, None, 3)
    found = names(store, 1, 2)
    assert {name for name in found if name.startswith("offsets/")} == {"offsets/3", "offsets/2"}
    assert not [n for n in found if n.startswith(("commits/4", "state/0/0/5", "sources/0/4", "prepared/"))]
    assert {"sources/0/2.compact", "sources/0/3", "metadata", "state/0/0/_metadata/schema"} <= found
    assert found - {"cutwater/complete"} == query.named(3)


def test_batches_that_are_not_in_the_log_yet_come_along(store: Store) -> None:
    new_query(store).run(5)
    make_folder(store, STAGE, 1, 2, 1, None, 2)
    assert [prepared_again(store, STAGE, 1, 2, b) for b in (3, 4, 5)] == [prepared(3), prepared(4), None]
    again = Query(store, 2)
    found = spans(store, last=2)
    for batch in (2, 4):  # it can be cut before they are logged
        assert max(found[again.prefix + name][0] for name in again.named(batch)) <= batch
    assert found[f"{again.prefix}metadata"] == (2, FOREVER)
    make_folder(store, STAGE, 1, 3, 2, None, 3)  # again before all of them are logged
    assert prepared_again(store, STAGE, 1, 3, 4) == prepared(4)
    make_folder(store, STAGE, 1, 4, 2, None)  # by one who does not know the log
    assert [prepared_again(store, STAGE, 1, 4, b) for b in (3, 4)] == [prepared(3), prepared(4)]


def test_a_folder_that_nothing_ran_in_is_taken_over(store: Store) -> None:
    state = new_query(store).run(3).state(2)
    assert state is not None
    make_folder(store, STAGE, 2, 1, None, report(2, state))
    make_folder(store, STAGE, 2, 2, 1, None, 2)
    assert names(store, 2, 2) == names(store, 2, 1)
    make_folder(store, STAGE, 3, 1, None, None)
    make_folder(store, STAGE, 3, 2, 1, None, -1)
    assert names(store, 3, 2) == names(store, 3, 1) == {"cutwater/base.json", "cutwater/complete"}


def test_a_folder_left_half_made_is_made_afresh(store: Store) -> None:
    new_query(store).run(3)
    prefix = spark_prefix(STAGE, 1, 2)
    store.put(f"{prefix}state/0/0/2_other.changelog", b"another's")
    store.put(f"{prefix}offsets/2", b"another's")
    make_folder(store, STAGE, 1, 2, 1, None, 2)
    assert "state/0/0/2_other.changelog" not in names(store, 1, 2)
    assert store.read(f"{prefix}offsets/2") == store.read(f"{spark_prefix(STAGE, 1, 1)}offsets/2")
    Query(store, 2, batch=2).run()
    make_folder(store, STAGE, 1, 2, 1, None, 2)  # it is complete: nothing happens
    assert prepared_again(store, STAGE, 1, 2, 3) == prepared(3)


def test_a_source_that_has_lost_what_the_log_has_is_refused(store: Store) -> None:
    query = new_query(store).run(3)
    with pytest.raises(StoreError, match="end at batch 2, and the stage's log has batch 3"):
        make_folder(store, STAGE, 1, 2, 1, None, 3)
    store.delete([f"{query.prefix}state/0/1/2_1x1x1.changelog"])
    with pytest.raises(StoreError, match="files of batch 2 are gone"):
        make_folder(store, STAGE, 1, 2, 1, None, 2)
    assert list_folders(store, STAGE, 1) == [1]


def test_state_files_that_are_gone_are_named(store: Store) -> None:
    query = new_query(store).run(3)
    state = query.state(2)
    assert state is not None
    store.delete([f"{query.prefix}offsets/1"])
    with pytest.raises(StoreError, match=r"1 of \d+ state files of stage clean at batch 2 .*offsets/1"):
        make_folder(store, STAGE, 2, 1, None, report(2, state))
    with pytest.raises(StoreError, match="elsewhere/x is listed"):
        make_folder(store, STAGE, 2, 1, None, report(2, {"elsewhere/x": ""}))
    assert list_folders(store, STAGE, 2) == []


def test_schema_files_are_found_in_the_new_folder(store: Store) -> None:
    """Spark names them by full path in the operator's metadata."""
    query = new_query(store)
    schema = f"{store.spark_url(query.prefix.rstrip('/'))}/state/0/_stateSchema/default/0_a"
    stores = STORES[:-1] + b',"stateSchemaFilePaths":["%s"]}' % schema.encode()
    query.plan()
    store.delete([f"{query.prefix}state/0/_metadata/metadata"])
    query.put("state/0/_metadata/v2/0", OPERATOR % stores)
    query.put("state/0/_stateSchema/default/0_a")
    query.put("state/0/_metadata/v2/1", OPERATOR % stores)  # of a batch that never comes to count
    query.put("state/0/_stateSchema/default/1_b")
    query.commit()
    make_folder(store, STAGE, 1, 2, 1, None, 0)
    prefix = spark_prefix(STAGE, 1, 2)
    data = store.read(f"{prefix}state/0/_metadata/v2/0")
    assert data is not None
    assert f'["{store.spark_url(prefix.rstrip("/"))}/state/0/_stateSchema/default/0_a"]'.encode() in data
    assert store.exists(f"{prefix}state/0/_stateSchema/default/0_a")
    assert not {"state/0/_metadata/v2/1", "state/0/_stateSchema/default/1_b"} & names(store, 1, 2)
    query.run()
    assert spans(store)[f"{query.prefix}state/0/_metadata/v2/0"] == (0, 0)
    assert spans(store)[f"{query.prefix}state/0/_metadata/v2/1"] == (1, FOREVER)


# --- what a checkpoint names ----------------------------------------------------------------------------


def test_a_batch_needs_its_newest_snapshot_and_what_came_after(store: Store) -> None:
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


def test_a_batch_needs_all_that_it_has_read_of_a_source(store: Store) -> None:
    """Spark reads the last batch's files again when it starts, beside what was compacted with them."""
    query = new_query(store).run(3)
    query.put("offsets/1", b'v1\n{}\n{"logOffset":0}')
    assert {"sources/0/1", "sources/0/2.compact"} <= query.named(2)
    assert "sources/0/0" not in query.named(2)


def test_a_snapshot_of_an_attempt_that_did_not_count_is_not_used(store: Store) -> None:
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
def test_a_state_with_a_file_missing_is_none(store: Store, lost: str) -> None:
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


def test_copies_stand_for_themselves(store: Store) -> None:
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


# --- what may be deleted ----------------------------------------------------------------------------------


def test_channel_files_tell_their_attempt(store: Store) -> None:
    make_folder(store, STAGE, 1, 1, None, None)
    store.put(f"stages/{STAGE}/1/data/4-17-ab12/part-0.parquet", b"x")
    data, _ = find_stored(store, STAGE, 1, 1, Cache())
    assert [(file.name.rpartition("/")[2], file.incarnation, file.batch) for file in data] == [
        ("part-0.parquet", 4, 17)
    ]


def test_a_snapshot_frees_what_it_replaces_only_from_the_next_batch_on(store: Store) -> None:
    """A checkpoint of the batch that was the last one when it arrived may have named the changes."""
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


def test_a_folder_that_was_never_finished_goes(store: Store) -> None:
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
    """A stage's life: batches, late snapshots, checkpoints, restarts and clean-ups, in any order."""

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
        """A checkpoint, and whatever happens between its listing and its commit."""
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
        """A snapshot of some version begins to be uploaded, or else, of this partition, is there. It shares a
        table with the one before."""
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
        """Deletes what may go, `ahead` batches after it was found; or as an appender that is behind Spark."""
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
            barriers[1000] = BarrierAt(1, 1000, 1000, 1, self.under_way[0], False, {}, {}, NONE)
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
@settings(max_examples=150, deadline=None)
@given(st.booleans(), st.lists(STEPS, min_size=5, max_size=40))
def test_retention_never_takes_what_a_kept_checkpoint_names(rocksdb: bool, steps: list[Step]) -> None:
    history = History(open_store("memory://"), rocksdb)
    for step in steps:
        step(history)
        history.check()
    for batch in history.kept:
        number, state = history.captured[batch]
        make_folder(history.store, STAGE, 2, number, None, report(batch, state))
        again = Query(history.store, number, rocksdb, generation=2)
        assert again.named(batch) == {name.split("/", 5)[5] for name in state}


# --- damage -------------------------------------------------------------------------------------------


def planned_folder(store: Store) -> str:
    """A folder with one batch of a file source, whose record has the checksums of Spark's plan."""
    folder = spark_prefix(STAGE, 1, 1)
    make_folder(store, STAGE, 1, 1, None, None)
    plan = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":0}'
    store.put(f"{folder}offsets/0", plan)
    store.put(f"{folder}commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    store.put(f"{folder}sources/0/0", b'v1\n{"path":"file:///a","batchId":0}')
    named = {"offsets/0": digest(plan), "sources/0/0": digest(store.read(f"{folder}sources/0/0") or b"")}
    write_prepared(
        store, STAGE, 1, 1, Prepared(0, (), {}, {}, {"0": '{"logOffset":0}'}, NONE, checksums=named)
    )
    return folder


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("offsets/0", b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"logOffset":1}'),
        ("offsets/0", b'v1\n{"batchWatermarkMs":9,"batchTimestampMs":1,"conf":{}}\n{"logOffset":0}'),
        ("sources/0/0", b'v1\n{"path":"file:///b","batchId":0}'),
        ("commits/0", b"v1\n{"),
        ("commits/0", b""),
        ("cutwater/base.json", b'{"base":'),
        ("cutwater/complete", b""),
    ],
)
def test_a_folder_with_a_damaged_plan_is_not_taken_over(store: Store, name: str, data: bytes) -> None:
    folder = planned_folder(store)
    check_newest(store, STAGE, 1, 1, 0, None)
    store.put(folder + name, data)
    with pytest.raises(StoreError):
        check_newest(store, STAGE, 1, 1, 0, None)
    with pytest.raises(StoreError):
        make_folder(store, STAGE, 1, 2, 1, None, 0)
    assert list_folders(store, STAGE, 1) == [1]


def test_what_a_checkpoint_or_the_log_says_of_a_folder_holds_too(store: Store) -> None:
    folder = planned_folder(store)
    state = find_state(store, STAGE, 1, 1, 0, None, Cache())
    assert state is not None
    check_newest(store, STAGE, 1, 1, 0, report(0, state))
    said = committed(store, STAGE, 1, 1, 0)
    assert said is not None
    check_newest(store, STAGE, 1, 1, 0, None, said.commit)
    store.put(f"{folder}commits/0", b'v1\n{"nextBatchWatermarkMs":7}')
    check_newest(store, STAGE, 1, 1, 0, None)
    with pytest.raises(StoreError, match=r"commits/0 is damaged \(its checksum differs\)"):
        check_newest(store, STAGE, 1, 1, 0, None, said.commit)
    with pytest.raises(StoreError, match=r"commits/0 is damaged \(its checksum differs\)"):
        make_folder(store, STAGE, 1, 2, 1, None, 0, commit=said.commit)
    with pytest.raises(StoreError, match=r"commits/0 is damaged \(its checksum differs\)"):
        make_folder(store, STAGE, 1, 2, 1, report(0, state), 0)


def refused(store: Store, incarnation: int, last: int) -> bool:
    """Whether neither `verify` nor the next run takes the folder for whole."""
    verdicts = []
    for look in (
        lambda: check_newest(store, STAGE, 1, incarnation, last, None),
        lambda: make_folder(store, STAGE, 1, incarnation + 1, incarnation, None, last),
    ):
        try:
            look()
            verdicts.append(False)
        except StoreError:
            verdicts.append(True)
    store.delete(store.list(spark_prefix(STAGE, 1, incarnation + 1)))
    assert len(set(verdicts)) == 1
    return verdicts[0]


def damages(store: Store, incarnation: int, last: int, kinds: str) -> list[str]:
    """The files below these folders of an incarnation's that can be changed or deleted without being missed."""
    prefix = spark_prefix(STAGE, 1, incarnation)
    unseen = []
    for name in store.list(prefix):
        file = name.removeprefix(prefix)
        data = store.read(name)
        if not re.fullmatch(kinds, file) or data is None:
            continue
        for harm in (b"", data[:-1], data.replace(b"in/1", b"in/9").replace(b":", b" :"), None):
            if harm == data:
                continue
            store.delete([name])
            if harm is not None:
                store.put(name, harm)
            if not refused(store, incarnation, last):
                unseen.append(f"{file}: {harm!r}")
            store.put(name, data)
    return unseen


SMALL = r"offsets/.*|commits/.*|sources/.*|metadata|cutwater/.*\.json|state/.*_metadata/.*"


def test_a_new_incarnation_is_vouched_for_before_its_first_checkpoint(store: Store) -> None:
    new_query(store).run(5)
    make_folder(store, STAGE, 1, 2, 1, None, 4)
    assert damages(store, 2, 4, SMALL) == []
    again = Query(store, 2, batch=4, vouches=True)
    again.run()
    needed = "|".join(re.escape(name) for name in again.named(5) if re.fullmatch(SMALL, name))
    unseen = damages(store, 2, 5, rf"(?!commits/5)(?:{needed})")
    assert unseen == ["sources/0/2.compact: None"]  # 5.compact has all of it: the log is written anew


def test_a_restored_folder_is_vouched_for_before_its_first_checkpoint(store: Store) -> None:
    state = new_query(store).run(5).state(4)
    assert state is not None
    make_folder(store, STAGE, 1, 2, None, report(4, state))
    assert damages(store, 2, 4, SMALL) == []


def test_a_checkpoint_that_is_damaged_after_the_restore_is_not_taken(store: Store) -> None:
    query = new_query(store).run(5)
    state = query.state(4)
    assert state is not None
    query.put("sources/0/4", b'v1\n{"path":"file:///in/9","timestamp":0,"batchId":4}')
    with pytest.raises(StoreError, match=r"sources/0/4 is damaged"):
        make_folder(store, STAGE, 2, 1, None, report(4, state))
    assert list_folders(store, STAGE, 2) == []


def test_source_logs_that_are_written_anew_are_vouched_for(store: Store) -> None:
    new_query(store).run(5)
    make_folder(store, STAGE, 1, 2, 1, None, 4, log_interval=2)
    store.delete(store.list(spark_prefix(STAGE, 1, 1)))
    assert any(name.startswith("sources/0/") for name in names(store, 1, 2))
    assert damages(store, 2, 4, SMALL) == []


def test_batches_vouch_for_the_logs_of_file_sources_beside_channels(store: Store) -> None:
    channel, files = '{"channel":"a","batch":3,"incarnation":1}', '{"logOffset":%d}'
    voucher = Voucher(store, "f/", [Leaf("a"), Leaf(None, "parquet", "/in", log=0)])
    known = {}
    for entry, name in enumerate(["0", "1", "2.compact", "3", "4", "5.compact", "6"]):
        store.put(f"f/sources/0/{name}", b"v1\n%d" % entry)
        plan = f"v1\n{{}}\n{channel}\n{files % entry}".encode()
        known = voucher.checksums(entry, plan)
        assert known[f"sources/0/{name}"] == digest(b"v1\n%d" % entry)
        assert known[f"offsets/{entry}"] == digest(plan)
    assert sorted(known) == [
        "offsets/5", "offsets/6", "sources/0/2.compact", "sources/0/5.compact", "sources/0/6"
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["commits/0", "offsets/0", "cutwater/base.json", "cutwater/complete"])
def test_a_damaged_folder_that_nobody_starts_from_does_not_end_a_run(store: Store, name: str) -> None:
    query = new_query(store).run(3)
    make_folder(store, STAGE, 1, 2, 1, None, 2)
    query.put(name, b"v1\n{")
    _, states = find_stored(store, STAGE, 1, 2, Cache())
    assert {stored.incarnation for stored in states} == {2}


def test_a_folder_without_its_mark_is_of_unknown_batches(store: Store) -> None:
    query = new_query(store).run(3)
    make_folder(store, STAGE, 1, 2, 1, None, 2)
    store.delete([f"{query.prefix}cutwater/complete"])
    _, states = find_stored(store, STAGE, 1, 2, Cache())
    assert {stored.unknown for stored in states if stored.incarnation == 1} == {True}
    assert {stored.unknown for stored in states if stored.incarnation == 2} == {False}


def test_the_next_plan_reads_nothing_more_and_works_with_the_later_watermark() -> None:
    data = b'v1\n{"batchWatermarkMs":5,"batchTimestampMs":100,"conf":{"a":"b"}}\n{"logOffset":3}\n-'
    plan = parse_offsets("x", next_plan("x", data, 70, 90))
    assert plan == Offsets(70, 100, {"a": "b"}, ('{"logOffset":3}', None))
    assert parse_offsets("x", next_plan("x", data, 70, 200)).timestamp_ms == 200


def test_sources_that_have_given_nothing_yet_are_native() -> None:
    channel = '{"channel":"a","batch":3,"incarnation":1}'
    assert Offsets(0, 0, {}, (None, channel, '{"logOffset":3}')).native == (0, 2)


@pytest.mark.parametrize("rocksdb", [True, False], ids=["rocksdb", "files"])
def test_every_file_of_a_folder_can_be_given_up_some_day(store: Store, rocksdb: bool) -> None:
    """What was in no span would stay for ever."""
    make_folder(store, STAGE, 1, 1, None, None)
    query = Query(store, 1, rocksdb=rocksdb).run(4)
    query.snapshot(2, 0, ["a.sst"])
    query.run(2)
    _, states = find_stored(store, STAGE, 1, 1, Cache())
    assert sorted(state.name for state in states) == store.list(query.prefix)


def test_a_store_that_fails_while_a_folder_is_made_is_not_taken_for_a_file_that_is_gone(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(store, STAGE, 1, 1, None, None)
    Query(store, 1).run(2)

    def fail(*_: object) -> None:
        raise OSError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr("cutwater.spark.checkpoint.incarnations._copy", fail)
        with pytest.raises(OSError, match="does not answer"):
            make_folder(store, STAGE, 1, 2, 1, None, 1)
    make_folder(store, STAGE, 1, 2, 1, None, 1)


def test_the_mark_of_another_folder_is_not_taken(store: Store) -> None:
    query = new_query(store).run(3)
    make_folder(store, STAGE, 1, 2, 1, None, 2)
    other = spark_prefix(STAGE, 1, 2)
    marks = [store.read(f"{prefix}cutwater/complete") for prefix in (query.prefix, other)]
    for prefix, mark in zip((other, query.prefix), marks, strict=True):
        store.put(f"{prefix}cutwater/complete", mark or b"")
    assert refused(store, 2, 2)
    assert find_stored(store, STAGE, 1, 3, Cache())[1] == []
