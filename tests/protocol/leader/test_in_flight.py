"""Rows in flight at a cut: copied for a full checkpoint, made durable and checksummed for every checkpoint."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

import cutwater as cw
from cutwater.protocol.base import effects as fx
from cutwater.protocol.base import records as r
from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.leader import in_flight
from cutwater.store.at_rest import load_manifest, read_journal
from cutwater.store.checkpoint_objects import damaged_objects
from cutwater.store.local import LocalStore
from cutwater.store.opening import open_store
from tests.support.builders import Desk, manifest
from tests.support.spark_helpers import NUMBERS, deliver, numbers

OLDER, NEWER = "checkpoints/2-5/channels/a/6/part-0", "stages/a/2/data/1-7-0/part-0"
DEADLINE_S = 180.0


def flights(**checksums: str) -> list[r.InFlight]:
    """The unread batches of two readers of one producer."""
    batches: dict[int, tuple[str, ...]] = {6: (OLDER,), 7: (NEWER,), 8: ()}
    return [r.InFlight("a", reader, 5, 8, batches, checksums) for reader in "bc"]


def desk_with_rows() -> Desk:
    desk = Desk()
    desk.objects = {OLDER: b"six", NEWER: b"seven"}
    return desk


def asked(desk: Desk) -> list[str]:
    return [name for effect in desk.done if isinstance(effect, fx.Checksum) for name in effect.names]


def test_readers_share_the_copy_of_their_in_flight_rows_and_an_error_is_not_an_answer() -> None:
    """Includes batches that are in flight since a restore, in another checkpoint's folder."""
    desk = desk_with_rows()
    desk.lose = [fx.Copy, fx.Copy]
    copied = desk.run(in_flight.copied(manifest(9, 40, in_flight=flights())))
    copies = {f"checkpoints/9-40/channels/a/{n}/part-0": data for n, data in ((6, b"six"), (7, b"seven"))}
    assert desk.objects == {OLDER: b"six", NEWER: b"seven", **copies}
    batches = {
        6: ("checkpoints/9-40/channels/a/6/part-0",),
        7: ("checkpoints/9-40/channels/a/7/part-0",),
        8: (),
    }
    assert [flight.batches for flight in copied.in_flight] == [batches, batches]
    assert sum(isinstance(effect, fx.Copy) for effect in desk.done) == 2 + 4, "two answers were lost"
    assert copied.objects().keys() == copies.keys()


def test_every_file_in_flight_is_made_durable_once_and_its_checksum_is_in_the_manifest() -> None:
    desk = desk_with_rows()
    desk.lose = [fx.Checksum]
    found = desk.run(in_flight.secured(manifest(9, 40, in_flight=flights()), None))
    assert found.objects() == {OLDER: digest(b"six"), NEWER: digest(b"seven")}
    assert asked(desk) == [OLDER, NEWER] * 2, "one answer was lost"


def test_files_that_were_in_flight_in_the_previous_checkpoint_are_not_read_again() -> None:
    desk = desk_with_rows()
    before = manifest(8, 30, in_flight=flights(**{OLDER: digest(b"six")}))
    found = desk.run(in_flight.secured(manifest(9, 40, in_flight=flights()), before))
    assert found.objects() == {OLDER: digest(b"six"), NEWER: digest(b"seven")}
    assert asked(desk) == [NEWER]


def test_a_cut_with_nothing_in_flight_needs_no_operation() -> None:
    desk = desk_with_rows()
    nothing = [r.InFlight("a", "b", 5, 8, {6: (), 7: (), 8: ()})]
    desk.run(in_flight.secured(manifest(9, 40, in_flight=nothing), None))
    assert desk.done == []


def test_missing_rows_in_flight_are_a_clear_error() -> None:
    desk = desk_with_rows()
    del desk.objects[NEWER]
    with pytest.raises(StoreError, match=f"{NEWER}, which stage c has not read yet, is missing"):
        desk.run(in_flight.secured(manifest(9, 40, in_flight=flights()), None))


def test_an_unaligned_checkpoint_names_only_files_that_were_synced(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: set[tuple[int, int]] = set()
    sync = os.fsync

    def fsync(handle: int) -> None:
        stat = os.fstat(handle)
        synced.add((stat.st_dev, stat.st_ino))
        sync(handle)

    for number in range(30):
        deliver(tmp_path / "in", f"part-{number}", numbers(range(number, number + 1)))
    pipeline = cw.Pipeline("flying")

    @pipeline.stage
    def source(spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema(NUMBERS).option("maxFilesPerTrigger", 1)
        return reader.parquet(str(tmp_path / "in"))

    @pipeline.stage(sinks=[cw.parquet(str(tmp_path / "out"))], max_rows=1, trigger="2s")
    def slow(source: DataFrame) -> DataFrame:
        return source.select("id")

    monkeypatch.setattr(os, "fsync", fsync)
    pipeline.start(str(tmp_path / "store"), every="1s", unaligned=True, retained=50, spark=spark)
    store = open_store(str(tmp_path / "store"))
    assert isinstance(store, LocalStore)
    try:
        flying: dict[str, str | None] = {}
        deadline = time.monotonic() + DEADLINE_S
        while not flying and time.monotonic() < deadline:
            pipeline.checkpoint(unaligned=True, timeout=DEADLINE_S)
            state = read_journal(store).state
            assert state.head is not None
            newest = load_manifest(store, state.committed[state.head])
            flying = {name: newest.objects()[name] for f in newest.in_flight for name in f.names()}
        assert flying, "nothing was ever in flight, so nothing is proved"
    finally:
        pipeline.stop()
    for name in flying:
        stat = store.path(name).stat()
        assert (stat.st_dev, stat.st_ino) in synced, f"{name} was never synced"
    assert damaged_objects(store, [newest]) == {}
    name = min(flying)
    whole = store.path(name).read_bytes()
    store.path(name).write_bytes(bytes(len(whole)))
    assert damaged_objects(store, [newest]) == {name: f"{name} is damaged (its checksum differs)"}
    store.path(name).write_bytes(whole)
    pipeline.run(str(tmp_path / "store"), spark=spark, once=True)
    assert len(cw.parquet_files(str(tmp_path / "out"))) > 0
