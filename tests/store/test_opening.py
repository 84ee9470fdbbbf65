"""Opening stores: what is refused, and that all kinds list in the same way."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base.errors import StoreError
from cutwater.store.opening import open_place
from tests.support.examples import examples

PARTS = st.sampled_from(["a", "b", "ab", "a-b", "a.b"])


NAMES = st.lists(PARTS, min_size=1, max_size=3).map(lambda parts: "/".join(parts) + "_")


@examples(200)
@given(names=st.sets(NAMES), prefix=NAMES, cut=st.integers(0, 12), after=st.one_of(st.just(""), NAMES))
def test_list_returns_the_sorted_names_with_the_prefix(
    names: set[str], prefix: str, cut: int, after: str
) -> None:
    prefix = prefix[:cut]
    wanted = sorted(name for name in names if name.startswith(prefix) and name > after)
    with tempfile.TemporaryDirectory() as folder:
        for store in (open_place(folder), open_place("memory:///")):
            for name in names:
                store.put(name, b"")
            assert store.list(prefix, after) == wanted


def test_a_folder_opened_for_reading_is_not_changed(tmp_path: Path) -> None:
    store = open_place(f"{tmp_path}")
    assert store.list("") == []
    assert store.read("a") is None
    assert list(tmp_path.iterdir()) == []


def test_the_locations_of_objects(tmp_path: Path) -> None:
    folder = tmp_path / "a b%20c"
    store = open_place(f"{folder}", create=True)
    store.create("d/e", b"x")
    assert store.path("d/e") == folder / "d/e"
    assert store.spark_url("d/e") == f"file://{folder}/d/e"
    assert open_place(store.url).read("d/e") == b"x"
    assert open_place(f"{tmp_path}/elsewhere/../a b%20c").url == store.url
    assert open_place("memory:///").path("d/e") is None


def test_a_relative_folder_does_not_move_with_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = open_place("state", create=True)
    monkeypatch.chdir("/")
    assert store.create("a", b"x")
    assert (tmp_path / "state/a").read_bytes() == b"x"


@pytest.mark.parametrize("create", [False, True])
def test_an_impossible_store_is_refused(tmp_path: Path, create: bool) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError, match="is a file, but a store is a folder"):
        open_place(f"{tmp_path}/file", create=create)
    with pytest.raises(StoreError, match="three slashes"):
        open_place("file://host/folder", create=create)
    for url in ("foo://x/y", "https://example.com/x"):
        with pytest.raises(StoreError, match="not a kind of store"):
            open_place(url, create=create)
    with pytest.raises(StoreError, match="cannot be used as a store"):
        open_place(f"{tmp_path}/file/below", create=True)


def test_a_missing_folder_is_created_only_on_request(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no such folder"):
        open_place(f"{tmp_path}/x/y")
    assert not (tmp_path / "x").exists()
    assert open_place(f"{tmp_path}/x/y", create=True).list("") == []


def test_an_unwritable_folder_is_refused() -> None:
    with pytest.raises(StoreError, match="must be able to write"):
        open_place("/proc/self", create=True)


def test_an_azure_container_needs_its_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match="abfss://container@account"):
        open_place("az://container/prefix")


def test_a_removed_store_can_be_created_again(tmp_path: Path) -> None:
    folder = f"{tmp_path}/store"
    open_place(folder, create=True)
    shutil.rmtree(folder)
    assert open_place(folder, create=True).create("a", b"x")
