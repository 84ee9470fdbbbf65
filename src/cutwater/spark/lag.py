"""How far a query is behind its own sources, from what Spark already knows: no source is queried."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from cutwater.spark.checkpoint.offsets import topics_in
from cutwater.spark.internals.queries import UnreadFiles, unread_files
from cutwater.store.stage_status import SourceLag

RATE = re.compile(r"RateStreamV2\[rowsPerSecond=(\d+), rampUpTimeSeconds=(\d+)")
"""The description of Spark's rate source."""


def source_lags(query: Any, progress: Mapping[str, Any], now_s: float) -> tuple[SourceLag, ...]:
    """The lag of each source that can tell it. `progress` is that of the last batch, empty while the first is under
    way; `now_s` is the time by the driver's clock."""
    files: dict[str, UnreadFiles] = {}
    with suppress(Exception):  # telemetry: an unknown build of Spark, or a query that has ended
        files = unread_files(query)
    planned_s = _time(progress.get("timestamp"))
    age_s = max(0.0, now_s - planned_s) if planned_s is not None else None
    reported = [
        lag
        for source in progress.get("sources") or ()
        if str(source.get("description")) not in files and (lag := _lag(source, age_s)) is not None
    ]
    return (*reported, *(SourceLag(name, files=f.files, bytes=f.bytes) for name, f in files.items()))


def _lag(source: Mapping[str, Any], age_s: float | None) -> SourceLag | None:
    name = str(source.get("description"))
    return _kafka(name, source) or _rate(name, age_s) or _metrics(name, source.get("metrics") or {})


def _kafka(name: str, source: Mapping[str, Any]) -> SourceLag | None:
    newest, position = topics_in(source.get("latestOffset")), topics_in(source.get("endOffset"))
    if newest is None or position is None:
        return None
    behind = {
        f"{topic}-{partition}": max(0, offset - position.get(topic, {}).get(partition, 0))
        for topic, offsets in newest.items()
        for partition, offset in offsets.items()
    }
    return SourceLag(name, sum(behind.values()), partitions=behind)


def _rate(name: str, age_s: float | None) -> SourceLag | None:
    """A batch of the rate source takes everything up to the moment at which it is planned, so the source is behind by
    the time since then, in whole seconds as it counts."""
    rate = RATE.match(name)
    if rate is None or age_s is None:
        return None
    behind_s, is_steady = int(age_s), rate[2] == "0"
    return SourceLag(name, behind_s * int(rate[1]) if is_steady else None, seconds=float(behind_s))


def _metrics(name: str, metrics: Mapping[str, Any]) -> SourceLag | None:
    """What a source itself reports under one of the usual names."""
    files, length, late_ms = (
        _number(metrics.get(key))
        for key in ("numFilesOutstanding", "numBytesOutstanding", "maxMsBehindLatest")
    )
    if files is None and length is None and late_ms is None:
        return None
    return SourceLag(name, files=files, bytes=length, seconds=late_ms / 1000 if late_ms is not None else None)


def _number(text: Any) -> int | None:
    try:
        return max(0, int(float(text)))
    except (TypeError, ValueError, OverflowError):
        return None


def _time(text: Any) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None
