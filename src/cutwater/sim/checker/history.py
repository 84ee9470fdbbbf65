"""The checker's own interpretation of the journal, and whether each entry was allowed at its place.

Nothing is concluded from entries that were not recorded. After a gap, the next SNAPSHOT restores a known state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import assert_never

from cutwater.protocol.base import records as r
from cutwater.sim.checker.evidence import At, Findings, Log, Variant


@dataclass(slots=True)
class CommittedEpoch:
    """`parent` is the epoch committed before this one in its timeline."""

    epoch: int
    checkpoint_id: int
    index: int
    generation: int
    manifest: str
    watermark: int | None
    cuts: dict[str, int]
    parent: int | None
    lines: tuple[At, ...] = ()


@dataclass(slots=True)
class Restore:
    """The beginning of a generation. `target` is the index of the commit that it goes back to."""

    index: int
    epoch: int | None
    target: int
    parent: int | None
    topology: r.Topology | None


@dataclass(slots=True)
class History:
    """The history according to the journal, by index."""

    log: Log
    begun: dict[int, r.Begun] = field(default_factory=dict)
    """By checkpoint id."""
    over: dict[int, int] = field(default_factory=dict)
    """By epoch: the index at which it was aborted, voided or expired."""
    commits: dict[int, CommittedEpoch] = field(default_factory=dict)
    epochs: dict[int, CommittedEpoch] = field(default_factory=dict)
    generations: dict[int, Restore] = field(default_factory=dict)
    restores: dict[int, Restore] = field(default_factory=dict)
    gone_generations: dict[int, int] = field(default_factory=dict)
    topologies: dict[str, r.Topology] = field(default_factory=dict)
    aborted: int = 0
    void: int = 0
    open: dict[int, r.Begun] = field(default_factory=dict)

    def topology_of(self, checkpoint_id: int) -> r.Topology | None:
        """The graph for which a checkpoint was begun."""
        begun = self.begun.get(checkpoint_id)
        return self.topologies.get(begun.topology_hash) if begun is not None else None

    def line_before(self, commit: CommittedEpoch, after: int) -> list[CommittedEpoch]:
        """The ancestors of a commit, down to the index `after`."""
        found: list[CommittedEpoch] = []
        parent = commit.parent
        while parent in self.epochs and self.epochs[parent].index > after:
            found.append(self.epochs[parent])
            parent = found[-1].parent
        return found

    def restores_before(self, generation: int, after: int) -> list[Restore]:
        """The restores that led to a generation, down to the index `after`."""
        found: list[Restore] = []
        number: int | None = generation
        while number is not None and number in self.generations:
            restore = self.generations[number]
            if restore.index > after:
                found.append(restore)
            number = restore.parent
        return found


class Reader:
    """Reads the chain from beginning to end."""

    def __init__(self, log: Log, findings: Findings) -> None:
        self.history = History(log)
        self._findings = findings
        self._sure = True
        self._term = 0
        self._leader: str | None = None
        self._generation = 1
        self._next_epoch = 1
        self._topology: r.Topology | None = None
        self._kept: set[int] = set()
        self._head: int | None = None
        self._watermark: int | None = None
        self._savepoints: dict[str, int] = {}
        self._lines: tuple[At, ...] = ()
        """The lines that show the current entry."""
        self._index = 0

    def read(self) -> History:
        for index, variant in self.history.log.chain.items():
            if index != self._index + 1:
                self._sure, self._head, self._watermark = False, None, None
            self._index, self._lines = index, variant.lines
            self._entry(variant)
        return self.history

    def _wrong(self, rule: str, what: str, *more: At) -> None:
        self._findings.wrong(rule, f"journal entry {self._index}: {what}", *more, *self._lines)

    def _entry(self, variant: Variant) -> None:
        body: r.JournalBody = variant.entry.body
        if isinstance(body, r.Snapshot) and not self._sure:
            self._load(body.state)
            self._leader = None
        if isinstance(body, r.Leader):
            self._lead(body, variant.writer)
            return
        if not self._may_write(body, variant.writer):
            return
        match body:
            case r.TopologySet():
                self._set_topology(body.hash, body.topology)
                self._void_open()
            case r.Begun():
                self._begin(body)
            case r.Committed():
                self._commit(body)
            case r.Aborted():
                if self._close(body):
                    self.history.aborted += 1
                    self.history.over[body.epoch] = self._index
            case r.Restored():
                self._restore(body)
            case r.Expired():
                self._expire(body)
            case r.Savepoint():
                self._name(body)
            case r.Snapshot():
                self._compare(body.state)
            case _:
                assert_never(body)

    # --- writers --------------------------------------------------------------------------------------

    def _lead(self, body: r.Leader, writer: str) -> None:
        if body.term <= self._term:
            self._wrong("terms", f"term {body.term} begins, but term {self._term} began before")
            return
        if body.name not in (writer, writer.rpartition("-")[0]):
            self._wrong("leader", f"{writer} makes {body.name} the leader")
        self._term, self._leader = body.term, writer
        self._void_open()

    def _may_write(self, body: r.JournalBody, writer: str) -> bool:
        assert not isinstance(body, r.Leader)
        if body.term < self._term:
            self._wrong("fenced", f"{writer} writes in term {body.term}, but term {self._term} has begun")
            return False
        if body.term > self._term:
            if self._sure:
                self._wrong("leader", f"{writer} writes in term {body.term}, which nobody leads")
                return False
            self._term, self._leader = body.term, writer
        if self._leader is None:
            self._leader = writer
        if writer != self._leader:
            self._wrong("leader", f"{writer} writes in term {body.term}, which {self._leader} leads")
            return False
        wanted = self._generation + 1 if isinstance(body, r.Restored) else self._generation
        if body.generation != wanted:
            if self._sure or body.generation < wanted:
                self._wrong("fenced", f"its generation is {body.generation}, not {wanted}")
                return False
            self._generation += body.generation - wanted
        return True

    # --- epochs ---------------------------------------------------------------------------------------

    def _begin(self, body: r.Begun) -> None:
        if body.checkpoint_id != self._index:
            self._wrong("checkpoint-id", f"epoch {body.epoch} is begun with id {body.checkpoint_id}")
            return
        if body.epoch < self._next_epoch:
            self._wrong("one-fate", f"epoch {body.epoch} is begun, but its number was used before")
            return
        self._next_epoch = body.epoch + 1
        self.history.begun[self._index] = body
        self.history.open[body.epoch] = body

    def _close(self, body: r.Committed | r.Aborted) -> bool:
        """Returns whether this is the first decision about an open epoch."""
        begun = self.history.open.get(body.epoch)
        if begun is not None and begun.checkpoint_id == body.checkpoint_id:
            del self.history.open[body.epoch]
            return True
        history = self.history
        decided = body.epoch in history.over or body.epoch in history.epochs
        if decided or self._sure or body.checkpoint_id in history.log.chain:
            why = "which is not open"
            if body.epoch in history.epochs:
                why = f"which entry {history.epochs[body.epoch].index} committed"
            elif body.epoch in history.over:
                why = f"which ended with entry {history.over[body.epoch]}"
            verb = "commits" if isinstance(body, r.Committed) else "aborts"
            self._wrong("one-fate", f"it {verb} epoch {body.epoch}, {why}")
            return False
        self._findings.not_recorded["BEGUN of a decided epoch"] += 1
        return True

    def _commit(self, body: r.Committed) -> None:
        if not self._close(body):
            return
        before = self._watermark
        if self._sure and before is not None and (body.watermark is None or body.watermark < before):
            self._wrong("watermark", f"the watermark goes back from {before} to {body.watermark}")
        commit = CommittedEpoch(
            body.epoch,
            body.checkpoint_id,
            self._index,
            body.generation,
            body.manifest,
            body.watermark,
            body.cuts,
            self._head,
            self._lines,
        )
        self._keep(commit)
        self._head, self._watermark = body.epoch, body.watermark
        begun = self.history.begun.get(body.checkpoint_id)
        if begun is not None and begun.savepoint is not None:
            self._savepoints[begun.savepoint] = body.epoch

    def _keep(self, commit: CommittedEpoch) -> None:
        self._kept.add(commit.epoch)
        self.history.commits[commit.index] = self.history.epochs[commit.epoch] = commit

    def _void_open(self) -> None:
        for epoch in self.history.open:
            self.history.void += 1
            self.history.over[epoch] = self._index
        self.history.open = {}

    def _set_topology(self, hashed: str, topology: r.Topology) -> None:
        self._topology = self.history.topologies[hashed] = topology

    def _name(self, body: r.Savepoint) -> None:
        """A name that already belongs to another epoch stays with it."""
        has = self._savepoints.get(body.name)
        if body.kept and body.epoch in self._kept and has in (None, body.epoch):
            self._savepoints[body.name] = body.epoch
        elif not body.kept and has == body.epoch:
            del self._savepoints[body.name]

    # --- restores and expiry ----------------------------------------------------------------------------

    def _restore(self, body: r.Restored) -> None:
        target = self.history.epochs.get(body.epoch)
        if target is None or body.epoch not in self._kept:
            if self._sure:
                self._wrong("restored", f"it goes back to epoch {body.epoch}, which is not retained")
                return
            self._findings.not_recorded["target of a restore"] += 1
        elif not _is_cut(target.cuts, body):
            self._wrong("restored", f"it goes back to epoch {body.epoch}, but not to its cut", *target.lines)
        self._void_open()
        if body.topology is not None:
            self._set_topology(body.topology_hash, body.topology)
        restore = Restore(
            self._index,
            body.epoch,
            target.index if target is not None else 0,
            target.generation if target is not None else None,
            self._topology,
        )
        self._generation = body.generation
        self.history.generations[body.generation] = self.history.restores[self._index] = restore
        self._head = body.epoch
        self._watermark = target.watermark if target is not None else None

    def _expire(self, body: r.Expired) -> None:
        for epoch in body.epochs:
            if epoch == self._head:
                self._wrong("expired", f"epoch {epoch} expires, but a restart needs it")
            if self._sure and epoch in self._savepoints.values():
                self._wrong("expired", f"epoch {epoch} expires, but it is a savepoint")
            self._kept.discard(epoch)
            self.history.over.setdefault(epoch, self._index)
        for generation in body.generations:
            self.history.gone_generations.setdefault(generation, self._index)

    # --- compaction -----------------------------------------------------------------------------------

    def _load(self, state: r.JournalState) -> None:
        """Takes over the state of a SNAPSHOT, because the entries before it were not recorded."""
        history = self.history
        self._sure = True
        self._term, self._generation, self._next_epoch = state.term, state.generation, state.next_epoch
        self._head, self._watermark = state.head, state.watermark
        self._savepoints = dict(state.savepoints)
        if state.topology is not None:
            self._set_topology(state.topology_hash, state.topology)
        for epoch in [*self._kept, *history.open]:
            if epoch not in state.committed and epoch not in state.open:
                history.over.setdefault(epoch, self._index)  # at the latest
        self._kept = set()
        for c in state.committed.values():
            known = history.epochs.get(c.epoch)
            self._keep(known if known is not None else self._commit_of(c))
        for number, g in state.generations.items():
            if number not in history.generations and g.index:
                restore = Restore(g.index, g.epoch, g.transaction, g.parent, self._topology)
                history.generations[number] = history.restores[g.index] = restore
        history.open = dict(state.open)
        history.begun |= {begun.checkpoint_id: begun for begun in state.open.values()}

    def _commit_of(self, c: r.Checkpoint) -> CommittedEpoch:
        return CommittedEpoch(
            c.epoch,
            c.checkpoint_id,
            c.index,
            c.generation,
            c.manifest,
            c.watermark,
            c.cuts,
            c.parent,
            self._lines,
        )

    def _compare(self, state: r.JournalState) -> None:
        said: dict[str, object] = {
            "term": state.term,
            "generation": state.generation,
            "head": state.head,
            "watermark": state.watermark,
            "open epochs": sorted(state.open),
            "kept epochs": sorted(state.committed),
            "savepoints": state.savepoints,
        }
        mine = (
            self._term,
            self._generation,
            self._head,
            self._watermark,
            sorted(self.history.open),
            sorted(self._kept),
            self._savepoints,
        )
        for (what, theirs), own in zip(said.items(), mine, strict=True):
            if theirs != own:
                self._wrong("snapshot", f"it says {what} {theirs}, but the entries before it say {own}")


def _is_cut(cuts: Mapping[str, int], body: r.Restored) -> bool:
    """Whether a restore goes back to these cuts, except for the queries in which other stages run from then on."""
    if not body.moved:
        return cuts == body.forks
    return all(cuts.get(name) == batch for name, batch in body.forks.items() if name not in body.moved)
