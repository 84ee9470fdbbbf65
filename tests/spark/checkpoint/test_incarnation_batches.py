"""Spark folders as files: what Spark writes, batches, and stages that are reset."""

from __future__ import annotations

import msgspec
import pytest

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import (
    Prepared,
    StageReport,
    encode,
)
from cutwater.protocol.base.watermark import NONE
from cutwater.spark.checkpoint.folder import Cache, MovedPositions, SparkFolder
from cutwater.spark.checkpoint.incarnations import base_of
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.new_folder import (
    Claimed,
    check_newest,
    claim_sources,
    claimed_positions,
    make_folder,
)
from cutwater.spark.checkpoint.offsets import (
    Offsets,
    next_plan,
    parse_commit,
    parse_offsets,
    starting_commit,
    starting_plan,
)
from cutwater.spark.checkpoint.prepared import committed, write_prepared
from cutwater.spark.checkpoint.stage_files import find_stored
from cutwater.store.contract import Store
from tests.support.incarnation_helpers import names, new_query, prepared_again, report, store
from tests.support.modelled_folder import STAGE, Query, prepared

__all__ = ["store"]


def test_offsets_and_commits_are_parsed() -> None:
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


@pytest.mark.parametrize(
    ("last", "version"),
    [
        (b'v1\n{"nextBatchWatermarkMs":9}', b"v1"),
        (b'v2\n{"nextBatchWatermarkMs":9}', b"v2"),
        (b'v2\n{"nextBatchWatermarkMs":9,"stateUniqueIds":{"0":[["a"]]}}', b"v2"),
        (b'v3\n{"nextBatchWatermarkMs":9,"stateUniqueIds":{"0":[["a"]]}}', b"v2"),
        (b'v3\n{"nextBatchWatermarkMs":9}', b"v1"),
    ],
)
def test_a_commit_that_a_reset_begins_with_has_the_format_of_the_last_one(
    last: bytes, version: bytes
) -> None:
    """Spark 4.0 and 4.1 read no other, and 4.3 takes from it whether state files have names of their own."""
    found = starting_commit(parse_commit("commits/3", last))
    assert found == version + b'\n{"nextBatchWatermarkMs":0}'
    assert parse_commit("commits/-1", found).ids is None
    assert starting_commit(None).startswith(b"v1\n")


@pytest.mark.parametrize("data", [b"", b"v1", b"v1\n{", b"v9\n{}", b"\xff\xff", b"junk\n{}"])
def test_a_damaged_offsets_file_is_named(data: bytes) -> None:
    with pytest.raises(StoreError, match="offsets/3"):
        parse_offsets("offsets/3", data)


@pytest.mark.parametrize("data", [b"", b"v2\n{", b"v9\n{}", b"\xff\xff"])
def test_a_damaged_commit_is_named(data: bytes) -> None:
    with pytest.raises(StoreError, match="commits/3"):
        parse_commit("commits/3", data)


def test_a_batch_is_committed_when_spark_has_committed_it(store: Store) -> None:
    query = new_query(store).run(2)
    query.plan()
    write_prepared(store, STAGE, 1, 1, prepared(2))
    assert prepared_again(store, STAGE, 1, 1, 1) == prepared(1)
    assert committed(store, STAGE, 1, 1, 2) is None


def test_a_folder_that_starts_at_a_later_batch_counts_from_there(store: Store) -> None:
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
    """A folder without state after this batch of a query in generation 1."""
    state = new_query(store).run(batch + 3).state(batch)
    assert state is not None
    cut = StageReport(
        STAGE,
        0,
        batch,
        False,
        consumed={"x": 4},
        offsets={"0": f'{{"logOffset":{batch}}}'},
        watermark=NONE,
        state=state,
    )
    make_folder(store, STAGE, generation, 1, None, cut, log_interval=3, reset=True)
    return Query(store, 1, generation=generation)


@pytest.mark.parametrize("batch", [0, 1, 2, 7])
def test_a_reset_stage_continues_at_the_positions_of_its_sources(store: Store, batch: int) -> None:
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
def test_positions_kept_by_a_reset_survive_starts_and_checkpoints_before_the_first_batch(
    store: Store, under_way: bool
) -> None:
    query = reset_at(store, 3)
    if under_way:
        query.plan()  # and does not finish
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
    cut = StageReport(STAGE, 0, 3, False, consumed={}, offsets={"0": "x"}, watermark=NONE, state=state)
    make_folder(store, STAGE, 3, 1, None, cut, reset=True)
    assert names(store, 3, 1) >= SEED
    assert Query(store, 1, generation=3).files() == list(range(4))


def test_positions_that_a_reset_moves_are_those_that_the_next_query_starts_with(store: Store) -> None:
    before, after = (
        Leaf(format="kafka", place="subscribe=t", log=0, topics={"t": i}) for i in ("old", "new")
    )
    query = new_query(store)
    claim_sources(store, STAGE, 1, 1, (before,))
    state = query.run(3).state(2)
    assert state is not None
    cut = StageReport(STAGE, 0, 2, False, consumed={}, offsets={"0": "x"}, watermark=NONE, state=state)
    asked: list[object] = []

    def move(recorded: object, positions: object) -> MovedPositions:
        asked.append((recorded, positions))
        return (after,), ('{"t":{"0":0}}',)

    make_folder(store, STAGE, 2, 1, None, cut, reset=True, move=move)
    assert asked == [((before,), ('{"logOffset":2}',))]
    assert claimed_positions(store, STAGE, 2, 1) == Claimed((after,), ('{"t":{"0":0}}',), has_read=True)
    make_folder(store, STAGE, 2, 2, 1, None, 2)  # the mark of the folder vouches for what was moved
    assert claimed_positions(store, STAGE, 2, 2) == Claimed((after,), ('{"t":{"0":0}}',), has_read=True)


