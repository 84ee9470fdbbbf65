"""One checkpoint in full: each stage's position, what is in flight, and what is held back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from cutwater.documents.kept_checkpoints import KeptCheckpoint, sizes_of
from cutwater.documents.timestamps import iso_ms
from cutwater.protocol.base.records import InFlight, StageReport
from cutwater.spark.checkpoint.offsets import topics_in
from cutwater.store.contract import Store

Sizes = Callable[[Sequence[str]], list[int | None]]


def checkpoint_document(store: Store, one: KeptCheckpoint, sizes: Sizes | None = None) -> dict[str, Any]:
    """What `cutwater show --json` prints. `sizes` looks up the sizes of objects; by default the store is asked."""
    found = one.document()
    if one.manifest is None:
        return found
    look_up = sizes or partial(sizes_of, store)
    found["stages"] = {}
    for name, report in sorted(one.manifest.stages.items()):
        lengths = look_up(sorted(report.state))
        held = None if None in lengths else sum(length or 0 for length in lengths)
        found["stages"][name] = _stage_document(report, held)
    found["in_flight"] = [_flight_document(flight) for flight in one.manifest.in_flight]
    found["held"] = {sink: [file.name for file in files] for sink, files in one.manifest.held.items()}
    return found


def _stage_document(report: StageReport, state_bytes: int | None) -> dict[str, Any]:
    return {
        "batch": report.batch,
        "unaligned": report.unaligned,
        "consumed": report.consumed,
        "offsets": report.offsets,
        "topics": {
            leaf: t for leaf, text in report.offsets.items() if (t := topics_in(str(text))) is not None
        },
        "watermark": {"kind": report.watermark.kind.value, "at": iso_ms(report.watermark.ms)},
        "state_files": len(report.state),
        "state_bytes": state_bytes,
    }


def _flight_document(flight: InFlight) -> dict[str, Any]:
    return {
        "from": flight.producer,
        "to": flight.reader,
        "after": flight.after,
        "upto": flight.upto,
        "files": flight.names(),
    }
