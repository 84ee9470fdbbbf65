"""Compacting a log, and the names of its entries."""

from __future__ import annotations

import pytest

from cutwater.protocol.base.effects import Delete, Effect, List
from cutwater.protocol.base.log import follow, trim
from cutwater.protocol.base.logs import follow_all
from tests.support.driver import (
    Crashed,
    Fault,
    Store,
    drive,
)
from tests.support.text_log import (
    MINE,
    PREFIX,
    TAKEN,
    VOID,
    Process,
    knowing,
    name,
    said,
    written,
)


def test_compaction_leaves_only_the_snapshot_with_the_same_meaning() -> None:
    store, process = written("a", "b", "c")
    assert drive(process.compact(), store) is MINE
    assert store.names(PREFIX) == [name(4)]
    assert len(process.view.entries) == 1
    assert process.view.snapshot == 4
    assert said(store) == process.texts == ["a", "b", "c"]


def test_nothing_at_or_above_the_snapshot_is_deleted() -> None:
    store, process = written("a", "b")
    other = knowing(store)

    def others_go_on(_: int, effect: Effect) -> None:
        if isinstance(effect, Delete):
            assert effect.names == (name(1), name(2))
            drive(follow(other.view), store)
            drive(other.ensure("c", "d"), store)

    drive(process.compact(), store, before=others_go_on)
    assert store.names(PREFIX) == [name(3), name(4), name(5)]
    assert said(store) == ["a", "b", "c", "d"]


def test_trimming_with_outdated_knowledge_deletes_less_never_more() -> None:
    store, process = written("a", "b")
    drive(process.ensure(then_compact=True), store)
    old = knowing(store)
    drive(process.ensure("c", "d"), store)
    assert drive(process.compact(), store, faults=[Fault(List)]) is MINE
    before = store.names(PREFIX)
    drive(trim(old.view), store)
    assert store.names(PREFIX) == before
    drive(trim(Process().view), store)
    assert store.names(PREFIX) == before


def test_a_compaction_that_finds_its_place_taken_deletes_nothing() -> None:
    store, process = written("a", "b")
    drive(knowing(store).say("c"), store)
    assert drive(process.compact(), store) is TAKEN
    assert store.names(PREFIX) == [name(1), name(2), name(3)]
    assert store.count(Delete) == 0


def test_after_a_crash_between_snapshot_and_deletion_trimming_finishes_it() -> None:
    store, process = written("a", "b")
    with pytest.raises(Crashed):
        drive(process.compact(), store, crash_after=1)
    assert store.names(PREFIX) == [name(1), name(2), name(3)]
    successor = knowing(store)
    assert successor.texts == ["a", "b"]
    drive(trim(successor.view), store)
    assert store.names(PREFIX) == [name(3)]


def test_a_stale_write_at_a_reopened_place_is_deleted_by_the_next_trimming() -> None:
    store, process = written("a", "b")
    zombie = knowing(store)
    drive(process.ensure("c", then_compact=True), store)
    assert drive(zombie.say("garbage"), store) is VOID
    assert name(3) in store.objects
    drive(trim(process.view), store)
    assert store.names(PREFIX) == [name(4)]


# --- names --------------------------------------------------------------------------------------------------


def test_names_sort_as_indexes_do() -> None:
    indexes = [1, 9, 10, 99, 100, 10**11]
    names = [name(i) for i in indexes]
    assert names == sorted(names)


def test_objects_that_are_not_entries_are_ignored_and_kept() -> None:
    store, process = Store(), Process()
    for stray in ("README", "000000000001.json.bak", "-", "zz.json"):
        store.objects[PREFIX + stray] = b"hello"
    drive(process.say("a"), store)
    drive(process.compact(), store)
    one, other = Process(), Process()
    drive(follow(one.view), store)
    drive(follow_all([other.view]), store)
    assert one.texts == other.texts == ["a"]
    assert {n.removeprefix(PREFIX) for n in store.objects} >= {
        "README",
        "000000000001.json.bak",
        "-",
        "zz.json",
    }
