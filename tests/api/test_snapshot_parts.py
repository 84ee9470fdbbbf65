"""Snapshots without Spark: which tables there are, at which versions, and how each is opened."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cutwater.api import snapshot as module
from cutwater.api.snapshot import Snapshot, read, snapshot
from cutwater.protocol.base.errors import UserError
from cutwater.store.overlay import Overlay

STORE = Overlay(None, "file:///state")


class Opened:
    """A pipeline with a table, a table that nothing describes, and a function, which is no table."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.asked: list[Any] = []
        self.opened: list[Any] = []
        self.known: dict[str, Any] = {
            "orders": SimpleNamespace(url="file:///out/orders"),
            "mail": SimpleNamespace(url=None),
        }
        patch.setattr(module, "open_store", self._open)
        patch.setattr(module, "read_journal", lambda store: SimpleNamespace(state=f"state of {store.url}"))
        patch.setattr(module, "versions_at", self._versions)
        patch.setattr(module, "descriptions", lambda store: self.known)
        patch.setattr(module, "open_sink", self._sink)
        patch.setattr(module, "refuse_unusable", lambda spark: self.asked.append(spark))
        patch.setattr(module, "check_reach", lambda spark, url: self.asked.append((spark, url)))

    def _open(self, url: str) -> Overlay:
        self.opened.append(url)
        return Overlay(None, url)

    def _versions(self, store: Any, state: str, epoch: Any) -> Any:
        assert state == f"state of {store.url}"
        return epoch or 9, {"orders": 4, "old": 2, "mail": 7}

    def _sink(self, store: Any, name: str) -> Any:
        return SimpleNamespace(
            dataset=lambda version: (name, version), frame=lambda spark, version: (spark, name, version)
        )


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


def test_a_snapshot_has_the_tables_and_not_the_functions(opened: Opened) -> None:
    found = snapshot(STORE)
    assert opened.opened == []
    assert (found.epoch, found.versions) == (9, {"orders": 4, "old": 2})
    assert list(found) == ["orders", "old"]
    assert len(found) == 2
    assert "orders" in found
    assert "mail" not in found
    assert found["orders"] == ("orders", 4)


def test_the_store_may_be_given_by_its_place(opened: Opened) -> None:
    assert snapshot("file:///x", 5).epoch == 5
    assert opened.opened == ["file:///x"]


def test_the_error_for_an_unknown_table_lists_the_known_ones() -> None:
    with pytest.raises(UserError, match="has no table 'mail' at epoch 9; its tables are: orders, old"):
        snapshot(STORE)["mail"]
    with pytest.raises(UserError, match="its tables are: none"):
        Snapshot(STORE, 1, {})["x"]


def test_a_table_is_read_with_spark_if_spark_can_reach_it(opened: Opened) -> None:
    spark: Any = "spark"
    found: Any = read(spark, STORE, "orders", 3)
    assert found == ("spark", "orders", 4)
    assert opened.asked == ["spark", ("spark", "file:///out/orders/any")]


def test_a_table_without_a_place_is_on_this_machine(opened: Opened) -> None:
    opened.known["old"] = SimpleNamespace(url=None)
    spark: Any = "spark"
    Snapshot(STORE, 1, {"old": 2}).read(spark, "old")
    assert opened.asked == ["spark", ("spark", "file:")]
