"""The oracle's own interpretation of the durable logs: short, simple, and independent of the protocol's."""

from __future__ import annotations

from dataclasses import dataclass, field

from cutwater.protocol.base import records as r
from cutwater.protocol.base.barrier import Flags


@dataclass(slots=True)
class Kept:
    """A committed epoch that has not expired."""

    entry: r.Committed
    index: int
    flags: int
    parent: int | None


@dataclass(slots=True)
class Ledger:
    """The state according to the journal: one fate per epoch."""

    hashes: dict[int, str] = field(default_factory=dict)
    states: dict[int, tuple[object, ...]] = field(default_factory=dict)
    last: int = 0
    snapshot: int = 0
    term: int = 0
    leader: str = ""
    topology: r.Topology | None = None
    topology_hash: str = ""
    graphs: dict[int, r.Topology] = field(default_factory=dict)
    """The graph of each generation."""
    requests: dict[str, int | None] = field(default_factory=dict)
    """The requests that were carried out, each with its epoch."""
    generation: int = 1
    open: dict[int, r.Begun] = field(default_factory=dict)
    begun_ids: set[tuple[int, int]] = field(default_factory=set)
    used: set[int] = field(default_factory=set)
    kept: dict[int, Kept] = field(default_factory=dict)
    history: dict[int, Kept] = field(default_factory=dict)
    """Every epoch ever committed, whether expired or not."""
    by_index: dict[int, r.Committed | r.Restored] = field(default_factory=dict)
    head: int | None = None
    watermark: int | None = None
    forks: dict[int, r.Restored] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)
    expired: set[int] = field(default_factory=set)
    gone_generations: set[int] = field(default_factory=set)
    drained: bool = False
    drained_ms: int = 0
    floors: dict[str, int] = field(default_factory=dict)
    pinned: tuple[str, ...] = ()
    savepoints: dict[str, int] = field(default_factory=dict)
    aborted: list[tuple[int, int, r.Aborted]] = field(default_factory=list)
    """Every aborted checkpoint, with the time and the index of its entry."""

    def aborted_in_a_row(self, index: int) -> list[tuple[int, r.Aborted]]:
        """The checkpoints that were aborted after the newest commit or restore, each with its time, as somebody sees it
        who has read the journal up to `index`."""
        newest = max((i for i in self.by_index if i <= index), default=0)
        entry = self.by_index.get(newest)
        since = entry.checkpoint_id if isinstance(entry, r.Committed) else newest
        return [(ms, a) for ms, at, a in self.aborted if at <= index and a.checkpoint_id > since]

    def view(self) -> tuple[object, ...]:
        """The state that every member must derive at the same index."""
        return (
            self.term,
            self.generation,
            self.head,
            self.watermark,
            set(self.open),
            {epoch: (kept.index, kept.parent, kept.entry.cuts) for epoch, kept in self.kept.items()},
            dict(self.savepoints),
            self.floors,
            self.pinned,
            {1, *self.forks} - self.gone_generations,
            self.drained,
            self.topology_hash,
        )


@dataclass(slots=True)
class StageLedger:
    """The state according to a stage's log in one generation."""

    hashes: dict[int, str] = field(default_factory=dict)
    last_index: int = 0
    snapshot: int = 0
    incarnation: int = 0
    last: int = -1
    consumed: dict[str, int] = field(default_factory=dict)
    batches: dict[int, r.Batch] = field(default_factory=dict)
    barriers: dict[int, r.BarrierAt] = field(default_factory=dict)


def is_drain(begun: r.Begun) -> bool:
    return bool(begun.flags & Flags.DRAIN)


def member_view(state: r.JournalState) -> tuple[object, ...]:
    """The same as `Ledger.view`, for a member's derived state."""
    return (
        state.term,
        state.generation,
        state.head,
        state.watermark,
        set(state.open),
        {epoch: (kept.index, kept.parent, kept.cuts) for epoch, kept in state.committed.items()},
        state.savepoints,
        state.floors,
        state.pinned,
        set(state.generations),
        state.drained,
        state.topology_hash,
    )
