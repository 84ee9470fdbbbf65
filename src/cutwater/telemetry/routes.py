"""`/metrics`, `/healthz` and `/readyz` of a member, as routes for a web server (extra `cutwater[web]`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cutwater.store.status import Status
from cutwater.telemetry.exposition import MemberCollector, exposed
from cutwater.telemetry.health import INTERVALS, readiness_problems, turn_problem
from cutwater.telemetry.measures import Measures


class Watched(Protocol):
    """A running member, as monitoring sees it."""

    measures: Measures

    @property
    def sink_names(self) -> Sequence[str]:
        """The sinks that it hosts."""
        ...

    @property
    def latest_status(self) -> tuple[Status | None, float]:
        """The status that it last reported, and when, in seconds of `time.monotonic`."""
        ...

    def turn(self, task: Callable[[], None]) -> None:
        """Schedules a task to run in a turn."""


Current = Callable[[], Watched | None]
"""Returns the member that runs in this process; `None` while there is none."""


def routes(current: Current) -> list[BaseRoute]:
    """The routes. They read only, and no request makes the member wait. They use no threads, which others that ask the
    server may hold."""
    asked: asyncio.Future[str | None] | None = None

    async def metrics(request: Request) -> Response:
        member = current()
        status, at_s = member.latest_status if member is not None else (None, 0.0)
        if member is None or status is None:
            return Response(status_code=503, content="the member is starting\n", media_type="text/plain")
        member.measures.read_s = time.monotonic()
        collector = MemberCollector(member.measures, status, at_s, member.sink_names)
        text, content_type = exposed(collector, request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": content_type})

    async def healthz(request: Request) -> Response:
        nonlocal asked
        member = current()
        if (
            member is None
        ):  # while a process starts Spark or waits for other members, there is no turn yet, and it is alive
            return _verdict([])
        if asked is None or asked.done():  # all that ask meanwhile get the same answer
            asked = asyncio.ensure_future(turn_problem(member.turn))
        problem = await asyncio.shield(asked)
        return _verdict([problem] if problem is not None else [])

    async def readyz(request: Request) -> Response:
        try:
            intervals = float(request.query_params.get("intervals", INTERVALS))
        except ValueError:
            return JSONResponse({"error": "intervals must be a number"}, 400)
        member = current()
        status, at_s = member.latest_status if member is not None else (None, 0.0)
        return _verdict(readiness_problems(status, time.monotonic() - at_s, time.time(), intervals))

    return [Route("/metrics", metrics), Route("/healthz", healthz), Route("/readyz", readyz)]


def _verdict(problems: list[str]) -> Response:
    if not problems:
        return JSONResponse({"ok": True})
    return JSONResponse({"ok": False, "problems": problems}, 503)
