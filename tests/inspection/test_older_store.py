"""A store that is older than its tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cutwater.inspection.older_store import refuse_older_store
from cutwater.protocol.base.effects import TableHead
from cutwater.protocol.base.errors import UserError
from cutwater.protocol.base.records import Topology
from cutwater.store.at_rest import read_journal
from cutwater.store.local import LocalStore
from tests.support.live_leader import LiveLeader


class Table:
    name = "t"

    def __init__(self, transaction: int) -> None:
        self.transaction = transaction

    def head(self) -> TableHead:
        return TableHead(3, self.transaction)


def test_a_start_on_an_older_copy_of_the_store_is_refused(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    LiveLeader(store, Topology({})).commit(0)
    last = read_journal(store).index
    tables: list[Any] = [Table(last), Table(0)]
    refuse_older_store(store, tables)
    with pytest.raises(
        UserError, match=f"ends at entry {last}.*has the result of entry {last + 1}.*--drop SINK"
    ):
        refuse_older_store(store, [*tables, Table(last + 1)])  # type: ignore[list-item]
    assert read_journal(store).index == last


def test_a_store_without_a_journal_is_not_an_older_one(tmp_path: Path) -> None:
    """What it is, is decided when somebody wants to lead."""
    tables: list[Any] = [Table(1)]
    refuse_older_store(LocalStore(tmp_path), tables)
