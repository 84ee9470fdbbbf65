"""The meaning of the journal: one fate per epoch, void entries, restores, and the same state from a snapshot."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Callable

import msgspec
import pytest

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.chain import Sealed, digest
from cutwater.protocol.base.effects import Create, Procedure, put
from cutwater.protocol.base.log import AppendPhase, append, compact, follow
from cutwater.protocol.base.paths import JOURNAL_PREFIX, entry_name, manifest_name
from cutwater.protocol.base.records import (
    JOURNAL,
    Aborted,
    Begun,
    Committed,
    Expired,
    JournalBody,
    JournalState,
    Leader,
    Restored,
    Savepoint,
    Snapshot,
    StageSpec,
    Topology,
    TopologySet,
)
from cutwater.protocol.member.journal import KEPT_STORIES, Fate, Journal, apply, fate, is_void, timeline
from cutwater.protocol.member.publish import CommitPermit, RewindOrder, duties
from tests.support.driver import (
    Choose,
    Crashed,
    Outcome,
    Store,
    drive,
    drive_together,
    every_moment,
    every_run,
)

DRAIN, FULL = int(Flags.DRAIN), int(Flags.FULL_SNAPSHOT)
TOPOLOGY = Topology({"s": StageSpec("s", (), "m")})


class Scribe:
    """Writes a journal entry by entry, and knows its state. Nothing is stored."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.log: list[Sealed[JournalBody]] = []

    @property
    def state(self) -> JournalState:
        return self.journal.state

    @property
    def place(self) -> int:
        """The index of the next entry."""
        return self.journal.index + 1

    def write(self, body: JournalBody) -> None:
        view = self.journal.view
        sealed = view.seal(body, f"n{self.place}", snapshot=isinstance(body, Snapshot))
        self.log.append(JOURNAL.open(sealed.data))  # as a reader gets it, not the live state
        view.push(sealed)

    def lead(self, name: str = "m", term: int | None = None) -> None:
        self.write(Leader(term or self.state.term + 1, name))

    def begin(self, flags: int = 0, savepoint: str | None = None) -> Begun:
        state = self.state
        begun = Begun(state.term, state.generation, state.next_epoch, self.place, flags, "t", savepoint)
        self.write(begun)
        return begun

    def commit(self, begun: Begun | None = None, watermark: int | None = None) -> int:
        """Commits an epoch, or begins and commits the next. Returns its number. Its cut is `10 * epoch`."""
        begun = begun or self.begin()
        self.write(committed(begun, watermark))
        return begun.epoch

    def abort(self, begun: Begun, reason: str = "deadline") -> None:
        self.write(Aborted(begun.term, begun.generation, begun.epoch, begun.checkpoint_id, reason))

    def restore(self, epoch: int, *reset: str) -> None:
        cuts = self.state.committed[epoch].cuts
        self.write(Restored(self.state.term, self.state.generation + 1, epoch, cuts, reset))

    def expire(self, *epochs: int, generations: tuple[int, ...] = ()) -> None:
        state = self.state
        self.write(Expired(state.term, state.generation, epochs, generations, {"s": 7}, ("pinned",)))

    def snapshot(self) -> None:
        self.write(Snapshot(self.state.term, self.state.generation, self.state))


def committed(begun: Begun, watermark: int | None = None) -> Committed:
    cuts = {"s": 10 * begun.epoch}
    return Committed(begun.term, begun.generation, begun.epoch, begun.checkpoint_id, "hash", watermark, cuts)


def led() -> Scribe:
    """A scribe of a journal in its first term."""
    scribe = Scribe()
    scribe.lead()
    return scribe


def changes_nothing(scribe: Scribe, body: JournalBody) -> None:
    """Asserts that the entry is void, and that writing it does not change the state."""
    before = copy.deepcopy(scribe.state)
    assert is_void(scribe.state, body, scribe.place)
    scribe.write(body)
    assert scribe.state == before


# --- fates ------------------------------------------------------------------------------------------------


