"""When what happened to each epoch, as this process saw it: for `explain`, for the log, for the live view.

The protocol knows no clock, so this is not part of any record that counts; it is written beside them, as
`explain/<epoch>.json` by the leader and `explain/<epoch>-<member>.json` by every other member for its own stages
and sinks, and losing it loses nothing.
"""

from __future__ import annotations

import time
from threading import Lock

import msgspec

from cutwater.protocol.base.barrier import Flags
from cutwater.protocol.base.durations import readable
from cutwater.protocol.base.paths import (
    EXPLAIN_PREFIX,
    journal_entry_of,
    manifest_of,
    mark_of,
    notes_name,
    notes_of,
    notes_prefix,
    stage_entry_of,
)
from cutwater.protocol.base.records import (
    JOURNAL,
    STAGE,
    Aborted,
    BarrierAt,
    Begun,
    Committed,
    JournalState,
    Published,
    decode,
)
from cutwater.store.contract import Store

KEPT = 50
"""Epochs whose notes are kept; why one was aborted is in the journal for longer."""
SURPLUS = 10
"""Older notes that may lie about, so that not every epoch deletes one."""


class StageTime(msgspec.Struct):
    """When a stage was cut, in seconds after the epoch was begun, and where."""

    cut_s: float
    batch: int
    unaligned: bool


class EpochTimes(msgspec.Struct):
    """One epoch. Times are in seconds after it was begun; `begun_at` is wall-clock time."""

    epoch: int
    checkpoint_id: int
    begun_at: float
    flags: int
    savepoint: str | None = None
    stages: dict[str, StageTime] = {}
    captured_s: float | None = None
    manifest_s: float | None = None
    committed_s: float | None = None
    aborted_s: float | None = None
    reason: str | None = None
    detail: str = ""
    published_s: dict[str, float] = {}


def read_times(store: Store, epoch: int) -> EpochTimes | None:
    """What all members know of an epoch."""
    found: list[EpochTimes] = []
    names = [n for n in store.list(notes_prefix(epoch)) if (of := notes_of(n)) and of.epoch == epoch]
    for data in store.read_many(sorted(names, key=len)):
        try:
            if data is not None:
                found.append(msgspec.json.decode(data, type=EpochTimes))
        except ValueError:
            continue
    if not found:
        return None
    whole = found[0]
    for other in found[1:]:
        whole.stages = {**other.stages, **whole.stages}
        whole.published_s = {**other.published_s, **whole.published_s}
    return whole


