"""One Spark checkpoint folder in the store: its contents, and which batches need which of its files.

Batches have Spark's own numbers here. A batch *needs* the files from which a query continues after it.

A query that starts without state, but at positions that its sources have reached, begins with batch 0: only batch 0
works with empty state, whatever the state store provider. So the positions are stored as those of a batch -1
(`first_plan`), which Spark takes for the last one that it committed. (If they were those of batch 0, Spark would run it
again from the beginning of the sources; but no folder is ever made with a batch that was not committed.)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from cutwater.protocol.base.chain import digest
from cutwater.protocol.base.errors import StoreError
from cutwater.protocol.base.paths import (
    BASE,
    COMPLETE,
    SOURCES,
    batch_file_name,
    batch_file_of,
    batch_files_prefix,
    source_log_name,
    source_log_of,
)
from cutwater.protocol.base.records import Prepared
from cutwater.spark.checkpoint.leaves import Leaf, parse_leaves
from cutwater.spark.checkpoint.offsets import (
    BatchCommit,
    Offsets,
    next_plan,
    parse_commit,
    parse_offsets,
    starting_commit,
    starting_plan,
)
from cutwater.spark.checkpoint.source_logs import (
    can_start,
    files_of,
    is_file_log,
    needed_entries,
    needed_to_rewrite,
    rewrite_log,
)
from cutwater.spark.checkpoint.state_files import (
    FOREVER,
    Place,
    Spans,
    StateOperator,
    StateStore,
    listed_files,
    parse_operator,
    split_name,
    version_of,
)
from cutwater.store.contract import Store

OPERATOR = re.compile(r"state/(\d+)/_metadata/(?:metadata|v2/(\d+))")
_SCHEMA = re.compile(r"state/\d+/_stateSchema/.+/(\d+)_[^/]+")

T = TypeVar("T")
Positions = tuple[str | None, ...]
MovedPositions = tuple[tuple[Leaf, ...] | None, Positions]
Move = Callable[[tuple[Leaf, ...] | None, Positions], MovedPositions]
"""Changes the record of a stage's sources and its positions in them, for a stage that is reset."""


@dataclass
class Cache:
    """Parsed files that never change, so that each is read once. One cache per process and stage."""

    checksums: dict[str, str] = field(default_factory=dict)
    commits: dict[str, BatchCommit] = field(default_factory=dict)
    offsets: dict[str, Offsets] = field(default_factory=dict)
    sources: dict[str, tuple[Leaf, ...]] = field(default_factory=dict)
    snapshots: dict[str, list[str]] = field(default_factory=dict)
    operators: dict[str, StateOperator] = field(default_factory=dict)
    bases: dict[str, int] = field(default_factory=dict)
    lowest: dict[str, int] = field(default_factory=dict)
    prepared: dict[str, Prepared] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    stateful: dict[str, bool] = field(default_factory=dict)
    """By folder, whether its query keeps state."""


def is_lasting(name: str) -> bool:
    """Whether a file in a folder belongs to no batch, so that every later batch needs it."""
    of_batch = batch_file_of(name) or source_log_of(name) or split_name(name)
    return not of_batch and name != COMPLETE