def test_an_epoch_is_unknown_then_open_then_committed_then_over_when_it_expires() -> None:
    scribe = led()
    assert fate(scribe.state, 1) is Fate.UNKNOWN
    begun = scribe.begin()
    assert fate(scribe.state, 1) is Fate.OPEN
    scribe.commit(begun)
    assert fate(scribe.state, 1) is Fate.COMMITTED
    scribe.commit()
    scribe.expire(1)
    assert fate(scribe.state, 1) is Fate.OVER
    assert fate(scribe.state, 3) is Fate.UNKNOWN


def test_an_aborted_epoch_is_over_and_its_details_are_kept() -> None:
    scribe = led()
    scribe.abort(scribe.begin(), "deadline")
    assert fate(scribe.state, 1) is Fate.OVER
    assert [(s.epoch, s.reason) for s in scribe.state.aborted] == [(1, "deadline")]
    assert scribe.state.head is None


def test_a_leader_voids_every_open_epoch_and_their_details_say_why() -> None:
    scribe = led()
    scribe.begin()
    scribe.begin()
    scribe.lead("other")
    assert scribe.state.open == {}
    assert [fate(scribe.state, e) for e in (1, 2, 3)] == [Fate.OVER, Fate.OVER, Fate.UNKNOWN]
    assert [(s.epoch, s.reason.lower()) for s in scribe.state.aborted] == [
        (1, "leader_changed"),
        (2, "leader_changed"),
    ]
    assert "other leads in term 2" in scribe.state.aborted[0].detail


def test_a_new_topology_voids_open_epochs() -> None:
    scribe = led()
    scribe.begin()
    scribe.write(TopologySet(1, 1, "t2", TOPOLOGY))
    assert fate(scribe.state, 1) is Fate.OVER
    assert (scribe.state.topology, scribe.state.topology_hash) == (TOPOLOGY, "t2")
    assert scribe.state.aborted[0].reason.lower() == "topology_changed"


def test_the_details_of_aborted_epochs_are_bounded_and_the_newest_are_kept() -> None:
    scribe = led()
    for _ in range(3 * KEPT_STORIES):
        scribe.abort(scribe.begin())
    assert [s.epoch for s in scribe.state.aborted] == list(range(2 * KEPT_STORIES + 1, 3 * KEPT_STORIES + 1))


# --- void entries -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("term", [1, 2, 0])
def test_a_leader_whose_term_is_not_newer_is_void(term: int) -> None:
    scribe = led()
    scribe.lead()
    changes_nothing(scribe, Leader(term, "late"))


def in_every_kind(term: int, generation: int, place: int, scribe: Scribe) -> list[JournalBody]:
    """One entry of each kind except LEADER that would be valid in the right term and generation."""
    begun = next(iter(scribe.state.open.values()))
    return [
        TopologySet(term, generation, "t2", TOPOLOGY),
        Begun(term, generation, scribe.state.next_epoch, place, 0, "t"),
        Committed(term, generation, begun.epoch, begun.checkpoint_id, "h", 1, {}),
        Aborted(term, generation, begun.epoch, begun.checkpoint_id, "deadline"),
        Savepoint(term, generation, "name", 1),
        Expired(term, generation, (1,), (), {}, ()),
        Restored(term, generation + 1, 1, {"s": 10}),
    ]


@pytest.mark.parametrize("kind", range(7))
@pytest.mark.parametrize(("term_off", "generation_off"), [(-1, 0), (1, 0), (0, -1), (0, 1)])
def test_an_entry_of_another_term_or_generation_is_void(
    kind: int, term_off: int, generation_off: int
) -> None:
    scribe = led()
    scribe.commit()
    scribe.lead()
    scribe.restore(1)
    scribe.begin()
    state = scribe.state
    right = in_every_kind(state.term, state.generation, scribe.place, scribe)[kind]
    assert not is_void(state, right, scribe.place)
    wrong = in_every_kind(state.term + term_off, state.generation + generation_off, scribe.place, scribe)
    changes_nothing(scribe, wrong[kind])


def test_an_epoch_number_is_never_reused() -> None:
    scribe = led()
    scribe.commit()
    scribe.abort(scribe.begin())
    scribe.begin()
    for epoch in (0, 1, 2, 3):
        changes_nothing(scribe, Begun(1, 1, epoch, scribe.place, 0, "t"))


def test_a_checkpoint_id_that_is_not_the_index_of_its_entry_is_void() -> None:
    scribe = led()
    for off in (-1, 1):
        changes_nothing(scribe, Begun(1, 1, 1, scribe.place + off, 0, "t"))


