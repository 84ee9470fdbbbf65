"""Spark folders as files: making the folder of an incarnation."""

from __future__ import annotations

import pytest

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import spark_prefix
from cutwater.spark.checkpoint.incarnations import list_folders
from cutwater.spark.checkpoint.new_folder import make_folder
from cutwater.spark.checkpoint.prepared import write_prepared
from cutwater.spark.checkpoint.state_files import FOREVER
from cutwater.store.contract import Store
from tests.support.incarnation_helpers import names, new_query, prepared_again, report, spans, store
from tests.support.modelled_folder import OPERATOR, STAGE, STORES, Query, prepared

__all__ = ["store"]


def test_only_complete_folders_are_listed(store: Store) -> None:
    make_folder(store, STAGE, 1, 3, None, None)
    make_folder(store, STAGE, 1, 12, None, None)
    store.put(f"{spark_prefix(STAGE, 1, 14)}offsets/0", b"x")
    assert list_folders(store, STAGE, 1) == [3, 12]
    assert list_folders(store, STAGE, 2) == []


@pytest.mark.parametrize("rocksdb", [True, False])
def test_a_folder_takes_over_committed_batches_and_nothing_later(store: Store, rocksdb: bool) -> None:
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


def test_batches_that_are_not_in_the_log_yet_are_taken_over(store: Store) -> None:
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
    make_folder(store, STAGE, 1, 4, 2, None)  # by a process that does not know the log
    assert [prepared_again(store, STAGE, 1, 4, b) for b in (3, 4)] == [prepared(3), prepared(4)]


def test_a_folder_without_any_batch_is_taken_over(store: Store) -> None:
    state = new_query(store).run(3).state(2)
    assert state is not None
    make_folder(store, STAGE, 2, 1, None, report(2, state))
    make_folder(store, STAGE, 2, 2, 1, None, 2)
    assert names(store, 2, 2) == names(store, 2, 1)
    make_folder(store, STAGE, 3, 1, None, None)
    make_folder(store, STAGE, 3, 2, 1, None, -1)
    assert names(store, 3, 2) == names(store, 3, 1) == {"cutwater/base.json", "cutwater/complete"}


def test_an_incomplete_folder_is_made_again(store: Store) -> None:
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


def test_a_folder_that_lacks_a_batch_of_the_log_is_refused(store: Store) -> None:
    query = new_query(store).run(3)
    with pytest.raises(StoreError, match="end at batch 2, but the stage's log has batch 3"):
        make_folder(store, STAGE, 1, 2, 1, None, 3)
    store.delete([f"{query.prefix}state/0/1/2_1x1x1.changelog"])
    with pytest.raises(StoreError, match="files of batch 2 are gone"):
        make_folder(store, STAGE, 1, 2, 1, None, 2)
    assert list_folders(store, STAGE, 1) == [1]


def test_missing_state_files_are_named(store: Store) -> None:
    query = new_query(store).run(3)
    state = query.state(2)
    assert state is not None
    store.delete([f"{query.prefix}offsets/1"])
    with pytest.raises(StoreError, match=r"1 of \d+ state files of stage clean at batch 2 .*offsets/1"):
        make_folder(store, STAGE, 2, 1, None, report(2, state))
    with pytest.raises(StoreError, match="elsewhere/x is listed"):
        make_folder(store, STAGE, 2, 1, None, report(2, {"elsewhere/x": ""}))
    assert list_folders(store, STAGE, 2) == []


def test_paths_of_schema_files_point_to_the_new_folder(store: Store) -> None:
    """Spark records their full paths in the operator's metadata."""
    query = new_query(store)
    schema = f"{store.spark_url(query.prefix.rstrip('/'))}/state/0/_stateSchema/default/0_a"
    stores = STORES[:-1] + b',"stateSchemaFilePaths":["%s"]}' % schema.encode()
    query.plan()
    store.delete([f"{query.prefix}state/0/_metadata/metadata"])
    query.put("state/0/_metadata/v2/0", OPERATOR % stores)
    query.put("state/0/_stateSchema/default/0_a")
    query.put("state/0/_metadata/v2/1", OPERATOR % stores)  # of a batch that is never committed
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
    assert spans(store)[f"{query.prefix}state/0/_stateSchema/default/0_a"] == (0, FOREVER)
    assert spans(store)[f"{query.prefix}state/0/_stateSchema/default/1_b"] == (1, FOREVER)


def test_an_error_of_the_store_while_a_folder_is_made_is_not_taken_for_a_missing_file(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_folder(store, STAGE, 1, 1, None, None)
    Query(store, 1).run(2)

    def fail(*_: object) -> None:
        raise OSError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr("cutwater.spark.checkpoint.new_folder._copy", fail)
        with pytest.raises(OSError, match="does not answer"):
            make_folder(store, STAGE, 1, 2, 1, None, 1)
    make_folder(store, STAGE, 1, 2, 1, None, 1)
