"""One Spark checkpoint folder in the store: what it holds, and which batches need which of its files.

Batches are Spark's own numbers in here. Files that Spark writes for no batch in particular (`metadata`,
state schemas) are needed by all of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from cutwater.offsets import Commit, Offsets, parse_commit, parse_offsets
from cutwater.statefiles import FOREVER, Place, Spans, StateStore, listed_tables, split_name, version_of
from cutwater.stores import Store

_BATCH = re.compile(r"(offsets|commits|prepared)/(\d+)(?:\.json)?")
_SOURCE_LOG = re.compile(r"sources/(\d+)/(\d+)(\.compact)?")


@dataclass
class Cache:
    """What is known of files that never change, so that each is read once. One per process and stage."""

    checksums: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    offsets: dict[str, Offsets] = field(default_factory=dict)
    tables: dict[str, list[str]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)
    bases: dict[str, int] = field(default_factory=dict)


class SparkFolder:
    """The folder at `prefix`, as it was when this object was made."""

    def __init__(self, store: Store, prefix: str, cache: Cache, names: Iterable[str] | None = None) -> None:
        self.prefix = prefix
        self.stores: dict[Place, StateStore] = {}
        self.batches: dict[str, set[int]] = {"offsets": set(), "commits": set(), "prepared": set()}
        self.whole: set[str] = set()
        self._logs: dict[int, dict[int, str]] = defaultdict(dict)
        self._store = store
        self._cache = cache
        for name in names if names is not None else store.list(prefix):
            self._add(name.removeprefix(prefix))

    def _add(self, name: str) -> None:
        if match := _BATCH.fullmatch(name):
            self.batches[match[1]].add(int(match[2]))
        elif match := _SOURCE_LOG.fullmatch(name):
            self._logs[int(match[1])][int(match[2])] = name
        elif found := split_name(name):
            place, file = found
            if place not in self.stores:
                self.stores[place] = StateStore(place, self.commit, self._tables_of)
            self.stores[place].add(name, file)
        else:
            self.whole.add(name)

    # --- what files say -----------------------------------------------------------------------------

    def commit(self, batch: int) -> Commit | None:
        """What Spark committed for a batch, `None` if there is no such file."""
        if batch not in self.batches["commits"]:
            return None
        name = f"{self.prefix}commits/{batch}"
        if name not in self._cache.commits:
            data = self._store.read(name)
            if data is None:
                return None
            self._cache.commits[name] = parse_commit(name, data)
        return self._cache.commits[name]

    def offsets(self, batch: int) -> Offsets | None:
        """Spark's plan of a batch, `None` if there is no such file."""
        if batch not in self.batches["offsets"]:
            return None
        name = f"{self.prefix}offsets/{batch}"
        if name not in self._cache.offsets:
            data = self._store.read(name)
            if data is None:
                return None
            self._cache.offsets[name] = parse_offsets(name, data)
        return self._cache.offsets[name]

    def _tables_of(self, snapshot: str) -> list[str]:
        if not snapshot.endswith(".zip"):
            return []
        name = self.prefix + snapshot
        if name not in self._cache.tables:
            data = self._store.read(name)
            if data is None:
                return []
            self._cache.tables[name] = listed_tables(snapshot, data)
        return self._cache.tables[name]

    # --- what a batch needs -------------------------------------------------------------------------

    def needed(self, batch: int) -> set[str] | None:
        """The files from which a query goes on after `batch`; `None` if some are gone. A table that a
        snapshot lists is named whether it is there or not."""
        offsets, commit = self.offsets(batch), self.commit(batch)
        if offsets is None or commit is None:
            return None
        names = {f"offsets/{batch}", f"commits/{batch}", *self.whole}
        if batch > 0:
            if self.offsets(batch - 1) is None:
                return None
            names.add(f"offsets/{batch - 1}")
        for source, log in self._logs.items():
            ids = self._log_ids(source, batch)
            if not ids <= log.keys():
                return None
            names.update(log[id] for id in ids)
        found = set()
        for place, state in self.stores.items():
            chain = state.chain(batch + 1)
            if chain is None:
                return None
            names.update(state.files(chain))
            versions = [key.version for key in (*chain.changes, chain.snapshot) if key is not None]
            names.update(f"commits/{version - 1}" for version in versions)
            found.add((place.operator, place.partition))
        for operator, partitions in (commit.ids or {}).items():
            if any(ids and (operator, p) not in found for p, ids in enumerate(partitions)):
                return None
        return names

    def _log_ids(self, source: int, batch: int) -> set[int]:
        """The entries of a source's own log that a query needs to go on after `batch`: for a file source
        from the newest compacted one, and those of the batch itself; for another kind all."""
        log = self._logs[source]
        upto = self._read_upto(source, batch)
        if upto is None:
            return set(log)
        compacted = [id for id, name in log.items() if name.endswith(".compact") and id <= upto]
        before = self._read_upto(source, batch - 1)
        first = max(compacted, default=0)
        return set(range(first, upto + 1)) | set(range(before + 1 if before is not None else first, upto + 1))

    def _read_upto(self, source: int, batch: int) -> int | None:
        offsets = self.offsets(batch)
        return offsets.log_offset(source) if offsets is not None else None

    # --- which batches need a file --------------------------------------------------------------------

    def last_committed(self, start: int) -> int:
        """The last batch that Spark has committed and that has its prepared record; at least `start`, with
        which the folder was made."""
        done = self.batches["commits"] & self.batches["offsets"] & self.batches["prepared"]
        return max((batch for batch in done if batch > start), default=start)

    def spans(self, live: bool) -> Spans:
        """Which batches need each file. Where a query runs (`live`) that can be batches to come."""
        commits = f"{self.prefix}commits/"
        # Listed after the snapshots: what a checkpoint may have done without them, it did by this batch.
        for name in self._store.list(commits):
            self._add(name.removeprefix(self.prefix))
        newest = max(self.batches["commits"], default=-1)

        def seen(snapshot: str) -> int:
            return self._cache.seen.setdefault(self.prefix + snapshot, newest) if live else newest

        spans: Spans = dict.fromkeys(self.whole, (-1, FOREVER))
        for state in self.stores.values():
            spans.update(state.spans(newest, seen))
        versions: dict[int, int] = {}
        for name, (_, until) in spans.items():
            if (version := version_of(name)) is not None:
                versions[version] = max(versions.get(version, -1), until)
        for source in self._logs:
            spans.update(self._log_spans(source))
        for batch in self.batches["commits"]:
            spans[f"commits/{batch}"] = batch, max(batch + 1, versions.get(batch + 1, -1))
        for batch in self.batches["offsets"]:
            spans[f"offsets/{batch}"] = batch, batch + 1
        for batch in self.batches["prepared"]:
            spans[f"prepared/{batch}.json"] = batch, batch
        if live:
            return spans
        return {name: (min(first, newest), min(until, newest)) for name, (first, until) in spans.items()}

    def _log_spans(self, source: int) -> Spans:
        """An entry that no batch needs is one that Spark has just planned, or left over from long ago."""
        log = self._logs[source]
        batches = sorted(self.batches["offsets"])
        if not batches or self._read_upto(source, batches[-1]) is None:
            return dict.fromkeys(log.values(), (-1, FOREVER))
        spans: dict[int, tuple[int, int]] = {}
        for batch in batches:
            for id in self._log_ids(source, batch):
                spans[id] = spans.get(id, (batch, batch))[0], batch
        open_ended = self._log_ids(source, batches[-1]) | {id for id in log if id > max(spans)}
        for id in open_ended:
            spans[id] = spans.get(id, (batches[-1], 0))[0], FOREVER
        return {name: spans.get(id, (-1, -1)) for id, name in log.items()}