def test_a_decision_for_another_checkpoint_id_is_void() -> None:
    scribe = led()
    begun = scribe.begin()
    other = msgspec.structs.replace(begun, checkpoint_id=begun.checkpoint_id + 1)
    changes_nothing(scribe, committed(other))
    changes_nothing(scribe, Aborted(1, 1, 1, other.checkpoint_id, "deadline"))


def test_a_second_decision_is_void() -> None:
    scribe = led()
    begun = scribe.begin()
    scribe.commit(begun, watermark=5)
    changes_nothing(scribe, committed(begun, 6))
    changes_nothing(scribe, Aborted(1, 1, 1, begun.checkpoint_id, "deadline"))
    dropped = scribe.begin()
    scribe.abort(dropped)
    changes_nothing(scribe, committed(dropped))


def test_a_restore_that_names_an_uncommitted_epoch_or_skips_a_generation_is_void() -> None:
    scribe = led()
    scribe.commit()
    scribe.abort(scribe.begin())
    scribe.begin()
    for epoch in (2, 3, 4):
        changes_nothing(scribe, Restored(1, 2, epoch, {}))
    changes_nothing(scribe, Restored(1, 1, 1, {}))
    changes_nothing(scribe, Restored(1, 3, 1, {}))


# --- commits, restores, expiry, savepoints, drains ----------------------------------------------------------


def test_a_commit_becomes_the_head_and_remembers_its_parent() -> None:
    scribe = led()
    scribe.commit(watermark=100)
    begun = scribe.begin(FULL)
    place = scribe.place
    scribe.commit(begun, watermark=200)
    state = scribe.state
    assert (state.head, state.head_cuts, state.watermark) == (2, {"s": 20}, 200)
    checkpoint = state.committed[2]
    assert (checkpoint.index, checkpoint.checkpoint_id) == (place, begun.checkpoint_id)
    assert (checkpoint.parent, checkpoint.cuts) == (1, {"s": 20})
    assert checkpoint.flags == FULL


def test_a_restore_starts_a_generation_at_its_target_and_voids_open_epochs() -> None:
    scribe = led()
    scribe.commit(watermark=100)
    scribe.commit(watermark=200)
    scribe.commit(watermark=300)
    scribe.expire()
    scribe.begin()
    place = scribe.place
    scribe.restore(2)
    state = scribe.state
    assert state.generation == 2
    assert (state.head, state.head_cuts, state.watermark) == (2, {"s": 20}, 200)
    assert (state.floors, state.pinned) == ({}, ())
    assert fate(state, 4) is Fate.OVER
    assert state.aborted[-1].reason.lower() == "restored"
    generation = state.generations[2]
    assert (generation.index, generation.epoch, generation.parent) == (place, 2, 1)
    assert generation.transaction == state.committed[2].index
    assert [c.epoch for c in timeline(state)] == [1, 2]
    assert fate(state, 3) is Fate.COMMITTED  # abandoned, but it can still be restored

    assert scribe.commit() == 5
    assert [c.epoch for c in timeline(state)] == [1, 2, 5]


def test_the_resets_of_a_restore_apply_only_to_its_generation() -> None:
    scribe = led()
    scribe.commit()
    scribe.restore(1, "s", "t")
    scribe.restore(1)
    assert [generation.reset for generation in scribe.state.generations.values()] == [(), ("s", "t"), ()]


def test_a_restore_can_go_to_an_abandoned_epoch_and_back() -> None:
    scribe = led()
    for _ in range(3):
        scribe.commit()
    scribe.restore(1)
    scribe.commit()
    scribe.restore(3)
    assert scribe.state.generation == 3
    assert scribe.state.generations[3].parent == 1
    assert [c.epoch for c in timeline(scribe.state)] == [1, 2, 3]


@pytest.mark.parametrize("order", list(itertools.permutations((2, 3, 4))))
def test_expiry_links_children_to_the_remaining_ancestor(order: tuple[int, ...]) -> None:
    scribe = led()
    for _ in range(5):
        scribe.commit()
    scribe.expire(*order)
    assert [c.epoch for c in timeline(scribe.state)] == [1, 5]
    assert (scribe.state.floors, scribe.state.pinned) == ({"s": 7}, ("pinned",))
    scribe.expire(1, 99)
    assert [(c.epoch, c.parent) for c in timeline(scribe.state)] == [(5, None)]


