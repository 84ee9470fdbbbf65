"""Prevents starting a second process of the same member by accident.

Correctness does not depend on this: if two processes run, the logs decide whose batches count. It watches the status
of the other process (`store/presence.py`): if that keeps changing, the member is running, wherever it runs and whatever
its clock says.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cutwater.protocol.base.durations import readable
from cutwater.protocol.base.errors import UserError
from cutwater.store.contract import Store
from cutwater.store.presence import Presence, Watch, silence_s
from cutwater.store.process_identity import exists
from cutwater.store.status import ALONE, Status

LOG_AFTER_S = 1.0


def ensure_not_running(
    store: Store, pipeline: str, member: str, takeover: bool, log: Callable[[str], None]
) -> None:
    """Returns when no other process seems to run this member. Raises `UserError` if one does, or if the store
    belongs to another pipeline."""
    watch = Watch(store)
    began = time.monotonic()
    logged = False
    while True:
        seen = watch.look()
        for one in seen:
            if one.status.pipeline != pipeline:
                raise UserError(
                    f"the store {store.url} belongs to pipeline '{one.status.pipeline}', and this one is '{pipeline}'; "
                    "give each pipeline a store of its own"
                )
        other = next((one for one in seen if one.status.member == member), None)
        if takeover or other is None or other.presence in (Presence.ENDED, Presence.SILENT):
            return
        if other.presence is Presence.RUNNING:
            raise UserError(_is_running(store, other.status))
        if not logged and time.monotonic() - began > LOG_AFTER_S:
            logged = True
            log(_waiting_for(other.status))
        time.sleep(watch.every_s)


def _waiting_for(other: Status) -> str:
    there = "exists, but" if exists(other.process) else "has not reported its end, and"
    return (
        f"process {other.pid} on {other.host} ran {_who(other)}. It {there} has not reported since this start; taking "
        f"over if it stays silent for {readable(silence_s(other))}"
    )


def _is_running(store: Store, other: Status) -> str:
    since = readable(max(0.0, other.updated_at - other.started_at))
    return (
        f"{_who(other)} is already running on this store: process {other.pid} on {other.host}, for {since}. Drain the "
        f"pipeline with `cutwater drain --store {store.url}`, or take over with --takeover (takeover=True)"
    )


def _who(other: Status) -> str:
    return f"pipeline '{other.pipeline}'" + (f", member '{other.member}'," if other.member != ALONE else "")