def test_a_reset_skips_rows_in_flight_in_channels() -> None:
    plan = parse_offsets(
        "o", b'v1\n{"batchWatermarkMs":9,"conf":{"a":"b"}}\n{"channel":"x","batch":2}\n-\n{"logOffset":1}'
    )
    found = parse_offsets("o", starting_plan(plan, {"x": 4}))
    assert found.sources == ('{"channel":"x","batch":4}', None, '{"logOffset":1}')
    assert (found.watermark_ms, found.conf) == (0, {"a": "b"})


def test_files_kept_by_a_reset_may_be_deleted_after_the_next_batch(store: Store) -> None:
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
    with pytest.raises(StoreError, match="is that of batch 5"):
        committed(store, STAGE, 1, 1, 1)


def test_a_superseded_incarnation_finds_no_more_batches(store: Store) -> None:
    new_query(store).run(2)
    make_folder(store, STAGE, 1, 2, 1, None, 1)
    store.delete([f"{spark_prefix(STAGE, 1, 1)}prepared/1.json"])
    assert committed(store, STAGE, 1, 1, 1) is None


def test_two_queries_in_one_folder_are_detected(store: Store) -> None:
    make_folder(store, STAGE, 1, 1, None, None)
    write_prepared(store, STAGE, 1, 1, prepared(0))
    write_prepared(store, STAGE, 1, 1, prepared(0))
    with pytest.raises(StoreError, match="two queries"):
        write_prepared(
            store, STAGE, 1, 1, Prepared(0, ("other",), {}, consumed={}, offsets={}, watermark=NONE)
        )


def test_the_next_plan_reads_nothing_and_uses_the_later_watermark() -> None:
    data = b'v1\n{"batchWatermarkMs":5,"batchTimestampMs":100,"conf":{"a":"b"}}\n{"logOffset":3}\n-'
    plan = parse_offsets("x", next_plan("x", data, 70, 90))
    assert plan == Offsets(70, 100, {"a": "b"}, ('{"logOffset":3}', None))
    assert parse_offsets("x", next_plan("x", data, 70, 200)).timestamp_ms == 200


def test_sources_without_an_offset_yet_are_native() -> None:
    channel = '{"channel":"a","batch":3,"incarnation":1}'
    assert Offsets(0, 0, {}, (None, channel, '{"logOffset":3}')).native == (0, 2)


@pytest.mark.parametrize("rocksdb", [True, False], ids=["rocksdb", "files"])
def test_every_file_of_a_folder_can_be_deleted_some_day(store: Store, rocksdb: bool) -> None:
    """A file without a span would stay forever."""
    make_folder(store, STAGE, 1, 1, None, None)
    query = Query(store, 1, rocksdb=rocksdb).run(4)
    query.snapshot(2, 0, ["a.sst"])
    query.run(2)
    _, states = find_stored(store, STAGE, 1, 1, Cache())
    assert sorted(state.name for state in states) == store.list(query.prefix)


def test_the_last_committed_batch_has_a_record_and_is_not_before_the_start_of_the_folder(
    store: Store,
) -> None:
    def last(start: int, *names: str) -> int:
        return SparkFolder(store, "f/", Cache(), [f"f/{name}" for name in names]).last_committed(start)

    whole = [f"{kind}/{batch}" for batch in (1, 2, 3) for kind in ("offsets", "commits")]
    assert last(-1) == -1
    assert last(-1, *whole) == -1
    assert last(2, *whole, "prepared/1.json") == 2
    assert last(-1, *whole, "prepared/1.json", "prepared/2.json") == 2
    assert last(1, *whole, "prepared/2.json", "prepared/3.json") == 3
    assert last(1, *whole, "prepared/2.json", "prepared/4.json") == 2


def test_a_batch_that_is_committed_while_a_folder_is_read_counts(store: Store) -> None:
    """A checkpoint may be of that batch, and need only what the snapshots leave from then on."""
    query = new_query(store).run(4)
    query.snapshot(3, 0, [])
    looked = SparkFolder(store, query.prefix, Cache())
    query.run()
    found = looked.spans(live=True)
    assert found["commits/4"] == (4, 5)
    assert found["state/0/0/2_1x1x0.changelog"] == (1, 4)


def test_a_query_first_emits_what_its_last_batch_has_closed(store: Store) -> None:
    query = new_query(store).run(2)

    def due() -> dict[str, bytes]:
        return SparkFolder(store, query.prefix, Cache()).due_plan(77)

    assert due() == {}, "the watermark has not moved"
    query.put("commits/1", b'v2\n{"nextBatchWatermarkMs":9}')
    (name,) = due()
    assert name == "offsets/2"
    plan = parse_offsets(name, due()[name])
    assert (plan.watermark_ms, plan.timestamp_ms, plan.sources) == (9, 77, ('{"logOffset":1}',))
    query.put("offsets/1", b'v1\n{"batchWatermarkMs":9,"conf":{}}\n{"logOffset":1}')
    assert due() == {}, "the last batch used that watermark"
    query.put("offsets/1", b'v1\n{}\n{"logOffset":1}\n{"channel":"a","batch":3,"incarnation":1}')
    assert due() == {}, "a query that reads a channel gets a batch anyway"
    query.put("offsets/1", b'v1\n{}\n{"logOffset":1}')
    assert due()
    store.delete([f"{query.prefix}state/0/_metadata/metadata"])
    assert due() == {}, "without state nothing can be closed"
    store.delete([f"{query.prefix}offsets/1"])
    assert due() == {}
    make_folder(store, STAGE, 2, 1, None, None)
    assert SparkFolder(store, spark_prefix(STAGE, 2, 1), Cache()).due_plan(77) == {}
