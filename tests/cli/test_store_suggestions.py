"""Which store may have been meant by whoever gives one that is not there, or holds nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutwater.cli.store_suggestions import suggest_store

ASK = ". Set its location with --store or CUTWATER_STORE"


def made(*names: str) -> None:
    for name in names:
        Path(name, "journal").mkdir(parents=True)


def meant(store: str) -> str:
    """What is added to an error that names the store."""
    return suggest_store(store, f"{Path(store).resolve()} holds no pipeline")


def test_a_store_above_or_inside_or_of_a_similar_name_may_be_meant(here: Path) -> None:
    made("shop/state", "shop/stale", "shop/other/a/state")
    assert meant("shop/state/stages/a") == ". Did you mean --store ./shop/state?"
    assert meant("shop") == ". Did you mean --store ./shop/stale or --store ./shop/state?"
    assert meant("shop/stat") == ". Did you mean --store ./shop/state or --store ./shop/stale?"
    assert meant("shop/other") == "", "it is there, and nothing near it could be meant"
    assert meant("shop/nothing-like-it") == ASK


def test_at_most_three_stores_inside_are_named(here: Path) -> None:
    made(*(f"all/{name}" for name in "abcd"))
    assert meant("all").count("--store") == 3


def test_of_stores_above_the_nearest_is_meant(here: Path) -> None:
    made("a", "a/b")
    assert meant("a/b/c/d") == ". Did you mean --store ./a/b?"


def test_nothing_is_added_to_an_error_that_is_about_something_else(here: Path) -> None:
    made("state")
    assert meant("state") == "", "it is a store"
    assert suggest_store("stat", "no disk") == ""
    assert suggest_store("s3://bucket/stat", "s3://bucket/stat is not there") == ""


def test_a_url_of_a_folder_is_that_folder(here: Path) -> None:
    made("my state")
    assert suggest_store(f"file://{here}/my%20stat", f"{here}/my stat is not there") == (
        ". Did you mean --store ./my state?"
    )


def test_a_store_that_is_not_below_the_current_folder_is_named_in_full(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made("a/state", "b")
    monkeypatch.chdir("b")
    assert meant("../a/stat") == f". Did you mean --store {here}/a/state?"
