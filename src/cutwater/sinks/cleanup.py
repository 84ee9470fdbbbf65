"""What may go of a sink's target: staged output that nobody will publish, of attempts that failed and of timelines
that were abandoned; and history to which nobody will go back.

An attempt is over if it is of a batch up to the newest cut, or of an earlier generation, and no kept checkpoint
names a file of it, neither to publish nor to hold back. A process that knows an old journal calls fewer over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from cutwater.protocol.base.paths import staged_attempt_of
from cutwater.protocol.base.records import JournalState, Manifest
from cutwater.protocol.member.publish import oldest_needed
from cutwater.sinks.contract import Sink


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


def tidy(sink: Sink, stage: str, state: JournalState, manifests: Sequence[Manifest]) -> None:
    """Removes what may go of the target of a stage's sink. `manifests` are those of every kept checkpoint."""
    sink.discard(Needed(state, stage, sink.name, manifests))
    needed = oldest_needed(state, sink.head().transaction)
    if needed is not None:
        sink.trim(needed)
