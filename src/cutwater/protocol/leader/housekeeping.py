"""What a leader does when nothing else is due: it expires checkpoints, deletes objects, and compacts the journal.

EXPIRED is in the journal before anything is deleted. The next leader can repeat everything here from the start: what to
delete is found by listing, not remembered.
"""

from __future__ import annotations

from cutwater.protocol.base.effects import Delete, List, Procedure, insist
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.events import ManifestUnreadable
from cutwater.protocol.base.log import AppendPhase, compact, follow, trim
from cutwater.protocol.base.paths import CHECKPOINT_PREFIX, MARK_PREFIX, mark_name, mark_of
from cutwater.protocol.base.records import Checkpoint, Manifest, Snapshot, settled
from cutwater.protocol.leader.lead import Lead
from cutwater.protocol.member.journal import Fate, fate
from cutwater.protocol.member.publish import read_manifest
from cutwater.protocol.member.retention import expire, is_leftover, named_objects


class Housekeeper:
    """The housekeeping of one term."""

    def __init__(self, leader: Lead, term: int, retained: int) -> None:
        self._leader = leader
        self._member = leader.member
        self._term = term
        self._retained = retained
        self._manifests: dict[int, Manifest] = {}
        self._damaged: set[int] = set()
        self._swept = False

    def do_next(self) -> Procedure[None]:
        """Does what is due, if anything."""
        if not self._swept:
            self._swept = True
            yield from trim(self._member.journal.view)
            yield from self._sweep()
        state = self._member.journal.state
        if len(state.committed) > self._retained + len(state.savepoints):
            yield from self._expire()
        if len(self._member.journal.view.entries) > self._member.config.compact_after:
            yield from self._compact()

    def _expire(self) -> Procedure[None]:
        state = self._member.journal.state
        marks = yield from insist(List(MARK_PREFIX))
        yield from self._load_all()
        if not self._leader.leads(self._term):
            return
        highest = settled(marks)
        body = expire(state, self._retained, highest, self._manifests)
        if body is None or not (yield from self._leader.record(self._term, lambda _: body)):
            return
        for epoch in body.epochs:
            self._manifests.pop(epoch, None)
        yield from self._sweep()
        kept = {mark_name(c.index, sink) for c in state.committed.values() for sink in highest}
        kept |= {mark_name(index, sink) for sink, index in highest.items()}
        stale = tuple(name for name in marks if mark_of(name) and name not in kept)
        if stale:
            yield from insist(Delete(stale))

    def _load_all(self) -> Procedure[None]:
        for epoch, checkpoint in list(self._member.journal.state.committed.items()):
            if epoch not in self._manifests and epoch not in self._damaged:
                yield from self._load(checkpoint)

    def _load(self, checkpoint: Checkpoint) -> Procedure[None]:
        """Reads a manifest. One that is damaged or missing cannot be restored, so it keeps nothing alive. This emits an
        event, and retention continues."""
        try:
            found = yield from read_manifest(checkpoint)
        except StoreError as error:
            found, why = None, str(error)
        else:
            why = "it is missing"
        if found is not None:
            self._manifests[checkpoint.epoch] = found
        elif fate(self._member.journal.state, checkpoint.epoch) is Fate.COMMITTED:
            self._damaged.add(checkpoint.epoch)
            self._member.observe(ManifestUnreadable(checkpoint.epoch, why))

    def _sweep(self) -> Procedure[None]:
        """Deletes the objects of epochs that are over: expired, aborted or void. What was in flight in one of them may
        still be in flight in a kept checkpoint after a restore to it."""
        names = yield from insist(List(CHECKPOINT_PREFIX))
        yield from self._load_all()
        if not self._leader.leads(self._term):
            return
        state = self._member.journal.state
        needed = named_objects(m for epoch, m in self._manifests.items() if epoch in state.committed)
        gone = tuple(n for n in names if is_leftover(state, n) and n not in needed)
        if gone:
            yield from insist(Delete(gone))

    def _compact(self) -> Procedure[None]:
        view, state = self._member.journal.view, self._member.journal.state
        if not self._leader.leads(self._term):  # the view may have moved on since this was found due
            return
        body = Snapshot(self._term, state.generation, state)
        if (yield from compact(view, body, self._member.nonce())) is not AppendPhase.MINE:
            yield from follow(view)
