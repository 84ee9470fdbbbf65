"""How large the newest checkpoint is, measured by the leader while somebody reads the metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from cutwater.protocol.base import events as ev
from cutwater.protocol.base.records import Manifest
from cutwater.store.checkpoint_objects import needed
from cutwater.store.contract import Store
from cutwater.telemetry import definitions as d
from cutwater.telemetry.measures import Measures

WANTED_S = 300.0
"""How long after the metrics were last read sizes are still measured: each new object costs a request."""
MAX_PARALLEL = 8


class CheckpointSizes:
    """Observes commits. `manifest` reads the manifest of an epoch if it is still the newest one."""

    def __init__(self, store: Store, measures: Measures, manifest: Callable[[int], Manifest | None]) -> None:
        self._store = store
        self._measures = measures
        self._manifest = manifest
        self._written: int | None = None
        self._known: dict[str, int] = {}
        """The sizes of the objects of the checkpoint that was measured last. Objects never change."""

    def __call__(self, at_s: float, event: ev.Event) -> None:
        if isinstance(event, ev.ManifestWritten):
            self._written = event.epoch  # only the leader writes manifests
        elif isinstance(event, ev.EpochCommitted) and event.epoch == self._written and self._is_wanted():
            self._measure(event.epoch)

    def _is_wanted(self) -> bool:
        read_s = self._measures.read_s
        return read_s is not None and time.monotonic() - read_s < WANTED_S

    def _measure(self, epoch: int) -> None:
        manifest = self._manifest(epoch)
        if manifest is None:
            return
        names = list(needed(manifest))
        new = [name for name in names if name not in self._known]
        with ThreadPoolExecutor(MAX_PARALLEL) as pool:
            sizes = {name: size or 0 for name, size in zip(new, pool.map(self._store.size, new), strict=True)}
        is_first = not self._known
        self._known = {name: sizes[name] if name in sizes else self._known[name] for name in names}
        self._measures.set(d.FULL_BYTES, sum(self._known.values()))
        if not is_first:  # otherwise it is unknown which objects are new
            self._measures.set(d.BYTES, sum(sizes.values()))
