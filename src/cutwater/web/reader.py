"""Reads a store for the web server. What never changes is read once; the rest is followed, as a member follows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from threading import Lock
from typing import Any

import msgspec

from cutwater.api.tables import sinks_of
from cutwater.documents.explained import explained_document
from cutwater.documents.kept_checkpoints import FLAG_NAMES, KeptCheckpoint, state_files
from cutwater.documents.one_checkpoint import checkpoint_document
from cutwater.documents.status import status_document
from cutwater.documents.timestamps import iso, iso_ms
from cutwater.protocol.base import log
from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.records import Checkpoint, Generation, JournalState, Manifest
from cutwater.protocol.member.journal import Journal, timeline
from cutwater.runtime.timings import read_times
from cutwater.store.at_rest import drive, epoch_of, load_manifest, resolve
from cutwater.store.contract import Store
from cutwater.store.local import LocalStore
from cutwater.store.presence import Presence, Seen, Watch
from cutwater.store.status import Status
from cutwater.web.answers import unreadable
from cutwater.web.caches import Cache, Sizes
from cutwater.web.history import Epoch, History
from cutwater.web.marks import Marks
from cutwater.web.rows import EpochFacts, Row, generation_at, row_of

MAX_MANIFESTS = 300
MAX_ROWS = 20_000
SIZED_REMOTE = 5
"""For how many checkpoints of a list the sizes of state files are looked up in a bucket, where each costs a request."""

Statuses = Callable[[], list[Status]]


class SlowStore(Exception):
    """Another request is reading the store, and has not finished in time."""


@dataclass(frozen=True)
class StoreView:
    """What the store said at one moment. Immutable."""

    state: JournalState
    index: int
    members: tuple[Seen, ...]
    late: tuple[str, ...]
    on_timeline: frozenset[int]
    version: int
    """Changes whenever one of the fields above does."""


class StoreReader:
    """Documents about the pipeline on a store. Threads may share it. `statuses` asks members themselves."""

    def __init__(self, store: Store, statuses: Statuses | None = None) -> None:
        self.store = store
        self.is_local = isinstance(store, LocalStore)
        self._statuses = statuses
        self._is_prepared = False
        self._looking = Lock()
        self.history = History(store)
        self._forget(0)

    def _forget(self, version: int) -> None:
        """Start over: nothing is known about the store."""
        self.history = History(self.store, self.history.version + 1)
        self.sizes = Sizes(self.store)
        self._watch = Watch(self.store)
        self._journal = Journal()
        self._marks = Marks(self.store)
        self._manifests: Cache[tuple[int, int], Manifest] = Cache(MAX_MANIFESTS)
        self._rows: Cache[tuple[int, int], Row] = Cache(MAX_ROWS)
        self._additions: Cache[tuple[str, int], dict[str, int | None]] = Cache(MAX_ROWS)
        self._looked_at = float("-inf")
        self._view = StoreView(JournalState(), -1, (), (), frozenset(), version)

    # --- looking --------------------------------------------------------------------------------------

    def look(self, max_age_s: float = 0.0, patience_s: float = -1) -> StoreView:
        """What the store says now, or said at most `max_age_s` ago. Raises `StoreError` if it does not answer, and
        `SlowStore` if another thread is looking for `patience_s` longer (by default there is no limit)."""
        if not self._looking.acquire(timeout=patience_s):
            raise SlowStore
        try:
            if time.monotonic() - self._looked_at <= max_age_s:
                return self._view
            self._read_on()
            before = self._view
            state = before.state
            if self._journal.index != before.index:
                state = _frozen(self._journal.state)
                self._journal.provider.compact(self._journal.index)  # nobody asks it for entries
            members = tuple(self._members())
            late = tuple(self._marks.late(state))
            self.history.refresh(state)
            if (self._journal.index, members, late) != (before.index, before.members, before.late):
                kept = before.on_timeline
                if state is not before.state:
                    kept = frozenset(checkpoint.index for checkpoint in timeline(state))
                self._view = StoreView(state, self._journal.index, members, late, kept, before.version + 1)
            self._looked_at = time.monotonic()
            return self._view
        finally:
            self._looking.release()

    def _read_on(self) -> None:
        """Read the new entries of the journal. If the store was removed and created again, forget the old one."""
        is_replaced = drive(self.store, log.is_replaced(self._journal.view))
        if not is_replaced:
            drive(self.store, log.follow(self._journal.view))
            before, now = self._view.state.committed, self._journal.state.committed
            is_replaced = any(now[e].index != before[e].index for e in now.keys() & before.keys())
        if is_replaced:
            self._forget(self._view.version + 1)
            drive(self.store, log.follow(self._journal.view))

    def _members(self) -> list[Seen]:
        """The members. One that answers is running, whatever the store has of it."""
        seen = {one.status.member: one for one in self._watch.look()}
        for status in self._statuses() if self._statuses is not None else ():
            known = seen.get(status.member)
            if not status.is_over:
                seen[status.member] = Seen(status, Presence.RUNNING, True)
            elif known is not None and known.status.boot == status.boot:
                seen[status.member] = msgspec.structs.replace(known, status=status)
        return [seen[name] for name in sorted(seen)]

    # --- documents ------------------------------------------------------------------------------------

    def pipeline(self, view: StoreView) -> dict[str, Any]:
        """As `cutwater status --json`."""
        return status_document(self.store.url, view.members, view.state, view.late)

    def checkpoints(self, view: StoreView, limit: int, before: int | None, only: str = "") -> dict[str, Any]:
        """The epochs below `before`, newest first: those of `cutwater checkpoints --json`, and those that are over."""
        state, known = view.state, self.history.epochs
        aborted = {a.epoch: a for a in state.aborted}
        chosen = {
            "": lambda: known.keys() | state.committed.keys() | aborted.keys() | state.open.keys(),
            "kept": lambda: set(state.committed),
            "savepoints": lambda: set(state.savepoints.values()),
            "aborted": lambda: aborted.keys() | self.history.aborted,
        }[only]()
        numbers = sorted((n for n in chosen if before is None or n < before), reverse=True)
        shown = numbers[:limit]
        rows = [
            self._row(view, number, known.get(number), self.is_local or place < SIZED_REMOTE)
            for place, number in enumerate(shown)
        ]
        return {
            "store": self.store.url,
            "generation": state.generation,
            "head": state.head,
            "checkpoints": [row.document() for row in rows],
            "total": len(chosen),
            "next": shown[-1] if len(numbers) > limit else None,
            "figures": self._figures(state),
            "newest": _newest(state, aborted.keys() | self.history.aborted),
            "durations": self.history.durations(),
        }

    def _figures(self, state: JournalState) -> dict[str, Any]:
        """Counts and durations of all epochs that are known, here or in the journal."""
        figures = self.history.figures()
        reasons = dict(figures["aborted_by_reason"])
        for abort in state.aborted:
            if abort.epoch not in self.history.aborted:
                reasons[abort.reason] = reasons.get(abort.reason, 0) + 1
        return figures | {
            "committed": len(self.history.committed | state.committed.keys()),
            "aborted": sum(reasons.values()),
            "aborted_by_reason": dict(sorted(reasons.items())),
            "kept": len(state.committed),
            "restored": max(0, state.generation - 1),
        }

    def _row(self, view: StoreView, number: int, epoch: Epoch | None, with_sizes: bool) -> Row:
        state = view.state
        checkpoint = state.committed.get(number)
        abandoned = checkpoint is not None and checkpoint.index not in view.on_timeline
        savepoints = tuple(sorted(n for n, e in state.savepoints.items() if e == number))
        key = (number, checkpoint.checkpoint_id if checkpoint is not None else 0)
        known = self._rows.get(key)
        if known is not None and known.is_final:
            return msgspec.structs.replace(known, savepoints=savepoints, abandoned=abandoned)
        sinks = sinks_of(state)
        manifest, problem, published = None, "", {}
        if checkpoint is not None:
            manifest, problem = self._manifest_or_problem(checkpoint)
            published = self._marks.versions(checkpoint, sinks)
        parent = (
            state.committed.get(checkpoint.parent) if checkpoint and checkpoint.parent is not None else None
        )
        before = self._manifest_or_problem(parent)[0] if parent is not None else None
        facts = EpochFacts(
            number=number,
            begun=state.open.get(number),
            aborted=next((a for a in state.aborted if a.epoch == number), None),
            checkpoint=checkpoint,
            times=epoch,
            manifest=manifest,
            before=before,
            problem=problem,
            published=published,
        )
        row = row_of(facts, state, savepoints, abandoned, self.sizes if with_sizes else None)
        return self._rows.put(key, row)

    def checkpoint(self, view: StoreView, ref: str) -> dict[str, Any]:
        """As `cutwater show --json`, with what its epoch added to each table."""
        state = view.state
        checkpoint = resolve(state, ref)
        manifest, problem = self._manifest_or_problem(checkpoint)
        names = state_files(manifest) if manifest is not None else []
        lengths = self.sizes(names)
        sinks = sinks_of(state)
        one = KeptCheckpoint(
            checkpoint=checkpoint,
            manifest=manifest,
            problem=problem,
            times=read_times(self.store, checkpoint.epoch),
            savepoints=tuple(sorted(n for n, e in state.savepoints.items() if e == checkpoint.epoch)),
            abandoned=checkpoint.index not in view.on_timeline,
            state_files=len(names),
            state_bytes=None if None in lengths or manifest is None else sum(n or 0 for n in lengths),
            published=self._marks.versions(checkpoint, sinks),
        )
        return checkpoint_document(self.store, one, self.sizes)

    def explained(self, view: StoreView, ref: str) -> dict[str, Any]:
        """As `cutwater explain --json`, with the times of each stage and sink."""
        epoch = epoch_of(view.state, ref)
        return explained_document(self.store, view.state, epoch, read_times(self.store, epoch))

    def tables(self, view: StoreView, limit: int, before: int | None) -> dict[str, Any]:
        """The version set of every kept epoch, newest first; `epoch` and `tables` as `cutwater tables --json`."""
        state, sinks = view.state, sinks_of(view.state)
        line = sorted(
            (c for c in state.committed.values() if before is None or c.epoch < before),
            key=lambda c: c.epoch, reverse=True,
        )  # fmt: skip
        shown = line[:limit]
        sets = [self._version_set(view, checkpoint, sinks) for checkpoint in shown]
        epoch, versions = self._newest_versions(view)
        return {
            "store": self.store.url,
            "epoch": epoch,
            "tables": versions,
            "sinks": sinks,
            "epochs": sets,
            "next": shown[-1].epoch if len(line) > limit else None,
        }

    def _newest_versions(self, view: StoreView) -> tuple[int | None, dict[str, int]]:
        """The newest epoch that is published in every table, with its versions."""
        sinks = sinks_of(view.state)
        for checkpoint in reversed(timeline(view.state)):
            versions = self._marks.versions(checkpoint, sinks)
            if None not in versions.values():
                return checkpoint.epoch, {s: v for s, v in versions.items() if v is not None}
        return None, {}

    def _version_set(self, view: StoreView, checkpoint: Checkpoint, sinks: list[str]) -> dict[str, Any]:
        known = self.history.epochs.get(checkpoint.epoch)
        at = (
            known.begun_at + known.committed_s
            if known is not None and known.committed_s is not None
            else None
        )
        found: dict[str, Any] = {}
        for sink, mark in self._marks.of(checkpoint, sinks).items():
            if mark is None:
                found[sink] = None
                continue
            added = self._added(sink, mark.version) if mark.files or not mark.transaction else NOTHING_ADDED
            found[sink] = {"version": mark.version, **added}
        return {
            "epoch": checkpoint.epoch,
            "generation": checkpoint.generation,
            "committed_at": iso(at),
            "savepoints": sorted(n for n, e in view.state.savepoints.items() if e == checkpoint.epoch),
            "abandoned": checkpoint.index not in view.on_timeline,
            "watermark": iso_ms(checkpoint.watermark),
            "tables": found,
        }

    def timeline(self, view: StoreView, limit: int) -> dict[str, Any]:
        """The generations with the newest epochs that were committed on them, and every savepoint."""
        state, known = view.state, self.history.epochs
        expired = {n for n, e in known.items() if e.committed_s is not None} - state.committed.keys()
        everything = expired | state.committed.keys()
        forks = {g.epoch for g in state.generations.values() if g.epoch is not None}
        chosen = {*sorted(everything)[-limit:], *state.savepoints.values(), *(forks & everything)}
        return {
            "store": self.store.url,
            "generation": state.generation,
            "head": state.head,
            "drained": state.drained,
            "left_out": len(state.committed) - len(chosen & state.committed.keys()),
            "generations": [_branch(g) for g in sorted(state.generations.values(), key=lambda g: g.number)],
            "epochs": [
                point
                for number in sorted(chosen)
                if (point := _point(state, state.committed.get(number), known.get(number))) is not None
            ],
            "aborted": [
                {"epoch": a.epoch, "generation": a.generation, "reason": a.reason} for a in state.aborted
            ],
        }

    def prepare(self) -> None:
        """Imports what reads tables. It takes seconds, because it imports PySpark; until then their additions are
        unknown."""
        import cutwater.sinks.additions  # noqa: F401

        self._is_prepared = True

    def _added(self, sink: str, version: int) -> dict[str, int | None]:
        if not self._is_prepared:
            return UNKNOWN_ADDED
        return self._additions.get_or_make((sink, version), lambda: _look_up(self.store, sink, version))

    def _manifest_or_problem(self, checkpoint: Checkpoint) -> tuple[Manifest | None, str]:
        key = (checkpoint.epoch, checkpoint.checkpoint_id)
        try:
            return self._manifests.get_or_make(key, lambda: load_manifest(self.store, checkpoint)), ""
        except StoreError as error:
            return None, unreadable(error)


NOTHING_ADDED: dict[str, int | None] = {"files": 0, "rows": 0, "bytes": 0}
UNKNOWN_ADDED: dict[str, int | None] = {"files": None, "rows": None, "bytes": None}


def _look_up(store: Store, sink: str, version: int) -> dict[str, int | None]:
    # Imported late, because it imports PySpark (`prepare`).
    from cutwater.sinks.additions import addition
    from cutwater.sinks.records import description

    try:
        known = description(store, sink)
        found = addition(known, version) if known is not None else None
    except StoreError:
        found = None
    return msgspec.structs.asdict(found) if found is not None else UNKNOWN_ADDED


def _newest(state: JournalState, aborted: Collection[int]) -> dict[str, int | None]:
    """The newest epoch of each kind."""
    full = (n for n, c in reversed(state.committed.items()) if c.flags & Flags.FULL_SNAPSHOT)
    return {
        "committed": state.head,
        "savepoint": max(state.savepoints.values(), default=None),
        "full": next(full, None),
        "aborted": max(aborted, default=None),
        "restored": state.generations[state.generation].epoch
        if state.generation in state.generations
        else None,
    }


def _branch(generation: Generation) -> dict[str, Any]:
    return {
        "generation": generation.number,
        "parent": generation.parent,
        "epoch": generation.epoch,
        "forced": generation.force,
        "reset": list(generation.reset),
    }


def _point(state: JournalState, checkpoint: Checkpoint | None, epoch: Epoch | None) -> dict[str, Any] | None:
    """An epoch that was committed, on the timeline; `None` if its generation is not remembered."""
    found = checkpoint or epoch
    assert found is not None
    generation = (
        checkpoint.generation if checkpoint is not None else generation_at(state, found.checkpoint_id)
    )
    if generation is None:
        return None
    at = epoch.begun_at + epoch.committed_s if epoch is not None and epoch.committed_s is not None else None
    return {
        "epoch": found.epoch,
        "generation": generation,
        "committed_at": iso(at),
        "flags": [name for flag, name in FLAG_NAMES.items() if found.flags & flag],
        "savepoints": sorted(n for n, e in state.savepoints.items() if e == found.epoch),
        "kept": checkpoint is not None,
        "abandoned": not _leads_to_head(state, generation, found.epoch),
    }


def _leads_to_head(state: JournalState, generation: int, epoch: int) -> bool:
    """Whether an epoch of a generation is before the point at which the current timeline left that generation."""
    at, limit = state.generations.get(state.generation), state.next_epoch
    while at is not None:
        if at.number == generation:
            return epoch <= limit
        limit = at.epoch or 0
        at = state.generations.get(at.parent) if at.parent is not None else None
    return False


def _frozen(state: JournalState) -> JournalState:
    """A copy that does not change when the journal grows. What the state contains is immutable."""
    return msgspec.structs.replace(
        state,
        open=dict(state.open),
        committed=dict(state.committed),
        generations=dict(state.generations),
        savepoints=dict(state.savepoints),
        aborted=list(state.aborted),
        answers={},
    )


def known_ref(view: StoreView, ref: str) -> bool:
    """Whether a name or a number can be that of an epoch of this journal."""
    if ref == "latest":
        return view.state.head is not None
    if ref in view.state.savepoints:
        return True
    return ref.isascii() and ref.isdigit() and len(ref) < 16 and 0 < int(ref) < view.state.next_epoch
