"""REST: `/api/v1`. The documents are those that the commands print with `--json`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from cutwater.protocol.base.errors import StoreError, UserError
from cutwater.web.answers import Json, failed, unreadable
from cutwater.web.hub import Hub
from cutwater.web.openapi import MAX_NUMBER, MAX_PAGE, ONLY, openapi
from cutwater.web.reader import SlowStore, StoreReader, StoreView, known_ref
from cutwater.web.requests import RequestBody, Requests, TooMany
from cutwater.web.store_watcher import StoreWatcher
from cutwater.web.threads import Busy, Threads

PAGE = 50
LOOK_S = 5.0
"""How long a request waits while another one reads the store."""
SLOW = "the store is slow to answer; ask again later"
MAX_BODY = 64 * 1024

MAX_READERS = 32
"""How many requests may read the store at once."""

Answer = Callable[[Request], Response]
Endpoint = Callable[[Request], Awaitable[Response]]


class Api:
    """The routes below `/api/v1`. `may_steer`: whether the server was started with a token."""

    def __init__(
        self, reader: StoreReader, watcher: StoreWatcher, hub: Hub, requests: Requests, may_steer: bool
    ) -> None:
        self._reader = reader
        self._watcher = watcher
        self._requests = requests
        self._may_steer = may_steer
        self._hub = hub
        self._readers = Threads(MAX_READERS, "cutwater-web-read")

    def routes(self) -> list[BaseRoute]:
        return [
            Route("/pipeline", self._get(self._pipeline)),
            Route("/stages", self._get(self._stages)),
            Route("/stages/{name}", self._get(self._stage)),
            Route("/checkpoints", self._get(self._checkpoints)),
            Route("/checkpoints/{ref}", self._get(self._checkpoint)),
            Route("/checkpoints/{ref}/explain", self._get(self._explain)),
            Route("/timeline", self._get(self._timeline)),
            Route("/tables", self._get(self._tables)),
            Route("/members", self._get(self._members)),
            Route("/requests", self._all_requests),
            Route("/requests", self._ask, methods=["POST"]),
            Route("/requests/{id}", self._request),
            Route("/openapi.json", _openapi),
            Route("/events", self._hub),
        ]

    # --- what the store says ----------------------------------------------------------------------------

    def _get(self, answer: Callable[[Request, StoreView], Response]) -> Endpoint:
        """Answers in a thread, because the store may be slow."""

        def read(request: Request) -> Response:
            return answer(request, self._reader.look(self._watcher.every_s, LOOK_S))

        async def endpoint(request: Request) -> Response:
            self._watcher.touch()
            try:
                return await self._readers.result(lambda: _answer(read, request))
            except Busy:
                return failed(503, SLOW)

        return endpoint

    def _pipeline(self, request: Request, view: StoreView) -> Response:
        return Json(self._reader.pipeline(view) | {"may_steer": self._may_steer})

    def _stages(self, request: Request, view: StoreView) -> Response:
        return Json({"stages": list(self._stage_documents(view).values())})

    def _stage(self, request: Request, view: StoreView) -> Response:
        found = self._stage_documents(view).get(request.path_params["name"])
        return Json(found) if found is not None else failed(404, "there is no such stage")

    def _stage_documents(self, view: StoreView) -> dict[str, dict[str, Any]]:
        """Each stage of the graph, with its status if its member has reported one."""
        document = self._reader.pipeline(view)
        states = {stage["name"]: stage for member in document["members"] for stage in member["stages"]}
        return {s["name"]: {**s, "status": states.get(s["name"])} for s in document["graph"]}

    def _checkpoints(self, request: Request, view: StoreView) -> Response:
        only = request.query_params.get("only", "")
        if only and only not in ONLY:
            return failed(400, f"only is one of {', '.join(ONLY)}")
        limit, before = (
            _number(request, "limit", PAGE, MAX_PAGE),
            _number(request, "before", None, MAX_NUMBER),
        )
        assert limit is not None
        return Json(self._reader.checkpoints(view, limit, before, only))

    def _checkpoint(self, request: Request, view: StoreView) -> Response:
        ref = request.path_params["ref"]
        if not known_ref(view, ref):
            return failed(404, "there is no such checkpoint")
        try:
            return Json(self._reader.checkpoint(view, ref))
        except UserError:
            return failed(404, "this checkpoint is not kept; /explain may still know about it")

    def _explain(self, request: Request, view: StoreView) -> Response:
        ref = request.path_params["ref"]
        if not known_ref(view, ref):
            return failed(404, "there is no such epoch")
        try:
            return Json(self._reader.explained(view, ref))
        except UserError as error:
            return failed(404, str(error))

    def _timeline(self, request: Request, view: StoreView) -> Response:
        limit = _number(request, "limit", 200, MAX_PAGE)
        assert limit is not None
        return Json(self._reader.timeline(view, limit))

    def _tables(self, request: Request, view: StoreView) -> Response:
        limit, before = _number(request, "limit", 20, MAX_PAGE), _number(request, "before", None, MAX_NUMBER)
        assert limit is not None
        return Json(self._reader.tables(view, limit, before))

    def _members(self, request: Request, view: StoreView) -> Response:
        document = self._reader.pipeline(view)
        return Json({"leader": view.state.leader, "term": view.state.term, "members": document["members"]})

    # --- requests ---------------------------------------------------------------------------------------

    async def _ask(self, request: Request) -> Response:
        if (refusal := _refused_body(request)) is not None:
            return refusal
        try:
            body = msgspec.json.decode(await request.body(), type=RequestBody)
        except (ValueError, RecursionError) as error:
            return failed(400, f"this is not a request: {error}")
        self._watcher.touch()
        try:
            return Json(self._requests.ask(body), 202)
        except UserError as error:
            return failed(422, str(error))
        except TooMany:
            return failed(429, "several requests wait for their answers already; wait until one is done")

    async def _all_requests(self, request: Request) -> Response:
        return Json({"requests": self._requests.all()})

    async def _request(self, request: Request) -> Response:
        found = self._requests.find(request.path_params["id"])
        return Json(found) if found is not None else failed(404, "there is no such request")


def _refused_body(request: Request) -> Response | None:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return failed(415, "send JSON, with the header Content-Type: application/json")
    length = request.headers.get("content-length", "")
    if not (length.isascii() and length.isdigit()):
        return failed(411, "send the length of the request (Content-Length)")
    if len(length) > 9 or int(length) > MAX_BODY:
        return failed(413, f"a request has at most {MAX_BODY:,} bytes")
    return None


async def _openapi(request: Request) -> Response:
    return Json(openapi())


class _BadNumber(Exception):
    pass


def _number(request: Request, name: str, default: int | None, most: int) -> int | None:
    """A positive number from the query string."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 17 and 0 < int(text) <= most):
        raise _BadNumber(f"{name} is a number from 1 to {most}")
    return int(text)


def _answer(answer: Answer, request: Request) -> Response:
    """The response; an error becomes one too."""
    try:
        return answer(request)
    except _BadNumber as error:
        return failed(400, str(error))
    except SlowStore:
        return failed(503, SLOW)
    except (StoreError, OSError) as error:
        return failed(503, unreadable(error))
