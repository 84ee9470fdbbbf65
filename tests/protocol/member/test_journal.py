"""The meaning of the journal: one fate per epoch, void entries, restores, and the same state from a snapshot."""

from __future__ import annotations

import itertools

import msgspec
import pytest

from cutwater.protocol.base.records import (
    Aborted,
    Begun,
    Committed,
    Expired,
    JournalBody,
    Leader,
    Restored,
    Savepoint,
    TopologySet,
)
from cutwater.protocol.member.journal import KEPT_ABORTED, Fate, fate, is_void, since_full, timeline
from tests.support.scribe import DRAIN, FULL, TOPOLOGY, Scribe, changes_nothing, committed, led

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
    for _ in range(3 * KEPT_ABORTED):
        scribe.abort(scribe.begin())
    assert [s.epoch for s in scribe.state.aborted] == list(range(2 * KEPT_ABORTED + 1, 3 * KEPT_ABORTED + 1))


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


def test_the_checkpoints_since_the_last_full_one_are_counted_on_this_timeline() -> None:
    scribe = led()
    assert since_full(scribe.state) == 0
    scribe.commit()
    assert since_full(scribe.state) == 1
    scribe.commit(scribe.begin(FULL))
    assert since_full(scribe.state) == 0
    scribe.commit()
    scribe.commit()
    assert since_full(scribe.state) == 2
    scribe.restore(1)
    assert since_full(scribe.state) == 1


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
