"""Following a log: what a reader accepts, and which errors it reports."""

from __future__ import annotations

import pytest

from cutwater.protocol.base.chain import follows
from cutwater.protocol.base.effects import Create, Effect, List, Read, ReadMany
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import follow
from tests.support.driver import (
    Choose,
    Fault,
    Interrupt,
    Store,
    drive,
    drive_together,
    every_moment,
    every_run,
)
from tests.support.text_log import (
    Everything,
    Process,
    Said,
    knowing,
    name,
    said,
    written,
)


def test_following_an_idle_log_costs_one_list_and_delivers_nothing() -> None:
    store, process = written("a")
    store.seen.clear()
    assert drive(follow(process.view), store) == 0
    assert [type(e) for e in store.seen] == [List]
    assert drive(follow(Process().view), Store()) == 0


def test_following_delivers_every_new_entry_in_order_and_returns_how_many() -> None:
    store, writer = written("a")
    process = knowing(store)
    drive(writer.ensure("b", "c", "d"), store)
    assert drive(follow(process.view), store) == 3
    assert process.texts == ["a", "b", "c", "d"]
    assert process.jumps == 0


@pytest.mark.parametrize(("heard", "looks"), [(1, 2), (2, 3), (3, 1), (9, 1)])
def test_an_announced_entry_is_read_without_a_list_and_nothing_else_changes(heard: int, looks: int) -> None:
    store, writer = written("a")
    process = knowing(store)
    drive(writer.ensure("b", "c"), store)
    store.seen.clear()
    assert drive(follow(process.view, heard), store) == 2
    assert process.texts == ["a", "b", "c"]
    assert store.count(List) == looks


def test_an_announcement_of_a_missing_or_compacted_entry_does_no_harm() -> None:
    store, writer = written("a", "b", "c")
    process = knowing(store)
    assert drive(follow(process.view, 7), store) == 0
    drive(writer.ensure("d", then_compact=True), store)
    assert drive(follow(process.view, 4), store) == 2
    assert (process.texts, process.jumps) == (["a", "b", "c", "d"], 1)


def test_entries_that_arrive_during_a_read_are_read_too() -> None:
    store, writer = written("a", "b")
    more = iter("cde")

    def write_on(_: int, effect: Effect) -> None:
        if isinstance(effect, Read | ReadMany) and (text := next(more, None)):
            drive(writer.say(text), store)

    process = Process()
    assert drive(follow(process.view), store, before=write_on) == 5
    assert process.texts == writer.texts == ["a", "b", "c", "d", "e"]


def test_failed_reads_and_lists_are_repeated() -> None:
    store, _ = written("a", "b")
    process = Process()
    faults = [Fault(kind, nth=n) for kind in (Read, List) for n in (1, 2, 4)]
    assert drive(follow(process.view), store, faults=faults) == 2


def test_a_compacted_log_is_followed_from_its_snapshot() -> None:
    store, writer = written("a", "b", "c")
    drive(writer.ensure(then_compact=True), store)
    drive(writer.ensure("d"), store)
    process = Process()
    assert drive(follow(process.view), store) == 5
    assert process.jumps == 1
    assert process.texts == ["a", "b", "c", "d"]


def test_a_compaction_at_any_moment_of_a_read_leads_to_its_snapshot() -> None:
    def play(moment: int) -> bool:
        store, writer = written("a", "b", "c", "d")
        process = Process()
        compaction = Interrupt(moment, lambda: drive(writer.ensure("e", then_compact=True), store))
        drive(follow(process.view), store, before=compaction)
        assert process.texts == said(store)
        return compaction.done

    assert every_moment(play) == 3


def test_a_compaction_during_a_jump_causes_another_jump() -> None:
    store, writer = written("a", "b")
    drive(writer.ensure(then_compact=True), store)
    drive(writer.ensure("c"), store)
    snapshot = name(3)

    def compact_again(_: int, effect: Effect) -> None:
        if effect == Read(snapshot) and snapshot in store.objects:
            drive(writer.ensure("d", then_compact=True), store)

    process = Process()
    drive(follow(process.view), store, before=compact_again)
    assert snapshot not in store.objects
    assert process.texts == ["a", "b", "c", "d"]


def test_a_stale_write_at_a_reopened_place_is_never_accepted() -> None:
    """A reader stopped at 2. The log continued and was compacted. A zombie's late write then takes effect at 3: its
    `prev` is right for that reader, and nobody is left to undo it."""
    store, writer = written("a", "b")
    process, zombie = knowing(store), knowing(store, "z")
    garbage = zombie.seal("garbage")
    drive(writer.ensure("c", "d", then_compact=True), store)
    store.objects[name(3)] = garbage.data
    assert follows(process.view.entries[-1], garbage)
    drive(follow(process.view), store)
    assert process.texts == ["a", "b", "c", "d"]
    assert process.jumps == 1


