"""Appending to, following and compacting a log: with every answer of a store, every crash, every small race."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import msgspec
import pytest

from cutwater.protocol.base.chain import Codec, Sealed, follows
from cutwater.protocol.base.effects import Create, Delete, Effect, List, Procedure, Read, ReadMany
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import APPEND, AppendPhase, LogView, append, compact, follow, trim
from cutwater.protocol.base.logs import follow_all
from cutwater.protocol.base.paths import entry_name
from tests.support.driver import (
    Choose,
    Crashed,
    Fault,
    Interrupt,
    Outcome,
    Stalled,
    Store,
    drive,
    drive_together,
    every_moment,
    every_run,
)

MINE, TAKEN, VOID = AppendPhase.MINE, AppendPhase.TAKEN, AppendPhase.VOID
PREFIX = "log/"
FAULTS: tuple[Outcome | None, ...] = (None, *Outcome)


class Said(msgspec.Struct, frozen=True, tag="SAID"):
    text: str


class Everything(msgspec.Struct, frozen=True, tag="SNAPSHOT"):
    texts: tuple[str, ...]


Body = Said | Everything
CODEC: Codec[Body] = Codec(Body)


def name(index: int) -> str:
    return entry_name(PREFIX, index)


class Process:
    """One process: its view of the log, and the texts that it derives from it, each once and in order."""

    def __init__(self, who: str = "p") -> None:
        self.who = who
        self.texts: list[str] = []
        self.jumps = 0
        self.view: LogView[Body] = LogView(PREFIX, CODEC, Everything, self._on_entry)
        self._nonces = itertools.count()

    def _on_entry(self, sealed: Sealed[Body], jumped: bool) -> None:
        body = sealed.entry.body
        self.jumps += jumped
        if isinstance(body, Everything):
            assert jumped or list(body.texts) == self.texts
            self.texts = list(body.texts)
        else:
            assert not jumped
            assert body.text not in self.texts
            self.texts.append(body.text)

    def seal(self, text: str) -> Sealed[Body]:
        return self.view.seal(Said(text), f"{self.who}{next(self._nonces)}")

    def say(self, text: str) -> Procedure[AppendPhase]:
        return append(self.view, self.seal(text))

    def compact(self) -> Procedure[AppendPhase]:
        return compact(self.view, Everything(tuple(self.texts)), f"{self.who}{next(self._nonces)}")

    def ensure(self, *texts: str, then_compact: bool = False) -> Procedure[None]:
        """Appends each text unless the log already has it, as a process that works from the log does."""
        for text in texts:
            while text not in self.texts:
                if (yield from self.say(text)) is not MINE:
                    yield from follow(self.view)
        while then_compact and (yield from self.compact()) is not MINE:
            yield from follow(self.view)


def knowing(store: Store, who: str = "p") -> Process:
    """A process that knows everything in the store."""
    process = Process(who)
    drive(follow(process.view), store)
    return process


def written(*texts: str) -> tuple[Store, Process]:
    """A store with these texts in its log, and the process that wrote them."""
    store, process = Store(), Process()
    drive(process.ensure(*texts), store)
    return store, process


def said(store: Store) -> list[str]:
    """The texts of the log for a new reader. Asserts that it is a chain from its newest snapshot to its end."""
    process = knowing(store)
    first = max(process.view.snapshot, 1)
    chain = [CODEC.open(store.objects[name(i)]) for i in range(first, process.view.last + 1)]
    assert all(follows(a, b) for a, b in itertools.pairwise(chain))
    assert store.names(PREFIX)[-1:] == [name(s.entry.index) for s in chain[-1:]]
    return process.texts


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


# --- following ----------------------------------------------------------------------------------------------


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
    with pytest.raises(StoreError, match=f"{name(3)} calls itself a snapshot and is none, or"):
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
    with pytest.raises(StoreError, match=f"{name(2)} holds entry 3"):
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


# --- compacting ---------------------------------------------------------------------------------------------


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
