"""What Spark says about a stage's query, for the status: its speed, and its lag behind its own sources."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from cutwater.spark.internals.borders import observed_rows
from cutwater.spark.lag import source_lags
from cutwater.store.stage_status import SourceLag


class QueryFacts(msgspec.Struct, frozen=True):
    """The status of a stage's query. `limits`: up to which batch it may read each input. The rest is what Spark said
    when it was last asked."""

    limits: Mapping[str, int] = {}
    rows_per_s: float = 0.0
    batch_s: float = 0.0
    lags: tuple[SourceLag, ...] = ()
    chained_rows_per_s: Mapping[str, float] = {}
    """The output of each chained stage, which is what its reader took in the last batch."""


class QueryMeter:
    """Asks Spark about the queries of one stage. `facts` has the last answers, without `limits`."""

    def __init__(self) -> None:
        self.facts = QueryFacts()

    def measure(
        self,
        query: Any,
        has_native_source: bool,
        awaits_news: bool = False,
        chained: Collection[str] = (),
    ) -> None:
        """Ask about this query, which may take long. Nothing changes if there is no query or it has ended.
        `awaits_news`: it sleeps in its sources, and Spark counts that as a part of the batch."""
        try:
            is_active = query is not None and query.isActive
            progress: Any = query.lastProgress if is_active else None
        except Exception:
            is_active, progress = False, None
        if progress is not None:
            rows_per_s = float(progress.get("processedRowsPerSecond") or 0.0)
            batch_s = float(progress.get("batchDuration") or 0.0) / 1000
            if awaits_news:
                rows = rows_per_s * batch_s
                batch_s -= float((progress.get("durationMs") or {}).get("latestOffset") or 0.0) / 1000
                rows_per_s = rows / batch_s if batch_s > 0 else 0.0
            self.facts = msgspec.structs.replace(self.facts, rows_per_s=rows_per_s, batch_s=max(0.0, batch_s))
            if chained:
                rows_of = observed_rows(progress.get("observedMetrics") or {}, chained)
                speeds = {s: round(rows_of.get(s, 0) / (self.facts.batch_s or 1.0), 1) for s in chained}
                self.facts = msgspec.structs.replace(self.facts, chained_rows_per_s=speeds)
        if is_active and has_native_source:
            lags = source_lags(query, progress or {}, time.time())
            self.facts = msgspec.structs.replace(self.facts, lags=lags)
