"""Files that have other paths now are not read again."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

import cutwater as cw
from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.protocol.base.records import StageReport
from cutwater.protocol.base.watermark import NONE
from cutwater.runtime import restore
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.leaves import Leaf, SourcesChanged, native_leaf, parse_leaves
from cutwater.spark.checkpoint.moved_files import FilesMoved
from cutwater.spark.checkpoint.new_folder import claim_sources, make_folder, refuse_other_sources
from cutwater.spark.checkpoint.stage_files import find_state
from cutwater.spark.errors import describe, is_incompatible
from cutwater.spark.internals.plans import PlanNode
from cutwater.spark.plan import read_plan
from cutwater.store.contract import Store
from cutwater.store.opening import open_store
from tests.support.builders import pipeline, stage
from tests.support.live_leader import LiveLeader
from tests.support.modelled_folder import STAGE, Query
from tests.support.spark_helpers import NUMBERS, deliver, numbers, rows_of


def files(spelled: str, absolute: str = "", log: int = 0) -> Leaf:
    return native_leaf("parquet", [("path", spelled)], [], log, absolute)


def folder_that_read(*paths: str, by: Leaf | None, batches: int = 1) -> Store:
    """A folder whose file source has read a file per batch and path."""
    store = open_store("memory://")
    make_folder(store, STAGE, 1, 1, None, None)
    if by is not None:
        claim_sources(store, STAGE, 1, 1, [by])
    query = Query(store, 1)
    for number, path in enumerate(paths * batches):
        query.log.add(path)
        query.batch += 1
        query.put(f"offsets/{number}", f'v1\n{{}}\n{{"logOffset":{number}}}'.encode())
        query.put("metadata", b'{"id":"x"}')
        query.stateful = False
        query.commit()
    return store


def claim(store: Store, leaf: Leaf) -> None:
    claim_sources(store, STAGE, 1, 1, [leaf])


V1 = files("in/orders", "file:/p/v1/in/orders")
V2 = files("in/orders", "file:/p/v2/in/orders")
OLD = files("in/orders")
"""As versions before this one recorded it."""


@pytest.mark.parametrize("recorded", [V1, OLD, None], ids=["recorded", "old record", "no record"])
@pytest.mark.parametrize("batches", [1, 3, 4], ids=["plain", "compact", "after compact"])
def test_a_relative_path_in_another_folder_is_refused(recorded: Leaf | None, batches: int) -> None:
    store = folder_that_read("file:///p/v1/in/orders/a.parquet", by=recorded, batches=batches)
    claim(store, V1)
    with pytest.raises(
        FilesMoved, match=r"\(path=in/orders\), which is /p/v2/in/orders now, .* at /p/v1/in/orders"
    ):
        claim(store, V2)


@pytest.mark.parametrize("recorded", [V1, OLD, None], ids=["recorded", "old record", "no record"])
def test_the_advice_names_the_old_path_and_not_a_reset(recorded: Leaf | None) -> None:
    store = folder_that_read("file:///p/v1/in/orders/day=1/a.parquet", by=recorded)
    with pytest.raises(FilesMoved) as refused:
        claim(store, V2)
    assert is_incompatible(refused.value)
    said = describe("s", refused.value)
    assert "Move the files back to /p/v1/in/orders, and start from the same folder" in said
    assert "--reset" not in said


@pytest.mark.parametrize("recorded", [V1, OLD])
def test_a_restore_from_a_checkpoint_refuses_what_a_start_refuses(recorded: Leaf) -> None:
    store = folder_that_read("file:///p/v1/in/orders/a.parquet", by=recorded)
    report = report_of(store)
    for reset in (False, True):
        refuse_other_sources(store, report, [V1], reset)
        with pytest.raises(FilesMoved):
            refuse_other_sources(store, report, [V2], reset)


@pytest.mark.parametrize(
    ("file", "spelled", "absolute"),
    [
        ("file:///p/in/a.parquet", "in", "file:/p/in"),
        ("file:/p/in/a.parquet", "in", "file:/p/in"),
        ("file:///p/in/day=1/a.parquet", "in/", "file:/p/in"),
        ("file:///p/my%20in%25/a%5B1%5D.parquet", "my in%", "file:/p/my in%"),
        ("file:///p/in/eu/x/a.parquet", "in/*/x", "file:/p/in/*/x"),
        ("file:///p/in/a.parquet", "in/*.parquet", "file:/p/in/*.parquet"),
        ("file:///p/in/a/b/c.parquet", "in/{a,b}/*", "file:/p/in/{a,b}/*"),
        ("file:///p/in/a.parquet", "in/[^b]*", "file:/p/in/[^b]*"),
        ("hdfs://nn:8020/user/me/in/a.parquet", "in", "hdfs://nn:8020/user/me/in"),
        ("s3a://bucket/in/a.parquet", "s3a://bucket/in", ""),
        ("s3a://elsewhere/x.parquet", "s3a://bucket/in", ""),
    ],
)  # fmt: skip
def test_a_source_that_has_not_moved_continues(file: str, spelled: str, absolute: str) -> None:
    for recorded in (files(spelled, absolute), files(spelled), None):
        claim(folder_that_read(file, by=recorded), files(spelled, absolute))


@pytest.mark.parametrize(
    ("file", "spelled", "absolute"),
    [
        ("file:///p/in2/a.parquet", "in", "file:/p/in"),
        ("file:///p/v1/in/eu/x/a.parquet", "in/*/x", "file:/p/v2/in/*/x"),
        ("file:///p/q/a/x/f.parquet", "*/x", "file:/p/*/x"),
        ("file:///p", "p/in", "file:/p/in"),
        ("hdfs://one/in/a.parquet", "/in", "hdfs://two/in"),
        ("file:///in/a.parquet", "/in", "hdfs://one/in"),
    ],
)
def test_files_elsewhere_have_moved(file: str, spelled: str, absolute: str) -> None:
    with pytest.raises(FilesMoved):
        claim(folder_that_read(file, by=files(spelled)), files(spelled, absolute))


def test_what_counts_is_where_files_were_read_last() -> None:
    both = ("file:///p/v1/in/orders/a.parquet", "file:///p/v2/in/orders/a.parquet")
    claim(folder_that_read(*both, by=V1), V2)
    with pytest.raises(FilesMoved):
        claim(folder_that_read(*both, by=V1), V1)


def test_a_source_that_has_read_nothing_can_move() -> None:
    store = open_store("memory://")
    make_folder(store, STAGE, 1, 1, None, None)
    claim(store, V1)
    claim(store, V2)
    Query(store, 1).put("offsets/0", b"v1\n{}\n-")
    claim(store, V2)


def test_a_source_without_a_log_of_files_can_move() -> None:
    """Delta recognises its table by an id."""
    store = open_store("memory://")
    make_folder(store, STAGE, 1, 1, None, None)
    claim(store, native_leaf("delta", [("path", "in")], [], 0, "file:/p/v1/in"))
    Query(store, 1).put("offsets/0", b'v1\n{}\n{"reservoirId":"x","index":4}')
    claim(store, native_leaf("delta", [("path", "in")], [], 0, "file:/p/v2/in"))


@pytest.mark.parametrize("recorded", [V1, OLD], ids=["recorded", "old record"])
def test_a_path_may_be_spelled_in_full_if_it_is_the_same(recorded: Leaf) -> None:
    """So that a symbolic link at the old path helps: Spark does not follow links, but a relative path belongs to the
    folder in which a process really is."""
    store = folder_that_read("file:///p/v1/in/orders/a.parquet", by=recorded)
    claim(store, files("/p/v1/in/orders", "file:/p/v1/in/orders"))
    with pytest.raises(SourcesChanged):
        claim(store, files("/p/v2/in/orders", "file:/p/v2/in/orders"))
    with pytest.raises(SourcesChanged):
        claim(store, files("/p/v1/in", "file:/p/v1/in"))


def test_the_record_has_the_absolute_path_and_old_records_are_read() -> None:
    assert parse_leaves("x", msgspec.json.encode([V1])) == (V1,)
    assert parse_leaves("x", b'[{"format":"parquet","place":"path=in/orders","digests":{},"log":0}]') == (
        OLD,
    )


def report_of(store: Store) -> StageReport:
    """A checkpoint of the folder's first batch."""
    state = find_state(store, STAGE, 1, 1, 0, None, Cache())
    assert state is not None
    offsets: dict[str, int | str] = {"0": '{"logOffset":0}'}
    return StageReport(STAGE, 1, 0, False, consumed={}, offsets=offsets, watermark=NONE, state=state)


