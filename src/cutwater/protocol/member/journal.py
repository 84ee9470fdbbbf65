"""What the journal means: its state, derived by applying its entries in order.

Creating a COMMITTED entry *is* the commit. An entry is void, and changes nothing, if its term or its generation is not
the current one at its place: so what a former leader writes after it wakes up has no effect. Every epoch has one fate.
It is open from its BEGUN; then it is committed, aborted, or void because a LEADER or RESTORED entry came in between.
"""

from __future__ import annotations

from enum import Enum
from typing import assert_never

import msgspec

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.chain import Sealed
from cutwater.protocol.base.events import (
    EpochAborted,
    EpochBegun,
    EpochCommitted,
    Event,
    LeaderChanged,
    Observe,
    PipelineRestored,
    ignore,
)
from cutwater.protocol.base.failures import FailureReason
from cutwater.protocol.base.log import LogView
from cutwater.protocol.base.paths import JOURNAL_PREFIX
from cutwater.protocol.base.records import (
    JOURNAL,
    Aborted,
    Begun,
    Checkpoint,
    Committed,
    Expired,
    Generation,
    JournalBody,
    JournalState,
    Leader,
    Restored,
    Savepoint,
    Snapshot,
    TopologySet,
)
from cutwater.protocol.replay.provider import Provider

KEPT_ABORTED = 20
"""How many aborted epochs the state remembers, for `explain`; older ones are dropped."""

KEPT_ANSWERS = 100
"""How many requests the state remembers as carried out. A leader repeats an unanswered request within seconds; so many
others come in between only if users send more than the journal can take."""


class Fate(Enum):
    """The state of an epoch, as far as this journal is known."""

    UNKNOWN = "unknown"
    OPEN = "open"
    COMMITTED = "committed"
    OVER = "over"
    """Aborted, void, or committed and expired since: it holds nobody back, and is final."""


def fate(state: JournalState, epoch: int) -> Fate:
    """The fate of an epoch. An epoch that has not begun in this journal is unknown, not over."""
    if epoch >= state.next_epoch:
        return Fate.UNKNOWN
    if epoch in state.open:
        return Fate.OPEN
    return Fate.COMMITTED if epoch in state.committed else Fate.OVER


def is_void(state: JournalState, body: JournalBody, index: int) -> bool:
    """Whether an entry at `index` has no effect, given the state before it."""
    if isinstance(body, Leader):
        return body.term <= state.term
    if body.term != state.term:
        return True
    if isinstance(body, Restored):
        return body.generation != state.generation + 1 or body.epoch not in state.committed
    if body.generation != state.generation:
        return True
    if isinstance(body, Begun):
        return body.epoch < state.next_epoch or body.checkpoint_id != index
    if isinstance(body, Committed | Aborted):
        begun = state.open.get(body.epoch)
        return begun is None or begun.checkpoint_id != body.checkpoint_id
    if isinstance(body, Savepoint):
        return not may_name(state, body)
    if isinstance(body, TopologySet | Expired | Snapshot):
        return False
    assert_never(body)


def may_name(state: JournalState, body: Savepoint) -> bool:
    """Whether a savepoint can have this name: its epoch is kept, and no other epoch has the name, since that one would
    then expire. A name can only be removed from the epoch that has it."""
    if not body.kept:
        return state.savepoints.get(body.name) == body.epoch
    return body.epoch in state.committed and state.savepoints.get(body.name, body.epoch) == body.epoch


def apply(state: JournalState, body: JournalBody, index: int, observe: Observe = ignore) -> None:
    """Applies the entry at `index` to the state, unless it is void, and emits what that makes happen."""
    if is_void(state, body, index):
        return
    match body:
        case Leader():
            state.term, state.leader = body.term, body.name
            state.drained = state.drained and not body.resumes
            _void_open(state, FailureReason.LEADER_CHANGED, f"{body.name} leads in term {body.term}", observe)
            observe(LeaderChanged(body.term, body.name))
        case TopologySet():
            state.topology, state.topology_hash = body.topology, body.hash
            _void_open(state, FailureReason.TOPOLOGY_CHANGED, "", observe)
        case Begun():
            state.open[body.epoch] = body
            state.next_epoch = body.epoch + 1
            observe(begun_event(state, body))
        case Committed():
            _commit(state, state.open.pop(body.epoch), body, index)
            observe(EpochCommitted(body.epoch, body.watermark))
        case Aborted():
            del state.open[body.epoch]
            _remember(state, body)
            _answer(state, body.request, None)
            observe(EpochAborted(body.epoch, body.reason, body.detail, False))
        case Savepoint():
            _name(state, body)
            _answer(state, body.request, body.epoch)
        case Restored():
            _void_open(state, FailureReason.RESTORED, f"everything went back to epoch {body.epoch}", observe)
            _restore(state, body, index)
            _answer(state, body.request, body.epoch)
            observe(PipelineRestored(body.epoch, body.generation))
        case Expired():
            _expire(state, body)
        case Snapshot():
            pass
        case _:
            assert_never(body)


