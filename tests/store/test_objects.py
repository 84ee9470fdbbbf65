"""The store in a bucket, with one in memory."""

from __future__ import annotations

import obstore
import pytest

from cutwater.store.contract import Store, StoreUnavailable
from cutwater.store.objects import ObjectStore
from cutwater.store.opening import open_place
from tests.support.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return open_place("memory:///", create=True)


@pytest.mark.parametrize("ask", ["read", "size", "exists", "checksum"])
def test_a_bucket_that_is_gone_is_not_an_object_that_is_not_there(
    ask: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_place("memory://", create=True)
    store.put("a", b"x")

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError("<Code>NoSuchBucket</Code><Message>it was removed</Message>")

    for name in ("get", "get_range", "head"):
        monkeypatch.setattr(f"cutwater.store.objects.obstore.{name}", gone)
    with pytest.raises(StoreUnavailable, match="the bucket is gone: it was removed"):
        getattr(store, ask)("a")


def test_a_bucket_that_goes_while_an_object_is_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_place("memory://", create=True)
    store.put("a", b"x")

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError("NoSuchBucket")

    monkeypatch.setattr("cutwater.store.objects.obstore.get_range", gone)
    with pytest.raises(StoreUnavailable):
        store.checksum("a")


def test_a_bucket_that_was_tried_out_is_as_it_was() -> None:
    store = open_place("memory://", create=True)
    assert isinstance(store, ObjectStore)
    store.check_usable(write=True)
    assert obstore.list(store._bucket).collect() == []