def test_a_start_is_refused_before_anything_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    store = folder_that_read("file:///p/v1/in/orders/a.parquet", by=OLD)
    restore.check_moved_files(store, {STAGE: [V2]})  # no checkpoint yet
    LiveLeader(store, pipeline(stage(STAGE))).commit(0)
    manifest = SimpleNamespace(stages={STAGE: report_of(store)}, generation=1, chained={})
    monkeypatch.setattr(restore, "load_manifest", lambda store, checkpoint: manifest)
    before = {name: store.read(name) for name in store.list("")}
    restore.check_moved_files(store, {STAGE: [V1], "new": [V2]})
    restore.check_moved_files(store, {STAGE: [OLD]})
    with pytest.raises(UserError, match=r"'clean' cannot continue after epoch 1: .* was changed\. Move the"):
        restore.check_moved_files(store, {STAGE: [V2]})
    assert {name: store.read(name) for name in store.list("")} == before


def test_a_damaged_checkpoint_does_not_prevent_a_start(monkeypatch: pytest.MonkeyPatch) -> None:
    store = folder_that_read("file:///p/v1/in/orders/a.parquet", by=OLD)
    LiveLeader(store, pipeline(stage(STAGE))).commit(0)

    def damaged(*args: object) -> None:
        raise StoreError("damaged")

    monkeypatch.setattr(restore, "load_manifest", damaged)
    restore.check_moved_files(store, {STAGE: [V2]})


