"""A member's catch-up with a journal that is compacted, before it or meanwhile."""

from __future__ import annotations

import pytest

from cutwater.protocol.base.effects import Effect, Read
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.records import Leader
from cutwater.protocol.member.journal import Journal
from tests.support.catchup_helpers import Author, Away, asks_for_first, name
from tests.support.driver import Interrupt, drive, every_moment


def test_a_compacted_prefix_is_replaced_by_the_snapshot() -> None:
    author = Author(100)
    author.compact()
    author.write(3)
    away = Away(author, {"a": author.journal}, known=0)
    away.run()
    assert away.has_caught_up()
    assert not away.sent  # three entries after the snapshot are a small gap
    assert away.journal.provider.available() == (101, 104)


def test_a_large_gap_after_a_snapshot_comes_from_the_peers() -> None:
    author = Author(50)
    author.compact()
    author.write(100)
    away = Away(author, {"a": author.journal})
    away.run()
    assert away.has_caught_up()
    assert away.fetched("a") == 100


@pytest.mark.parametrize("alive", [True, False])
def test_a_compaction_at_any_moment_of_the_catch_up_does_no_harm(alive: bool) -> None:
    def play(moment: int) -> bool:
        author = Author(200 if alive else 30)
        away = Away(author, {"a": author.journal if alive else None})

        def go_on() -> None:
            author.compact()
            author.write(2)

        compaction = Interrupt(moment, go_on)
        away.run(before=compaction)
        drive(follow(away.journal.view), away.store)
        assert away.has_caught_up()
        return compaction.done

    assert every_moment(play) > 10


def test_a_compaction_in_the_middle_leads_to_the_snapshot_without_a_second_session() -> None:
    author = Author(60)
    away = Away(author, {})

    def compact_once(_: int, effect: Effect) -> None:
        if asks_for_first(effect) and author.journal.index == 60:
            author.compact()

    away.run(before=compact_once)
    assert away.has_caught_up()
    assert away.waits == []
    assert away.store.count(Read) < 10


@pytest.mark.parametrize("twice", [False, True])
def test_a_stale_write_at_a_reopened_place_is_never_accepted(twice: bool) -> None:
    """The journal is compacted while the first entries are requested, and a zombie's late write takes effect at 1,
    where it would fit; the snapshot itself may then be gone again when it is read."""
    author = Author(60)
    away = Away(author, {})
    zombie = Journal().view.seal(Leader(1, "zombie"), "zombie")

    def go_on(_: int, effect: Effect) -> None:
        assert away.journal.state.leader != "zombie"
        if asks_for_first(effect) and author.journal.index == 60:
            author.compact()
            author.write(1)
            away.store.objects[name(1)] = zombie.data
        if twice and effect == Read(name(61)) and author.journal.index == 62:
            author.compact()
            away.store.objects[name(1)] = zombie.data

    away.run(before=go_on)
    assert away.journal.state.leader == "m"
    drive(follow(away.journal.view), away.store)
    assert away.journal.index == (63 if twice else 62)
    assert away.has_caught_up()


@pytest.mark.parametrize("behind", [3, 30])
def test_a_lost_snapshot_is_an_error_that_names_it(behind: int) -> None:
    author = Author(20)
    author.compact()
    author.write(behind)
    del author.store.objects[name(21)]
    with pytest.raises(StoreError, match=f"{name(21)} is missing"):
        Away(author, {}).run(limit=500)


def test_a_snapshot_that_is_replaced_while_it_is_read_is_not_a_loss() -> None:
    author = Author(20)
    author.compact()
    author.write(3)
    away = Away(author, {})

    def compact_again(_: int, effect: Effect) -> None:
        if effect == Read(name(21)) and author.journal.index == 24:
            author.compact()

    away.run(before=compact_again)
    assert away.has_caught_up()


def test_an_entry_that_falsely_claims_to_be_a_snapshot_is_never_jumped_to() -> None:
    """The journal is compacted while the first entries are requested, to something that is not a snapshot."""
    author = Author(60)
    away = Away(author, {})
    fake = author.journal.view.seal(Leader(61, "m"), "fake", snapshot=True)

    def compact_falsely(_: int, effect: Effect) -> None:
        if asks_for_first(effect) and author.journal.index == 60:
            author.journal.view.push(fake)
            away.store.objects.clear()
            away.store.objects[name(61)] = fake.data
            author.write(1)

    with pytest.raises(StoreError, match=f"{name(61)} is marked as a snapshot and is not one"):
        away.run(before=compact_falsely)
    assert away.journal.index == 0
