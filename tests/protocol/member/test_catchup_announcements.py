"""A member's catch-up while the journal grows, leaders change, and peers come and go."""

from __future__ import annotations

import msgspec

from cutwater.protocol.base.barrier import Barrier
from cutwater.protocol.base.effects import Effect, List
from cutwater.protocol.base.log import follow
from cutwater.protocol.base.records import Leader
from cutwater.protocol.base.replay_wire import AskRange, FetchEntries
from cutwater.protocol.base.wire import Announcement, Heartbeat, Phase
from tests.support.catchup_helpers import CONFIG, Author, Away, name
from tests.support.driver import Fault, drive


def test_the_initial_head_is_reached_even_if_the_journal_grows() -> None:
    author = Author(60)
    away = Away(author, {"a": author.journal})

    def grow(number: int, _: Effect) -> None:
        if number in (2, 3, 4):
            author.write(1)

    away.run(before=grow)
    assert away.journal.index >= 60
    drive(follow(away.journal.view), away.store)
    assert away.has_caught_up()


def announce(away: Away, *indexes: int, sender: str = "m", term: int = 1_000) -> None:
    for index in indexes:
        entry = msgspec.Raw(away.store.objects[name(index)])
        said = Announcement(Phase.PREPARE, Barrier(index, 1).pack(), term, 1, index, entry=entry)
        away.catch_up.on_announcement(sender, said)


def fetched_places(away: Away) -> set[int]:
    fetches = [s.message for s in away.sent if isinstance(s.message, FetchEntries)]
    return {place for f in fetches for place in range(f.first, f.last + 1)}


def test_what_is_announced_meanwhile_is_kept_aside_and_applied_in_the_same_session() -> None:
    author = Author(60)
    away = Away(author, {"a": author.journal})

    def grow(number: int, _: Effect) -> None:
        if away.catch_up.session is not None and author.journal.index == 60:
            author.write(2)
            announce(away, 61, 62)

    away.run(before=grow)
    assert away.has_caught_up()
    assert away.journal.index == 62
    assert fetched_places(away) == set(range(1, 61))
    ids = [s.message.request_id for s in away.sent if isinstance(s.message, AskRange | FetchEntries)]
    assert ids == sorted(set(ids))


def test_seed_d06_what_is_missing_between_announced_entries_is_fetched_in_the_same_session() -> None:
    author = Author(60)
    away = Away(author, {"a": author.journal})
    sessions = set()

    def grow(number: int, _: Effect) -> None:
        sessions.add(id(away.catch_up.session) if away.catch_up.session is not None else 0)
        if away.catch_up.session is not None and author.journal.index == 60:
            author.write(20)
            announce(away, 62, 80)

    away.run(before=grow)
    assert away.has_caught_up()
    assert len(sessions - {0}) == 1
    assert fetched_places(away) == set(range(1, 81)) - {62, 80}


def test_seed_d04_a_heartbeat_from_beyond_the_target_moves_it() -> None:
    author = Author(60)
    away = Away(author, {"a": author.journal})

    def grow(number: int, _: Effect) -> None:
        if away.catch_up.session is not None and author.journal.index == 60:
            author.write(40)
            away.catch_up.on_heartbeat(Heartbeat("m", "boot", 1_000, 100))

    away.run(before=grow)
    assert away.has_caught_up()
    assert fetched_places(away) == set(range(1, 101))


def test_an_announced_entry_that_the_store_does_not_have_is_never_applied() -> None:
    author = Author(60)
    away = Away(author, {"a": author.journal})
    forged = author.journal.view.seal(Leader(99, "stranger"), "forged")

    def lie(number: int, _: Effect) -> None:
        assert away.journal.state.leader != "stranger"
        said = Announcement(Phase.PREPARE, Barrier(61, 1).pack(), 99, 1, 61, entry=msgspec.Raw(forged.data))
        away.catch_up.on_announcement("stranger", said)

    away.run(before=lie)
    assert away.has_caught_up()


def test_what_was_announced_and_forged_is_replaced_by_the_journals_entry() -> None:
    author = Author(60)
    away = Away(author, {"a": author.journal})
    forged = author.journal.view.seal(Leader(99, "stranger"), "forged")

    def lie(number: int, _: Effect) -> None:
        if away.catch_up.session is not None and author.journal.index == 60:
            said = Announcement(
                Phase.PREPARE, Barrier(61, 1).pack(), 99, 1, 61, entry=msgspec.Raw(forged.data)
            )
            away.catch_up.on_announcement("a", said)
            author.write(1)

    away.run(before=lie)
    assert away.has_caught_up()
    assert away.journal.index == 61


def test_a_store_that_does_not_say_how_far_the_journal_goes_delays_the_end_only() -> None:
    author = Author(60)
    away = Away(author, {"a": author.journal})

    def grow(number: int, _: Effect) -> None:
        if away.catch_up.session is not None and author.journal.index == 60:
            author.write(1)
            announce(away, 61)

    away.run(faults=[Fault(List, nth=n) for n in range(2, 6)], before=grow)
    assert away.has_caught_up()


def test_seed_d11_when_another_member_leads_it_is_asked_last_and_no_work_is_lost() -> None:
    author = Author(200)
    away = Away(author, {"a": author.journal, "b": author.journal, "m": author.journal})
    leaders: list[str | None] = []

    def change(number: int, _: Effect) -> None:
        if (session := away.catch_up.session) is not None:
            leaders.append(session.sources.leader)
            announce(away, 200, sender="a", term=999)
            announce(away, 200, sender="m", term=500)
            announce(away, 200, sender="stranger", term=10**6)

    away.run(before=change)
    assert away.has_caught_up()
    assert leaders[-1] == "a"
    assert set(leaders) <= {None, "a"}
    assert fetched_places(away) == set(range(1, 200))  # 200 was announced
    assert sum(away.fetched(peer) for peer in "abm") == 199, "nothing is fetched twice"


def test_a_peer_that_the_links_have_lost_is_not_asked_until_it_is_back() -> None:
    author = Author(300)
    away = Away(author, {"a": author.journal, "b": author.journal})
    away.catch_up.on_presence("stranger", False)
    away.catch_up.on_presence("a", False)
    asked: list[int] = []

    def come(number: int, _: Effect) -> None:
        if away.fetched("b") >= 100 and not asked:
            asked.append(away.fetched("a"))
            away.catch_up.on_presence("a", True)

    away.run(before=come)
    assert away.has_caught_up()
    assert asked == [0]
    assert away.fetched("a") > 0


def test_what_a_peer_was_asked_for_that_is_gone_is_fetched_at_once_and_without_a_timeout() -> None:
    author = Author(300)
    away = Away(author, {"a": author.journal, "b": author.journal})

    def go(number: int, _: Effect) -> None:
        if away.fetched("a") and away.peers["a"] is not None:
            away.peers["a"] = None
            away.catch_up.on_presence("a", False)

    away.run(before=go)
    assert away.has_caught_up()
    assert away.now_ms < CONFIG.timeout_ms