# --- with Spark -------------------------------------------------------------------------------------------


def test_a_moved_project_is_refused_and_continues_where_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here,) = (leaf.absolute for leaf in read_plan(spark.readStream.schema(NUMBERS).parquet(".")).leaves)
    folder, state = tmp_path / "v 1" / "in", tmp_path / "state"
    relative = os.path.relpath(folder, here.removeprefix("file:"))
    deliver(folder, "0", numbers(range(5)))

    def run(path: str) -> None:
        found = cw.Pipeline("moved")

        @found.stage(sinks=[cw.delta(str(tmp_path / "out"))])
        def orders(spark: SparkSession) -> DataFrame:
            return spark.readStream.schema(NUMBERS).parquet(path)

        found.run(str(state), every="300ms", once=True, spark=spark)

    run(relative)
    (leaf,) = parse_leaves(
        "x", next(state.glob("stages/orders/1/spark/1/cutwater/sources.json")).read_bytes()
    )
    assert (leaf.place, leaf.absolute) == (f"path={relative}", f"file:{folder}")
    with monkeypatch.context() as moved:
        # As if Spark had been started elsewhere, which takes another JVM.
        moved.setattr(PlanNode, "absolute", lambda node, spark, path: f"file:{tmp_path}/v2/in")
        before = {file: file.read_bytes() for file in state.rglob("*") if file.is_file()}
        with pytest.raises(UserError, match=f"read its files at {folder}: .* Nothing was changed"):
            run(relative)
        after = {file: file.read_bytes() for file in state.rglob("*") if file.is_file()}
        assert {f for f in after if f.parent.name != "status"} == {
            f for f in before if f.parent.name != "status"
        }
    deliver(folder, "1", numbers(range(5, 10)))
    run(str(folder))  # the same path, in full
    assert rows_of(tmp_path / "out", "id") == [(i,) for i in range(10)]