def test_expiry_forgets_generations() -> None:
    scribe = led()
    scribe.commit()
    scribe.restore(1)
    scribe.commit()
    scribe.expire(1, generations=(1, 9))
    assert scribe.state.generations.keys() == {2}


def test_a_savepoint_gets_the_name_in_its_begun_entry_when_it_commits() -> None:
    scribe = led()
    begun = scribe.begin(FULL, "before-deploy")
    assert scribe.state.savepoints == {}
    scribe.commit(begun)
    assert scribe.state.savepoints == {"before-deploy": 1}
    scribe.abort(scribe.begin(FULL, "never"))
    assert scribe.state.savepoints == {"before-deploy": 1}


def test_a_savepoint_can_be_named_later_and_forgotten() -> None:
    scribe = led()
    scribe.commit()
    scribe.write(Savepoint(1, 1, "good", 1))
    scribe.write(Savepoint(1, 1, "nothing", 2))
    assert scribe.state.savepoints == {"good": 1}
    scribe.write(Savepoint(1, 1, "good", 1, kept=False))
    scribe.write(Savepoint(1, 1, "unheard-of", 1, kept=False))
    assert scribe.state.savepoints == {}
    assert fate(scribe.state, 1) is Fate.COMMITTED


def test_a_committed_drain_lasts_until_the_next_leader_or_restore() -> None:
    for go_on in (Scribe.lead, lambda scribe: scribe.restore(1)):
        scribe = led()
        begun = scribe.begin(DRAIN)
        assert not scribe.state.drained
        scribe.commit(begun)
        assert scribe.state.drained
        go_on(scribe)
        assert not scribe.state.drained


def test_an_aborted_drain_has_no_effect() -> None:
    scribe = led()
    scribe.abort(scribe.begin(DRAIN))
    assert not scribe.state.drained


# --- random journals ----------------------------------------------------------------------------------------


def draw(scribe: Scribe, rnd: random.Random) -> JournalBody:
    """An entry that a process might write here: mostly right, often late, sometimes wrong."""
    state = scribe.state
    term = state.term if rnd.random() < 0.9 else max(0, state.term + rnd.choice((-1, 1)))
    generation = state.generation if rnd.random() < 0.9 else max(1, state.generation + rnd.choice((-1, 1)))
    some_epoch = rnd.randint(max(1, state.next_epoch - 4), state.next_epoch)
    known = rnd.choice([*state.committed, some_epoch])
    if state.open and rnd.random() < 0.8:
        begun = rnd.choice(list(state.open.values()))
    else:
        begun = Begun(term, generation, some_epoch, rnd.randint(1, scribe.place), 0, "t")
    epoch, checkpoint_id = begun.epoch, begun.checkpoint_id
    if rnd.random() < 0.1:
        checkpoint_id += 1
    make: list[tuple[int, Callable[[], JournalBody]]] = [
        (2, lambda: Leader(state.term + rnd.choice((0, 1, 1, 2)), rnd.choice("abc"))),
        (1, lambda: TopologySet(term, generation, rnd.choice("xyz"), TOPOLOGY)),
        (
            10,
            lambda: Begun(
                term,
                generation,
                state.next_epoch + rnd.choice((0,) * 8 + (-1, 2)),
                scribe.place + rnd.choice((0,) * 8 + (-1, 1)),
                rnd.choice((0, 0, DRAIN, FULL)),
                "t",
                rnd.choice((None, None, "p", "q")),
            ),
        ),
        (
            10,
            lambda: Committed(
                term, generation, epoch, checkpoint_id, f"h{rnd.random()}", rnd.randint(0, 9), {"s": epoch}
            ),
        ),
        (3, lambda: Aborted(term, generation, epoch, checkpoint_id, "deadline")),
        (2, lambda: Savepoint(term, generation, rnd.choice("pqr"), known, rnd.random() < 0.7)),
        (2, lambda: Restored(term, generation + 1, known, {"s": known}, rnd.choice(((), ("s",))))),
        (2, lambda: Expired(term, generation, (known,), (), {"s": known}, (f"f{known}",))),
    ]
    weights = [weight for weight, _ in make]
    return rnd.choices([body for _, body in make], weights)[0]()


