"""Spark folders as files: damage is detected before a query starts with it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import (
    Prepared,
)
from cutwater.protocol.base.watermark import NONE
from cutwater.spark.checkpoint.folder import Cache, SparkFolder, Voucher
from cutwater.spark.checkpoint.incarnations import list_folders
from cutwater.spark.checkpoint.leaves import Leaf
from cutwater.spark.checkpoint.new_folder import check_newest, make_folder
from cutwater.spark.checkpoint.prepared import committed, write_prepared
from cutwater.spark.checkpoint.stage_files import find_state, find_stored
from cutwater.spark.checkpoint.state_files import listed_files
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.incarnation_helpers import names, new_query, report, store
from tests.support.modelled_folder import STAGE, Query, snapshot_of

__all__ = ["store"]


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
        store,
        STAGE,
        1,
        1,
        Prepared(0, (), {}, consumed={}, offsets={"0": '{"logOffset":0}'}, watermark=NONE, checksums=named),
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


def test_checksums_of_checkpoints_and_of_the_log_are_checked_too(store: Store) -> None:
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
    """Whether both `verify` and the next run refuse the folder."""
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
    """The files of an incarnation, below these folders, that can be changed or deleted without being detected."""
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


@pytest.mark.slow
def test_damage_to_a_new_incarnation_is_detected_before_its_first_checkpoint(store: Store) -> None:
    new_query(store).run(5)
    make_folder(store, STAGE, 1, 2, 1, None, 4)
    assert damages(store, 2, 4, SMALL) == []
    again = Query(store, 2, batch=4, vouches=True)
    again.run()
    needed = "|".join(re.escape(name) for name in again.named(5) if re.fullmatch(SMALL, name))
    unseen = damages(store, 2, 5, rf"(?!commits/5)(?:{needed})")
    assert unseen == ["sources/0/2.compact: None"]  # 5.compact contains it: the log is rewritten


@pytest.mark.slow
def test_damage_to_a_restored_folder_is_detected_before_its_first_checkpoint(store: Store) -> None:
    state = new_query(store).run(5).state(4)
    assert state is not None
    make_folder(store, STAGE, 1, 2, None, report(4, state))
    assert damages(store, 2, 4, SMALL) == []


def test_a_checkpoint_that_is_damaged_after_the_restore_is_refused(store: Store) -> None:
    query = new_query(store).run(5)
    state = query.state(4)
    assert state is not None
    query.put("sources/0/4", b'v1\n{"path":"file:///in/9","timestamp":0,"batchId":4}')
    with pytest.raises(StoreError, match=r"sources/0/4 is damaged"):
        make_folder(store, STAGE, 2, 1, None, report(4, state))
    assert list_folders(store, STAGE, 2) == []


@pytest.mark.slow
def test_damage_to_rewritten_source_logs_is_detected(store: Store) -> None:
    new_query(store).run(5)
    make_folder(store, STAGE, 1, 2, 1, None, 4, log_interval=2)
    store.delete(store.list(spark_prefix(STAGE, 1, 1)))
    assert any(name.startswith("sources/0/") for name in names(store, 1, 2))
    assert damages(store, 2, 4, SMALL) == []


def test_records_have_checksums_of_file_source_logs_beside_channels(store: Store) -> None:
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
def test_a_damaged_folder_that_nothing_starts_from_does_not_end_a_run(store: Store, name: str) -> None:
    query = new_query(store).run(3)
    make_folder(store, STAGE, 1, 2, 1, None, 2)
    query.put(name, b"v1\n{")
    _, states = find_stored(store, STAGE, 1, 2, Cache())
    assert {stored.incarnation for stored in states} == {2}


def test_the_batches_of_a_folder_without_a_mark_are_unknown(store: Store) -> None:
    query = new_query(store).run(3)
    make_folder(store, STAGE, 1, 2, 1, None, 2)
    store.delete([f"{query.prefix}cutwater/complete"])
    _, states = find_stored(store, STAGE, 1, 2, Cache())
    assert {stored.unknown for stored in states if stored.incarnation == 1} == {True}
    assert {stored.unknown for stored in states if stored.incarnation == 2} == {False}


def test_a_folder_in_which_nothing_ran_is_of_known_batches(store: Store) -> None:
    make_folder(store, STAGE, 1, 1, None, None)
    make_folder(store, STAGE, 1, 2, None, None)
    _, states = find_stored(store, STAGE, 1, 2, Cache())
    assert [stored.unknown for stored in states if stored.incarnation == 1] == [False, False]


def test_the_mark_of_another_folder_is_refused(store: Store) -> None:
    query = new_query(store).run(3)
    make_folder(store, STAGE, 1, 2, 1, None, 2)
    other = spark_prefix(STAGE, 1, 2)
    marks = [store.read(f"{prefix}cutwater/complete") for prefix in (query.prefix, other)]
    for prefix, mark in zip((other, query.prefix), marks, strict=True):
        store.put(f"{prefix}cutwater/complete", mark or b"")
    assert refused(store, 2, 2)
    assert find_stored(store, STAGE, 1, 3, Cache())[1] == []


def test_state_with_checksums_only_by_spark_is_listed(store: Store) -> None:
    query = new_query(store).run(3)
    found = check_newest(store, STAGE, 1, 1, 2, None)
    files = [f"state/0/{p}/{n + 1}_1x{n}x{p}.changelog" for p in (0, 1) for n in range(3)]
    assert found == sorted([*files, *(f"{name}.crc" for name in files)])
    assert check_newest(store, STAGE, 1, 1, 2, report(2, query.state(2) or {})) == []


def test_records_have_the_checksum_of_the_initial_position_of_other_sources(store: Store) -> None:
    voucher = Voucher(
        store, "f/", [Leaf(None, "kafka", "t", log=0), Leaf("a"), Leaf(None, "rate", "", log=1)]
    )
    store.put("f/sources/0/0", b"began")
    for batch in range(3):
        plan = f'v1\n{{}}\n{{"t":{{"0":{batch}}}}}\n{{"channel":"a","batch":1,"incarnation":1}}\n5'.encode()
        known = voucher.checksums(batch, plan)
        assert known["sources/0/0"] == digest(b"began")
        assert "sources/1/0" not in known, "it has not started yet"
        assert known[f"offsets/{batch}"] == digest(plan)
    store.put("f/sources/1/0", b"later")
    assert voucher.checksums(3, plan)["sources/1/0"] == digest(b"later")


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_failed_copy_is_not_taken_for_a_missing_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_gone: bool
) -> None:
    store = open_store(str(tmp_path / "store"), create=True)
    query = new_query(store).run(3)

    def fail(source: str, target: str) -> None:
        if is_gone:
            store.delete([f"{query.prefix}offsets/2"])
        raise OSError("no")

    monkeypatch.setattr(store, "copy", fail)
    if is_gone:
        assert find_state(store, STAGE, 1, 1, 2, "checkpoints/4-9/state/clean/", Cache()) is None
    else:
        with pytest.raises(OSError, match="no"):
            find_state(store, STAGE, 1, 1, 2, "checkpoints/4-9/state/clean/", Cache())


def test_a_reset_needs_positions(store: Store) -> None:
    query = new_query(store).run(2)
    store.delete([f"{query.prefix}offsets/1"])
    with pytest.raises(StoreError, match="the positions of batch 1 are gone from"):
        SparkFolder(store, query.prefix, Cache()).first_plan({})


def test_a_missing_file_of_a_snapshot_is_named(store: Store) -> None:
    query = new_query(store).run(3)
    query.finish_snapshot(3, 0, ["t1"])  # t1 does not exist
    with pytest.raises(StoreError, match=r"SSTs/t1, which batch 2 needs, is gone; restore"):
        make_folder(store, STAGE, 1, 2, 1, None, 2)
    with pytest.raises(StoreError, match=r"SSTs/t1 is gone; restore"):
        check_newest(store, STAGE, 1, 1, 2, None)
    assert list_folders(store, STAGE, 1) == [1]


def test_missing_metadata_of_operators_is_named(store: Store) -> None:
    query = new_query(store).run(3)
    state = query.state(2)
    assert state is not None
    store.delete([f"{query.prefix}state/0/_metadata/metadata"])
    with pytest.raises(
        StoreError, match=r"1 of \d+ state files of stage clean at batch 2 .*_metadata/metadata"
    ):
        make_folder(store, STAGE, 2, 1, None, report(2, state))


def test_a_damaged_folder_of_a_running_query_is_an_error(store: Store) -> None:
    query = new_query(store).run(2)
    store.put(f"{query.prefix}cutwater/base.json", b"no")
    with pytest.raises(StoreError, match=r"base\.json"):
        find_stored(store, STAGE, 1, 1, Cache())
    make_folder(store, STAGE, 1, 2, None, None)
    assert not [
        stored for stored in find_stored(store, STAGE, 1, 2, Cache())[1] if "/spark/1/" in stored.name
    ]


@pytest.mark.parametrize("data", [b"no zip", snapshot_of([])[:-9], b""], ids=["no zip", "cut off", "empty"])
def test_an_unreadable_snapshot_is_named(data: bytes) -> None:
    with pytest.raises(StoreError, match=r"the RocksDB snapshot x\.zip cannot be read"):
        listed_files("x.zip", data)


def test_records_of_batches_that_the_log_has_behind_it_are_not_needed(store: Store) -> None:
    query = new_query(store).run(4)
    query.put("prepared/0.json", b"damaged")
    assert not refused(store, 1, 3)
    query.put("prepared/3.json", b"damaged")
    assert refused(store, 1, 3)
