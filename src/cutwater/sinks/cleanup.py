"""Removes what may go of a sink's target: staged output that nobody will publish, of attempts that failed and of
timelines that were abandoned; and history to which nobody will go back. What may go is decided in `protocol/`."""

from __future__ import annotations

from collections.abc import Sequence

from cutwater.protocol.base.records import JournalState, Manifest
from cutwater.protocol.member.publish import oldest_needed
from cutwater.protocol.member.staged import Needed
from cutwater.sinks.contract import Sink


def tidy(sink: Sink, stage: str, state: JournalState, manifests: Sequence[Manifest]) -> None:
    """Removes what may go of the target of a stage's sink. `manifests` are those of every kept checkpoint."""
    sink.discard(Needed(state, stage, sink.name, manifests))
    needed = oldest_needed(state, sink.head().transaction)
    if needed is not None:
        sink.trim(needed)
