"""Bounded caches of what never changes: manifests, marks, sizes of state files."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from threading import Lock
from typing import Generic, TypeVar

from cutwater.documents.kept_checkpoints import sizes_of
from cutwater.store.contract import Store

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
MAX_SIZES = 300_000


class Cache(Generic[K, V]):
    """The newest `limit` values that were used. Threads may share it; two may then make the same value."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                return self._values[key]
            return None

    def put(self, key: K, value: V) -> V:
        with self._lock:
            self._values[key] = value
            self._values.move_to_end(key)
            while len(self._values) > self._limit:
                self._values.popitem(last=False)
        return value

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        found = self.get(key)
        return found if found is not None else self.put(key, make())

    def __len__(self) -> int:
        return len(self._values)


class Sizes:
    """The sizes of immutable objects. One that is missing is looked up again."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: Cache[str, int] = Cache(MAX_SIZES)

    def __call__(self, names: Sequence[str]) -> list[int | None]:
        found = {name: self._known.get(name) for name in names}
        missing = [name for name, size in found.items() if size is None]
        for name, size in zip(missing, sizes_of(self._store, missing), strict=True):
            found[name] = self._known.put(name, size) if size is not None else None
        return [found[name] for name in names]