def _commit(state: JournalState, begun: Begun, body: Committed, index: int) -> None:
    state.committed[body.epoch] = Checkpoint(
        epoch=body.epoch,
        checkpoint_id=body.checkpoint_id,
        generation=body.generation,
        index=index,
        flags=begun.flags,
        manifest=body.manifest,
        watermark=body.watermark,
        cuts=body.cuts,
        parent=state.head,
    )
    state.head, state.head_cuts, state.watermark = body.epoch, body.cuts, body.watermark
    if begun.savepoint is not None:
        state.savepoints[begun.savepoint] = body.epoch
    state.drained = bool(begun.flags & Flags.DRAIN)
    for request in begun.requests:
        _answer(state, request, body.epoch)


def _answer(state: JournalState, request: str, epoch: int | None) -> None:
    if request:
        state.answers[request] = epoch
        for old in list(state.answers)[:-KEPT_ANSWERS]:
            del state.answers[old]


def _name(state: JournalState, body: Savepoint) -> None:
    if body.kept:
        state.savepoints[body.name] = body.epoch
    else:
        del state.savepoints[body.name]


def _restore(state: JournalState, body: Restored, index: int) -> None:
    target = state.committed[body.epoch]
    state.generation = body.generation
    state.generations[body.generation] = Generation(
        body.generation,
        index,
        body.epoch,
        target.generation,
        target.index,
        body.forks,
        body.reset,
        body.force,
        body.moved,
    )
    if body.topology is not None:
        state.topology, state.topology_hash = body.topology, body.topology_hash
    state.head, state.head_cuts, state.watermark = body.epoch, body.forks, target.watermark
    state.floors, state.pinned = {}, ()
    state.drained = False


def _expire(state: JournalState, body: Expired) -> None:
    for epoch in body.epochs:
        gone = state.committed.pop(epoch, None)
        if gone is None:
            continue
        for child in list(state.committed.values()):
            if child.parent == epoch:
                state.committed[child.epoch] = msgspec.structs.replace(child, parent=gone.parent)
    for number in body.generations:
        state.generations.pop(number, None)
    state.floors, state.pinned = body.floors, body.pinned


def _void_open(state: JournalState, reason: FailureReason, detail: str, observe: Observe) -> None:
    for begun in state.open.values():
        _remember(
            state,
            Aborted(begun.term, begun.generation, begun.epoch, begun.checkpoint_id, reason.value, detail),
        )
        observe(EpochAborted(begun.epoch, reason.value, detail, True))
    state.open = {}


def _remember(state: JournalState, aborted: Aborted) -> None:
    state.aborted = [*state.aborted, aborted][-KEPT_ABORTED:]


def begun_event(state: JournalState, begun: Begun) -> EpochBegun:
    """The event for the beginning of a checkpoint that is open in this state."""
    return EpochBegun(begun.epoch, begun.checkpoint_id, begun.flags, begun.savepoint, state.leader or "")


def skipped_events(before: JournalState, after: JournalState) -> list[Event]:
    """The events of a jump to a snapshot: the outcome of the epochs that were open, and those that are open now."""
    events: list[Event] = []
    aborted = {body.epoch: body for body in after.aborted}
    for epoch in sorted(before.open.keys() - after.open.keys()):
        if epoch in after.committed:
            events.append(EpochCommitted(epoch, after.committed[epoch].watermark))
        elif epoch in aborted:
            events.append(EpochAborted(epoch, aborted[epoch].reason, aborted[epoch].detail, False))
    if after.generation != before.generation:
        forked = after.generations.get(after.generation)
        if forked is not None and forked.epoch is not None:
            events.append(PipelineRestored(forked.epoch, after.generation))
    if after.term != before.term:
        events.append(LeaderChanged(after.term, after.leader or ""))
    opened = sorted(after.open.keys() - before.open.keys())
    return [*events, *(begun_event(after, after.open[epoch]) for epoch in opened)]


def timeline(state: JournalState) -> list[Checkpoint]:
    """The kept committed epochs that lead to the head, oldest first. Other epochs are abandoned."""
    line: list[Checkpoint] = []
    epoch = state.head
    while epoch is not None and epoch in state.committed:
        line.append(state.committed[epoch])
        epoch = line[-1].parent
    line.reverse()
    return line


def since_full(state: JournalState) -> int:
    """How many checkpoints have committed since the last full one, as far as they are kept."""
    line = timeline(state)
    full = [number for number, checkpoint in enumerate(line) if checkpoint.flags & Flags.FULL_SNAPSHOT]
    return len(line) - full[-1] - 1 if full else len(line)


def _copy(state: JournalState) -> JournalState:
    return msgspec.json.decode(msgspec.json.encode(state), type=JournalState)


class Journal:
    """The journal as one process knows it: the view of the log, the state derived from it, and what it can serve to
    others. `observe` is given the events of new entries."""

    def __init__(self) -> None:
        self.state = JournalState()
        self.observe: Observe = ignore
        self.provider = Provider()
        self.view: LogView[JournalBody] = LogView(JOURNAL_PREFIX, JOURNAL, Snapshot, self._on_entry)

    @property
    def index(self) -> int:
        """The index of the last known entry."""
        return self.view.last

    def _on_entry(self, sealed: Sealed[JournalBody], jumped: bool) -> None:
        entry = sealed.entry
        self.provider.append(entry.index, [sealed.data])
        if jumped and isinstance(entry.body, Snapshot):
            before, self.state = self.state, _copy(entry.body.state)
            for event in skipped_events(before, self.state):
                self.observe(event)
        else:
            apply(self.state, entry.body, entry.index, self.observe)