class Voucher:
    """Computes the checksums for the records of one incarnation's batches: of the files that Spark has written since the
    folder was made, and that a query needs to continue after the batch. (The folder's mark has the checksums of files
    from before; Spark has its own for state.) Each record has all of them, because earlier records may be gone."""

    def __init__(self, store: Store, prefix: str, leaves: Iterable[Leaf]) -> None:
        self._store = store
        self._prefix = prefix
        self._places = {leaf.log: place for place, leaf in enumerate(leaves) if leaf.log is not None}
        self._logs: dict[int, dict[int, str]] = {log: {} for log in self._places}
        self._lasting: dict[str, str] | None = None
        self._before: tuple[str, bytes] | None = None
        self._known: dict[str, str] = {}

    def checksums(self, batch: int, data: bytes) -> dict[str, str]:
        """Checksums by name in the folder. `data` is the plan of the batch."""
        if self._lasting is None:
            names = (name.removeprefix(self._prefix) for name in self._store.list(self._prefix))
            self._lasting = self._read([name for name in names if is_lasting(name) and name != BASE])
            name = batch_file_name("offsets", batch - 1)
            before = self._store.read(self._prefix + name) if batch > 0 else None
            self._before = (name, before) if before is not None else None
        name = batch_file_name("offsets", batch)
        plans = dict([self._before] if self._before is not None else [])
        entries = self._log_entries(parse_offsets(name, data))
        self._before = name, data
        plans[name] = data
        return {**self._lasting, **entries, **{name: digest(plan) for name, plan in plans.items()}}

    def _log_entries(self, plan: Offsets) -> dict[str, str]:
        before = parse_offsets(*self._before) if self._before is not None else None
        needed: dict[str, str] = {}
        for number, place in self._places.items():
            upto, after = plan.log_offset(place), before.log_offset(place) if before is not None else None
            if upto is None:  # not a file source: its log has only the entry with its initial position
                begun = source_log_name(number, 0)
                self._known |= self._read([begun]) if begun not in self._known else {}
                needed |= {begun: self._known[begun]} if begun in self._known else {}
                continue
            new = range(0 if after is None else after + 1, upto + 1)
            found = self._read([source_log_name(number, e, c) for e in new for c in (False, True)])
            self._known |= found
            log = self._logs[number]
            log.update({of.entry: name for name in found if (of := source_log_of(name)) is not None})
            kept = needed_entries(log, after, upto)
            for entry in log.keys() - kept:
                self._known.pop(log.pop(entry))
            needed |= {name: self._known[name] for name in log.values()}
        return needed

    def _read(self, names: list[str]) -> dict[str, str]:
        found = self._store.read_many([self._prefix + name for name in names])
        return {name: digest(data) for name, data in zip(names, found, strict=True) if data is not None}


