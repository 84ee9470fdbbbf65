"""A member's catch-up: where it gets missing entries from, and that it ends with exactly the store's journal."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from cutwater.protocol.base.barrier import Barrier
from cutwater.protocol.base.effects import Effect, List, Read, ReadMany, Send
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.log import compact, follow
from cutwater.protocol.base.paths import JOURNAL_PREFIX, entry_name
from cutwater.protocol.base.records import JournalBody, Leader, Snapshot
from cutwater.protocol.base.replay_wire import AskRange, EntriesChunk, FetchEntries, HaveRange
from cutwater.protocol.base.wire import Announcement, Heartbeat, Phase
from cutwater.protocol.member.catchup import CatchUp
from cutwater.protocol.member.journal import Journal
from cutwater.protocol.replay.messages import CatchUpProgress, ReplayConfig
from tests.support.driver import Fault, Hook, Interrupt, Store, drive, every_moment

CONFIG = ReplayConfig(
    chunk_entries=20,
    chunk_bytes=8_000,
    anchor_bytes=16_000,
    buffer_bytes=32_000,
    timeout_ms=100,
    backoff_ms=50,
    max_attempts=3,
)
SMALL_GAP = 10


def name(index: int) -> str:
    return entry_name(JOURNAL_PREFIX, index)


class Author:
    """Writes the journal in the store: LEADER entries of `m`, one per term."""

    def __init__(self, count: int) -> None:
        self.store = Store()
        self.journal = Journal()
        self.write(count)

    def write(self, count: int) -> None:
        for _ in range(count):
            self._put(Leader(self.journal.state.term + 1, "m"))

    def compact(self) -> None:
        state = self.journal.state
        body = Snapshot(state.term, state.generation, state)
        drive(compact(self.journal.view, body, f"n{self.journal.index}"), self.store)

    def _put(self, body: JournalBody) -> None:
        sealed = self.journal.view.seal(body, f"n{self.journal.index}")
        self.store.objects[name(sealed.entry.index)] = sealed.data
        self.journal.view.push(sealed)


class Away:
    """A member that was away, with its clock, its peers (a journal, or `None` if dead), and the messages that it
    sent."""

    def __init__(
        self,
        author: Author,
        peers: dict[str, Journal | None],
        *,
        known: int = 0,
        config: ReplayConfig = CONFIG,
    ) -> None:
        self.author = author
        self.store = author.store
        self.peers = peers
        self.now_ms = 0
        self.waits: list[int] = []
        self.sent: list[Send] = []
        self.journal = Journal()
        for index in range(1, known + 1):
            self.journal.view.push(self.journal.view.open(name(index), self.store.objects[name(index)]))
        self.store.seen.clear()
        self.catch_up = CatchUp(self.journal, peers, config, SMALL_GAP, lambda: self.now_ms)

    def run(self, faults: Iterable[Fault] = (), before: Hook | None = None, limit: int = 10_000) -> None:
        drive(
            self.catch_up.run(),
            self.store,
            faults=faults,
            before=before,
            on_send=self._answer,
            on_wait=self._wait,
            limit=limit,
        )

    def _wait(self, ms: int) -> None:
        self.waits.append(ms)
        self.now_ms += ms

    def _answer(self, send: Send) -> None:
        self.sent.append(send)
        assert send.to is not None
        assert isinstance(send.message, AskRange | FetchEntries)
        peer = self.peers[send.to]
        if peer is not None:
            self.catch_up.on_message(send.to, peer.provider.answer(send.message))

    def fetched(self, peer: str) -> int:
        """How many entries were requested from a peer."""
        fetches = [s.message for s in self.sent if s.to == peer and isinstance(s.message, FetchEntries)]
        return sum(f.last - f.first + 1 for f in fetches)

    def has_caught_up(self) -> bool:
        """Whether it knows exactly what the author wrote, and can serve it."""
        mine, theirs = self.journal, self.author.journal
        served = mine.provider.serve(mine.index, mine.index, 1, 1 << 20)
        assert served == [self.store.objects[name(theirs.index)]]
        return (mine.index, mine.state) == (theirs.index, theirs.state) and self.catch_up.session is None


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


# --- compaction ---------------------------------------------------------------------------------------------


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


def asks_for_first(effect: Effect) -> bool:
    """Whether this reads entries from the store, beginning with the first."""
    return isinstance(effect, ReadMany) and effect.names[0] == name(1)


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
