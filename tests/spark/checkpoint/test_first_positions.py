"""Where a Kafka source began is kept while the stage has no logged batch."""

from __future__ import annotations

import msgspec
import pytest

from cutwater.protocol.base.paths import SOURCES, source_log_name, spark_prefix
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.new_folder import Claimed, claim_sources, claimed_positions, make_folder
from cutwater.store.contract import Store
from cutwater.store.opening import open_store

STAGE = "s"
BEGUN = b'\x00v1\n{"t":{"0":10}}'
KAFKA = Leaf(None, "kafka", "subscribe=t", log=0, topics={"t": "id1"})


def begun(store: Store, generation: int, incarnation: int, log: int = 0) -> bytes | None:
    return store.read(spark_prefix(STAGE, generation, incarnation) + source_log_name(log, 0))


@pytest.fixture
def store() -> Store:
    """A store with a stage whose first query has recorded where it began, and has logged no batch."""
    store = open_store("memory://")
    make_folder(store, STAGE, 1, 1, None, None)
    claim_sources(store, STAGE, 1, 1, [KAFKA])
    store.create(spark_prefix(STAGE, 1, 1) + source_log_name(0, 0), BEGUN)
    return store


def test_the_next_incarnation_begins_at_the_same_positions(store: Store) -> None:
    make_folder(store, STAGE, 1, 2, 1, None, -1)
    assert begun(store, 1, 2) is None
    claim_sources(store, STAGE, 1, 2, [KAFKA])
    assert begun(store, 1, 2) == BEGUN
    make_folder(store, STAGE, 1, 3, 2, None, -1)
    claim_sources(store, STAGE, 1, 3, [Leaf(), Leaf(None, "kafka", "subscribe=t", log=1)])
    assert begun(store, 1, 3, log=1) == BEGUN


def test_a_generation_that_begins_before_the_first_batch_begins_at_the_same_positions(store: Store) -> None:
    make_folder(store, STAGE, 2, 1, None, None)
    claim_sources(store, STAGE, 2, 1, [KAFKA])
    assert begun(store, 2, 1) == BEGUN


def test_until_a_batch_is_committed_the_position_is_where_the_source_began(store: Store) -> None:
    assert claimed_positions(store, STAGE, 1, 1) == Claimed((KAFKA,), ('{"t":{"0":10}}',), has_read=False)
    make_folder(store, STAGE, 2, 1, None, None)
    claim_sources(store, STAGE, 2, 1, [Leaf(None, "parquet", "path=/in", log=0)])
    assert claimed_positions(store, STAGE, 2, 1).positions == (None,), "other sources have no such record"
    assert claimed_positions(store, STAGE, 9, 9) == Claimed(None, (), has_read=False)


@pytest.mark.parametrize(
    "leaf",
    [
        Leaf(None, "kafka", "subscribe=other", log=0),
        Leaf(None, "kafka", "subscribe=t", log=0, topics={"t": "created again"}),
        Leaf(None, "parquet", "path=/in", log=0),
    ],
    ids=["other topic", "same name", "files"],
)
def test_another_source_starts_from_its_beginning(store: Store, leaf: Leaf) -> None:
    make_folder(store, STAGE, 1, 2, 1, None, -1)
    claim_sources(store, STAGE, 1, 2, [leaf])
    assert begun(store, 1, 2) is None


def test_files_that_were_listed_for_a_first_batch_are_listed_again() -> None:
    """The log of a file source looks like Kafka's, but says which files were read."""
    store, leaf = open_store("memory://"), Leaf(None, "parquet", "path=/in", log=0)
    make_folder(store, STAGE, 1, 1, None, None)
    claim_sources(store, STAGE, 1, 1, [leaf])
    store.create(spark_prefix(STAGE, 1, 1) + source_log_name(0, 0), b"v1\n{}")
    make_folder(store, STAGE, 1, 2, 1, None, -1)
    claim_sources(store, STAGE, 1, 2, [leaf])
    assert begun(store, 1, 2) is None
    assert store.exists(spark_prefix(STAGE, 1, 2) + SOURCES)


def test_a_stage_that_leaves_a_query_or_enters_one_begins_at_the_same_positions(store: Store) -> None:
    """Its query had logged no batch yet, so nothing else says where it began."""
    chained = msgspec.structs.replace(KAFKA, stage=STAGE)
    make_folder(store, "reader", 2, 1, None, None)
    claim_sources(
        store,
        "reader",
        2,
        1,
        [Leaf(None, "parquet", "path=/in", log=0), msgspec.structs.replace(chained, log=1)],
    )
    assert store.read(spark_prefix("reader", 2, 1) + source_log_name(1, 0)) == BEGUN
    store.delete([spark_prefix(STAGE, 1, 1) + source_log_name(0, 0)])
    make_folder(store, STAGE, 3, 1, None, None)
    claim_sources(store, STAGE, 3, 1, [KAFKA])
    assert begun(store, 3, 1) == BEGUN


def test_another_stage_that_reads_the_same_topic_begins_anew(store: Store) -> None:
    make_folder(store, "other", 1, 1, None, None)
    claim_sources(store, "other", 1, 1, [KAFKA])
    assert store.read(spark_prefix("other", 1, 1) + source_log_name(0, 0)) is None
