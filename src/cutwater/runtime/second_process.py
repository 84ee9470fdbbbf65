"""A second process of the same member is not started by accident.

Nothing rests on this: if two run all the same, the logs decide whose batches count. It looks at what the other
writes (`presence.py`): a status that goes on changing is that of a running member, wherever it runs and whatever
time it thinks it is.
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

TELL_AFTER_S = 1.0


def claim(store: Store, pipeline: str, member: str, takeover: bool, tell: Callable[[str], None]) -> None:
    """Returns when no other process seems to run this member. Raises `UserError` if one does, or if the store
    is another pipeline's."""
    watch = Watch(store)
    began = time.monotonic()
    told = False
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
        if not told and time.monotonic() - began > TELL_AFTER_S:
            told = True
            tell(_waiting_for(other.status))
        time.sleep(watch.every_s)


def _waiting_for(other: Status) -> str:
    there = "exists, and" if exists(other.process) else "has not said that it ended, and"
    return (
        f"process {other.pid} on {other.host} ran {_who(other)}. It {there} has given no sign since this start; taking "
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