def test_a_stale_write_at_any_moment_of_a_compaction_and_a_read_is_never_accepted() -> None:
    def play(choose: Choose) -> None:
        store, writer = written("a")
        reader, zombie = knowing(store), knowing(store, "z")
        drive(writer.say("b"), store)
        late = [Create(name(2), zombie.seal("garbage").data)]
        drive_together([follow(reader.view), writer.compact()], store, choose, late_writes=late)
        drive(follow(reader.view), store)
        assert reader.texts == writer.texts == said(store) == ["a", "b"]

    assert every_run(play) > 500


def test_a_late_write_that_comes_first_counts_for_everybody() -> None:
    def play(choose: Choose) -> None:
        store, writer = written("a")
        reader, zombie = knowing(store), knowing(store, "z")
        late = [Create(name(2), zombie.seal("late").data)]
        drive_together([writer.ensure("b"), follow(reader.view)], store, choose, late_writes=late)
        drive(follow(reader.view), store)
        assert reader.texts == said(store)
        assert reader.texts in (["a", "b"], ["a", "late", "b"])

    assert every_run(play) > 100


def test_a_gap_is_an_error_that_names_the_missing_object_and_gives_advice() -> None:
    store, _ = written("a", "b", "c", "d")
    process = Process()
    del store.objects[name(3)]
    with pytest.raises(StoreError, match=rf"{name(3)} is missing, but {name(4)} is there.*cutwater verify"):
        drive(follow(process.view), store)
    assert process.texts == ["a", "b"]  # the entries before the gap are valid
    with pytest.raises(StoreError, match=name(3)):
        drive(follow(process.view), store)


def test_a_lost_snapshot_is_an_error_that_names_it() -> None:
    store, writer = written("a", "b")
    drive(writer.ensure(then_compact=True), store)
    drive(writer.ensure("c"), store)
    del store.objects[name(3)]
    process = Process()
    with pytest.raises(StoreError, match=rf"{name(3)} is missing, .*{name(4)} builds on.*cutwater verify"):
        drive(follow(process.view), store, limit=500)
    assert process.view.last == 0


@pytest.mark.parametrize("claims", [True, False])
def test_an_entry_that_falsely_claims_to_be_a_snapshot_or_not_is_an_error_and_changes_nothing(
    claims: bool,
) -> None:
    """A reader that jumped to an entry that is not a snapshot would have a gap in its knowledge."""
    store, writer = written("a", "b")
    body = Said("fake") if claims else Everything(("a", "b"))
    store.objects[name(3)] = writer.view.seal(body, "n", snapshot=claims).data
    process = Process()
    with pytest.raises(StoreError, match=f"{name(3)} is marked as a snapshot and is not one, or"):
        drive(follow(process.view), store)
    assert process.view.last == 0
    assert process.texts == []


@pytest.mark.parametrize("place", [2, 3])
def test_damaged_bytes_are_an_error_that_names_the_object_and_changes_nothing(place: int) -> None:
    store, writer = written("a")
    process = knowing(store)
    drive(writer.ensure("b", "c"), store)
    store.objects[name(place)] = store.objects[name(place)][:-3]
    with pytest.raises(StoreError, match=f"{name(place)} is damaged"):
        drive(follow(process.view), store)
    assert process.texts == ["a"]
    assert process.view.last == len(process.view.entries) == 1


def test_an_entry_under_the_wrong_name_is_an_error_and_changes_nothing() -> None:
    store, writer = written("a")
    process = knowing(store)
    drive(writer.ensure("b", "c"), store)
    store.objects[name(2)] = store.objects[name(3)]
    with pytest.raises(StoreError, match=f"{name(2)} contains entry 3"):
        drive(follow(process.view), store)
    assert process.texts == ["a"]


def test_an_entry_that_does_not_follow_is_an_error_and_changes_nothing() -> None:
    store, _ = written("a")
    process = knowing(store)
    stranger = Process("s")
    drive(stranger.ensure("x", "y"), Store())
    store.objects[name(2)] = stranger.view.entries[1].data
    with pytest.raises(StoreError, match=f"{name(2)} does not follow entry 1"):
        drive(follow(process.view), store)
    assert process.texts == ["a"]
    assert process.view.last == 1


def test_another_procedure_may_advance_the_same_view_at_any_moment() -> None:
    def play(moment: int) -> bool:
        store, _ = written("a", "b", "c")
        process = Process()

        def advance() -> None:
            drive(follow(process.view), store)
            drive(process.say("own"), store)

        other = Interrupt(moment, advance)
        drive(follow(process.view), store, before=other)
        assert process.texts == said(store)
        assert ("own" in process.texts) is other.done
        return other.done

    assert every_moment(play) == 3


def test_followers_and_an_appender_on_one_view_deliver_every_entry_once_in_every_interleaving() -> None:
    def play(choose: Choose) -> None:
        store, writer = written("a")
        process = knowing(store)
        drive(writer.say("b"), store)
        drive_together([process.ensure("own"), follow(process.view)], store, choose)
        assert process.texts == said(store) == ["a", "b", "own"]

    assert every_run(play) > 20
