"""What the sinks show, from their marks. A mark never changes, so each is read once."""

from __future__ import annotations

from collections.abc import Sequence

from cutwater.api.tables import sinks_of
from cutwater.protocol.base.paths import mark_name, mark_of, mark_prefix
from cutwater.protocol.base.records import Checkpoint, JournalState, Published, decode_mark
from cutwater.store.contract import Store
from cutwater.web.caches import Cache

MAX_MARKS = 50_000


class Marks:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._highest: dict[str, int] = {}
        self._known: Cache[str, Published] = Cache(MAX_MARKS)

    def late(self, state: JournalState) -> list[str]:
        """The sinks that do not show the newest checkpoint yet."""
        head = state.committed.get(state.head) if state.head is not None else None
        if head is None:
            return []
        behind = [s for s in sinks_of(state) if self._highest.get(s, 0) < head.index]
        places = [(mark_prefix(s), mark_name(self._highest.get(s, 0), s)) for s in behind]
        for sink, names in zip(behind, self._store.list_many(places), strict=True):
            found = [mark.index for name in names if (mark := mark_of(name)) is not None]
            self._highest[sink] = max([self._highest.get(sink, 0), *found])
        return [sink for sink in behind if self._highest[sink] < head.index]

    def of(self, checkpoint: Checkpoint, sinks: Sequence[str]) -> dict[str, Published | None]:
        """The mark of this checkpoint for each sink, `None` if there is none yet."""
        names = [mark_name(checkpoint.index, sink) for sink in sinks]
        missing = [name for name in names if self._known.get(name) is None]
        for name, data in zip(missing, self._store.read_many(missing), strict=True):
            if data is not None:
                self._known.put(name, decode_mark(name, data))
        return {sink: self._known.get(name) for sink, name in zip(sinks, names, strict=True)}

    def versions(self, checkpoint: Checkpoint, sinks: Sequence[str]) -> dict[str, int | None]:
        """The version that the mark of each sink names."""
        return {
            sink: mark.version if mark is not None else None
            for sink, mark in self.of(checkpoint, sinks).items()
        }
