"""What the journal has ordered since a follower's position, in order: each commit and each restore is a step.

A follower learns the journal entry by entry, or it jumps to a SNAPSHOT that replaces entries it has not read. Then the
steps in between are found in the snapshot's state, as far as they are kept; what has expired is a gap.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from cutwater.protocol.base.chain import Sealed
from cutwater.protocol.base.records import (
    Checkpoint,
    Committed,
    Generation,
    JournalBody,
    Restored,
    Snapshot,
    Topology,
)
from cutwater.protocol.follower.followed import Position
from cutwater.protocol.member.journal import Journal, timeline


class Step(msgspec.Struct):
    """A commit, or a restore (`rewinds`), at the journal's entry `index`. `sinks` are those of the graph at that time, as
    far as it is known. `parent` is the epoch before it in its timeline. `abandoned`: a restore has gone back to before
    this epoch; if a sink has not published it by then, no sink ever will. `next_epoch`: later epochs are not decided
    yet at this entry; the lowest that it may be, if entries before it were skipped."""

    index: int
    epoch: int
    generation: int
    watermark: int | None
    next_epoch: int
    sinks: tuple[str, ...]
    rewinds: bool = False
    parent: int | None = None
    abandoned: bool = False


class Jump(msgspec.Struct, frozen=True):
    """The outcome of the epochs from `first` to before `end` was learnt from a snapshot, which has those in `known`."""

    first: int
    end: int
    known: frozenset[int]


class FollowedJournal(Journal):
    """The journal of a follower, and the steps after its position that it has not taken yet."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: list[Step] = []
        self._taken = 0
        """How many of them were taken."""
        self._last = 0
        """The index of the last step that was added, or of the position."""
        self._jumps: list[Jump] = []
        self._graph: Topology | None = None
        self._sinks: tuple[str, ...] = ()
        """The sinks of that graph."""

    def begin_after(self, position: Position) -> None:
        """Drops all steps up to a position."""
        self._last = max(self._last, position.index)
        self._steps = [step for step in self._waiting() if step.index > position.index]
        self._taken = 0

    @property
    def first(self) -> Step | None:
        """The next step, if there is one."""
        return self._steps[self._taken] if self._taken < len(self._steps) else None

    def take(self) -> None:
        """The next step is given or passed over."""
        self._taken += 1
        if 2 * self._taken > len(self._steps):  # so that the cost per step is small
            self._steps, self._taken = self._waiting(), 0

    def _waiting(self) -> list[Step]:
        return self._steps[self._taken :]

    def has_gap(self, next_epoch: int, step: Step) -> bool:
        """Whether epochs are missing between a step with this `next_epoch` and a later one. Asked in order."""
        self._jumps = [jump for jump in self._jumps if jump.end > next_epoch]
        end = step.next_epoch if step.rewinds else step.epoch
        return any(
            epoch not in jump.known
            for jump in self._jumps
            for epoch in range(max(next_epoch, jump.first), min(end, jump.end))
        )

    # --- entries ----------------------------------------------------------------------------------------

    def _on_entry(self, sealed: Sealed[JournalBody], jumped: bool) -> None:
        before = self.state
        undecided, generation = min(before.open, default=before.next_epoch), before.generation
        super()._on_entry(sealed, jumped)
        body, index = sealed.entry.body, sealed.entry.index
        if jumped and isinstance(body, Snapshot):
            self._jump(undecided, generation)
        elif isinstance(body, Committed):
            found = self.state.committed.get(body.epoch)
            if found is not None and found.index == index:
                self._add(self._commit_step(found))
        elif isinstance(body, Restored):
            began = self.state.generations.get(body.generation)
            if began is not None and began.index == index:
                self._abandon(body.epoch)
                self._add(self._restore_step(began, self.state.next_epoch))

    def _jump(self, undecided: int, generation: int) -> None:
        """Entries were skipped. Epochs from `undecided` on were not decided before; `generation` is the one before."""
        state = self.state
        line = {checkpoint.epoch for checkpoint in timeline(state)}
        for step in self._waiting():
            if not step.rewinds and generation != state.generation:
                # Of an expired epoch it is no longer known whether the restores in between have abandoned it.
                step.abandoned = step.epoch not in line
        known = frozenset((*state.committed, *state.open, *(aborted.epoch for aborted in state.aborted)))
        self._jumps.append(Jump(undecided, state.next_epoch, known))
        for step in sorted(self._kept_steps(), key=lambda step: step.index):
            step.abandoned = not step.rewinds and step.epoch not in line
            self._add(step)

    def _kept_steps(self) -> Iterator[Step]:
        """The steps that the state still has."""
        for checkpoint in self.state.committed.values():
            yield self._commit_step(checkpoint)
        for generation in self.state.generations.values():
            if generation.epoch is not None:
                earlier = [c.epoch for c in self.state.committed.values() if c.index < generation.index]
                yield self._restore_step(generation, max([generation.epoch, *earlier]) + 1)

    def _add(self, step: Step) -> None:
        if step.index > self._last:
            self._last = step.index
            self._steps.append(step)

    def _abandon(self, target: int) -> None:
        """Everything goes back to `target`. Steps that do not lead to it are abandoned; others no longer are."""
        parents = {step.epoch: step.parent for step in self._waiting() if not step.rewinds}
        line = set()
        epoch: int | None = target
        while epoch is not None and epoch in parents:
            line.add(epoch)
            epoch = parents[epoch]
        for step in self._waiting():
            step.abandoned = not step.rewinds and step.epoch not in line

    def _commit_step(self, found: Checkpoint) -> Step:
        return Step(
            found.index, found.epoch, found.generation, found.watermark, found.epoch + 1, self.sinks(),
            parent=found.parent,
        )  # fmt: skip

    def _restore_step(self, generation: Generation, next_epoch: int) -> Step:
        assert generation.epoch is not None
        target = self.state.committed.get(generation.epoch)
        watermark = target.watermark if target is not None else None
        return Step(
            generation.index, generation.epoch, generation.number, watermark, next_epoch, self.sinks(), rewinds=True,
        )  # fmt: skip

    def sinks(self) -> tuple[str, ...]:
        """The sinks of the current graph."""
        graph = self.state.topology
        if graph is not self._graph:
            self._graph, self._sinks = graph, tuple(sorted(graph.sinks())) if graph is not None else ()
        return self._sinks
