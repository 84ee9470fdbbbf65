"""Operations: the dispatch knows each of them and calls its method."""

from __future__ import annotations

from typing import Any, get_args
from unittest.mock import Mock

import pytest

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.performer import Performer, perform

OPERATIONS: tuple[fx.AnyOperation, ...] = (
    fx.Create("a", b"x"),
    fx.Read("a"),
    fx.ReadMany(("a",)),
    fx.List("a"),
    fx.ListMany((("a", ""),)),
    fx.Delete(("a",)),
    fx.Copy("a", "b"),
    fx.Checksum(("a",)),
    fx.ReadTable("t"),
    fx.FindTableVersion("t", 1),
    fx.ReadTableHistory("t", 1),
    fx.PublishTable("t", 1, 2, (), 3),
    fx.RewindTable("t", 1, 2, 0),
    fx.ListFolders("s", 1),
    fx.MakeFolder("s", 1, 2, None, None, -1, ""),
    fx.StartQuery("s", 1, 2, {}, fx.Pace.OWN),
    fx.ReadPrepared("s", 1, 2, 3),
    fx.FindState("s", 1, 2, 3, None),
    fx.FindStored("s", 1, 2),
)


def kinds(base: type) -> set[type]:
    """All declared kinds of operations, without shared base classes."""
    below: list[type] = base.__subclasses__()
    return {base} if not below else {kind for one in below for kind in kinds(one)}


def test_every_operation_is_in_the_union_that_the_type_checker_closes() -> None:
    """`ask` takes any operation, so the type checker alone would not notice one that is missing there."""
    assert kinds(fx.Operation) == set(get_args(fx.AnyOperation))
    assert {type(operation) for operation in OPERATIONS} == set(get_args(fx.AnyOperation))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: type(operation).__name__)
def test_an_operation_is_performed_by_the_method_with_its_name(operation: fx.AnyOperation) -> None:
    performer = Mock(spec=Performer)
    name = "".join(f"_{c.lower()}" if c.isupper() else c for c in type(operation).__name__)[1:]
    getattr(performer, name).return_value = "answer"
    assert perform(performer, operation) == "answer"
    (call,) = performer.method_calls
    assert (call[0], call.args) == (name, (operation,))


def played(procedure: fx.Procedure[Any], *answers: Any) -> tuple[list[fx.Effect], Any]:
    """What a procedure yields with these answers, and what it returns."""
    effects = [next(procedure)]
    for answer in answers:
        try:
            effects.append(procedure.send(answer))
        except StopIteration as end:
            return effects, end.value
    raise AssertionError("it wants more answers")


def test_ask_returns_one_answer_whatever_it_is() -> None:
    read = fx.Read("a")
    assert played(fx.ask(read), b"x") == ([read], b"x")
    assert played(fx.ask(read), fx.FAILED) == ([read], fx.FAILED)


def test_insist_never_returns_a_failure() -> None:
    read = fx.Read("a")
    effects, answer = played(fx.insist(read), fx.FAILED, None, fx.FAILED, None, b"x")
    assert effects == [read, fx.Sleep(20), read, fx.Sleep(40), read]
    assert answer == b"x"


def test_an_operation_on_a_table_names_its_sink() -> None:
    tables = kinds(fx.TableOperation)
    assert all(
        (operation.sink == "t") for operation in OPERATIONS if isinstance(operation, fx.TableOperation)
    )
    assert {type(operation) for operation in OPERATIONS if hasattr(operation, "sink")} == tables
