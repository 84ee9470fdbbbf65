"""A member's catch-up: where it gets missing entries from, and that it ends with exactly the store's journal."""

from __future__ import annotations

import pytest

from cutwater.protocol.base.effects import Effect, Read, ReadMany
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.records import Leader
from cutwater.protocol.base.replay_wire import AskRange, EntriesChunk, FetchEntries, HaveRange
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.replay.messages import CatchUpProgress
from tests.support.catchup_helpers import CONFIG, SMALL_GAP, Author, Away, name
from tests.support.driver import Fault, Interrupt, drive, every_moment

# --- where the entries come from ----------------------------------------------------------------------------


def test_a_member_that_missed_nothing_asks_nobody() -> None:
    away = Away(Author(5), {"a": None}, known=5)
    away.run()
    assert away.has_caught_up()
    assert not away.sent
    assert away.store.count(Read) == 0


def test_a_catch_up_with_an_empty_journal_ends_at_once() -> None:
    away = Away(Author(0), {"a": None})
    away.run()
    assert away.journal.index == 0


def test_a_small_gap_is_read_from_the_store_and_no_peer_is_asked() -> None:
    author = Author(20)
    away = Away(author, {"a": author.journal}, known=20 - SMALL_GAP)
    away.run()
    assert away.has_caught_up()
    assert not away.sent


def test_a_large_gap_comes_from_the_peers_and_the_store_only_confirms_hashes() -> None:
    author = Author(400)
    away = Away(author, {"a": author.journal, "b": author.journal, "m": author.journal}, known=30)
    away.run()
    assert away.has_caught_up()
    assert away.fetched("a") + away.fetched("b") + away.fetched("m") == 370
    assert away.fetched("a") >= 100
    assert away.fetched("b") >= 100
    bodies = sum(len(author.store.objects[name(i)]) for i in range(31, 401))
    hashes = bodies // CONFIG.anchor_bytes + 1
    assert away.store.count(Read) <= 1 + 2 * hashes  # the head; and per hash the entry and a read of the head


def test_forged_entries_of_a_peer_are_rejected_and_others_are_asked() -> None:
    author, forger = Author(100), Journal()
    for term in range(1, 101):
        forger.view.push(forger.view.seal(Leader(term, "forged"), f"n{term}"))
    away = Away(author, {"a": forger, "b": author.journal})
    away.run()
    assert away.has_caught_up()
    assert away.journal.state.leader == "m"


def test_dead_peers_are_given_up_and_the_store_is_used() -> None:
    away = Away(Author(100), {"a": None, "b": None})
    away.run()
    assert away.has_caught_up()
    asked = [effect.names for effect in away.store.seen if isinstance(effect, ReadMany)]
    assert sum(len(names) for names in asked) >= 100
    assert away.now_ms < 2_000


def test_a_member_without_peers_reads_the_store() -> None:
    away = Away(Author(100), {})
    away.run()
    assert away.has_caught_up()
    assert not away.sent


def test_peers_that_die_in_the_middle_are_replaced_by_the_store() -> None:
    author = Author(200)
    away = Away(author, {"a": author.journal, "b": author.journal})

    def die(_: int, effect: Effect) -> None:
        if len(away.sent) == 5:
            away.peers.update(a=None, b=None)

    away.run(before=die)
    assert away.has_caught_up()


def test_a_peer_that_is_behind_serves_what_it_has() -> None:
    author = Author(100)
    behind = Away(author, {}, known=60)
    away = Away(author, {"a": behind.journal})
    away.run()
    assert away.has_caught_up()
    assert away.fetched("a") >= 60


# --- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("alive", [True, False])
def test_a_store_that_fails_occasionally_only_delays_it(alive: bool) -> None:
    author = Author(60)
    away = Away(author, {"a": author.journal if alive else None})
    away.run(faults=[Fault(Read, nth=n) for n in range(1, 60, 3)])
    assert away.has_caught_up()


def test_after_a_failed_session_the_store_is_read_until_it_answers() -> None:
    """Nobody could serve for a while. What was delivered remains valid."""
    away = Away(Author(60), {"a": None})
    away.run(faults=[Fault(Read, nth=n) for n in range(2, 12)])
    assert away.has_caught_up()


