"""How far a query is behind its own sources, from what Spark already knows: no source is queried."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from cutwater.spark.checkpoint.offsets import topics_in
from cutwater.spark.internals.queries import waiting_files
from cutwater.store.status import SourceLag


def source_lags(query: Any, progress: Mapping[str, Any]) -> tuple[SourceLag, ...]:
    """The lag of each source that can tell it, after the batch of this progress."""
    files: dict[str, int] = {}
    with suppress(Exception):  # telemetry: an unknown build of Spark, or a query that has ended
        files = waiting_files(query)
    found = (_lag(source, files) for source in progress.get("sources") or ())
    return tuple(lag for lag in found if lag is not None)


def _lag(source: Mapping[str, Any], files: Mapping[str, int]) -> SourceLag | None:
    name = str(source.get("description"))
    if name in files:
        return SourceLag(name, files=files[name])
    newest, position = topics_in(source.get("latestOffset")), topics_in(source.get("endOffset"))
    if newest is None or position is None:
        return None
    behind = {
        f"{topic}-{partition}": max(0, offset - position.get(topic, {}).get(partition, 0))
        for topic, offsets in newest.items()
        for partition, offset in offsets.items()
    }
    return SourceLag(name, sum(behind.values()), partitions=behind)
