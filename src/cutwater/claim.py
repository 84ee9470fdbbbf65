"""Who runs a member: a second process of the same one is not started by accident.

Nothing rests on this: if two run all the same, the logs decide whose batches count. It looks at what the other
writes, not at its clock: what goes on changing is alive, wherever it runs and whatever time it thinks it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from cutwater.durations import readable
from cutwater.protocol.errors import UserError
from cutwater.status import ALONE, Status, read_status, stale_after
from cutwater.stores import Store


def claim(store: Store, pipeline: str, member: str, takeover: bool, tell: Callable[[str], None]) -> None:
    """Returns when no other process seems to run this member. Raises `UserError` if one does, or if the store
    is another pipeline's."""
    began = time.monotonic()
    first: Status | None = None
    while True:
        found = read_status(store)
        for status in found:
            if status.pipeline != pipeline:
                raise UserError(
                    f"the store {store.url} belongs to pipeline '{status.pipeline}', and this one is '{pipeline}'; "
                    "give each pipeline a store of its own"
                )
        other = next((s for s in found if s.member == member), None)
        if other is None or takeover or other.is_gone:
            return
        if first is not None and other.updated_at != first.updated_at:
            raise UserError(_runs_already(store, other))
        if first is None:
            first = other
            age = max(0.0, time.time() - other.updated_at)
            if age > 2:
                tell(
                    f"process {other.pid} on {other.host} ran {_who(other)} and has been silent for {readable(age)}; "
                    f"taking over if it stays so for {readable(stale_after(store))}"
                )
        if time.monotonic() - began >= stale_after(store):
            return
        time.sleep(0.2)


def _runs_already(store: Store, other: Status) -> str:
    since = readable(max(0.0, other.updated_at - other.started_at))
    return (
        f"{_who(other)} runs already on this store: process {other.pid} on {other.host}, since {since}. Drain the "
        f"pipeline with `cutwater drain --store {store.url}`, or take over with --takeover (takeover=True)"
    )


def _who(other: Status) -> str:
    return f"pipeline '{other.pipeline}'" + (f", member '{other.member}'," if other.member != ALONE else "")
