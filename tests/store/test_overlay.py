"""A store that is only looked at: changes stay in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutwater.store.opening import look_at, open_place
from cutwater.store.overlay import Overlay


def test_it_shows_what_is_below_with_the_changes_and_leaves_that_alone(tmp_path: Path) -> None:
    below = open_place(str(tmp_path), create=True)
    for name in ("a/1", "a/2", "b"):
        below.create(name, name.encode())
    store = Overlay(below, below.url)
    assert not store.create("a/1", b"other")
    assert store.create("a/3", b"new")
    store.put("b", b"changed")
    store.delete(["a/2"])
    store.copy("a/3", "c")
    assert store.list("") == ["a/1", "a/3", "b", "c"]
    assert store.list_many([("a/", "a/1")]) == [["a/3"]]
    assert store.read_many(["a/1", "a/2", "b", "x"]) == [b"a/1", None, b"changed", None]
    assert (store.size("b"), store.exists("a/2"), store.size("a/1")) == (7, False, 3)
    assert store.checksum_many(["a/1", "a/2"]) == [below.checksum("a/1"), None]
    assert store.create("a/2", b"again")
    assert below.list("") == ["a/1", "a/2", "b"]
    assert below.read("b") == b"b"


def test_a_missing_folder_is_an_empty_place_that_stays_missing(tmp_path: Path) -> None:
    place = look_at(str(tmp_path / "new"))
    assert place.url == (tmp_path / "new").as_uri()
    assert place.create("a", b"x")
    assert (place.read("a"), place.read("b"), place.list("")) == (b"x", None, ["a"])
    assert place.spark_url("a") == f"{place.url}/a"
    with pytest.raises(FileNotFoundError):
        place.copy("b", "c")
    assert not (tmp_path / "new").exists()


def test_the_tail_of_what_was_written_and_of_what_is_below(tmp_path: Path) -> None:
    below = open_place(str(tmp_path), create=True)
    below.create("below", b"12345")
    store = Overlay(below, below.url)
    store.put("here", b"12345")
    for name in ("below", "here"):
        assert store.tail(name, 2) == (b"45", 5)
        assert store.tail(name, 9) == (b"12345", 5)
    assert store.tail("none", 2) is None
    assert store.path("below") == tmp_path / "below"
    assert Overlay(None, "memory:///x").path("below") is None


def test_only_names_with_the_prefix_behind_another_are_listed(tmp_path: Path) -> None:
    below = open_place(str(tmp_path), create=True)
    below.create("a/1", b"")
    store = Overlay(below, below.url)
    for name in ("a/0", "a/2", "b/1"):
        store.put(name, b"")
    assert store.list("a/") == ["a/0", "a/1", "a/2"]
    assert store.list("a/", "a/0") == ["a/1", "a/2"]
    assert store.list("a/", "a/2") == []
