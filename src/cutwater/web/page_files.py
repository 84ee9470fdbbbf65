"""The files of the page. Only these exist: no name in a request is ever looked up in a folder."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


class PageFiles:
    """All files of the package's folder `page`, read once."""

    def __init__(self) -> None:
        folder = resources.files("cutwater.web").joinpath("page")
        self._files: dict[str, tuple[bytes, str]] = {}
        for file in sorted(folder.iterdir(), key=lambda found: found.name):
            name, dot, ending = file.name.rpartition(".")
            kind = TYPES.get(dot + ending)
            if name and kind is not None:
                self._files[f"/{file.name}"] = (file.read_bytes(), kind)
        self._files["/"] = self._files["/index.html"]

    @property
    def paths(self) -> list[str]:
        return list(self._files)

    def routes(self) -> list[BaseRoute]:
        return [Route(path, self._answer(data, kind)) for path, (data, kind) in self._files.items()]

    def _answer(self, data: bytes, kind: str) -> Callable[[Request], Awaitable[Response]]:
        tag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
        headers = {"content-type": kind, "etag": tag, "cache-control": "no-cache"}

        async def answer(request: Request) -> Response:
            if request.headers.get("if-none-match") == tag:
                return Response(status_code=304, headers=headers)
            return Response(data, headers=headers)

        return answer