class Times:
    """Collects what is known about the latest epochs."""

    def __init__(self, store: Store, member: str) -> None:
        self.epochs: dict[int, EpochTimes] = {}
        self.last_committed: EpochTimes | None = None
        self._store = store
        self._member = member
        self._led_by_others: set[int] = set()
        self._unsaved: dict[str, tuple[int, bytes]] = {}
        """Notes that are not in the store yet: by name, with their epoch."""
        self._saving = False
        self._lock = Lock()
        self._started: dict[int, float] = {}
        self._early: dict[int, list[tuple[float, str, BarrierAt | None]]] = {}
        self._news: list[str] = []
        self._files: list[str] | None = None

    def created(self, name: str, data: bytes) -> None:
        """An object of the protocol has just been created by this process."""
        now = time.monotonic()
        with self._lock:
            if journal_entry_of(name) is not None:
                entry = JOURNAL.open(data).entry
                self._journal(entry.body, now)
            elif (of := stage_entry_of(name)) is not None:
                body = STAGE.open(data).entry.body
                if isinstance(body, BarrierAt):
                    self._note(body.epoch, now, of.stage, body)
            elif mark_of(name) is not None:
                self._mark(decode(name, data, Published), now)
            elif (found := manifest_of(name)) is not None:
                self._note(found.epoch, now, "manifest_s", None)

    def acked(self, epoch: int) -> None:
        """This process has acked an epoch."""
        with self._lock:
            self._note(epoch, time.monotonic(), "captured_s", None)

    def _note(self, epoch: int, now: float, what: str, cut: BarrierAt | None) -> None:
        """A step of an epoch; it may be heard of before the BEGUN that another thread has just written."""
        times = self.epochs.get(epoch)
        if times is None:
            self._early.setdefault(epoch, []).append((now, what, cut))
            if len(self._early) > 10:
                del self._early[min(self._early)]
            return
        after = round(now - self._started[epoch], 3)
        if cut is not None:
            times.stages[what] = StageTime(after, cut.batch, cut.unaligned)
        else:
            setattr(times, what, after)

    def _journal(self, body: object, now: float) -> None:
        if isinstance(body, Begun):
            self.epochs[body.epoch] = EpochTimes(
                body.epoch, body.checkpoint_id, time.time(), body.flags, body.savepoint
            )
            early = self._early.pop(body.epoch, [])
            self._started[body.epoch] = min([now, *(at for at, _, _ in early)])
            for at, what, cut in early:
                self._note(body.epoch, at, what, cut)
            for old in [e for e in self.epochs if e < body.epoch - 50]:
                del self.epochs[old], self._started[old]
                self._led_by_others.discard(old)
        elif isinstance(body, Committed) and body.epoch in self.epochs:
            self._commit(self.epochs[body.epoch], now)
            self._save(self.epochs[body.epoch])
        elif isinstance(body, Aborted) and body.epoch in self.epochs:
            times = self.epochs[body.epoch]
            times.aborted_s = round(now - self._started[body.epoch], 3)
            times.reason, times.detail = body.reason, body.detail
            self._news.append(f"epoch {body.epoch} aborted ({body.reason}): {body.detail}")
            self._save(times)

    def _commit(self, times: EpochTimes, now: float) -> None:
        times.committed_s = round(now - self._started[times.epoch], 3)
        self.last_committed = times
        self._news.append(_committed_line(times))

    def must_save(self) -> bool:
        """Whether there are notes that nobody is writing down: whoever is told so calls `save`."""
        with self._lock:
            if self._saving or not self._unsaved:
                return False
            self._saving = True
            return True

    def save(self) -> None:
        """Writes down all notes, in a thread that may wait: meanwhile nobody else does."""
        while True:
            with self._lock:
                unsaved, self._unsaved = self._unsaved, {}
                self._saving = bool(unsaved)
            if not unsaved:
                return
            for name, (epoch, data) in unsaved.items():
                self._write(name, epoch, data)

    def _mark(self, mark: Published, now: float) -> None:
        times = self.epochs.get(mark.epoch)
        if times is not None and times.committed_s is not None:
            times.published_s[mark.sink] = round(now - self._started[mark.epoch], 3)
            self._save(times)

    def _save(self, times: EpochTimes) -> None:
        foreign = times.epoch in self._led_by_others
        name = notes_name(times.epoch, self._member if foreign else None)
        self._unsaved[name] = times.epoch, msgspec.json.encode(times)

    def _write(self, name: str, epoch: int, data: bytes) -> None:
        """Best effort: these are notes for people."""
        try:
            if self._files is None:
                self._files = self._store.list(EXPLAIN_PREFIX)
            self._store.put(name, data)
            if name not in self._files:
                self._files.append(name)
            old = [n for n in self._files if (of := notes_of(n)) is not None and of.epoch < epoch - KEPT]
            if len(old) > SURPLUS:
                self._store.delete(old)
                self._files = [name for name in self._files if name not in old]
        except OSError:
            pass

    def learn(self, state: JournalState) -> None:
        """The journal has grown, perhaps by what others wrote: epochs that are open no longer are over."""
        with self._lock:
            for begun in state.open.values():
                if begun.epoch not in self.epochs:
                    self._led_by_others.add(begun.epoch)
                    self._journal(begun, time.monotonic())
            for epoch in sorted(self._led_by_others & self.epochs.keys()):
                if epoch in state.committed and self.epochs[epoch].committed_s is None:
                    self._commit(self.epochs[epoch], time.monotonic())
                    self._save(self.epochs[epoch])
            for epoch, times in self.epochs.items():
                is_open = epoch in state.open or epoch in state.committed
                if not is_open and times.committed_s is None and times.aborted_s is None:
                    story = next((a for a in state.aborted if a.epoch == epoch), None)
                    if story is not None:
                        times.aborted_s, times.reason, times.detail = 0.0, story.reason, story.detail

    def news(self) -> list[str]:
        """What is worth a line since it was last asked for."""
        with self._lock:
            news, self._news = self._news, []
        return news


def _committed_line(times: EpochTimes) -> str:
    what = f"savepoint '{times.savepoint}'" if times.savepoint else "epoch"
    marks = [f"{n} unaligned" for n, s in times.stages.items() if s.unaligned]
    if times.flags & Flags.DRAIN:
        marks.append("drain")
    more = f" ({', '.join(marks)})" if marks else ""
    label = f"{what} {times.epoch}" if not times.savepoint else f"{what} is epoch {times.epoch},"
    return f"{label} committed in {readable(times.committed_s or 0.0)}{more}"
