"""Which state stores a batch has written: an operator without keys has one partition, whatever its metadata says."""

from __future__ import annotations

import msgspec
import pytest

from cutwater.spark.checkpoint.offsets import BatchCommit
from cutwater.spark.checkpoint.state_files import Place, StateOperator, parse_operator

BOTH = [Place("state/0/0", 0, 0), Place("state/0/1", 0, 1)]


def operator(name: str) -> StateOperator:
    metadata = {
        "operatorInfo": {"operatorId": 0, "operatorName": name},
        "stateStoreInfo": [{"storeName": "default", "numColsPrefixKey": 0, "numPartitions": 2}],
    }
    return parse_operator("state/0/_metadata/metadata", b"v1\n" + msgspec.json.encode(metadata))


@pytest.mark.parametrize("name", ["globalLimit", "stateStoreSave", "dedupe"])
@pytest.mark.parametrize("partitions", [1, 2])
def test_the_ids_in_a_commit_say_how_many_partitions_there_are(name: str, partitions: int) -> None:
    commit = BatchCommit(0, {0: (("a",), ("b",))[:partitions]})
    assert list(operator(name).stores(commit, BOTH[:1])) == BOTH[:partitions]


@pytest.mark.parametrize("ids", [None, {}, {1: (("a",),)}])
def test_without_ids_an_operator_that_may_have_one_partition_has_those_with_files(
    ids: dict[int, tuple[tuple[str, ...], ...]] | None,
) -> None:
    commit = BatchCommit(0, ids)
    assert list(operator("stateStoreSave").stores(commit, BOTH[:1])) == BOTH[:1]
    assert list(operator("stateStoreSave").stores(commit, [Place("state/1/1", 1, 1)])) == BOTH[:1]
    assert list(operator("stateStoreSave").stores(commit, BOTH[1:])) == BOTH
    assert list(operator("stateStoreSave").stores(None, [])) == BOTH[:1]


def test_a_partition_of_an_operator_with_keys_is_missing_if_it_has_no_files() -> None:
    assert list(operator("dedupe").stores(BatchCommit(0, None), BOTH[:1])) == BOTH