def fates(state: JournalState, epochs: int) -> list[Fate]:
    return [fate(state, epoch) for epoch in range(1, epochs)]


ALLOWED = {
    (Fate.UNKNOWN, Fate.OPEN),
    (Fate.UNKNOWN, Fate.OVER),  # a skipped number
    (Fate.OPEN, Fate.COMMITTED),
    (Fate.OPEN, Fate.OVER),
    (Fate.COMMITTED, Fate.OVER),
}


@pytest.mark.parametrize("seed", range(25))
def test_in_any_journal_every_epoch_has_one_fate_and_void_entries_change_nothing(seed: int) -> None:
    rnd = random.Random(seed)
    scribe = Scribe()
    void = 0
    decided: set[int] = set()
    for _ in range(150):
        state = scribe.state
        body = draw(scribe, rnd)
        before, was = copy.deepcopy(state), fates(state, 200)
        if is_void(state, body, scribe.place):
            void += 1
            scribe.write(body)
            assert state == before
            continue
        scribe.write(body)
        for epoch, (a, b) in enumerate(zip(was, fates(state, 200), strict=True), 1):
            assert a is b or (a, b) in ALLOWED
            if (a, b) == (Fate.COMMITTED, Fate.OVER):
                assert isinstance(body, Expired)
            if a is Fate.OPEN and b is not Fate.OPEN:
                assert epoch not in decided
                decided.add(epoch)
        assert state.term >= before.term
        assert state.generation >= before.generation
        assert state.next_epoch >= before.next_epoch
        assert len(state.aborted) <= KEPT_STORIES
        assert all(c.epoch in state.committed for c in timeline(state))
    assert void > 10
    assert len(decided) > 10


@pytest.mark.parametrize("seed", range(25))
def test_a_snapshot_and_the_following_entries_give_the_same_state_as_all_entries(seed: int) -> None:
    rnd = random.Random(seed)
    scribe = Scribe()
    scribe.lead()
    for _ in range(60):
        if rnd.random() < 0.1:
            scribe.snapshot()
        else:
            scribe.write(draw(scribe, rnd))
    snapshots = [n for n, sealed in enumerate(scribe.log) if isinstance(sealed.entry.body, Snapshot)]
    assert snapshots
    for start in snapshots:
        late = Journal()
        late.view.jump(scribe.log[start])
        for sealed in scribe.log[start + 1 :]:
            late.view.push(sealed)
        assert late.state == scribe.state
    plain = JournalState()
    for sealed in scribe.log:
        apply(plain, sealed.entry.body, sealed.entry.index)
    assert plain == scribe.state


# --- in the store -------------------------------------------------------------------------------------------


class Node:
    """A process with a journal that works on a store."""

    def __init__(self, store: Store, name: str) -> None:
        self.store = store
        self.name = name
        self.journal = Journal()
        self._nonces = itertools.count()

    @property
    def state(self) -> JournalState:
        return self.journal.state

    def record(self, body: JournalBody) -> Procedure[AppendPhase]:
        view = self.journal.view
        return append(view, view.seal(body, f"{self.name}-{next(self._nonces)}"))

    def write(self, body: JournalBody) -> AppendPhase:
        return drive(self.record(body), self.store)

    def begin(self) -> Procedure[Begun]:
        state = self.state
        begun = Begun(state.term, state.generation, state.next_epoch, self.journal.index + 1, 0, "t")
        yield from self.record(begun)
        return begun

    def compact(self) -> None:
        body = Snapshot(self.state.term, self.state.generation, self.state)
        drive(compact(self.journal.view, body, f"{self.name}-{next(self._nonces)}"), self.store)


def started(store: Store, name: str = "fresh") -> Node:
    """A newly started process that has read the journal."""
    node = Node(store, name)
    drive(follow(node.journal.view), store)
    return node


def leading(name: str = "m") -> Node:
    node = Node(Store(), name)
    node.write(Leader(1, name))
    return node


