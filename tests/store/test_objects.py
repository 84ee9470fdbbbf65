"""The store in a bucket, tested with an in-memory one."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import obstore
import pytest
from obstore.exceptions import BaseError

from cutwater.protocol.base.errors import StoreError
from cutwater.store.contract import Store, StoreUnavailable
from cutwater.store.objects import ObjectStore, _spark_root
from cutwater.store.opening import open_place
from tests.support.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:
        return open_place("memory:///", create=True)


@pytest.mark.parametrize("ask", ["read", "size", "exists", "checksum"])
def test_a_missing_bucket_is_not_a_missing_object(ask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_place("memory://", create=True)
    store.put("a", b"x")

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError("<Code>NoSuchBucket</Code><Message>it was removed</Message>")

    for name in ("get", "get_range", "head"):
        monkeypatch.setattr(f"cutwater.store.objects.obstore.{name}", gone)
    with pytest.raises(StoreUnavailable, match="the bucket is gone: it was removed"):
        getattr(store, ask)("a")


def test_what_a_server_says_is_shown_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_place("memory://", create=True)

    def refuse(*_: object, **__: object) -> None:
        raise BaseError("x <Message>the key &#34;a&#34; &amp; its signature do not fit.</Message>")

    monkeypatch.setattr("cutwater.store.objects.obstore.put", refuse)
    with pytest.raises(StoreUnavailable, match=r'the key "a" & its signature do not fit$'):
        store.put("a", b"x")


def test_a_bucket_that_disappears_during_a_read_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_place("memory://", create=True)
    store.put("a", b"x")

    def gone(*_: object, **__: object) -> None:
        raise FileNotFoundError("NoSuchBucket")

    monkeypatch.setattr("cutwater.store.objects.obstore.get_range", gone)
    with pytest.raises(StoreUnavailable):
        store.checksum("a")


def test_checking_a_bucket_leaves_it_unchanged() -> None:
    store = open_place("memory://", create=True)
    assert isinstance(store, ObjectStore)
    store.check_usable(write=True)
    assert obstore.list(store._bucket).collect() == []


def test_objects_are_deleted_one_by_one_where_a_store_stops_at_a_missing_object(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = open_place("memory://", create=True)
    for name in ("a/1", "a/3"):
        store.create(name, b"x")
    real = obstore.delete

    def delete(bucket: Any, names: Any) -> None:
        if not isinstance(names, str) or not store.exists(names):
            raise FileNotFoundError(names)
        real(bucket, names)

    monkeypatch.setattr(obstore, "delete", delete)
    store.delete(["a/1", "a/2", "a/3"])
    assert store.list("a/") == []


def test_an_error_of_a_bucket_is_shortened() -> None:
    store: Any = open_place("memory://", create=True)
    said = "Error\n<Error><Code>X</Code><Message>Access Denied.</Message></Error>\n\nDebug source:\nmore"
    for text, expected in (
        (said, "Access Denied"),
        ("one line.\nand another", "one line"),
        ("plain", "plain"),
    ):
        with (
            pytest.raises(StoreUnavailable, match=rf"^cannot read a/1 in memory:.*: {expected}$"),
            store._errors("read", "a/1"),
        ):
            raise BaseError(text)


def test_a_bucket_has_the_url_of_sparks_file_system(monkeypatch: pytest.MonkeyPatch) -> None:
    def root(url: str, prefix: str | None = None, **config: str) -> str:
        return _spark_root(url, SimpleNamespace(config=config, prefix=prefix))

    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    assert root("s3://b/x", "x", bucket="b") == "s3a://b/x"
    assert root("gs://b", bucket="b") == "gs://b"
    assert root("az://c", container_name="c", account_name="me") == "abfss://c@me.dfs.core.windows.net"
    with pytest.raises(ValueError, match="the storage account of the container is unknown"):
        root("az://c", container_name="c")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "you")
    assert root("az://c", "x", container_name="c") == "abfss://c@you.dfs.core.windows.net/x"
    assert root("memory://") == "memory:"


@pytest.mark.parametrize(
    ("ask", "expected"),
    [
        (lambda s: s.create("a/1", b""), "create a/1"),
        (lambda s: s.put("a/1", b""), "put a/1"),
        (lambda s: s.read("a/1"), "read a/1"),
        (lambda s: s.read_many(["a/1"]), "read a/1"),
        (lambda s: s.list("a/"), "list a/"),
        (lambda s: s.list_many([("a/", "")]), "list a/"),
        (lambda s: s.delete([f"a/{n}" for n in range(1, 5)]), "delete a/1, a/2, a/3"),
        (lambda s: s.exists("a/1"), "look at a/1"),
        (lambda s: s.size("a/1"), "look at a/1"),
        (lambda s: s.copy("a/1", "a/2"), "copy a/1"),
        (lambda s: s.checksum("a/1"), "look at a/1"),
        (lambda s: s.checksum_many(["a/1"]), "look at a/1"),
        (lambda s: s._objects_in("a"), "list a"),
    ],
)
def test_a_bucket_that_fails_is_named_with_what_was_asked_of_it(
    ask: Callable[[Any], object], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_place("memory://", create=True)

    def fail(*_: object, **__: object) -> None:
        raise BaseError("no answer")

    for name in ("put", "get", "head", "copy", "delete", "list", "list_with_delimiter"):
        monkeypatch.setattr(obstore, name, fail)
    with pytest.raises(StoreUnavailable, match=rf"^cannot {expected} in memory:.*: no answer$"):
        ask(store)


def test_an_object_that_cannot_be_read_to_its_end_has_no_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_place("memory://", create=True)
    store.put("a", b"x")

    def fail(*_: object, **__: object) -> None:
        raise BaseError("no answer")

    monkeypatch.setattr(obstore, "get_range", fail)
    with pytest.raises(StoreUnavailable, match="cannot read a in"):
        store.checksum("a")


def test_a_large_object_is_read_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_place("memory://", create=True)
    data = bytes(range(256)) * 10
    store.put("a", data)
    monkeypatch.setattr("cutwater.store.objects._CHUNK", 1000)
    assert store.checksum("a") == hashlib.sha256(data).hexdigest()
    store.put("a", b"")
    assert store.checksum("a") == hashlib.sha256(b"").hexdigest()


def test_a_bucket_in_which_two_can_create_the_same_object_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    real = obstore.put
    monkeypatch.setattr(
        obstore, "put", lambda bucket, name, data, mode="overwrite", **how: real(bucket, name, data, **how)
    )
    with pytest.raises(StoreError, match="it lets two writers create the same object"):
        open_place("memory://", create=True)
    open_place("memory://", create=False)


def test_a_bucket_that_does_not_answer_is_reported_with_what_gives_access(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise BaseError("Access Denied")

    monkeypatch.setattr(obstore, "list", fail)
    with pytest.raises(
        StoreError, match=r"cannot be used as a store: cannot list objects: Access Denied; .*AWS_"
    ):
        open_place("s3://b/x")
