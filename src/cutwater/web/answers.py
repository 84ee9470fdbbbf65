"""JSON responses, including errors."""

from __future__ import annotations

import logging
from typing import Any

import msgspec
from starlette.responses import Response

_encode = msgspec.json.Encoder().encode


class Json(Response):
    media_type = "application/json"

    def __init__(self, content: Any, status_code: int = 200, headers: dict[str, str] | None = None) -> None:
        super().__init__(content, status_code, {"cache-control": "no-store", **(headers or {})})

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else _encode(content)


def failed(status: int, why: str, *, bearer: bool = False) -> Json:
    """An error response, with a message for people."""
    return Json({"error": why}, status, {"www-authenticate": "Bearer"} if bearer else None)


def unreadable(error: Exception) -> str:
    """The message that clients get about an error of the store. Errors of the operating system may name files of this
    machine, so those go to the log only."""
    if not isinstance(error, OSError) and not isinstance(error.__cause__, OSError):
        return f"the store cannot be read: {error}"
    logging.getLogger("cutwater").warning("the web server cannot read the store: %s", error)
    return "the store does not answer; the log of the server says why"
