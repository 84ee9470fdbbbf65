"""Which staged output of a sink will never be published.

An attempt is over if it belongs to a batch up to the newest cut, or to an earlier generation, and no kept checkpoint
names a file of it, neither to publish nor to hold back. With outdated knowledge of the journal, fewer attempts are over.
"""

from __future__ import annotations

from collections.abc import Iterable

from cutwater.protocol.base.paths import staged_attempt_of
from cutwater.protocol.base.records import JournalState, Manifest


class Needed:
    """The attempts of one stage for one sink that may still be needed: all except those that are known to be over.
    `manifests` are the manifests of all kept checkpoints."""

    def __init__(self, state: JournalState, stage: str, sink: str, manifests: Iterable[Manifest]) -> None:
        self._generation = state.generation
        self._cut = state.head_cuts.get(stage, -1)
        self._named: set[str] = set()
        for manifest in manifests:
            files = [*manifest.release.get(sink, ()), *(f.name for f in manifest.held.get(sink, ()))]
            for name in files:
                self._named.update(name.split("/"))

    def __contains__(self, attempt: object) -> bool:
        if attempt in self._named or not isinstance(attempt, str):
            return True
        staged = staged_attempt_of(attempt)
        if staged is None:
            return True
        if staged.generation == self._generation:
            return staged.attempt.batch > self._cut
        return staged.generation > self._generation
