"""Who may ask what: checks every request before anything else sees it.

On the loopback everybody on this machine may read. `Host` must be a name of the loopback there: otherwise a page that
a browser shows could resolve its own name to 127.0.0.1 and read ours (DNS rebinding). Anywhere else every request for
data needs the token, and so it does if the server has public names: then a proxy lets others in. Changes always need it,
in a header: a browser adds no such header by itself, so no other page can make a request in the name of its user (CSRF);
`Origin` is checked nevertheless.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cutwater.web.answers import failed

OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Answers that name nothing and quote nothing, for orchestrators, which send no token."""
SAFE = frozenset({"GET", "HEAD"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Guard:
    """Refuses what is not allowed, and adds the headers that every answer has. `files` are the paths of the page itself,
    which contains no data; `names` those by which a proxy in front of the server is known."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        token: str | None,
        files: Collection[str] = (),
        names: Collection[str] = (),
    ) -> None:
        self._app = app
        self._has_known_names = is_loopback(host)
        self._is_private = self._has_known_names and not names
        self._public = frozenset(name.lower() for name in names)
        self._names = LOOPBACK_NAMES | {host} | self._public
        self._token = _digest(token) if token else None
        self._files = frozenset(files)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name for name, _ in message["headers"]}
                added = [(k.encode(), v.encode()) for k, v in HEADERS.items() if k.encode() not in present]
                message = {**message, "headers": [*message["headers"], *added]}
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, answer)

    def _refusal(self, scope: Scope) -> Any:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        host = _host_of(headers.get("host", ""))
        if self._has_known_names and host not in self._names:
            return failed(
                403,
                f"open this server as http://127.0.0.1 or http://localhost, not as {host[:100]!r}; if that is the name "
                "of a proxy in front of it, start it with --http-name NAME",
            )
        is_change = scope["method"] not in SAFE
        if is_change and (refusal := self._refused_change(headers)):
            return refusal
        is_data = scope["path"] not in OPEN_PATHS and scope["path"] not in self._files
        if (is_change or (is_data and not self._is_private)) and not self._has_token(headers):
            return failed(
                401, "this needs the token that the server was started with (--http-token)", bearer=True
            )
        return None

    def _refused_change(self, headers: dict[str, str]) -> Any:
        if self._token is None:
            return failed(
                403,
                "this server only shows; start it with --http-token @FILE to control the pipeline with it",
            )
        origin = headers.get("origin")
        if origin is not None and not self._is_own(origin, headers.get("host", "")):
            return failed(403, "the request comes from another page")
        if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return failed(403, "the request comes from another page")
        return None

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether a page at `origin` is ours. Behind a proxy it has the proxy's name, whatever Host says."""
        try:
            at = urlsplit(origin).netloc
        except ValueError:
            return False
        return at == host or _host_of(at) in self._public

    def _has_token(self, headers: dict[str, str]) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        return (
            self._token is not None
            and scheme.lower() == "bearer"
            and hmac.compare_digest(_digest(given.strip()), self._token)
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _host_of(header: str) -> str:
    """The name in a Host header, without the port."""
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""
