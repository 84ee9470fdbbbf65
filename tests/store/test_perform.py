"""Operations that need only a store."""

from __future__ import annotations

from pathlib import Path

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.paths import mark_name
from cutwater.protocol.base.performer import perform
from cutwater.store import failpoints
from cutwater.store.local import LocalStore
from cutwater.store.perform import MemberlessPerformer, StorePerformer


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(tmp_path)


def test_a_second_create_answers_that_the_object_exists(store: LocalStore) -> None:
    performer = StorePerformer(store)
    assert performer.create(fx.Create("a/1", b"x")) is fx.CREATED
    assert performer.create(fx.Create("a/1", b"y")) is fx.EXISTS
    assert store.read("a/1") == b"x"


def test_objects_are_read_and_listed_as_in_the_store(store: LocalStore) -> None:
    performer = StorePerformer(store)
    for name in ("a/1", "a/2", "b/1"):
        store.create(name, name.encode())
    assert performer.read(fx.Read("a/1")) == b"a/1"
    assert performer.read(fx.Read("a/3")) is None
    assert performer.read_many(fx.ReadMany(("b/1", "a/3"))) == [b"b/1", None]
    assert performer.list(fx.List("a/", "a/1")) == ["a/2"]
    assert performer.list_many(fx.ListMany((("a/", ""), ("b/", "")))) == [["a/1", "a/2"], ["b/1"]]
    assert performer.checksum(fx.Checksum(("a/1", "a/3"))) == [store.checksum("a/1"), None]


def test_a_missing_object_cannot_be_copied(store: LocalStore) -> None:
    performer = StorePerformer(store)
    store.create("a/1", b"x")
    assert performer.copy(fx.Copy("a/1", "b/1")) is fx.DONE
    assert store.read("b/1") == b"x"
    assert performer.copy(fx.Copy("a/2", "b/2")) is None


@pytest.mark.parametrize("count", [0, 1, 3])
def test_many_objects_are_all_deleted(store: LocalStore, count: int) -> None:
    names = tuple(f"a/{number}" for number in range(count))
    for name in names:
        store.create(name, b"x")
    assert StorePerformer(store).delete(fx.Delete(names)) is fx.DONE
    assert store.list("a/") == []


def test_a_process_can_be_killed_around_a_create_and_within_a_delete(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[tuple[str, str, list[str]]] = []
    monkeypatch.setattr(failpoints, "ACTIVE", True)
    monkeypatch.setattr(
        failpoints, "reach", lambda place, thing="": reached.append((place, thing, store.list("published/")))
    )
    performer = StorePerformer(store)
    for _ in range(2):
        performer.create(fx.Create(mark_name(1, "t"), b"x"))
    performer.create(fx.Create(mark_name(2, "t"), b"x"))
    both = [mark_name(1, "t"), mark_name(2, "t")]
    assert (
        reached
        == [
            ("before mark", "t", []),
            ("after mark", "t", both[:1]),
            ("before mark", "t", both[:1]),  # it exists already, so "after mark" is never reached
            ("before mark", "t", both[:1]),
            ("after mark", "t", both),
        ]
    )
    reached.clear()
    performer.delete(fx.Delete(tuple(both)))
    assert reached == [("before delete", "published", both), ("during delete", "published", both[1:])]


@pytest.mark.parametrize(
    "operation",
    [
        fx.ReadTable("t"),
        fx.FindTableVersion("t", 1),
        fx.PublishTable("t", 1, 2, (), 3),
        fx.RewindTable("t", 1, 2, 0),
        fx.ListFolders("s", 1),
        fx.MakeFolder("s", 1, 2, None, None, -1, ""),
        fx.StartQuery("s", 1, 2, {}, fx.Pace.OWN),
        fx.ReadPrepared("s", 1, 2, 3),
        fx.FindState("s", 1, 2, 3, None),
        fx.FindStored("s", 1, 2),
    ],
    ids=lambda operation: type(operation).__name__,
)
def test_operations_that_need_a_member_are_refused_without_one(
    store: LocalStore, operation: fx.AnyOperation
) -> None:
    with pytest.raises(AssertionError, match=f"{type(operation).__name__}.* needs a running member"):
        perform(MemberlessPerformer(store), operation)


def test_tables_are_queried_if_the_functions_are_given(store: LocalStore) -> None:
    head, history = fx.TableHead(3, 2), fx.TableHistory(2)
    performer = MemberlessPerformer(
        store, lambda sink, transaction: len(sink) + transaction, lambda *_: history, lambda: head
    )
    assert performer.read_table(fx.ReadTable("out")) is head
    assert performer.find_table_version(fx.FindTableVersion("out", 2)) == 5
    assert performer.read_table_history(fx.ReadTableHistory("out", 2)) is history


def test_the_history_of_a_table_is_unknown_without_a_function_for_it(store: LocalStore) -> None:
    assert MemberlessPerformer(store).read_table_history(fx.ReadTableHistory("out", 2)) is None


def test_a_failing_table_is_not_mistaken_for_a_failing_store(store: LocalStore) -> None:
    def down(sink: str, transaction: int) -> None:
        raise OSError("no route")

    performer = MemberlessPerformer(store, down, down)
    assert performer.find_table_version(fx.FindTableVersion("out", 2)) is fx.FAILED
    assert performer.read_table_history(fx.ReadTableHistory("out", 2)) is fx.FAILED
