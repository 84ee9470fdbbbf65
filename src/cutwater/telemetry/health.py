"""Whether a member is alive and whether it is ready, for Kubernetes and load balancers.

*Alive*: the process answers, and no turn blocks it. A member that is not alive should be restarted. *Ready*: it has
caught up, its stages run, and the last checkpoint is recent. A member that is not ready may need nothing but time, so
nothing should kill it for that. Orchestrators send no token, so the answers quote no errors and name no stages.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from cutwater.protocol.base.durations import readable
from cutwater.store.status import Status
from cutwater.telemetry.status_values import UP

TURN_S = 5.0
"""How long another turn may take before the process counts as stuck."""
INTERVALS = 10
"""How many checkpoint intervals may pass without a commit."""
FLOOR_S = 60.0
"""A pipeline with short intervals may always go without a commit for this long."""
MAX_SILENCE = 5
"""After this many missed reports a status is out of date."""

Call = Callable[[Callable[[], None]], None]
"""Schedules a task to run in a turn of the member (`Shell.call`)."""


async def turn_problem(call: Call, timeout_s: float = TURN_S) -> str | None:
    """Wait for a turn of the member. Returns why there is none, or `None`."""
    loop, came = asyncio.get_running_loop(), asyncio.Event()

    def tell() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(came.set)

    call(tell)
    with suppress(TimeoutError):
        await asyncio.wait_for(came.wait(), timeout_s)
        return None
    return f"the process is stuck: one turn has taken longer than {readable(timeout_s)}; restart the process"


def readiness_problems(
    status: Status | None, age_s: float, now: float, intervals: float = INTERVALS
) -> list[str]:
    """Why a member is not ready; empty if it is. `status` is its last one, `age_s` old, `None` before the first; `now` is
    the wall clock's time. Without a commit since the start, the time since then counts."""
    if status is None:
        return ["the member is starting"]
    if status.is_over:
        return [f"the member has ended: {status.state}"]
    found = []
    if age_s > MAX_SILENCE * status.report_s:
        found.append(f"the member has not reported its status for {readable(age_s)}")
    if status.state == "starting":
        found.append("the member is starting: it has not caught up, or no member leads yet")
    down = Counter(
        stage.state
        for stage in status.stages
        if stage.state not in UP and not stage.runs_in  # a chained stage is as ready as the one it runs in
    )
    found += [f"{count} of {len(status.stages)} stages: {state}" for state, count in sorted(down.items())]
    since_s = now - (status.epoch_at if status.epoch_at is not None else status.started_at)
    if since_s > max(FLOOR_S, intervals * status.every_s):
        found.append(
            f"no checkpoint was committed for {readable(since_s)}, at an interval of {readable(status.every_s)}"
        )
    return found