class SparkFolder:
    """The folder at `prefix` as it was when this object was created, or with the files in `names`."""

    def __init__(self, store: Store, prefix: str, cache: Cache, names: Iterable[str] | None = None) -> None:
        self.prefix = prefix
        self.offsets: set[int] = set()
        self.commits: set[int] = set()
        self.prepared: set[int] = set()
        self._whole: set[str] = set()
        self._stores: dict[Place, StateStore] = {}
        self._operators: dict[int, dict[int, str]] = defaultdict(dict)
        self._schemas: dict[str, int] = {}
        self._logs: dict[int, dict[int, str]] = defaultdict(dict)
        self._store = store
        self._cache = cache
        for name in names if names is not None else store.list(prefix):
            self._add(name.removeprefix(prefix))

    def _add(self, name: str) -> None:
        if of_batch := batch_file_of(name):
            batches: set[int] = getattr(self, of_batch.kind)
            batches.add(of_batch.batch)
        elif entry := source_log_of(name):
            self._logs[entry.source][entry.entry] = name
        elif match := OPERATOR.fullmatch(name):
            self._operators[int(match[1])][int(match[2] or 0)] = name
        elif match := _SCHEMA.fullmatch(name):
            self._schemas[name] = int(match[1])
        elif found := split_name(name):
            place, file = found
            if place not in self._stores:
                self._stores[place] = StateStore(place, self._commit, self._listed_by)
            self._stores[place].add(name, file)
        elif name != COMPLETE:
            self._whole.add(name)

    # --- contents of files --------------------------------------------------------------------------

    def _commit(self, batch: int) -> BatchCommit | None:
        if batch not in self.commits:
            return None
        return self._known(self._cache.commits, batch_file_name("commits", batch), parse_commit)

    def _plan(self, batch: int) -> Offsets | None:
        if batch not in self.offsets:
            return None
        return self._known(self._cache.offsets, batch_file_name("offsets", batch), parse_offsets)

    def commit(self, batch: int) -> BatchCommit | None:
        """Spark's commit of a batch; `None` if there is none."""
        return self._commit(batch)

    def _listed_by(self, snapshot: str) -> list[str]:
        if not snapshot.endswith(".zip"):
            return []
        folder = snapshot.rpartition("/")[0]
        listed = self._known(self._cache.snapshots, snapshot, listed_files) or []
        return [f"{folder}/{file}" for file in listed]

    def _known(self, known: dict[str, T], file: str, parse: Callable[[str, bytes], T]) -> T | None:
        name = self.prefix + file
        if name not in known:
            data = self._store.read(name)
            if data is None:
                return None
            known[name] = parse(name, data)
        return known[name]

    # --- files that a batch needs -------------------------------------------------------------------

    def last_committed(self, start: int) -> int:
        """The last batch that Spark has committed and that has a prepared record; at least `start`, the batch with which
        the folder was made."""
        done = self.commits & self.offsets & self.prepared
        return max((batch for batch in done if batch > start), default=start)

    def needed(self, batch: int) -> set[str] | None:
        """The files that a batch needs; `None` if some are gone. Files that a RocksDB snapshot lists are included whether
        they exist or not."""
        plan = self._plan(batch)
        before = batch - 1 if batch else 0
        if plan is None or before not in self.offsets or batch not in self.commits:
            return None
        names = {batch_file_name("offsets", number) for number in (before, batch)}
        names.add(batch_file_name("commits", batch))
        names.update(name for name in self._whole if batch >= 0 or not name.startswith("state/"))
        names.update(name for name, since in self._schemas.items() if since <= batch)
        for source in self._with_log(plan):
            log, entries = self._logs.get(source, {}), self._entries(source, batch)
            if not entries <= log.keys():
                return None
            names.update(log[entry] for entry in entries)
        if batch < 0:
            return names  # any state belongs to later batches
        places = set(self._stores)
        for versions in self._operators.values():
            newest = max((version for version in versions if version <= batch), default=None)
            if newest is None:
                return None
            names.add(versions[newest])
            operator = self._known(self._cache.operators, versions[newest], parse_operator)
            if operator is not None:
                places.update(operator.stores(self._commit(batch), self._stores))
        for place in places:
            chain = self._stores[place].chain(batch + 1) if place in self._stores else None
            if chain is None:
                return None
            names.update(self._stores[place].files(chain))
            names.update(batch_file_name("commits", key.version - 1) for key in chain.used())
        return names

    def _entries(self, source: int, batch: int) -> set[int]:
        """The entries of a source's log that a batch needs; all of them unless it is a file source."""
        log = self._logs.get(source, {})
        upto = self._read_upto(source, batch)
        if upto is None:
            return set(log)
        return needed_entries(log, self._read_upto(source, batch - 1), upto)

    def _read_upto(self, source: int, batch: int) -> int | None:
        plan = self._plan(batch)
        leaf = self._with_log(plan).get(source) if plan is not None else None
        return plan.log_offset(leaf) if plan is not None and leaf is not None else None

    def _with_log(self, plan: Offsets) -> dict[int, int]:
        """The native sources: the number of each log, and the source's place in the plan (one of them if it is read
        twice). Without a record of the sources, each place has its own log."""
        recorded = self.recorded_leaves()
        if recorded is None:
            return dict(enumerate(plan.native))
        return {leaf.log: place for place, leaf in enumerate(recorded) if leaf.log is not None}

    def positions(self) -> tuple[str | None, ...] | None:
        """The newest positions; `None` if there are none yet."""
        plan = self._plan(max(self.offsets, default=-1))
        return plan.sources if plan is not None else None

    def recorded_leaves(self) -> tuple[Leaf, ...] | None:
        """The recorded leaves of the plan, `None` if there is no record."""
        return self._known(self._cache.sources, SOURCES, parse_leaves) if SOURCES in self._whole else None

    def last_read(self, source: int) -> list[str]:
        """The files that a file source has read last, as URLs; none if it has read nothing, or is another kind of
        source."""
        upto = self._read_upto(source, max(self.offsets, default=-1))
        log = self._logs.get(source, {})
        last = max((entry for entry in log if upto is not None and entry <= upto), default=None)
        data = self._store.read(self.prefix + log[last]) if last is not None else None
        return files_of(self.prefix + log[last], data, last) if last is not None and data is not None else []

    @property
    def first(self) -> int:
        """The first batch after which a query can continue from this folder."""
        return -1 if -1 in self.commits else 0

    def done_positions(self) -> tuple[str | None, ...] | None:
        """The positions up to which committed batches have read; `None` if there is none."""
        plan = self._plan(max(self.commits)) if self.commits else None
        return plan.sources if plan is not None else None

    def first_plan(self, consumed: Mapping[str, int], move: Move | None = None) -> dict[str, bytes]:
        """Files that make a query start without state: at the positions of this folder's last batch for sources, and at
        `consumed` for channels. `move` may change the former."""
        last = max(self.commits, default=-1)
        plan = self._plan(last)
        if plan is None:
            raise StoreError(
                f"the positions of batch {last} are gone from {self.prefix}; restore another checkpoint"
            )
        leaves = recorded = self.recorded_leaves()
        if move is not None:
            leaves, positions = move(recorded, plan.sources)
            plan = msgspec.structs.replace(plan, sources=positions)
        lines = starting_plan(plan, consumed)
        plans = {batch_file_name("offsets", number): lines for number in (-2, -1)}
        sources = {SOURCES: msgspec.json.encode(leaves)} if leaves != recorded else {}
        return {**plans, **sources, batch_file_name("commits", -1): starting_commit(self._commit(last))}

    def rewritten_logs(self, setting: int) -> tuple[set[str], dict[str, bytes]]:
        """The files of source logs with which Spark must not start, and the files to put in their place, by name: logs
        that Spark could not read with this `setting` for the compact interval, and entries of a file source that no
        batch has read yet. (Spark lists the first files before it plans the batch that reads them.)"""
        instead: dict[str, bytes] = {}
        replaced: set[str] = set()
        for source, log in self._logs.items():
            read = [self._read_upto(source, batch) for batch in self.offsets]
            nothing_read = all(upto is None for upto in read)
            if not nothing_read and can_start(log, setting):
                continue
            names = [log[entry] for entry in needed_to_rewrite(log) if entry in log]
            data = self._store.read_many([self.prefix + name for name in names])
            contents = {name: text for name, text in zip(names, data, strict=True) if text is not None}
            if nothing_read:
                replaced.update(log.values() if is_file_log(contents.values()) else ())
                continue
            lowest = min(-1 if upto is None else upto for upto in read)
            instead |= rewrite_log(self.prefix, contents, log, lowest, setting)
            replaced.update(log.values())
        return replaced, instead

    def due_plan(self, now_ms: int) -> dict[str, bytes]:
        """The plan of a batch that the query must run first, if there is one: a batch without new rows that emits what
        the last one has closed. Spark runs it by itself unless it is stopped in between; after a start it would wait for
        new rows first. (A query that reads a channel gets a batch after a start anyway.)"""
        last = max(self.commits, default=-1)
        plan, commit = self._plan(last), self._commit(last)
        if plan is None or commit is None or len(plan.native) < len(plan.sources):
            return {}
        name = batch_file_name("offsets", last)
        data = self._store.read(self.prefix + name)
        if data is None or not self._operators or commit.watermark_ms <= plan.watermark_ms:
            return {}
        return {batch_file_name("offsets", last + 1): next_plan(name, data, commit.watermark_ms, now_ms)}

    # --- batches that need a file ---------------------------------------------------------------------

    def spans(self, live: bool) -> Spans:
        """The batches that need each file. While a query runs (`live`), these include future batches."""
        # List commits after snapshots: a checkpoint that did not use one of them belongs to one of these batches.
        for name in self._store.list(self.prefix + batch_files_prefix("commits")):
            self._add(name.removeprefix(self.prefix))
        newest = max(self.commits, default=-1)

        def seen(snapshot: str) -> int:
            return self._cache.seen.setdefault(self.prefix + snapshot, newest)

        spans: Spans = {}
        for state in self._stores.values():
            spans.update(state.spans(newest, seen))
        chains: dict[int, int] = {}
        for name, (_, until) in spans.items():
            if (version := version_of(name)) is not None:
                chains[version - 1] = max(chains.get(version - 1, -1), until)
        for batch in self.commits:
            spans[batch_file_name("commits", batch)] = batch, max(batch + 1, chains.get(batch, -1))
        for batch in self.offsets:
            spans[batch_file_name("offsets", batch)] = batch, batch + 1
        for batch in self.prepared:
            spans[batch_file_name("prepared", batch)] = batch, batch
        for source in self._logs:
            spans.update(self._log_spans(source))
        for versions in self._operators.values():
            for since, name in versions.items():
                later = (version - 1 for version in versions if version > since)
                spans[name] = since, min(later, default=FOREVER)
        spans.update({name: (since, FOREVER) for name, since in self._schemas.items()})
        spans.update(dict.fromkeys((*self._whole, COMPLETE), (-1, FOREVER)))
        if live:
            return spans
        return {name: (min(first, newest), min(until, newest)) for name, (first, until) in spans.items()}

    def _log_spans(self, source: int) -> Spans:
        """An entry that no batch needs is either newly planned or very old."""
        log = self._logs[source]
        batches = sorted(self.offsets)
        spans: dict[int, tuple[int, int]] = {}
        for batch in batches:
            for entry in self._entries(source, batch):
                first, _ = spans.get(entry, (batch, batch))
                spans[entry] = first, FOREVER if batch == batches[-1] else batch
        last = max(spans, default=-1)
        return {
            name: spans.get(entry, (-1, FOREVER) if entry > last else (-1, -1)) for entry, name in log.items()
        }
