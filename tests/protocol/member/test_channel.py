"""The hold rule, and what a reader has not read yet."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cutwater.protocol.base import records as r
from cutwater.protocol.base.errors import InvariantBroken
from cutwater.protocol.member.channel import Channel, carried_batches, holds, readable
from tests.support.builders import (
    CHAIN,
    DIAMOND,
    Play,
    barrier,
    begun,
    committed,
    journal_of,
    manifest,
    stage_state,
)
from tests.support.examples import examples

LEADER = r.Leader(1, "m0")
TOPOLOGY = r.TopologySet(1, 1, "h", CHAIN)
OPEN = journal_of(LEADER, TOPOLOGY, begun(1, 3))
READER = stage_state(-1)


# A barrier that holds, and one that does not.


def test_an_open_epoch_that_the_reader_has_not_cut_holds_it_at_the_barrier() -> None:
    producer = stage_state(5, barrier(1, 3, at=2))
    assert holds(OPEN, READER, barrier(1, 3, at=2))
    assert readable(OPEN, READER, producer) == 2


def test_the_reader_passes_once_it_is_cut_itself() -> None:
    reader = stage_state(0, barrier(1, 3, at=0))
    assert readable(OPEN, reader, stage_state(5, barrier(1, 3, at=2))) == 5


def test_an_epoch_that_the_journal_does_not_know_holds() -> None:
    assert readable(OPEN, READER, stage_state(5, barrier(2, 9, at=1))) == 1


def test_without_any_journal_every_barrier_holds() -> None:
    assert readable(r.JournalState(), READER, stage_state(5, barrier(1, 3, at=-1))) == -1


@pytest.mark.parametrize(
    "fate",
    [
        pytest.param(r.Aborted(1, 1, 1, 3, "deadline"), id="aborted"),
        pytest.param(committed(1, 3), id="committed"),
        pytest.param(r.Leader(2, "m1"), id="void by a new leader"),
        pytest.param(r.TopologySet(1, 1, "other", CHAIN), id="void by a new topology"),
    ],
)
def test_a_decided_epoch_does_not_hold(fate: r.JournalBody) -> None:
    state = journal_of(LEADER, TOPOLOGY, begun(1, 3), fate)
    assert readable(state, READER, stage_state(5, barrier(1, 3, at=2))) == 5


def test_an_epoch_voided_by_a_restore_does_not_hold() -> None:
    restored = r.Restored(1, 2, 1, {"a": 0})
    state = journal_of(LEADER, TOPOLOGY, begun(1, 3), committed(1, 3), begun(2, 5), restored)
    assert readable(state, READER, stage_state(5, barrier(2, 5, at=2))) == 5


def test_an_expired_epoch_does_not_hold() -> None:
    expired = r.Expired(1, 1, (1,), (), {}, ())
    state = journal_of(LEADER, TOPOLOGY, begun(1, 3), committed(1, 3), expired)
    assert not holds(state, READER, barrier(1, 3, at=2))


def test_a_barrier_of_another_attempt_at_the_epoch_does_not_hold() -> None:
    assert readable(OPEN, READER, stage_state(5, barrier(1, 4, at=2))) == 5


def test_of_several_open_epochs_the_first_that_is_not_cut_holds() -> None:
    state = journal_of(LEADER, TOPOLOGY, begun(1, 3), begun(2, 4))
    producer = stage_state(9, barrier(1, 3, at=3), barrier(2, 4, at=6))
    assert readable(state, READER, producer) == 3
    assert readable(state, stage_state(0, barrier(1, 3, at=0)), producer) == 6
    assert readable(state, stage_state(0, barrier(2, 4, at=0)), producer) == 3
    assert readable(state, stage_state(0, barrier(1, 3, at=0), barrier(2, 4, at=0)), producer) == 9


def test_a_barrier_after_the_last_batch_delays_nothing() -> None:
    assert readable(OPEN, READER, stage_state(5, barrier(1, 3, at=5))) == 5


@pytest.mark.slow
@given(st.data())
@examples(150)
def test_a_reader_that_knows_less_never_reads_further(data: st.DataObject) -> None:
    """Within one history, older versions of the journal, the producer's log and the own log allow no more than the
    newest ones."""
    play = data.draw(histories())
    for reader, spec in play.topology.stages.items():
        for producer in spec.inputs:
            full = readable(play.state, play.stages[reader], play.stages[producer])
            old = readable(
                play.journal_at(data.draw(st.integers(0, len(play.entries)))),
                play.stage_at(reader, data.draw(st.integers(0, len(play.logs[reader])))),
                play.stage_at(producer, data.draw(st.integers(0, len(play.logs[producer])))),
            )
            assert old <= full


@st.composite
def histories(draw: st.DrawFn) -> Play:
    """A pipeline that has run for a while, with epochs of every fate."""
    play = Play(draw(st.sampled_from([CHAIN, DIAMOND])))
    names = sorted(play.topology.stages)
    for _ in range(draw(st.integers(0, 40))):
        name = draw(st.sampled_from(names))
        match draw(st.sampled_from(["batch", "batch", "batch", "cut", "begin", "abort", "commit", "expire"])):
            case "batch":
                play.batch(name, draw(st.integers(0, 3)), draw(st.booleans()))
            case "cut":
                play.cut(name, draw(st.booleans()))
            case "begin":
                play.begin()
            case "abort":
                play.abort()
            case "commit":
                play.cut_all(draw(st.sets(st.sampled_from(names))))
                play.commit()
            case _:
                play.expire(draw(st.integers(1, 2)))
    return play


# Unread batches.


def test_seed_c03_what_was_held_comes_out_in_the_order_of_the_log_however_it_became_known() -> None:
    producer = stage_state(8, barrier(1, 3, at=2))
    reader = stage_state(0, barrier(1, 3, at=0))
    batches = list(producer.batches.items())
    for seed in range(6):
        random.Random(seed).shuffle(batches)
        producer.batches = dict(batches)
        released = Channel(producer, {}).unread(2, readable(OPEN, reader, producer))
        assert list(released) == [3, 4, 5, 6, 7, 8]


def test_seed_c04_a_cut_clears_nothing_that_arrived_after_alignment() -> None:
    producer = stage_state(5, barrier(1, 3, at=2))
    assert list(Channel(producer, {}).unread(2, readable(OPEN, READER, producer))) == []
    cut = stage_state(0, barrier(1, 3, at=0))
    assert list(Channel(producer, {}).unread(2, readable(OPEN, cut, producer))) == [3, 4, 5]


def test_empty_batches_are_not_read() -> None:
    channel = Channel(stage_state(4, empty=[1, 2]), {})
    assert channel.unread(-1, 4) == {0: ("file0",), 3: ("file3",), 4: ("file4",)}
    assert channel.unread(0, 2) == {}


def test_batches_from_before_a_fork_come_from_the_checkpoint() -> None:
    forked = r.StageState(1, 7, batches={7: stage_state(7).batches[7]})
    channel = Channel(forked, {5: ("old5",), 6: ("old6",)})
    assert channel.unread(4, 7) == {5: ("old5",), 6: ("old6",), 7: ("file7",)}
    assert channel.unread(5, 6) == {6: ("old6",)}


def test_the_log_takes_precedence_over_carried_batches() -> None:
    assert Channel(stage_state(1), {1: ("carried",)}).between(0, 1) == {1: ("file1",)}


def test_a_batch_before_the_known_range_is_an_error_not_an_empty_batch() -> None:
    with pytest.raises(InvariantBroken, match=r"batch 3 is requested .*nor the newest checkpoint has it"):
        Channel(r.StageState(1, 7), {2: ("x",)}).unread(1, 7)


def test_carried_batches_without_rows_are_known_and_empty() -> None:
    assert Channel(r.StageState(1, 3), {2: ("x",), 3: ()}).unread(1, 3) == {2: ("x",)}


def test_a_batch_that_is_not_known_yet_is_an_error_not_an_empty_batch() -> None:
    channel = Channel(stage_state(4), {})
    with pytest.raises(InvariantBroken, match=r"batch 5 is requested .* known to 4, nor"):
        channel.unread(2, 6)


def test_nothing_is_unread_for_a_reader_beyond_the_requested_range() -> None:
    assert Channel(stage_state(4), {}).unread(6, 6) == {}
    assert Channel(stage_state(4), {}).unread(3, 1) == {}


def test_carried_batches_are_only_those_of_the_channel() -> None:
    flights = [
        r.InFlight("a", "b", 1, 3, {2: ("x",), 3: ("y",)}),
        r.InFlight("a", "c", 2, 3, {3: ("y",)}),
    ]
    found = manifest(1, 3, in_flight=flights)
    assert carried_batches(found, "b", "a") == {2: ("x",), 3: ("y",)}
    assert carried_batches(found, "c", "a") == {3: ("y",)}
    assert carried_batches(found, "d", "b") == {}
    assert carried_batches(None, "b", "a") == {}
