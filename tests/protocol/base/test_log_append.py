"""Appending to a log: with every answer of a store, every crash, every small race."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from cutwater.protocol.base.effects import Create, Effect, List, Read
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import APPEND, AppendPhase, append, follow
from tests.support.driver import (
    Choose,
    Crashed,
    Fault,
    Outcome,
    Stalled,
    Store,
    drive,
    drive_together,
    every_moment,
    every_run,
)
from tests.support.text_log import (
    FAULTS,
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

# --- appending: each transition ---------------------------------------------------------------------------


def test_a_created_entry_is_mine_and_in_the_view() -> None:
    store, process = Store(), Process()
    assert drive(process.say("a"), store) is MINE
    assert process.texts == said(store) == ["a"]
    assert [type(e) for e in store.seen[:2]] == [Create, List]


def test_after_a_lost_answer_the_writer_finds_its_own_bytes_and_the_entry_is_mine() -> None:
    store, process = Store(), Process()
    assert drive(process.say("a"), store, faults=[Fault(Create, Outcome.LOST)]) is MINE
    assert store.count(Create) == 1
    assert process.texts == said(store) == ["a"]


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.FALSE_EXISTS])
def test_while_the_place_is_empty_the_same_bytes_are_put_again(outcome: Outcome) -> None:
    store, process = Store(), Process()
    sealed = process.seal("a")
    puts: list[Effect] = []

    def watch(_: int, effect: Effect) -> None:
        if isinstance(effect, Create):
            puts.append(effect)

    faults = [Fault(Create, outcome, 1), Fault(Create, outcome, 2)]
    assert drive(append(process.view, sealed), store, faults=faults, before=watch) is MINE
    assert puts == [Create(name(1), sealed.data)] * 3
    assert said(store) == ["a"]


def test_a_failed_read_back_is_repeated_before_anything_is_put() -> None:
    store, process = Store(), Process()
    faults = [Fault(Create, Outcome.LOST), Fault(Read, nth=1), Fault(Read, nth=2)]
    assert drive(process.say("a"), store, faults=faults) is MINE
    assert store.count(Create) == 1


def test_a_failed_look_for_a_snapshot_is_repeated() -> None:
    store, process = Store(), Process()
    assert drive(process.say("a"), store, faults=[Fault(List, nth=1), Fault(List, nth=2)]) is MINE


def test_waits_between_attempts_double_up_to_a_limit() -> None:
    store, process = Store(), Process()
    waits: list[int] = []
    faults = [Fault(Create, nth=n) for n in range(1, 9)]
    assert drive(process.say("a"), store, faults=faults, on_wait=waits.append) is MINE
    assert waits == [20, 40, 80, 160, 320, 640, 640, 640]


def test_a_place_taken_by_another_is_reported_as_taken_and_its_entry_is_in_the_view() -> None:
    store, other = written("a")
    process = knowing(store)
    drive(other.say("other"), store)
    assert drive(process.say("mine"), store) is TAKEN
    assert process.texts == said(store) == ["a", "other"]
    assert process.view.entries[-1] == other.view.entries[-1]


def test_an_own_entry_below_a_newer_snapshot_is_void_and_the_view_is_unchanged() -> None:
    """The writer was paused; the others continued and compacted its place away; its create succeeds."""
    store, other = written("a", "b")
    process = knowing(store)
    drive(other.ensure("c", "d", then_compact=True), store)
    assert name(3) not in store.objects
    assert drive(process.say("late"), store) is VOID
    assert process.texts == ["a", "b"]
    assert store.objects[name(3)]  # it exists, but means nothing
    assert said(store) == ["a", "b", "c", "d"]


def test_the_entry_of_another_below_a_newer_snapshot_is_void_and_not_in_the_view() -> None:
    store, other = written("a", "b")
    process, zombie = knowing(store), knowing(store, "z")
    drive(other.ensure("c", "d", then_compact=True), store)
    assert drive(zombie.say("garbage"), store) is VOID
    assert drive(process.say("late"), store) is VOID
    assert process.texts == ["a", "b"]


def test_an_entry_that_a_snapshot_has_covered_meanwhile_is_void_and_the_log_shows_that_it_counted() -> None:
    """Void means that the place says nothing any more; the log says whether the entry counted."""
    store, process = written("a")
    other = Process("o")

    def others_go_on(_: int, effect: Effect) -> None:
        if isinstance(effect, List) and not other.texts:
            drive(follow(other.view), store)
            drive(other.ensure("b", then_compact=True), store)

    assert drive(process.say("mine"), store, before=others_go_on) is VOID
    drive(follow(process.view), store)
    assert process.texts == said(store) == ["a", "mine", "b"]


def test_a_late_write_is_found_and_counts_once() -> None:
    store, process = Store(), Process()
    sealed = process.seal("a")

    def land(_: int, effect: Effect) -> None:
        if isinstance(effect, Create) and store.count(Read) == 1:
            store.objects[name(1)] = sealed.data

    assert drive(append(process.view, sealed), store, faults=[Fault(Create)], before=land) is MINE
    assert process.texts == said(store) == ["a"]


def test_an_append_does_not_return_while_the_place_is_unknown() -> None:
    store, process = Store(), Process()
    with pytest.raises(Stalled):
        drive(process.say("a"), store, faults=[Fault(Create, nth=n) for n in range(1, 99)], limit=99)
    assert process.texts == []


def test_damaged_bytes_at_the_place_are_an_error_that_names_the_object_and_changes_nothing() -> None:
    store, process = written("a")
    store.objects[name(2)] = b"{damaged"
    with pytest.raises(StoreError, match=f"{name(2)} is damaged"):
        drive(process.say("b"), store)
    assert process.view.last == 1
    assert process.texts == ["a"]


# --- appending: every crash, every small race ---------------------------------------------------------------

CRASHES = [(), (Fault(Create, Outcome.LOST),), (Fault(Create, Outcome.FAILED, 2), Fault(Read, nth=1))]


@pytest.mark.parametrize("faults", CRASHES)
def test_after_a_crash_at_any_effect_a_new_process_takes_over_and_every_text_is_there_once(
    faults: Iterable[Fault],
) -> None:
    def play(moment: int) -> bool:
        store, process = written("a")
        try:
            drive(process.ensure("b", "c", then_compact=True), store, faults=faults, crash_after=moment)
        except Crashed:
            said(store)  # asserts that it is a chain
            successor = knowing(store, "s")
            drive(successor.ensure("b", "c", "d", then_compact=True), store)
            assert said(store) == successor.texts == ["a", "b", "c", "d"]
            assert store.names(PREFIX) == [name(successor.view.last)]
            return True
        return False

    assert every_moment(play) >= 8


def test_of_two_appenders_exactly_one_wins_and_the_other_learns_it_in_every_interleaving() -> None:
    def play(choose: Choose) -> None:
        store, _ = written("a")
        one, two = knowing(store, "1"), knowing(store, "2")
        phases = drive_together([one.say("one"), two.say("two")], store, choose, outcomes=FAULTS)
        assert sorted(p.value for p in phases) == ["mine", "taken"]
        winner = ("one", "two")[phases.index(MINE)]
        assert one.texts == two.texts == said(store) == ["a", winner]

    assert every_run(play) > 50


def test_two_appenders_that_retry_until_they_succeed_lose_and_repeat_nothing() -> None:
    def play(choose: Choose) -> None:
        store, one, two = Store(), Process("1"), Process("2")
        drive_together([one.ensure("one"), two.ensure("two")], store, choose, outcomes=FAULTS)
        assert sorted(said(store)) == ["one", "two"]

    assert every_run(play) > 100


def test_a_crashed_writers_late_write_and_its_successors_entry_never_both_count() -> None:
    """The successor appends the same text; whichever write comes first, the text is in the log once."""

    def play(choose: Choose) -> None:
        store, crashed = written("a")
        late = Create(name(2), crashed.seal("b").data)
        successor = knowing(store, "s")
        drive_together([successor.ensure("b", "c")], store, choose, outcomes=FAULTS, late_writes=[late])
        assert said(store) == successor.texts == ["a", "b", "c"]

    assert every_run(play) > 20


def test_an_appender_during_a_compaction_never_gets_mine_for_an_entry_that_does_not_count() -> None:
    def play(choose: Choose) -> None:
        store, _ = written("a")
        one, two = knowing(store, "1"), knowing(store, "2")
        work = two.ensure("two", then_compact=True)
        phase, _ = drive_together([one.say("one"), work], store, choose, outcomes=(None, Outcome.LOST))
        log = said(store)
        assert phase is VOID or (phase is MINE) == ("one" in log)
        drive(follow(one.view), store)
        assert one.texts == log == knowing(store).texts

    assert every_run(play) > 100


def test_the_races_cover_every_transition_of_an_append(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = set()
    step = APPEND.next

    def record(phase: AppendPhase, event: str) -> AppendPhase:
        taken.add((phase, event))
        return step(phase, event)

    monkeypatch.setattr(APPEND, "next", record)
    test_an_appender_during_a_compaction_never_gets_mine_for_an_entry_that_does_not_count()
    test_of_two_appenders_exactly_one_wins_and_the_other_learns_it_in_every_interleaving()
    test_the_entry_of_another_below_a_newer_snapshot_is_void_and_not_in_the_view()
    assert taken == APPEND.steps.keys()