def run_epoch(node: Node, watermark: int | None = None) -> int:
    begun = drive(node.begin(), node.store)
    node.write(committed(begun, watermark))
    return begun.epoch


def writes_blindly(node: Node, body: JournalBody) -> Procedure[bool]:
    """A leader that writes its decision at the next free place without reading the journal first."""
    while (yield from node.record(body)) is not AppendPhase.MINE:
        yield from follow(node.journal.view)
    return fate(node.state, 1) is Fate.COMMITTED


def takes_over(node: Node) -> Procedure[None]:
    """Leads in term 2, whatever others write."""
    while node.state.term < 2:
        if (yield from node.record(Leader(2, node.name))) is not AppendPhase.MINE:
            yield from follow(node.journal.view)


def test_seed_a08_two_leaders_in_a_partition_cannot_both_decide() -> None:
    """In every interleaving, and with every fault of the old leader's write: its commit counts exactly if it came
    before the new leader's entry, it knows whether it does, and both arrive at the same journal."""
    outcomes_seen = set()

    def play(choose: Choose) -> None:
        store = Store()
        old = Node(store, "old")
        old.write(Leader(1, "old"))
        begun = drive(old.begin(), store)
        new = started(store, "new")
        commit = committed(begun)
        writers = [writes_blindly(old, commit), takes_over(new)]
        counts, _ = drive_together(writers, store, choose, outcomes=(None, *Outcome))
        drive(follow(new.journal.view), store)
        run_epoch(new)
        drive(follow(old.journal.view), store)
        assert old.state == new.state == started(store).state
        order = [JOURNAL.open(store.objects[name]).entry.body for name in store.names(JOURNAL_PREFIX)]
        first = order.index(commit) < order.index(Leader(2, "new"))
        assert (fate(new.state, 1) is Fate.COMMITTED) is counts is first
        assert [c.epoch for c in timeline(new.state)] == ([1, 2] if first else [2])
        outcomes_seen.add(first)

    assert every_run(play) > 100
    assert outcomes_seen == {True, False}


def test_seed_a09_leadership_lost_mid_epoch_decides_nothing() -> None:
    old = leading("old")
    begun = drive(old.begin(), old.store)
    new = started(old.store, "new")
    new.write(Leader(2, "new"))

    assert old.write(committed(begun)) is AppendPhase.TAKEN
    assert old.state.leader == "new"
    assert old.write(committed(begun)) is AppendPhase.MINE  # even if it does not stop, its entry is void

    for node in (old, started(old.store)):
        assert fate(node.state, 1) is Fate.OVER
        assert node.state.head is None
        assert duties(node.state, 0) == []  # and so no sink publishes it


def test_seed_a13_recovery_knows_a_decided_epoch_and_what_it_still_has_to_publish() -> None:
    node = leading()
    run_epoch(node)
    run_epoch(node)
    drive(node.begin(), node.store)
    after_the_first = node.state.committed[1].index

    fresh = started(node.store)
    assert [c.epoch for c in timeline(fresh.state)] == [1, 2]
    assert fresh.state.head_cuts == {"s": 20}
    assert [(type(d), d.epoch) for d in duties(fresh.state, 0)] == [(CommitPermit, 1), (CommitPermit, 2)]
    assert [d.epoch for d in duties(fresh.state, after_the_first)] == [2]
    assert duties(fresh.state, fresh.journal.index) == []

    fresh.write(Leader(2, "fresh"))
    assert [d.epoch for d in duties(fresh.state, after_the_first)] == [2]  # a decision survives its leader


def test_seed_a13_a_restore_is_a_duty_and_an_abandoned_epoch_is_not() -> None:
    node = leading()
    for _ in range(3):
        run_epoch(node)
    node.write(Restored(1, 2, 1, {"s": 10}))
    run_epoch(node)
    fresh = started(node.store)
    first, rewind, last = duties(fresh.state, 0)
    assert (first.epoch, rewind.epoch, last.epoch) == (1, 1, 4)
    assert isinstance(rewind, RewindOrder)
    assert rewind.transaction == first.index


