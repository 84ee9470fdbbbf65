"""Which staged output of a sink is over: nobody will publish it.

An attempt is over if it is of a batch up to the newest cut, or of an earlier generation, and no kept checkpoint
names a file of it, neither to publish nor to hold back. A process that knows an old journal calls fewer over.
"""

from __future__ import annotations

from collections.abc import Iterable

from cutwater.protocol.base.paths import staged_attempt_of
from cutwater.protocol.base.records import JournalState, Manifest


class Needed:
    """The attempts of one stage for one sink that may still be needed: all but those that are known to be
    over. `manifests` are those of every kept checkpoint."""

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
