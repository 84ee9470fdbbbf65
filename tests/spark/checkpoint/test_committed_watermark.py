"""The watermark of a batch that Spark has committed: that with which it worked, or that which it leaves behind."""

from __future__ import annotations

import pytest

from cutwater.protocol.base.paths import spark_prefix
from cutwater.protocol.base.records import Prepared
from cutwater.protocol.base.watermark import NONE, UNKNOWN, Watermark, known
from cutwater.spark.checkpoint.folder import Cache
from cutwater.spark.checkpoint.new_folder import make_folder
from cutwater.spark.checkpoint.prepared import committed, write_prepared
from cutwater.store.contract import Store
from tests.support.incarnation_helpers import store
from tests.support.modelled_folder import STAGE

__all__ = ["store"]

FOLDER = spark_prefix(STAGE, 1, 1)


def after_a_batch(
    store: Store, recorded: Watermark, left_ms: int, has_state: bool, cache: Cache | None
) -> Watermark:
    """What a batch is logged with that worked with one watermark and leaves another."""
    make_folder(store, STAGE, 1, 1, None, None)
    write_prepared(
        store, STAGE, 1, 1, Prepared(0, (), {}, consumed={}, offsets={}, watermark=recorded), cache
    )
    assert committed(store, STAGE, 1, 1, 0, cache) is None
    if has_state:
        store.put(f"{FOLDER}state/0/0/1.delta", b"")
    store.put(f"{FOLDER}commits/0", b'v1\n{"nextBatchWatermarkMs":%d}' % left_ms)
    found = committed(store, STAGE, 1, 1, 0, cache)
    assert found is not None
    return found.watermark


@pytest.mark.parametrize("is_cached", [False, True])
@pytest.mark.parametrize(
    ("recorded", "left_ms", "has_state", "watermark"),
    [
        (NONE, 9, False, NONE),
        (NONE, 9, True, NONE),
        (UNKNOWN, 0, False, UNKNOWN),
        (UNKNOWN, 1, False, known(1)),
        (UNKNOWN, 9, True, UNKNOWN),
        (known(5), 9, False, known(9)),
        (known(5), 9, True, known(5)),
        (known(5), 0, False, known(5)),
    ],
)
def test_only_a_query_without_state_has_reached_what_its_batch_leaves_behind(
    store: Store, recorded: Watermark, left_ms: int, has_state: bool, watermark: Watermark, is_cached: bool
) -> None:
    assert after_a_batch(store, recorded, left_ms, has_state, Cache() if is_cached else None) == watermark


def test_whether_a_query_keeps_state_is_asked_once_for_each_folder(store: Store) -> None:
    cache = Cache()
    assert after_a_batch(store, known(5), 9, False, cache) == known(9)
    store.put(f"{FOLDER}state/0/0/1.delta", b"")
    write_prepared(
        store, STAGE, 1, 1, Prepared(1, (), {}, consumed={}, offsets={}, watermark=known(9)), cache
    )
    store.put(f"{FOLDER}commits/1", b'v1\n{"nextBatchWatermarkMs":12}')
    found = committed(store, STAGE, 1, 1, 1, cache)
    assert found is not None
    assert found.watermark == known(12)
