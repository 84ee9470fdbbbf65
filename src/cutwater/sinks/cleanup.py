"""Cleans up a sink's target: staged output of failed attempts and abandoned timelines, and history that no restore
needs. `protocol/` decides what may be removed."""

from __future__ import annotations

from collections.abc import Sequence

from cutwater.protocol.base.records import JournalState, Manifest
from cutwater.protocol.member.publish import oldest_needed
from cutwater.protocol.member.staged import Needed
from cutwater.sinks.contract import Sink


def tidy(sink: Sink, stage: str, state: JournalState, manifests: Sequence[Manifest]) -> None:
    """Clean up the target of a stage's sink. `manifests` are those of every kept checkpoint."""
    sink.discard(Needed(state, stage, sink.name, manifests))
    needed = oldest_needed(state, sink.head().transaction)
    if needed is not None:
        sink.trim(needed)
