"""Checks that a store does what Cutwater needs, with one small object that is removed again."""

from __future__ import annotations

from uuid import uuid4

from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import PROBE_PREFIX, probe_name
from cutwater.store.contract import Store


def try_store(store: Store) -> None:
    """Creates, reads, lists and deletes an object. Raises `StoreError` if the store does not keep its promises, and
    `OSError` if it does not answer."""
    name, data = probe_name(uuid4().hex), b"cutwater doctor"
    try:
        if not store.create(name, data):
            raise _broken(store, "did not create a new object")
        if store.create(name, b"another"):
            raise _broken(store, "let two writers create the same object")
        if store.read(name) != data:
            raise _broken(store, "did not give back what was written")
        if name not in store.list(PROBE_PREFIX):
            raise _broken(store, "did not list an object that was just written")
    finally:
        store.delete([name])
    if store.exists(name) or name in store.list(PROBE_PREFIX):
        raise _broken(store, "still has an object that was deleted")


def _broken(store: Store, what: str) -> StoreError:
    return StoreError(
        f"{store.url} {what}, so it cannot be a store: use one with conditional writes (for S3: If-None-Match on PUT), "
        "and whose reads and lists see every earlier write"
    )
