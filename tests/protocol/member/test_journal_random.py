"""Random journals: one fate per epoch, and the same state from a snapshot."""

from __future__ import annotations

import copy
import random

import pytest

from cutwater.protocol.base.records import (
    Expired,
    JournalState,
    Snapshot,
)
from cutwater.protocol.member.journal import KEPT_ABORTED, Fate, Journal, apply, fate, is_void, timeline
from tests.support.scribe import Scribe, draw


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
        assert len(state.aborted) <= KEPT_ABORTED
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
