"""When a run is over: the pipeline is drained, and every sink has published the last epoch.

A member knows what its own sinks have published. For the sinks of others it looks at their marks in the store.
"""

from __future__ import annotations

from collections.abc import Collection

from cutwater.protocol.base.effects import FAILED, List, Procedure, Wait
from cutwater.protocol.base.paths import MARK_PREFIX
from cutwater.protocol.base.records import Topology, settled
from cutwater.protocol.member.journal import Journal


class Ending:
    """`own`: the sinks that this member hosts. `poll_ms`: how often to look for the marks of other members' sinks."""

    def __init__(self, journal: Journal, topology: Topology, own: Collection[str], poll_ms: int) -> None:
        self.published: dict[str, int] = {}
        """Per sink, the journal index up to which it has done everything, as far as this member knows."""
        self._journal = journal
        self._sinks = frozenset(topology.sinks())
        self._own = frozenset(own)
        self._poll_ms = poll_ms

    def on_published(self, sink: str, index: int) -> None:
        """A sink has done everything that the journal ordered up to `index`."""
        self.published[sink] = max(self.published.get(sink, 0), index)

    def unpublished(self) -> frozenset[str]:
        """The sinks that may still have to publish the newest checkpoint."""
        state = self._journal.state
        if state.head is None:
            return self._sinks
        index = state.committed[state.head].index
        return frozenset(sink for sink in self._sinks if self.published.get(sink, 0) < index)

    @property
    def is_over(self) -> bool:
        """Whether the pipeline is drained, and everything is published."""
        state = self._journal.state
        return state.drained and state.head is not None and not self.unpublished()

    def run(self) -> Procedure[None]:
        """The actor that looks for the marks of other members' sinks, once the pipeline is drained."""
        while True:
            if self._journal.state.drained and self.unpublished() - self._own:
                marks = yield List(MARK_PREFIX)
                if marks is not FAILED:
                    for sink, index in settled(marks).items():
                        self.on_published(sink, index)
            yield Wait(self._poll_ms)
