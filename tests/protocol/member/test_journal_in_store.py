"""The journal in a store: leaders in a partition, restarts, and crashes at any effect."""

from __future__ import annotations

import itertools
import random

import msgspec
import pytest

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.effects import Create, Procedure, put
from cutwater.protocol.base.log import AppendPhase, append, compact, follow
from cutwater.protocol.base.paths import JOURNAL_PREFIX, entry_name, manifest_name
from cutwater.protocol.base.records import (
    JOURNAL,
    Aborted,
    Begun,
    Expired,
    JournalBody,
    JournalState,
    Leader,
    Restored,
    Snapshot,
)
from cutwater.protocol.member.journal import Fate, Journal, fate, timeline
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
from tests.support.scribe import Scribe, committed, draw


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
