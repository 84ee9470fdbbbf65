"""What fails at present."""

from __future__ import annotations

from cutwater.protocol.base import effects as fx
from cutwater.protocol.base.events import Event, OperationFailed
from cutwater.runtime.troubles import FORGOTTEN_S, MAX_FAILING, Troubles


def test_a_failure_is_shown_until_the_same_operation_succeeds() -> None:
    events: list[Event] = []
    troubles = Troubles(events.append)
    assert troubles.latest == ""
    troubles.effect_failed(fx.PublishTable("revenue", 3, 7, (), 2), "no route")
    assert troubles.latest == "PublishTable: no route"
    for other in (fx.PublishTable("big", 3, 7, (), 2), fx.ReadTable("revenue"), fx.Read("a")):
        troubles.effect_worked(other)
        assert troubles.latest == "PublishTable: no route"
    troubles.effect_worked(fx.PublishTable("revenue", 4, 8, (), 3))
    assert troubles.latest == ""
    assert events == [OperationFailed("PublishTable", "no route")]


def test_of_several_failures_the_latest_one_is_shown() -> None:
    troubles = Troubles()
    troubles.effect_failed(fx.Read("a"), "first")
    troubles.effect_failed(fx.Read("b"), "second")
    assert troubles.latest == "Read: second"
    troubles.effect_worked(fx.Read("b"))
    assert troubles.latest == "Read: first"
    troubles.effect_failed(fx.Read("a"), "again")
    troubles.effect_worked(fx.Read("a"))
    assert troubles.latest == ""


def test_what_is_no_longer_tried_is_forgotten() -> None:
    now = [0.0]
    troubles = Troubles(clock=lambda: now[0])
    troubles.effect_failed(fx.Create("journal/00000007", b""), "no route")
    now[0] = FORGOTTEN_S - 1
    assert troubles.latest == "Create: no route"
    now[0] = FORGOTTEN_S
    assert troubles.latest == ""


def test_only_some_failures_are_remembered() -> None:
    troubles = Troubles()
    for number in range(2 * MAX_FAILING):
        troubles.effect_failed(fx.Read(str(number)), str(number))
    assert len(troubles._failing) == MAX_FAILING
    assert troubles.latest == f"Read: {2 * MAX_FAILING - 1}"
