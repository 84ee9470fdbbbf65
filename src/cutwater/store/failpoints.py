"""Failpoints: places at which a test can kill this process, for example `CUTWATER_KILL_AT="after manifest:2"`.

The value names a place, optionally a thing (`after prepared@clean`), and optionally the visit (`:2`; the default is
the first). The process then kills itself as the kernel would: it flushes nothing, closes nothing and notifies nobody.
With `CUTWATER_KILL_WITH=SIGSTOP` it pauses instead, as under a debugger or on a suspended machine. Unless
`CUTWATER_KILL_AT` is set, a failpoint costs one comparison.
"""

from __future__ import annotations

import os
import signal
from threading import Lock
from typing import assert_never

from cutwater.protocol.base.paths import journal_entry_of, manifest_of, mark_of, stage_entry_of
from cutwater.protocol.base.records import (
    JOURNAL,
    STAGE,
    BarrierAt,
    Batch,
    Open,
    StageBody,
    StageSnapshot,
)

_WANTED = os.environ.get("CUTWATER_KILL_AT", "")
_SIGNAL = signal.Signals[os.environ.get("CUTWATER_KILL_WITH", "SIGKILL")]
ACTIVE = bool(_WANTED)
_lock = Lock()
_visits = 0


def reach(place: str, thing: str = "") -> None:
    """Kills this process if it is configured to die at this visit of this place."""
    if ACTIVE:
        _visit(place, thing)


def _visit(place: str, thing: str) -> None:
    global _visits
    wanted, _, count = _WANTED.partition(":")
    name, _, only = wanted.partition("@")
    if name != place or (only and only != thing):
        return
    with _lock:
        _visits += 1
        if _visits == int(count or "1"):
            os.kill(os.getpid(), _SIGNAL)


def place_of(name: str, data: bytes) -> tuple[str, str]:
    """The place and the thing that name the creation of this object."""
    if journal_entry_of(name) is not None:
        return "journal entry", type(JOURNAL.open(data).entry.body).__name__.upper()
    if (entry := stage_entry_of(name)) is not None:
        return _kind_of(STAGE.open(data).entry.body), entry.stage
    if (mark := mark_of(name)) is not None:
        return "mark", mark.sink
    return ("manifest", "") if manifest_of(name) is not None else ("object", "")


def _kind_of(body: StageBody) -> str:
    match body:
        case Open():
            return "open entry"
        case Batch():
            return "batch entry"
        case BarrierAt():
            return "barrier entry"
        case StageSnapshot():
            return "stage snapshot"
        case _:
            assert_never(body)