def test_a_late_answer_to_an_earlier_catch_up_is_not_mistaken_for_one_to_the_next() -> None:
    author = Author(60)
    away = Away(author, {"a": author.journal})
    away.run()
    author.write(60)
    away.run()
    assert away.has_caught_up()
    ids = [s.message.request_id for s in away.sent if isinstance(s.message, AskRange | FetchEntries)]
    assert len(ids) == len(away.sent)
    assert len(ids) > 6
    assert ids == sorted(set(ids))


def test_another_procedure_may_advance_the_journal_meanwhile() -> None:
    def play(moment: int) -> bool:
        author = Author(200)
        away = Away(author, {"a": author.journal})
        other = Interrupt(moment, lambda: drive(follow(away.journal.view), away.store))
        away.run(before=other)
        assert away.has_caught_up()
        return other.done

    assert every_moment(play) > 10


def test_messages_without_a_session_and_requests_of_others_are_ignored() -> None:
    author = Author(60)
    away = Away(author, {"a": author.journal})
    away.catch_up.on_message("a", HaveRange(1, 1, 9_999))
    away.catch_up.on_message("a", EntriesChunk(2, 1, [b"garbage"]))
    assert away.catch_up._actions == []

    def disturb(_: int, effect: Effect) -> None:
        away.catch_up.on_message("a", AskRange(1))
        away.catch_up.on_message("stranger", EntriesChunk(1, 1, [b"garbage"]))
        away.catch_up.on_message("a", HaveRange(10_000, 1, 9_999))

    away.run(before=disturb)
    assert away.has_caught_up()


def test_damaged_bytes_at_the_head_are_an_error_that_names_the_object() -> None:
    author = Author(60)
    author.store.objects[name(60)] = b"{"
    away = Away(author, {"a": author.journal})
    with pytest.raises(StoreError, match=f"{name(60)} is damaged"):
        away.run()
    assert away.journal.index == 0


def test_a_gap_that_no_peer_can_fill_is_an_error_that_names_the_missing_object() -> None:
    author = Author(60)
    del author.store.objects[name(30)]
    away = Away(author, {"a": None})
    with pytest.raises(StoreError, match=f"{name(30)} is missing"):
        away.run()
    assert away.journal.index == 29


def test_a_gap_that_a_peer_can_fill_is_filled() -> None:
    author = Author(60)
    del author.store.objects[name(30)]
    away = Away(author, {"a": author.journal})
    away.run()
    assert away.has_caught_up()


def test_damage_in_the_middle_that_no_peer_can_repair_is_an_error_that_names_the_object() -> None:
    author = Author(60)
    author.store.objects[name(30)] = b"{"
    with pytest.raises(StoreError, match=f"{name(30)} is damaged"):
        Away(author, {"a": None}).run()


def test_a_journal_other_than_the_one_that_this_member_knows_is_an_error() -> None:
    author, other = Author(60), Author(0)
    other._put(Leader(9, "other"))
    other.write(59)
    away = Away(author, {}, known=5)
    away.store.objects.update(other.store.objects)
    with pytest.raises(StoreError, match=f"{name(6)} does not follow entry 5"):
        away.run()
    assert away.journal.index == 5


# --- progress -----------------------------------------------------------------------------------------------


def test_progress_grows_from_zero_to_everything() -> None:
    author = Author(200)
    away = Away(author, {"a": author.journal, "b": author.journal}, known=40)
    seen: list[CatchUpProgress] = []

    def watch(_: int, effect: Effect) -> None:
        if away.catch_up.session is not None:
            seen.append(away.catch_up.session.progress())

    assert away.catch_up.session is None
    away.run(before=watch)
    assert away.catch_up.session is None
    assert seen[0].done == 0
    assert {p.total for p in seen} == {160}
    assert [p.done for p in seen] == sorted(p.done for p in seen)
    assert max(p.peers for p in seen) == 2
    assert 0 < seen[-1].done < 160
    assert "of 160 · 2 peers" in str(seen[-1])