def test_seed_a15_the_watermark_survives_a_restart_and_a_restore_sets_it_back() -> None:
    node = leading()
    run_epoch(node, 100)
    run_epoch(node, 250)
    assert started(node.store).state.watermark == 250
    node.compact()
    assert started(node.store).state.watermark == 250
    node.write(Leader(2, "m"))
    assert started(node.store).state.watermark == 250
    node.write(Restored(2, 2, 1, {"s": 10}))
    assert started(node.store).state.watermark == 100


def test_seed_d13_the_journal_is_not_kept_forever() -> None:
    node = leading()
    most = 0
    for number in range(1, 501):
        epoch = run_epoch(node)
        if epoch > 3:
            node.write(Expired(1, 1, (epoch - 3,), (), {"s": epoch}, ()))
        if number % 20 == 0:
            node.compact()
        most = max(most, len(node.store.objects))
    assert node.journal.index > 1_000
    assert most <= 3 * 20 + 1
    assert len(node.journal.view.entries) <= 3 * 20 + 1
    sizes = [len(data) for data in node.store.objects.values()]
    assert max(sizes) < 2_000  # nor does a snapshot grow
    assert started(node.store).state == node.state


@pytest.mark.parametrize("compacted", [False, True])
def test_seed_e06_numbering_continues_after_a_restart(compacted: bool) -> None:
    node = leading()
    run_epoch(node)
    begun = drive(node.begin(), node.store)
    node.write(Aborted(1, 1, begun.epoch, begun.checkpoint_id, "deadline"))
    drive(node.begin(), node.store)  # then it crashes with epoch 3 open
    if compacted:
        node.compact()

    fresh = started(node.store)
    assert fresh.state.next_epoch == 4
    fresh.write(Leader(2, "fresh"))
    again = drive(fresh.begin(), fresh.store)
    assert again.epoch == 4
    assert again.checkpoint_id == fresh.journal.index
    assert again.checkpoint_id > begun.checkpoint_id
    assert fate(fresh.state, 3) is Fate.OVER


@pytest.mark.parametrize("seed", range(5))
def test_seed_e07_nothing_is_only_in_memory(seed: int) -> None:
    """After every entry, a newly started process knows everything that the writer knows."""
    rnd = random.Random(seed)
    node = leading()
    scribe = Scribe()
    scribe.journal = node.journal  # draws from what the node knows
    for _ in range(60):
        if rnd.random() < 0.1:
            node.compact()
        else:
            node.write(draw(scribe, rnd))
        fresh = started(node.store)
        assert fresh.state == node.state
        assert fresh.journal.index == node.journal.index


def test_seed_e08_latest_is_never_partial() -> None:
    """A checkpoint crashes at any effect: the newest one that a new process knows is always complete."""
    heads = []

    def checkpoint(node: Node, manifest: bytes) -> Procedure[None]:
        begun = yield from node.begin()
        yield from put(manifest_name(begun.epoch, begun.checkpoint_id), manifest)
        body = msgspec.structs.replace(committed(begun), manifest=digest(manifest))
        yield from node.record(body)

    def play(moment: int) -> bool:
        node = leading()
        drive(checkpoint(node, b"first"), node.store)
        over = False
        try:
            drive(checkpoint(node, b"second"), node.store, crash_after=moment)
            over = True
        except Crashed:
            pass
        state = started(node.store).state
        assert state.head is not None
        latest = state.committed[state.head]
        found = node.store.objects[manifest_name(latest.epoch, latest.checkpoint_id)]
        assert digest(found) == latest.manifest
        assert all(c.manifest for c in timeline(state))
        heads.append(state.head)
        return not over

    assert every_moment(play) == 5
    assert heads == [1, 1, 1, 2, 2, 2]  # the creation of COMMITTED, the fourth effect, is the commit


def test_the_journal_serves_the_entries_that_it_has_read_and_after_a_jump_those_that_follow() -> None:
    node = leading()
    run_epoch(node)
    assert node.journal.provider.available() == (1, 3)
    node.compact()
    run_epoch(node)
    assert node.journal.provider.available() == (1, 6)
    fresh = started(node.store)
    assert fresh.journal.provider.available() == (4, 6)
    served = fresh.journal.provider.serve(4, 6, 10, 1 << 20)
    assert served == [node.store.objects[entry_name(JOURNAL_PREFIX, i)] for i in (4, 5, 6)]
    assert node.store.count(Create) == 6
